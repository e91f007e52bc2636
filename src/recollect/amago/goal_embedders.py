"""Goal sequences as vectors (AMAGO, specification 1.2): [..., K, G] as observations show them -> [..., width].

- `ff`: flattened, linear to 2 G, LeakyReLU, linear, LayerNorm.
- `token`: each number is a token (shifted by 128, of 257), a one-layer tanh RNN reads all, last state, linear, LayerNorm.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from recollect.amago.trajectory_encoders import plain_linear

TOKENS, SHIFT = 257, 128
EMBEDDING, HIDDEN = 16, 64


class FeedForwardGoals(nn.Module):
    def __init__(self, count: int, size: int, width: int, draws: torch.Generator) -> None:
        super().__init__()
        self.first = plain_linear(count * size, 2 * size, draws)
        self.second = plain_linear(2 * size, width, draws)
        self.norm = nn.LayerNorm(width)

    def forward(self, goals_KG: Tensor) -> Tensor:
        hidden = functional.leaky_relu(self.first(goals_KG.flatten(-2)))
        return self.norm(self.second(hidden))


class TokenGoals(nn.Module):
    """Sequences that stand several times in a batch are read once, but while acting: how many there are, a CUDA graph cannot ask.

    Read in float32 (see `RecurrentSequence.run`).
    """

    def __init__(self, width: int, draws: torch.Generator) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(TOKENS, EMBEDDING).normal_(generator=draws))
        self.cells = nn.RNN(EMBEDDING, HIDDEN, batch_first=True, device="meta").to_empty(device="cpu")
        bound = HIDDEN**-0.5
        with torch.no_grad():
            for parameter in self.cells.parameters():
                parameter.uniform_(-bound, bound, generator=draws)
        self.out = plain_linear(HIDDEN, width, draws)
        self.norm = nn.LayerNorm(width)

    def forward(self, goals_KG: Tensor) -> Tensor:
        tokens = (goals_KG.flatten(-2).round().long() + SHIFT).clamp(0, TOKENS - 1)
        if not self.training:
            return self._read(tokens.flatten(0, -2)).view(*tokens.shape[:-1], -1)
        different, which = tokens.flatten(0, -2).unique(dim=0, return_inverse=True)
        return self._read(different)[which].view(*tokens.shape[:-1], -1)

    def _read(self, tokens_NK: Tensor) -> Tensor:
        with torch.autocast(tokens_NK.device.type, enabled=False):
            hidden_NH = self.cells(self.table[tokens_NK])[0][:, -1]
        return self.norm(self.out(hidden_NH))
