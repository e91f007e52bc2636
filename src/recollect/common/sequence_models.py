"""Sequence models behind one interface, which every method uses: tokens in, hidden states out, with explicit state.

A model maps tokens [B, T, D] to hidden states [B, T, H], causally. It does the same one token at a time with a state (a
key/value cache, a recurrent state, nothing), which goes in and comes out. Here are the interface, the recurrent models
and those without memory; `transformer_sequence` has the GPT, and a paper's package what only that paper has.

Dropout follows `train()` / `eval()`. Its draws come from streams that `reseed_dropout` restarts, so that they are a
function of a seed and a counter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from recollect.common.feedforward import default_init

Mask = Tensor | np.ndarray
Shared = Literal["histories", "rows", "tokens"] | None
Device = torch.device | str | None


class SequenceModel(nn.Module):
    """What a method knows of a sequence model. `input_width` and `output_width` are features per token, D and H.

    Stepping equals the whole pass as long as a row has no more tokens than the model remembers. Padding must be on the
    right; it needs no mask.
    """

    input_width: int
    output_width: int

    @property
    def random(self) -> bool:
        """Whether the model draws random numbers (dropout) in training mode."""
        return False

    @property
    def shares(self) -> Shared:
        """What may be read once for several rows, by `run` (`recollect.common.distinct_histories`): by default nothing."""
        return None

    def forward(self, x_BTD: Tensor, time_BT: Tensor | None = None) -> Tensor:
        """Hidden states [B, T, H].

        Args:
            time_BT: int64, place of each token in its row; None: 0, 1, 2, ... Only models with positions of the whole
                row read it.
        """
        raise NotImplementedError

    def run(self, x_BTD: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """Hidden states [B, T, H] from a state on (None: the beginning), and the state after the last token; see `shares`.

        This one is of models that go on from no state.
        """
        return self(x_BTD), None

    def selected(self, state: Any, rows_N: Tensor) -> Any:
        """The state of some rows; see `shares`."""
        raise NotImplementedError

    def initial_state(self, batch: int, device: Device = None) -> Any:
        """The state before the first token of `batch` rows; the device is the parameters' if none is given."""
        raise NotImplementedError

    def step(self, x_BD: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Hidden state [B, H] after one more token per row, and the state after it. The given state is used up."""
        raise NotImplementedError

    def reset(self, state: Any, mask_B: Mask) -> Any:
        """The state with the rows of the mask at their beginning again. The given state is used up."""
        raise NotImplementedError

    def state_arrays(self, state: Any) -> dict[str, np.ndarray]:
        raise NotImplementedError

    def state_from(self, arrays: Mapping[str, np.ndarray], device: Device = None) -> Any:
        raise NotImplementedError

    def reseed_dropout(self, seed: int) -> None:
        """Restart the dropout stream from a seed."""

    def attention(self, state: Any, rows_N: Tensor) -> Tensor | None:
        """What the newest token of some rows reads: [N, layers, C], the mean over heads; None where nothing attends.

        C is the context in tokens; the last is the newest token itself, and what lies before the first is zero.
        """
        return None


class MemorylessSequence(SequenceModel):
    """Each token alone: a subclass adds `forward`, for tokens of any leading shape."""

    @property
    def shares(self) -> Shared:
        return "tokens"

    def initial_state(self, batch: int, device: Device = None) -> None:
        """There is none."""

    def step(self, x_BD: Tensor, state: None) -> tuple[Tensor, None]:
        return self(x_BD), None

    def reset(self, state: None, mask_B: Mask) -> None:
        """There is nothing to forget."""

    def state_arrays(self, state: None) -> dict[str, np.ndarray]:
        return {}

    def state_from(self, arrays: Mapping[str, np.ndarray], device: Device = None) -> None:
        """There is none."""


class FeedForwardSequence(MemorylessSequence):
    """Linear + ReLU layers, all of one width, with PyTorch's default initialisation from a generator (CPU)."""

    def __init__(self, input_width: int, width: int, layers: int = 1, *, generator: torch.Generator) -> None:
        super().__init__()
        self.input_width, self.output_width = input_width, width
        linears = nn.Sequential()
        for inputs in [input_width, *[width] * (layers - 1)]:
            linear = nn.utils.skip_init(nn.Linear, inputs, width)
            default_init(linear, generator)
            linears.append(linear)
        self.layers = nn.ModuleDict({"linears": linears})  # policy files have these names

    def forward(self, x_BTD: Tensor, time_BT: Tensor | None = None) -> Tensor:
        for linear in self.layers["linears"].children():
            x_BTD = functional.relu(linear(x_BTD))
        return x_BTD


RecurrentState = tuple[Tensor, ...]
"""`(hidden, cell)` of an LSTM or `(hidden,)` of a GRU or RNN, each [layers, B, H]."""

_CELLS: dict[str, Any] = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}
_STATE_NAMES = ("hidden", "cell")


class RecurrentSequence(SequenceModel):
    """A stack of LSTM, GRU or tanh RNN layers. It carries its state over the whole row, whatever the training window is.

    Args:
        init: `orthogonal`: every weight matrix orthogonal (drawn for the full stacked gate matrix), every bias zero;
            `uniform`: everything uniform in +-1/sqrt(width), as PyTorch has it.
        forget_bias: initial bias of the LSTM's forget gate (orthogonal); 1 is the usual remedy for vanishing gradients.
    """

    def __init__(
        self,
        kind: Literal["lstm", "gru", "rnn"],
        input_width: int,
        width: int,
        layers: int = 1,
        *,
        init: Literal["orthogonal", "uniform"] = "orthogonal",
        forget_bias: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.kind, self.layers = kind, layers
        self.input_width, self.output_width = input_width, width
        # Made on "meta" because the default weights would be drawn from the global generator.
        on_meta = _CELLS[kind](input_width, width, num_layers=layers, batch_first=True, device="meta")
        self._hold(on_meta.to_empty(device="cpu"))
        if init == "orthogonal":
            self._orthogonal(forget_bias, generator)
        else:
            self._uniform(generator)

    def _hold(self, cells: Any) -> None:
        """Register the layers; the name that they get here stands in policy files."""
        self.cells = cells

    @torch.no_grad()
    def _orthogonal(self, forget_bias: float, generator: torch.Generator | None) -> None:
        width = self.output_width
        for name, parameter in self.cells.named_parameters():
            if name.startswith("weight"):
                nn.init.orthogonal_(parameter, generator=generator)
                continue
            parameter.zero_()
            if self.kind == "lstm" and name.startswith("bias_ih"):
                parameter[width : 2 * width] = forget_bias  # gate order: input, forget, cell, output

    @torch.no_grad()
    def _uniform(self, generator: torch.Generator | None) -> None:
        bound = self.output_width**-0.5
        for parameter in self.cells.parameters():
            parameter.uniform_(-bound, bound, generator=generator)

    @property
    def shares(self) -> Shared:
        return "histories"

    def run(self, x_BTD: Tensor, state: RecurrentState | None = None) -> tuple[Tensor, RecurrentState]:
        """Run over a sequence from a state (zeros when None): hidden outputs [B, T, H] and the state after the last.

        Always in float32: where PyTorch is to compute in bfloat16, its recurrent layers of a GPU take float16.
        """
        with torch.autocast(x_BTD.device.type, enabled=False):
            if self.kind == "lstm":
                h_BTH, after = self.cells(x_BTD.float(), state)
                return h_BTH, after
            h_BTH, hidden = self.cells(x_BTD.float(), None if state is None else state[0])
            return h_BTH, (hidden,)

    def forward(self, x_BTD: Tensor, time_BT: Tensor | None = None) -> Tensor:
        return self.run(x_BTD)[0]

    def step(self, x_BD: Tensor, state: RecurrentState) -> tuple[Tensor, RecurrentState]:
        h_B1H, after = self.run(x_BD[:, None], state)
        return h_B1H[:, 0], after

    def initial_state(self, batch: int, device: Device = None) -> RecurrentState:
        where = device if device is not None else next(self.parameters()).device
        zero = torch.zeros(self.layers, batch, self.output_width, device=where)
        return (zero, zero.clone()) if self.kind == "lstm" else (zero,)

    def selected(self, state: RecurrentState, rows_N: Tensor) -> RecurrentState:
        return tuple(part.index_select(1, rows_N) for part in state)

    def reset(self, state: RecurrentState, mask_B: Mask) -> RecurrentState:
        mask = torch.as_tensor(mask_B, device=state[0].device)
        return tuple(part.masked_fill(mask[None, :, None], 0.0) for part in state)

    def state_arrays(self, state: RecurrentState) -> dict[str, np.ndarray]:
        return {name: part.detach().cpu().numpy() for name, part in zip(_STATE_NAMES, state, strict=False)}

    def state_from(self, arrays: Mapping[str, np.ndarray], device: Device = None) -> RecurrentState:
        where = device if device is not None else next(self.parameters()).device
        return tuple(torch.as_tensor(np.array(arrays[name])).to(where) for name in _STATE_NAMES if name in arrays)
