"""generate: environment config -> learning histories (`data/{scale}/{env}/histories.safetensors`).

The source agents of all tasks learn at once; what they do is written down in time order. A source that reads files
instead has a function `files`, which names them: the histories' manifest then holds their hashes. Where each task's
histories are made by a job of its own (`generate_task`), they are only put together here.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from recollect.settings.errors import UserError
from recollect.settings.resolve import (
    algorithm_module,
    environment_mapping,
    environment_path,
    environment_settings,
    source_hyperparameters,
    uses_gpu,
)
from recollect.stages import inputs, paths, provenance
from recollect.stages.begun import begun, with_trusted
from recollect.stages.stage import Job, Resources, Stage, Trust


def learns_on_gpu(scale: str, env: str) -> bool:
    """Source agents that look at images do; the others learn faster on CPU cores."""
    source = environment_mapping(scale, env).get("source") or {}
    return uses_gpu(str(source.get("algorithm", "ppo")))


def no_source(env: str) -> UserError:
    """That an environment has no source of histories."""
    do = "add a `source:` section (docs/adding.md), or use methods with `data: online`"
    return UserError("this environment has no source of histories", where=environment_path(env), do=do)


def check_histories(scale: str, env: str) -> None:
    """Check that the histories of an environment are there, whoever made them.

    Raises:
        UserError: they are not made, or the environment has no source of any.
    """
    path = paths.histories(scale, env)
    if path.is_file():
        return
    if environment_settings(scale, env).source is None:
        raise no_source(env)
    do = f"recollect.histories({scale!r}, {env!r}, make=True), or `snakemake {path}`"
    raise UserError("the histories are not made", where=path, do=do)


def generate(scale: str, env: str, *, trust_checkpoint: Trust = False, device: str = "cpu") -> bool:
    """Make the learning histories of an environment; most source agents learn on the CPU, whatever the device."""
    job = Job("generate", scale, env)
    if inputs.makes_by_task(scale, env):
        return put_together(job)
    return make(
        STAGE, job, paths.histories(scale, env), paths.history_checkpoints(scale, env), trust_checkpoint, device
    )


def make(stage: Stage, job: Job, target: Path, checkpoints: Path, trust: bool, device: str = "cpu") -> bool:
    """Let the source of an environment play all of its tasks, or the job's own, and write down what happens.

    Returns:
        Whether the job only went on from a checkpoint.

    Raises:
        UserError: the environment has no source, or no such task; or what the source raises.
    """
    from recollect.artifacts.sealed import write_arrays
    from recollect.artifacts.set_aside import SetAside
    from recollect.environments import registry
    from recollect.sources.columns import remove_growing

    scale, env = job.scale, job.env
    environment = environment_settings(scale, env)
    source, where = environment.source, environment_path(env)
    if source is None:
        raise no_source(env)
    module = algorithm_module(source.algorithm, where=f"{where}: source.algorithm", does="source")
    chosen = source_hyperparameters(scale, env, source)
    on = {"device": device} if uses_gpu(source.algorithm) else {}
    known = stage.provenance(job, on.get("device", "cpu"))
    options = {**environment.options, **environment.training_options}
    tasks = registry.tasks(environment.world, options, source.split)
    if job.task:
        tasks = [task for task in tasks if task.index == int(job.task)]
        if not tasks:
            raise UserError(
                f"there is no task {job.task} in the split '{source.split}'", where=where, do="name another"
            )
    with begun(
        stage,
        job,
        known,
        target.parent,
        checkpoints,
        trust=trust,
        env=env,
        method=source.algorithm,
        seed=source.seed,
    ) as run:
        with run.going_on():
            arrays = module.generate(environment.world, options, tasks, chosen, seed=source.seed, run=run, **on)
        write_arrays(target, arrays, kind="histories", provenance=with_trusted(known, run))
        remove_growing(target.parent)
        SetAside(checkpoints, target.parent).clear()  # with images it can be larger than the histories
    return run.resumed


def file_hashes(scale: str, env: str, task: str = "") -> dict[str, str]:
    """The hashes of the files that an environment's source reads, or of those of one task; of a source that plays, nothing.

    Raises:
        UserError: a file is missing, or is not as it was fetched.
    """
    from recollect.environments import registry
    from recollect.sources.published_fetch import hashes

    environment = environment_settings(scale, env)
    source = environment.source
    if source is None or not inputs.reads_files(scale, env):
        return {}
    module = algorithm_module(source.algorithm, where=f"{environment_path(env)}: source.algorithm", does="source")
    chosen = source_hyperparameters(scale, env, source)
    tasks = [one for one in registry.tasks(*inputs.source_tasks(scale, env)) if task in ("", str(one.index))]
    listed = inputs.generate_inputs(scale, env).get("published")
    return hashes(module.files(environment.world, tasks, chosen), listed)


def put_together(job: Job) -> bool:
    """One file of the histories of all tasks, which other jobs made; they pass through a file without a name."""
    from recollect.artifacts.lock import run_lock
    from recollect.artifacts.sealed import read_arrays, write_arrays
    from recollect.sources.columns import Columns, Rows

    target, parts = paths.histories(job.scale, job.env), inputs.generate_inputs(job.scale, job.env)
    known = STAGE.provenance(job)
    with run_lock(paths.history_checkpoints(job.scale, job.env)):
        columns = Columns(target.parent)
        for path in parts.values():
            arrays: dict[str, Any] = read_arrays(path, kind="histories")
            names: Iterable[str] = ("observation", "action", "reward", "done")
            columns.append(int(arrays["task"][0]), Rows(*(arrays[name] for name in names)), path)
        write_arrays(target, columns.arrays(), kind="histories", provenance=known)
    return False


STAGE = Stage(
    name="generate",
    over=("scale", "env"),
    reads=inputs.generate_inputs,
    hashes=file_hashes,
    writes={"histories": paths.histories},
    settings=provenance.generate_settings,
    modules=provenance.generate_modules,
    # The histories of all tasks are held until they are written: 20 bytes for each of 16 M steps. All agents learn at once
    # as batched matrix products. One thread at small scales: a job of two waits until both cores are free at once.
    asks=Resources((1500, 4000), (60, 480), threads=(1, 8), gpu=learns_on_gpu, resumes=True),
    priority=70,
    packages="source",
    run=generate,
)
