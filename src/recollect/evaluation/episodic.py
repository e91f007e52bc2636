"""Episodic evaluation: a policy plays n whole episodes in one batch, each from an empty memory.

Used for the final scores of the online methods (Memory-RL, AMAGO, HELM). Policies act deterministically with dropout
off; each policy defines what deterministic means for it.

An episode of a world with `parts` is several attempts at one task in a row (AMAGO's rollouts). The return of each of
its so many equal parts is scored too, as metric `part_return`: does the policy get better within the episode?
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from recollect.artifacts.scores import concat_scores, scores_frame
from recollect.common.contract import Policy, world_as_met
from recollect.common.rollout import Episodes, VectorWorld, Watch, play_episodes
from recollect.environments import registry
from recollect.environments.base import Task
from recollect.evaluation.normalised_scores import normalised
from recollect.settings.schema import EnvironmentSettings
from recollect.settings.seeding import seed_of


@dataclass(frozen=True)
class EpisodeScores:
    """One row per episode. `success_E` is NaN where the world has no notion of it, `part_return_EP` is [E, 0] without parts."""

    return_E: np.ndarray
    length_E: np.ndarray
    success_E: np.ndarray
    part_return_EP: np.ndarray


def play(
    world: VectorWorld,
    policy: Policy,
    episodes: int | None = None,
    *,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
    watch: Watch | None = None,
) -> EpisodeScores:
    """Play whole episodes: one per instance at a time, in as many rounds as it takes.

    Args:
        world: without autoreset; its random streams go on where they stand.
        policy: started anew for every round, so no episode knows of another.
        episodes: how many (default: one per instance).
        seed: of what the policy draws, if it draws anything.
        progress: called with the number of episodes that are over.
        watch: told of every step.

    Returns:
        Undiscounted return, length and success of each, in instance order within each round.
    """
    batch = world.num_envs
    wanted = batch if episodes is None else episodes
    rounds: list[Episodes] = []

    def act(observation: np.ndarray, reward: np.ndarray, done: np.ndarray, t: int, live: np.ndarray) -> np.ndarray:
        return policy.act(observation, reward, done)

    for number in range(-(-wanted // batch)):
        seeds = [seed_of("episodic evaluation actions", seed, number * batch + row) for row in range(batch)]
        policy.start(np.array(seeds, np.uint64), world.horizon, 1)
        rounds.append(play_episodes(world, act, watch))
        if progress is not None:
            progress(min(wanted, (number + 1) * batch))
    parts = int(getattr(world, "parts", 0))
    if not rounds:
        return EpisodeScores(np.zeros(0), np.zeros(0, np.int64), np.zeros(0), np.zeros((0, parts)))
    return EpisodeScores(
        np.concatenate([r.return_B for r in rounds])[:wanted],
        np.concatenate([r.length_B for r in rounds])[:wanted],
        np.concatenate([r.success_B for r in rounds])[:wanted],
        np.concatenate([part_returns(r.reward_BT, parts) for r in rounds])[:wanted],
    )


def part_returns(reward_BT: np.ndarray, parts: int) -> np.ndarray:
    """Return of each of so many equal parts of T steps, float64 [B, P]."""
    steps = reward_BT.shape[1] // max(1, parts)
    return reward_BT[:, : parts * steps].reshape(len(reward_BT), parts, steps).sum(2, dtype=np.float64)


def play_split(
    policy: Policy,
    environment: EnvironmentSettings,
    split: str,
    *,
    seed: int,
    progress: Callable[[int], None] | None = None,
    watch: Watch | None = None,
) -> tuple[list[Task], EpisodeScores]:
    """Play the `evaluation.episodes` episodes of a split in one batch, task after task in turn: tasks and scores."""
    listed = registry.tasks(environment.world, environment.options, split)
    count = environment.evaluation.episodes
    tasks = [listed[i % len(listed)] for i in range(count)]
    keys = ("episodic evaluation world", environment.name, environment.evaluation.seed, seed, split)
    seeds = np.array([seed_of(*keys, i) for i in range(count)], np.uint64)
    world = world_as_met(environment, tasks, seeds, policy)
    actions = seed_of("of run", environment.evaluation.seed, seed)
    return tasks, play(world, policy, seed=actions, progress=progress, watch=watch)


def evaluate(
    policy: Policy,
    environment: EnvironmentSettings,
    *,
    method: str,
    seed: int,
    step: int,
    progress: Callable[[int], None] | None = None,
) -> pd.DataFrame:
    """Score rows of the episodes of each split, see `play_split`.

    Returns:
        metric `return`, `success` where the world has it, and normalised returns where tasks list them (see
        `normalised_scores`); `episode` counts from 0 within the split. Of `part_return`, `task` is that count and `episode`
        the part: an episode with parts is a task of its own, in which each part comes after the others.
    """
    frames = []
    for split in environment.evaluation.splits:
        tasks, scores = play_split(policy, environment, split, seed=seed, progress=progress)
        normal = {name: value_E1[:, 0] for name, value_E1 in normalised(scores.return_E[:, None], tasks).items()}
        known = {"env": environment.name, "method": method, "seed": seed, "step": step, "split": split}
        played = {"task": np.array([task.index for task in tasks]), "episode": np.arange(len(tasks))}
        for metric, value_E in {"return": scores.return_E, "success": scores.success_E, **normal}.items():
            if not np.isnan(value_E).any():
                frames.append(scores_frame(**known, **played, metric=metric, value=value_E))
        if parts := scores.part_return_EP.shape[1]:
            place = {"task": np.arange(len(tasks))[:, None], "episode": np.arange(parts)}
            frames.append(scores_frame(**known, **place, metric="part_return", value=scores.part_return_EP))
    return concat_scores(frames)
