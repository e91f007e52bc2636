"""Scores of what a search finds, and the order of what is taken: the same in training and while acting.

Source: RA-DT (arXiv 2410.07071), section 3 and appendix; the released code's `combine` and `choose`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor

from recollect.common.draws import categorical_from_weights
from recollect.radt.training_memory import NOTHING

Combine = Literal["add", "multiply"]


def minmax(values_BL: Tensor, valid_BL: Tensor) -> Tensor:
    """Each row mapped to [0, 1] over its valid places; 0 where all valid values are equal, and at invalid places."""
    low_B1 = values_BL.masked_fill(~valid_BL, float("inf")).amin(dim=1, keepdim=True)
    high_B1 = values_BL.masked_fill(~valid_BL, float("-inf")).amax(dim=1, keepdim=True)
    spread_B1 = high_B1 - low_B1
    usable_BL = valid_BL & (spread_B1 > 0)
    above_low_BL = torch.where(usable_BL, values_BL, low_B1) - low_B1
    scaled_BL = above_low_BL / torch.where(spread_B1 > 0, spread_B1, torch.ones_like(spread_B1))
    return torch.where(usable_BL, scaled_BL, torch.zeros_like(scaled_BL))


def combined(combine: Combine, terms: Iterable[tuple[float, Tensor]], *, like: Tensor) -> Tensor:
    """The sum or the product of (weight, term), each [B, L]. What has weight 0 is left out, and is no factor of 0."""
    score_BL = torch.full_like(like, 1.0 if combine == "multiply" else 0.0)
    for weight, term_BL in terms:
        if weight and combine == "multiply":
            score_BL = score_BL * (weight * term_BL)
        elif weight:
            score_BL = score_BL + weight * term_BL
    return score_BL


def drawn_places(value_BL: Tensor, chance_BK: Tensor) -> Tensor:
    """Places [B, K] drawn with chances proportional to the values (negative ones count as 0, and 0 as 1e-8)."""
    positive_BL = value_BL.double().clamp_min(0) + 1e-8
    weight_BL = positive_BL * (value_BL > NOTHING)
    below_one_BK = chance_BK.clamp_max(1 - 2**-53)  # 1 would draw the last place, whatever its value
    return categorical_from_weights(weight_BL[:, None], below_one_BK)


def by_return(id_BK: Tensor, score_BK: Tensor, return_BK: Tensor, last_BK: Tensor) -> tuple[Tensor, Tensor]:
    """Entries sorted ascending by (return, last timestep), so that the best stands nearest; -1 first."""
    return_BK = return_BK.masked_fill(id_BK < 0, NOTHING)
    by_last_BK = last_BK.argsort(dim=1, stable=True)
    then_by_return_BK = return_BK.gather(1, by_last_BK).argsort(dim=1, stable=True)
    order_BK = by_last_BK.gather(1, then_by_return_BK)
    return id_BK.gather(1, order_BK), score_BK.gather(1, order_BK)
