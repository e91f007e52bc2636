"""Ids of the textures around Crafter's player -> features: each embedded, all of them flat, linear, LeakyReLU, linear, LayerNorm.

Source: AMAGO (arXiv 2310.09971), specification 4.7: 63 cells, 65 ids, 4 numbers each, 192 features.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from recollect.amago.trajectory_encoders import plain_linear

IDS, EMBEDDING = 65, 4


class TextureEmbedder(nn.Module):
    """`cells`: how many ids are seen at once."""

    width = 192

    def __init__(self, cells: int, draws: torch.Generator) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(IDS, EMBEDDING).normal_(generator=draws))
        self.first = plain_linear(cells * EMBEDDING, self.width, draws)
        self.second = plain_linear(self.width, self.width, draws)
        self.norm = nn.LayerNorm(self.width)

    def forward(self, ids: Tensor) -> Tensor:
        """Whole numbers [..., cells] from 0 to 64 -> features [..., width]."""
        flat = functional.embedding(ids.long(), self.table).flatten(-2)
        return self.norm(self.second(functional.leaky_relu(self.first(flat))))
