"""Rewards of about one size: over the running deviation of discounted returns, as Stable-Baselines3's VecNormalize.

Source: Stable-Baselines3 1.4 (specification 2 of HELM): the mean is not subtracted, statistics are updated before they are
used, and the discount is its own.
"""

from __future__ import annotations

import numpy as np

DISCOUNT = 0.99  # of the returns whose deviation rewards are divided by


class RunningVariance:
    """Mean and variance of all numbers so far, taken in parts (parallel Welford, as SB3: begins as 1e-4 numbers)."""

    def __init__(self) -> None:
        self.moments = np.array([0.0, 1.0, 1e-4])  # mean, variance, count

    @property
    def variance(self) -> float:
        """Of all so far."""
        return float(self.moments[1])

    def take_in(self, values: np.ndarray) -> None:
        """Add some numbers, of any shape."""
        mean, variance, count = self.moments
        values = np.asarray(values, np.float64)
        more, away = values.size, values.mean() - mean
        total = count + more
        squares = variance * count + values.var() * more + away**2 * count * more / total
        self.moments = np.array([mean + away * more / total, squares / total, total])


class RewardScale:
    """Rewards over the running deviation of discounted returns, clipped; see VecNormalize."""

    def __init__(self, actors: int, clip: float) -> None:
        self.discounted_E, self.returns, self.clip = np.zeros(actors), RunningVariance(), clip

    def __call__(self, reward_E: np.ndarray, done_E: np.ndarray) -> np.ndarray:
        """Scaled rewards [E] of one step, which is counted first."""
        self.discounted_E = self.discounted_E * DISCOUNT + reward_E
        self.returns.take_in(self.discounted_E)
        self.discounted_E[done_E] = 0
        return np.clip(reward_E / np.sqrt(self.returns.variance + 1e-8), -self.clip, self.clip)
