"""Positional codes: the fixed sinusoid of Memory-RL's GPT, and learned tables.

A transformer here adds no positions of its own (`recollect.common.transformer`): the caller adds one of these.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from recollect.settings.errors import UserError
from recollect.settings.seeding import seed_of


def sinusoid(length: int, width: int) -> Tensor:
    """The table ``[length, width]`` of unscaled sines and cosines (Memory-RL, section 3 of our specification).

    Even feature 2i of position p is sin(p w_i), odd feature 2i+1 is cos(p w_i), with w_i = 10000^(-2i/width).
    Computed in float64: at p = 10 000 float32 angles are wrong in the fourth decimal.
    """
    position = torch.arange(length, dtype=torch.float64)[:, None]
    rate = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    table = torch.empty(length, width, dtype=torch.float64)
    table[:, 0::2] = torch.sin(position * rate)
    table[:, 1::2] = torch.cos(position * rate[: width // 2])
    return table.float()


class Positions(nn.Module):
    """The table of a positional code; whoever has the tokens adds its rows to them.

    Args:
        kind: ``sinusoid`` (fixed) or ``learned`` (a trained table).
        std: standard deviation of a learned table's initial entries: 1 for Memory-RL's option, 0.02 for GPT-2's.
    """

    table_LD: Tensor

    def __init__(self, length: int, width: int, *, kind: str = "sinusoid", std: float = 0.02, seed: int = 0) -> None:
        super().__init__()
        if kind == "sinusoid":
            self.register_buffer("table_LD", sinusoid(length, width), persistent=False)
        elif kind == "learned":
            draws = torch.Generator().manual_seed(seed_of("positions", seed))
            self.table_LD = nn.Parameter(torch.empty(length, width).normal_(0.0, std, generator=draws))
        else:
            raise UserError(
                f"there is no positional code {kind!r}", where="Positions", do="choose 'sinusoid' or 'learned'"
            )
