"""Episodic evaluation: a policy plays n whole episodes in one batch, each from an empty memory.

Used for the learning curves and final scores of the online methods (Memory-RL, AMAGO, HELM). Policies act
deterministically with dropout off; what that means is theirs to know.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from recollect.trajectories.rollout import Episodes, VectorWorld, play_episodes


class Policy(Protocol):
    """What is evaluated: batched over the instances of the world."""

    def start(self, batch: int) -> None:
        """Prepare for `batch` instances, all at the start of an episode."""
        ...

    def reset(self, mask_B: np.ndarray) -> None:
        """Forget the history of the rows where the mask is True."""
        ...

    def act(self, observation_BD: np.ndarray, reward_B: np.ndarray, done_B: np.ndarray) -> np.ndarray:
        """Actions for the current observations; reward and done are those of the step that led to them."""
        ...


@dataclass(frozen=True)
class EpisodeScores:
    """One row per episode. `success_E` is NaN where the world has no notion of it."""

    return_E: np.ndarray
    length_E: np.ndarray
    success_E: np.ndarray


def play(world: VectorWorld, policy: Policy, episodes: int | None = None) -> EpisodeScores:
    """Play whole episodes: one per instance at a time, in as many rounds as it takes.

    Args:
        world: without autoreset; its random streams go on where they stand.
        policy: started anew for every round, so no episode knows of another.
        episodes: how many (default: one per instance).

    Returns:
        Undiscounted return, length and success of each, in instance order within each round.
    """
    wanted = world.num_envs if episodes is None else episodes
    rounds: list[Episodes] = []

    def act(observation: np.ndarray, reward: np.ndarray, done: np.ndarray, t: int, live: np.ndarray) -> np.ndarray:
        return policy.act(observation, reward, done)

    for _ in range(-(-wanted // world.num_envs)):
        policy.start(world.num_envs)
        rounds.append(play_episodes(world, act))
    if not rounds:
        empty = np.zeros(0)
        return EpisodeScores(empty, empty.astype(np.int64), empty)
    return EpisodeScores(
        np.concatenate([r.return_B for r in rounds])[:wanted],
        np.concatenate([r.length_B for r in rounds])[:wanted],
        np.concatenate([r.success_B for r in rounds])[:wanted],
    )
