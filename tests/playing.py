"""Episodes that tests play with a policy, without a scoring that could go on."""

from __future__ import annotations

import numpy as np

from recollect.artifacts.scoring import Scoring
from recollect.common.contract import Policy
from recollect.common.rollout import VectorWorld
from recollect.evaluation.episodic import EpisodeScores, play_round
from recollect.settings.seeding import seed_of


def play(world: VectorWorld, policy: Policy, episodes: int | None = None, *, seed: int = 0) -> EpisodeScores:
    """So many whole episodes (default: one per instance), in as many rounds as it takes; each starts the policy anew."""
    wanted = world.num_envs if episodes is None else episodes
    firsts = range(0, wanted, world.num_envs)
    rounds = [
        play_round(world, policy, seeds_B=_seeds(seed, first, world.num_envs), kept=Scoring().part(""))
        for first in firsts
    ]
    return EpisodeScores(*(np.concatenate(of_rounds)[:wanted] for of_rounds in zip(*rounds, strict=True)))


def _seeds(seed: int, first: int, rows: int) -> np.ndarray:
    return np.array([seed_of("episodic evaluation actions", seed, first + row) for row in range(rows)], np.uint64)
