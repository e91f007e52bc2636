"""What a run that acts while it learns plays: a world to learn in and one for its learning curve, whose scores it logs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from recollect.artifacts.run import Run
from recollect.artifacts.scores import LEARNING, scores_frame
from recollect.common.rollout import Episodes
from recollect.environments.base import World
from recollect.environments.parallel import make_world
from recollect.environments.registry import tasks
from recollect.settings.schema import EnvironmentSettings
from recollect.settings.seeding import seed_of


def make_worlds(
    environment: EnvironmentSettings, seed: int, actors: int, evaluators: int, split: str = "eval"
) -> tuple[World, World]:
    """The world that is trained in and the world of the learning curve, each with random streams of its own.

    Args:
        split: whose tasks the learning curve is of.
    """
    judged = world_of(environment, split, "learning-curve world", seed, evaluators)
    return world_of(environment, "train", "training world", seed, actors), judged


def metrics_of(world: Any) -> dict[str, np.ndarray]:
    """What a world kept of each instance's first episode since all began, float64 [B] by name: packaged worlds can."""
    names = getattr(world, "metrics", ())
    return {name: world.first_BM[:, m].copy() for m, name in enumerate(names)}


def world_of(environment: EnvironmentSettings, split: str, purpose: str, seed: int, count: int) -> World:
    """So many instances of a world, that play the tasks of a split in turn; `purpose` names their random streams."""
    listed = tasks(environment.world, environment.options, split)
    played = [listed[i % len(listed)] for i in range(count)]
    seeds = np.array([seed_of(purpose, seed, i) for i in range(count)], np.uint64)
    return make_world(environment.world, environment.options, played, seeds)


def log_learning(
    run: Run,
    played: Episodes,
    labels: dict[str, Any],
    step: int,
    task: int | np.ndarray,
    further: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Log an evaluation that was made while learning: each episode's return, and success where the world has it.

    Args:
        task: of the episodes, one of all or one of each.
        further: metrics of the episodes, see `metrics_of`.
    """
    values = {"return": played.return_B, "success": played.success_B, **(further or {})}
    for metric, value_B in values.items():
        if np.isnan(value_B).any():
            continue  # the world knows no success
        if labels == run.labels:
            run.log_episodes(step, LEARNING, metric, task, value_B)
            continue
        rows = scores_frame(
            **labels,
            step=step,
            split=LEARNING,
            task=task,
            episode=np.arange(len(value_B)),
            metric=metric,
            value=value_B,
        )
        run.log_scores(rows)
