"""How fast a method learns and acts on this machine.

It trains for a few steps and plays for a few episodes; the policy is thrown away. What is compiled, cached or allocated at
first is left out of the clock. RA-DT's authors act in one environment at a time (figures 33 and 34):
`steps_per_second_alone` is that, `steps_per_second_together` is what an evaluation of ours does. A method that learns while it acts
may say how many updates it makes (`updates_per_second` of its module), as AMAGO does (its figure 29).
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from recollect.artifacts.run import Run
from recollect.artifacts.scores import scores_frame
from recollect.artifacts.scoring import Scoring
from recollect.common.contract import Inputs, Policy
from recollect.environments import registry
from recollect.environments.base import Task
from recollect.evaluation.in_context import Moment, play_in_context
from recollect.settings.schema import EnvironmentSettings, Settings

STEPS = 200  # of training, of which the first quarter is not on the clock
EPISODES = 3  # in a row, of which the first is not: nothing can be retrieved in it
SPLIT = "speed"


class Clock(Run):
    """A run that is never saved, resumed or judged, and knows when it logged which step.

    Args:
        scratch: a folder of its own, never that of a run: methods clear what a run left there, and write files of their own.
    """

    def __init__(self, scratch: Path) -> None:
        super().__init__(scratch, scratch, settings_text="measured")
        self.at: list[tuple[int, float]] = []

    def resume(self) -> None:
        """Always a fresh start."""

    def due(self, step: int, every: int) -> bool:
        """Nothing is saved."""
        return False

    def scoring(self, policy: Any, step: int) -> Scoring:
        """Nothing is kept."""
        return Scoring()

    def log(self, step: int, **metrics: float) -> None:
        """Note the time; metrics are numbers, so all work on the device is done by now."""
        if "loss" in metrics:
            self.at.append((step, time.perf_counter()))

    def steps_per_second(self, steps: int) -> float:
        """Over all steps but the first quarter."""
        begun = next(place for place in self.at if place[0] >= steps // 4)
        return (self.at[-1][0] - begun[0]) / (self.at[-1][1] - begun[1])


def acting_speed(policy: Any, environment: EnvironmentSettings, tasks: list[Task], seed: int) -> float:
    """Environment steps per second of all tasks together, from the second episode on."""
    few = environment.model_copy(
        update={"evaluation": environment.evaluation.model_copy(update={"episodes": EPISODES})}
    )
    begun, count = 0.0, 0

    def watch(moment: Moment) -> None:
        nonlocal begun, count
        if begun:
            count += int(moment.playing_B.sum())
        elif moment.episode_B.min() >= 1:
            begun = time.perf_counter()

    play_in_context(policy, few, tasks, seed=seed, watch=watch)
    return count / (time.perf_counter() - begun)


def machine(device: str) -> str:
    """What the numbers are of: `NVIDIA H200`, or `x86_64 CPU, 1 thread`."""
    if device != "cpu":
        return torch.cuda.get_device_name()
    threads = torch.get_num_threads()
    return f"{platform.machine()} CPU, {threads} thread{'s' if threads > 1 else ''}"


def speeds(settings: Settings, train: Callable[..., Policy], inputs: Inputs, scratch: Path) -> pd.DataFrame:
    """Let a method learn and act for a while on the clock.

    Args:
        settings: of a method that learns from histories and acts in context.
        train: the method's own.
        scratch: see `Clock`.
    """
    chosen, environment = settings.method.hyperparameters, settings.environment
    brief = chosen.optimisation.model_copy(update={"steps": STEPS, "evaluate_every": None})
    few = settings.method.model_copy(update={"hyperparameters": chosen.model_copy(update={"optimisation": brief})})
    clock = Clock(scratch)
    policy = train(settings.model_copy(update={"method": few}), inputs, clock)
    tasks = list(registry.tasks(environment.world, environment.options, environment.evaluation.splits[0]))
    values = {
        "samples_per_second": clock.steps_per_second(STEPS) * brief.batch_size,
        "steps_per_second_alone": acting_speed(policy, environment, tasks[:1], settings.seed),
        "steps_per_second_together": acting_speed(policy, environment, tasks, settings.seed),
    }
    return _table(settings, values, STEPS)


def update_speed(
    settings: Settings, updates_per_second: Callable[..., float], device: str, scratch: Path
) -> pd.DataFrame:
    """Let a method update its networks for a while on the clock.

    Args:
        updates_per_second: the method's own; it takes settings, device and run.
        scratch: see `Clock`.
    """
    return _table(settings, {"updates_per_second": updates_per_second(settings, device, Clock(scratch))}, 0)


def _table(settings: Settings, values: dict[str, float], step: int) -> pd.DataFrame:
    about: dict[str, Any] = {
        "env": settings.environment.name,
        "method": settings.method.name,
        "seed": settings.seed,
    }
    return scores_frame(**about, step=step, split=SPLIT, metric=list(values), value=list(values.values()))
