"""Random numbers of a batch of rows: each row draws from its own seed, whatever else stands in the batch."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from torch import Tensor

from recollect.environments import counter_rng

#: Keeps the draws of a row's actions apart from its other draws.
ACTION_STREAM = 0x5EED_AC71

Numbers = TypeVar("Numbers", np.ndarray, Tensor)


def categorical_from_weights(weights: Numbers, uniform: Numbers) -> Numbers:
    """Indices [...] drawn in proportion to weights [..., A], each a function of one number [...] in [0, 1)."""
    until = weights.cumsum(-1)
    level = uniform[..., None] * until[..., -1:]
    return (until[..., :-1] <= level).sum(-1)


def uniform(seeds_B: np.ndarray, counters_B: np.ndarray, stream: int) -> np.ndarray:
    """One number in (0, 1) per row, float64 [B]: a function of the row's seed, its counter and the stream."""
    words = counter_rng.draw(seeds_B ^ np.uint64(stream), counters_B.astype(np.uint64))
    return ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def categorical_from_uniform(log_BA: np.ndarray, uniform_B: np.ndarray) -> np.ndarray:
    """Actions int64 [B] from their log-probabilities and one number in [0, 1) per row.

    An action is the number of cumulative probabilities that the row's number has reached. The last of them is left out:
    rounded, it could lie below 1.
    """
    bounds_BA = np.cumsum(np.exp(log_BA), axis=1)[:, :-1]
    return (uniform_B[:, None] >= bounds_BA).sum(1)
