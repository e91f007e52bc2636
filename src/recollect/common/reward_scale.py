"""Rewards of about one size: divided by the running deviation of discounted returns, and clipped.

Source: VecNormalize of Stable-Baselines3 1.4. The mean is not subtracted, and a reward is counted before it is scaled.
"""

from __future__ import annotations

import numpy as np


class RunningVariance:
    """Mean and variance of all numbers so far, taken in parts (parallel Welford; begins as if 1e-4 numbers were known)."""

    def __init__(self) -> None:
        self.moments = np.array([0.0, 1.0, 1e-4])  # mean, variance, count

    @property
    def variance(self) -> float:
        return float(self.moments[1])

    def take_in(self, values: np.ndarray) -> None:
        mean, variance, count = self.moments
        values = np.asarray(values, np.float64)
        added, distance = values.size, values.mean() - mean
        total = count + added
        squares = variance * count + values.var() * added + distance**2 * count * added / total
        self.moments = np.array([mean + distance * added / total, squares / total, total])


class RewardScale:
    """Scales the rewards of E games that are played side by side.

    Args:
        discount: of the returns whose deviation rewards are divided by (0.99 in VecNormalize).
    """

    def __init__(self, actors: int, clip: float, discount: float = 0.99) -> None:
        self.discounted_E = np.zeros(actors)
        self.returns = RunningVariance()
        self.clip = clip
        self.discount = discount

    def __call__(self, reward_E: np.ndarray, done_E: np.ndarray) -> np.ndarray:
        """Scaled rewards [E] of one step."""
        self.discounted_E = self.discounted_E * self.discount + reward_E
        self.returns.take_in(self.discounted_E)
        self.discounted_E[done_E] = 0
        return np.clip(reward_E / np.sqrt(self.returns.variance + 1e-8), -self.clip, self.clip)
