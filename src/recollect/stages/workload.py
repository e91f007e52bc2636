"""How much work a job is: the rule by which a measured time is carried to another size (recollect.common.work).

Each paper's package says it of its methods, in its module `work`. A method of a package without one counts its `steps`.
"""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType
from typing import Any

from recollect.common.work import FLOAT, LEARNING, UPDATE, Work, dense, shape_of, tasks_of
from recollect.radt import work as of_memories
from recollect.settings.catalogue import module_of
from recollect.settings.resolve import by_task, environment_settings, resolve, source_hyperparameters
from recollect.settings.schema import Settings
from recollect.settings.still import remembered
from recollect.sources import work as of_sources
from recollect.stages.stage import Job


def kind_of(job: Job) -> str:
    """What must agree between two jobs for the time of one to say something about the other: `train dqn gpt`."""
    if job.stage in ("generate", "generate_task"):
        return f"{job.stage} {_source(job.scale, job.env)[0]}"
    if not job.method:
        return job.stage
    settings = settings_of(job.scale, job.env, job.method)
    sequence = getattr(settings.method.hyperparameters, "sequence", None)
    words = [job.stage, settings.method.algorithm, getattr(sequence, "kind", "")]
    return " ".join(word for word in words if word)


def family_of(job: Job) -> str:
    """What must agree at the least, where no job of a kind was timed: stage, paper and sequence model: `train memory_rl gpt`."""
    if not job.method or job.stage.startswith("generate"):
        return kind_of(job)
    method = settings_of(job.scale, job.env, job.method).method
    room = module_of("method", method.algorithm, where="a method's algorithm").rpartition(".")[0].rpartition(".")[2]
    sequence = getattr(getattr(method.hyperparameters, "sequence", None), "kind", "")
    return " ".join(word for word in (job.stage, room, sequence) if word)


@remembered
def settings_of(scale: str, env: str, method: str) -> Settings:
    return resolve(scale, env, method, 0)


def work_of(job: Job) -> Work:
    """What a job, or a part of one, has to do; nothing for jobs that take seconds or wait for a network."""
    return _work_of(job.shape)


@remembered
def _work_of(job: Job) -> Work:
    scale, env = job.scale, job.env
    if job.stage in ("generate", "generate_task"):
        algorithm, hyperparameters = _source(scale, env)
        shape = shape_of(scale, env)
        tasks = 1 if job.stage == "generate_task" else _source_tasks(scale, env)
        work = of_sources.generated(hyperparameters, environment_settings(scale, env), shape, tasks)
        # Of tasks in jobs of their own, the histories are only put together.
        return Work(disk=work.disk) if job.stage == "generate" and by_task(algorithm) else work
    if job.stage == "embed_images":
        images = environment_settings(scale, env).images
        rows = _rows(scale, env)
        flop = rows * 18 * 4096 * 16 * 24
        disk = rows * (getattr(images, "width", 0) * FLOAT + 20)
        return Work(flop, rows / 1024, 0, disk)
    if job.stage == "train_images":
        settings = settings_of(scale, env, "dt")
        chosen = settings.method.hyperparameters
        seen = chosen.optimisation.steps * chosen.optimisation.batch_size * chosen.context
        pixels = shape_of(scale, env).pixels or 4096
        return of_memories.trained(settings) + Work(flop=seen * LEARNING * 18 * pixels * 16 * 24)
    if job.stage not in ("train", "evaluate", "inspect", "measure", "embed", "index"):
        return Work()
    settings = settings_of(scale, env, job.method)
    if job.stage == "embed":
        return of_memories.embedded(settings, _rows(scale, env), _source_tasks(scale, env))
    if job.stage == "index":
        return of_memories.indexed(settings, _rows(scale, env), _source_tasks(scale, env))
    room: Any = _room(settings.method.algorithm)
    if room is None:
        return _unknown(settings)
    if job.stage == "measure" and hasattr(room, "measured"):
        from recollect.evaluation.speed import EPISODES, STEPS

        return room.measured(settings, STEPS, EPISODES)  # type: ignore[no-any-return]
    reckon = room.trained if job.stage == "train" else room.played
    return reckon(settings)  # type: ignore[no-any-return]


def _room(algorithm: str) -> ModuleType | None:
    """The module `work` beside a method's own."""
    package = module_of("method", algorithm, where="a method's algorithm").rpartition(".")[0]
    name = f"{package}.work"
    return importlib.import_module(name) if package and importlib.util.find_spec(name) is not None else None


def _unknown(settings: Settings) -> Work:
    """A method that says nothing of its work: its steps, of a small dense network."""
    steps = float(getattr(settings.method.hyperparameters, "steps", 0))
    net = dense(shape_of(settings.scale, settings.environment.name).observation, 256, 256)
    return Work(steps * net.flop * LEARNING, steps * UPDATE, steps, 0, steps)


@remembered
def _source(scale: str, env: str) -> tuple[str, Any]:
    """(algorithm, hyperparameters) of what makes the histories of an environment."""
    source = environment_settings(scale, env).source
    assert source is not None  # else nothing would ask for histories
    return source.algorithm, source_hyperparameters(scale, env, source)


def _source_tasks(scale: str, env: str) -> int:
    source = environment_settings(scale, env).source
    return 0 if source is None else tasks_of(scale, env, source.split)


def _rows(scale: str, env: str) -> float:
    """Time steps of an environment's learning histories."""
    if environment_settings(scale, env).source is None:
        return 0.0
    return of_sources.rows(_source(scale, env)[1], _source_tasks(scale, env))
