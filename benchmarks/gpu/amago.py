"""Lines of AMAGO: updates with the sampling in front of them, and collecting with all actors.

The buffer holds made-up rollouts in files, as a run's does. Updates are those of the trainer's own epoch, cut to a few. What
acting costs late in a rollout of 10,000 steps is not seen: it is timed over its first steps.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.gpu.case import BYTES_OF_AN_UPDATE, Case, Part, Subject
from recollect.amago import work
from recollect.amago.loop import Trainer
from recollect.amago.network import world_shape
from recollect.amago.timestep_encoders import StepShape
from recollect.amago.trajectory_files import Trajectory
from recollect.common.cuda_graphs import WARM_UP
from recollect.common.work import FLOAT, shape_of
from recollect.evaluation.speed import Clock
from recollect.settings.resolve import algorithm_module

FEW = WARM_UP + 3  # updates on which two devices are compared; a graph is replayed in the last
READ = 2100  # steps after which no rate of seconds meets a new graph
UPDATES, STEPS = 10, 20  # of one call: updates, and steps of every actor
COMPARED = ("critic_loss", "gradient_norm")


def learning(case: Case) -> Subject:
    settings = case.settings
    hp: Any = settings.method.hyperparameters
    trainer = _trainer(case, UPDATES)
    window = hp.context_of(shape_of(case.scale, case.env).horizon)
    net = work.parts(settings, window)

    def update() -> None:
        trainer.at.of_epoch = 0
        trainer.learn({})

    per_update = hp.batch_size * window * work.learned(settings, window)
    parts = (
        Part(
            "update",
            "updates",
            lambda: case.rate(update, UPDATES, least=1),
            per_update,
            BYTES_OF_AN_UPDATE * net.trained.parameters,
        ),
        Part(
            "collecting",
            "env steps",
            lambda: _collecting_rate(case, trainer),
            net.acting.flop,
            FLOAT * net.acting.parameters / hp.actors,
            often=False,
        ),
    )
    whole = {"update": hp.epochs * hp.updates_per_epoch, "collecting": work.trained(settings).env_steps}
    return Subject(parts, numbers=lambda: _numbers(case), jobs={"train": whole})


def _collecting_rate(case: Case, trainer: Trainer) -> float:
    """Steps of all actors per second. A step is another graph each time that what it reads doubles: those are made before."""
    if case.device != "cpu":
        trainer.collector.collect(min(trainer.collector.world.horizon, READ))
    return case.rate(lambda: trainer.collector.collect(STEPS), STEPS * trainer.hp.actors)


class Kept(Clock):
    """A run that remembers the metrics of its rows."""

    def __init__(self, nowhere: Any) -> None:
        super().__init__(nowhere)
        self.rows: list[float] = []

    def log(self, step: int, **metrics: float) -> None:
        self.rows += [float(metrics[name]) for name in COMPARED if name in metrics]


def _trainer(case: Case, updates: int) -> Trainer:
    """A run with a full enough buffer, whose epochs have so many updates."""
    settings = case.settings
    few = {"updates_per_epoch": updates, "start_learning_at_epoch": 0}
    brief = settings.method.hyperparameters.model_copy(update=few)
    settings = settings.model_copy(update={"method": settings.method.model_copy(update={"hyperparameters": brief})})
    agent = algorithm_module(settings.method.algorithm, where=case.method).Agent
    trainer = Trainer(agent, settings, case.device, Kept(case.nowhere))  # type: ignore[arg-type]
    steps = world_shape(settings.environment).steps
    length = brief.save_length_of(trainer.collector.world.horizon)
    draws = np.random.default_rng(0)
    for _ in range(2):
        trainer.store.add([_rollout(draws, length, steps) for _ in range(brief.actors)])
    return trainer


def _rollout(draws: np.random.Generator, length: int, steps: StepShape) -> Trajectory:
    """A rollout of a world of vectors, and of discrete or continuous actions."""
    time = np.arange(length + 1, dtype=np.int32)
    if steps.kind == "discrete":
        previous = draws.integers(0, steps.actions, length + 1).astype(np.int16)
        previous[0] = -1
    else:
        previous = draws.uniform(-1, 1, (length + 1, steps.actions)).astype(np.float32)
        previous[0] = -2
    return {
        "observation": draws.random((length + 1, steps.vector), np.float32),
        "previous_action": previous,
        "reward": (draws.random(length + 1) < 0.05).astype(np.float32),
        "done": time == length,
        "time": time,
    }


def _numbers(case: Case) -> np.ndarray:
    trainer = _trainer(case, 1)
    for _ in range(FEW):
        trainer.at.of_epoch = 0
        trainer.learn({})
    run: Any = trainer.run
    return np.array(run.rows)
