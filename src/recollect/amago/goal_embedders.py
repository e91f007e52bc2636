"""Goal sequences as vectors (AMAGO, specification 1.2): [..., K, G] as observations show them -> [..., width].

- `ff`: flattened, linear to 2 G, LeakyReLU, linear, LayerNorm.
- `token`: each number is a token (shifted by 128, of 257), a one-layer tanh RNN reads all, last state, linear, LayerNorm.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from recollect.amago.trajectory_encoders import plain_linear

TOKENS, SHIFT = 257, 128


class FeedForwardGoals(nn.Module):
    def __init__(self, count: int, size: int, width: int, draws: torch.Generator) -> None:
        super().__init__()
        self.first = plain_linear(count * size, 2 * size, draws)
        self.second = plain_linear(2 * size, width, draws)
        self.norm = nn.LayerNorm(width)

    def forward(self, goals_KG: Tensor) -> Tensor:
        return self.norm(self.second(functional.leaky_relu(self.first(goals_KG.flatten(-2)))))


class TokenGoals(nn.Module):
    """See the head of this file. Sequences that stand several times in a batch are read once."""

    def __init__(self, width: int, draws: torch.Generator, *, embedding: int = 16, hidden: int = 64) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(TOKENS, embedding).normal_(generator=draws))
        self.cells = nn.RNN(embedding, hidden, batch_first=True, device="meta").to_empty(device="cpu")
        with torch.no_grad():
            for parameter in self.cells.parameters():
                parameter.uniform_(-(hidden**-0.5), hidden**-0.5, generator=draws)
        self.out = plain_linear(hidden, width, draws)
        self.norm = nn.LayerNorm(width)

    def forward(self, goals_KG: Tensor) -> Tensor:
        tokens = (goals_KG.flatten(-2).round().long() + SHIFT).clamp(0, TOKENS - 1)
        different, which = tokens.flatten(0, -2).unique(dim=0, return_inverse=True)
        hidden = self.cells(self.table[different])[0][:, -1]
        return self.norm(self.out(hidden))[which].view(*tokens.shape[:-1], -1)


def make_goal_embedder(
    kind: Literal["ff", "token"], count: int, size: int, width: int, draws: torch.Generator
) -> nn.Module:
    return FeedForwardGoals(count, size, width, draws) if kind == "ff" else TokenGoals(width, draws)
