"""How many updates AMAGO makes per second on this machine (figures 6, right, and 29), with what stands in front of each of them.

The buffer holds made-up rollouts in files, as a run's does: windows are drawn, read, and sent to the device. Nothing is collected.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

from recollect.amago.agent import Agent
from recollect.amago.loop import Trainer
from recollect.amago.network import world_shape
from recollect.amago.timestep_encoders import StepShape
from recollect.amago.trajectory_files import Trajectory
from recollect.artifacts.run import Run
from recollect.settings.errors import UserError
from recollect.settings.schema import Settings

UPDATES = 5  # of each of two calls: in the first, what is compiled or captured is made; the second tells how fast it goes about
SECONDS = 10.0  # on the clock, about
MOST = 1000  # updates of a run's epoch, which waits for the device once
FEWEST = 2 * UPDATES + 1


def ready_trainer(
    agent: type[Agent], settings: Settings, device: torch.device | str, run: Run, updates: int
) -> Trainer:
    """A trainer whose buffer is full enough, and whose epochs have so many updates.

    Raises:
        UserError: observations are not vectors alone, or the run has several devices.
    """
    shape = world_shape(settings.environment)
    if shape.goal_part is not None or shape.steps.image or settings.method.hyperparameters.devices > 1:
        raise UserError(
            f"updates are not measured of '{settings.method.name}' on '{settings.environment.name}'",
            where="recollect measure",
            do="name an environment whose observations are numbers without goals, and a method with `devices: 1`",
        )
    few = {"updates_per_epoch": updates, "start_learning_at_epoch": 0}
    brief = settings.method.hyperparameters.model_copy(update=few)
    method = settings.method.model_copy(update={"hyperparameters": brief})
    trainer = Trainer(agent, settings.model_copy(update={"method": method}), device, run)
    length = brief.save_length_of(trainer.collector.world.horizon)
    draws = np.random.default_rng(0)
    for _ in range(2):
        trainer.store.add([_rollout(draws, length, shape.steps) for _ in range(brief.actors)])
    return trainer


def update(trainer: Trainer) -> float:
    """The updates of an epoch, and how many were made per second; all work on the device is done when it returns."""
    trainer.at.of_epoch = 0
    begun = time.perf_counter()
    trainer.learn({})
    return trainer.hp.updates_per_epoch / (time.perf_counter() - begun)


def updates_per_second(agent: type[Agent], settings: Settings, device: torch.device | str, run: Run) -> float:
    """Of a method in worlds whose observations are vectors, see `ready_trainer`.

    Args:
        run: one that is never saved (`recollect.evaluation.speed.Clock`).
    """
    trainer = ready_trainer(agent, settings, device, run, UPDATES)
    update(trainer)
    enough = max(1, min(MOST, round(SECONDS * update(trainer))))
    trainer.hp = trainer.hp.model_copy(update={"updates_per_epoch": enough})
    return update(trainer)


def _rollout(draws: np.random.Generator, length: int, steps: StepShape) -> Trajectory:
    """A rollout of a world of vectors, and of discrete or continuous actions."""
    at = np.arange(length + 1, dtype=np.int32)
    previous: Any
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
        "done": at == length,
        "time": at,
    }
