"""Recurrent sequence models: LSTM, GRU and tanh RNN stacks with one interface for whole sequences and single steps.

Source: Memory-RL (Ni et al. 2023): every weight matrix orthogonal (drawn for the full stacked gate matrix), every bias
zero, no dropout. `forget_bias` is ours: 0 is the paper's, 1 the usual remedy for vanishing gradients.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

RecurrentState = tuple[Tensor, ...]
"""`(h, c)` of an LSTM or `(h,)` of a GRU or RNN, each [layers, B, H]."""

_CELLS: dict[str, Any] = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}


class Recurrent(nn.Module):
    """A stack of recurrent layers.

    Args:
        kind: the cell.
        input_width: features per token.
        width: hidden units per layer.
        layers: stacked layers.
        forget_bias: initial bias of the LSTM's forget gate.
        generator: draws the initial weights (CPU).
    """

    def __init__(
        self,
        kind: Literal["lstm", "gru", "rnn"],
        input_width: int,
        width: int,
        layers: int = 1,
        *,
        forget_bias: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.kind, self.input_width, self.width, self.layers = kind, input_width, width, layers
        # made on "meta" because the default weights would be drawn from the global generator
        on_meta = _CELLS[kind](input_width, width, num_layers=layers, batch_first=True, device="meta")
        self.cells = on_meta.to_empty(device="cpu")
        with torch.no_grad():
            for name, parameter in self.cells.named_parameters():
                if name.startswith("weight"):
                    nn.init.orthogonal_(parameter, generator=generator)
                else:
                    parameter.zero_()
                    if kind == "lstm" and forget_bias and name.startswith("bias_ih"):
                        parameter[width : 2 * width] = forget_bias  # gate order: input, forget, cell, output

    def forward(self, x_BTD: Tensor, state: RecurrentState | None = None) -> tuple[Tensor, RecurrentState]:
        """Run over a sequence from `state` (zeros when None): hidden outputs [B, T, H] and the state after the last."""
        if self.kind == "lstm":
            h_BTH, after = self.cells(x_BTD, state)
            return h_BTH, after
        h_BTH, after = self.cells(x_BTD, None if state is None else state[0])
        return h_BTH, (after,)

    def step(self, x_BD: Tensor, state: RecurrentState) -> tuple[Tensor, RecurrentState]:
        """One token: hidden output [B, H] and the state after it. Equals `forward` on the same tokens."""
        h_B1H, after = self.forward(x_BD[:, None], state)
        return h_B1H[:, 0], after

    def initial_state(self, batch: int, device: torch.device | str | None = None) -> RecurrentState:
        """The zero state of `batch` rows."""
        where = device if device is not None else next(self.parameters()).device
        zero = torch.zeros(self.layers, batch, self.width, device=where)
        return (zero, zero.clone()) if self.kind == "lstm" else (zero,)

    def reset(self, state: RecurrentState, mask_B: Tensor) -> RecurrentState:
        """The state with the rows where `mask_B` is True set to zero; the other rows keep their bytes."""
        return tuple(part.masked_fill(mask_B[None, :, None], 0.0) for part in state)
