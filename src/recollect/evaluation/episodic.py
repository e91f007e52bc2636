"""Episodic evaluation: a policy plays n whole episodes in one batch, each from an empty memory.

Used for the final scores of the online methods (Memory-RL, AMAGO, HELM). Policies act deterministically with dropout
off; what that means is theirs to know.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from recollect.artifacts.scores import concat_scores, scores_frame
from recollect.environments import registry
from recollect.methods.contract import Policy, world_as_met
from recollect.settings.schema import EnvironmentSettings
from recollect.settings.seeding import seed_of
from recollect.trajectories.rollout import Episodes, VectorWorld, play_episodes


@dataclass(frozen=True)
class EpisodeScores:
    """One row per episode. `success_E` is NaN where the world has no notion of it."""

    return_E: np.ndarray
    length_E: np.ndarray
    success_E: np.ndarray


def play(
    world: VectorWorld,
    policy: Policy,
    episodes: int | None = None,
    *,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> EpisodeScores:
    """Play whole episodes: one per instance at a time, in as many rounds as it takes.

    Args:
        world: without autoreset; its random streams go on where they stand.
        policy: started anew for every round, so no episode knows of another.
        episodes: how many (default: one per instance).
        seed: of what the policy draws, if it draws anything.
        progress: called with the number of episodes that are over.

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
        rounds.append(play_episodes(world, act))
        if progress is not None:
            progress(min(wanted, (number + 1) * batch))
    if not rounds:
        return EpisodeScores(np.zeros(0), np.zeros(0, np.int64), np.zeros(0))
    return EpisodeScores(
        np.concatenate([r.return_B for r in rounds])[:wanted],
        np.concatenate([r.length_B for r in rounds])[:wanted],
        np.concatenate([r.success_B for r in rounds])[:wanted],
    )


def evaluate(
    policy: Policy,
    environment: EnvironmentSettings,
    *,
    method: str,
    seed: int,
    step: int,
    progress: Callable[[int], None] | None = None,
) -> pd.DataFrame:
    """Score rows of `evaluation.episodes` episodes of each split, all in one batch, task after task in turn.

    Returns:
        metric `return`, and `success` where the world has it; `episode` counts from 0 within the split.
    """
    frames = []
    count = environment.evaluation.episodes
    for split in environment.evaluation.splits:
        listed = registry.tasks(environment.world, environment.options, split)
        tasks = [listed[i % len(listed)] for i in range(count)]
        keys = ("episodic evaluation world", environment.name, environment.evaluation.seed, seed, split)
        seeds = np.array([seed_of(*keys, i) for i in range(count)], np.uint64)
        world = world_as_met(environment, tasks, seeds, policy)
        scores = play(world, policy, seed=seed_of("of run", environment.evaluation.seed, seed), progress=progress)
        for metric, value_E in (("return", scores.return_E), ("success", scores.success_E)):
            if not np.isnan(value_E).any():
                frames.append(
                    scores_frame(
                        env=environment.name,
                        method=method,
                        seed=seed,
                        step=step,
                        split=split,
                        task=np.array([task.index for task in tasks]),
                        episode=np.arange(count),
                        metric=metric,
                        value=value_E,
                    )
                )
    return concat_scores(frames)
