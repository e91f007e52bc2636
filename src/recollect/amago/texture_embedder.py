"""Ids of the textures around Crafter's player -> features: each embedded, all of them flat, linear, LeakyReLU, linear, LayerNorm.

Source: AMAGO (arXiv 2310.09971), specification 4.7: 63 cells, 65 ids, 4 numbers each, 192 features.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from recollect.amago.trajectory_encoders import plain_linear

IDS = 65


class TextureEmbedder(nn.Module):
    """See the head of this file. `cells`: how many ids are seen at once."""

    def __init__(self, cells: int, draws: torch.Generator, *, embedding: int = 4, width: int = 192) -> None:
        super().__init__()
        self.width = width
        self.table = nn.Parameter(torch.empty(IDS, embedding).normal_(generator=draws))
        self.first = plain_linear(cells * embedding, width, draws)
        self.second = plain_linear(width, width, draws)
        self.norm = nn.LayerNorm(width)

    def forward(self, ids: Tensor) -> Tensor:
        """Whole numbers [..., cells] from 0 to 64 -> features [..., width]."""
        flat = functional.embedding(ids.long(), self.table).flatten(-2)
        return self.norm(self.second(functional.leaky_relu(self.first(flat))))
