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


class _Cells(nn.Module):
    """The weights of a tanh RNN of one layer, under the names that `nn.RNN` gives them."""

    def __init__(self, draws: torch.Generator) -> None:
        super().__init__()
        bound = HIDDEN**-0.5

        def uniform(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(*shape).uniform_(-bound, bound, generator=draws))

        self.weight_ih_l0, self.weight_hh_l0 = uniform(HIDDEN, EMBEDDING), uniform(HIDDEN, HIDDEN)
        self.bias_ih_l0, self.bias_hh_l0 = uniform(HIDDEN), uniform(HIDDEN)


class TokenGoals(nn.Module):
    """Learning on a CPU, sequences that stand several times in a batch are read once. How many there are, a CUDA graph cannot ask.

    Read in float32 (see `RecurrentSequence.run`), token by token: `torch.compile` takes no recurrent layers.
    """

    def __init__(self, width: int, draws: torch.Generator) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(TOKENS, EMBEDDING).normal_(generator=draws))
        self.cells = _Cells(draws)
        self.out = plain_linear(HIDDEN, width, draws)
        self.norm = nn.LayerNorm(width)

    def forward(self, goals_KG: Tensor) -> Tensor:
        tokens = (goals_KG.flatten(-2).round().long() + SHIFT).clamp(0, TOKENS - 1)
        if not self._reads_once(tokens):
            return self._read(tokens.flatten(0, -2)).view(*tokens.shape[:-1], -1)
        different, which = tokens.flatten(0, -2).unique(dim=0, return_inverse=True)
        return self._read(different)[which].view(*tokens.shape[:-1], -1)

    def _reads_once(self, tokens: Tensor) -> bool:
        return self.training and not tokens.is_cuda

    def _read(self, tokens_NK: Tensor) -> Tensor:
        cells = self.cells
        with torch.autocast(tokens_NK.device.type, enabled=False):
            # There are few tokens, so what each of them adds is computed once.
            added = functional.linear(self.table, cells.weight_ih_l0, cells.bias_ih_l0 + cells.bias_hh_l0)
            first_NH, *later = functional.embedding(tokens_NK, added).unbind(1)
            hidden_NH = first_NH.tanh()
            for token_NH in later:
                hidden_NH = torch.addmm(token_NH, hidden_NH, cells.weight_hh_l0.T).tanh()
        return self.norm(self.out(hidden_NH))
