"""Lines of AMAGO: updates with the sampling in front of them, and collecting with all actors.

The buffer holds made-up rollouts in files, as a run's does. Updates are those of the trainer's own epoch, cut to a few. What
acting costs late in a rollout of 10,000 steps is not seen: it is timed over its first steps.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from benchmarks.gpu.case import BYTES_OF_AN_UPDATE, Case, Part, Subject
from recollect.amago import speed, work
from recollect.amago.loop import Trainer
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

    per_update = hp.batch_size * window * work.learned(settings, window)
    parts = (
        Part(
            "update",
            "updates",
            lambda: case.rate(partial(speed.update, trainer), UPDATES, least=1),
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
    agent = algorithm_module(case.settings.method.algorithm, where=case.method).Agent
    return speed.ready_trainer(agent, case.settings, case.device, Kept(case.nowhere), updates)  # type: ignore[arg-type]


def _numbers(case: Case) -> np.ndarray:
    trainer = _trainer(case, 1)
    for _ in range(FEW):
        speed.update(trainer)
    run: Any = trainer.run
    return np.array(run.rows)
