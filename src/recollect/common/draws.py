"""Random numbers of a batch of rows: each row draws from its own seed, whatever else stands in the batch."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import torch

from recollect.environments import counter_rng

Numbers = TypeVar("Numbers", np.ndarray, torch.Tensor)

#: Keeps the draws of a row's actions apart from its other draws.
ACTION_STREAM = 0x5EED_AC71


def uniform(seeds_B: np.ndarray, counters_B: np.ndarray, stream: int) -> np.ndarray:
    """One number in (0, 1) per row, float64 [B]: a function of the row's seed, its counter and the stream."""
    words = counter_rng.draw(seeds_B ^ np.uint64(stream), counters_B.astype(np.uint64))
    return ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def categorical_from_uniform(weight: Numbers, chance: Numbers) -> Numbers:
    """Places [...] drawn with chances proportional to weights [..., N], by numbers [...] in [0, 1).

    Not even a number that rounding made 1 draws a place of weight 0, unless all weights are.
    """
    until = weight.cumsum(-1)
    total = until[..., -1:]
    passed = (until <= chance[..., None] * total) & (until < total)
    return passed.sum(-1)
