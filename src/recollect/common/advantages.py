"""Generalised advantage estimates, for every kind of PPO."""

from __future__ import annotations

import numpy as np


def advantages(
    reward_TE: np.ndarray, done_TE: np.ndarray, values_TE: np.ndarray, gamma: float, gae_lambda: float
) -> np.ndarray:
    """Generalised advantage estimates (Schulman et al. 2016) [T, E]; `values_TE` has one more row, for after T."""
    discount_TE = np.where(done_TE, np.float32(0), np.float32(gamma))
    advantage_TE = reward_TE + discount_TE * values_TE[1:] - values_TE[:-1]
    decay_TE = discount_TE * np.float32(gae_lambda)
    for t in range(len(advantage_TE) - 2, -1, -1):
        advantage_TE[t] += decay_TE[t] * advantage_TE[t + 1]
    return advantage_TE
