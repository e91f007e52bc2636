"""Networks of one shape as one network: weights stacked on a leading axis, rows of each network one behind the other.

A GPU takes as long for ten products of these sizes as for one. So k networks read one batch of k * B rows, of which the
first B belong to the first network, and each linear layer is one `bmm`. What has no weights runs as it is.

torch.compile gets another form of the same (`per_member`). Of rows [k * B, T] PyTorch 2.11 does not see that they lie in memory as
[k, B * T] do: it copies all of them before each product, and again for its gradient. By way of [k, B, T] it sees that.

Shapes: S members (k of them), R = k B rows of all, B of one, T steps, D input numbers, H hidden ones.

The networks stay what they were: their parameters become views of the stacked ones. So each acts, is saved and is
loaded by itself, and sees every update of the whole.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from recollect.common.cpu.dropout import StackedDropout
from recollect.common.feedforward import ImageEmbedder
from recollect.common.sequence_models import RecurrentSequence, RecurrentState, Shared
from recollect.common.transformer import Transformer
from recollect.memory_rl.lstm_cells import Weights
from recollect.memory_rl.lstm_over_time import in_kernels, over_time
from recollect.memory_rl.sequence import HistoryEncoder
from recollect.settings.errors import UserError

warnings.filterwarnings(
    "ignore", "RNN module weights are not part of single"
)  # members' are apart: cuDNN copies these few


def stacked(members: Sequence[nn.Module]) -> Any:
    """One module that does what k modules of one shape do: [k * B, ...] -> [k * B, ...].

    Raises:
        UserError: a module has weights of a kind that is not stacked.
    """
    first = members[0]
    if isinstance(first, nn.Linear):
        return StackedLinear(cast("Sequence[nn.Linear]", members))
    if isinstance(first, nn.LayerNorm):
        return StackedNorm(cast("Sequence[nn.LayerNorm]", members))
    if isinstance(first, RecurrentSequence) and first.kind == "lstm":
        return StackedLSTM(cast("Sequence[RecurrentSequence]", members))
    if isinstance(first, RecurrentSequence | ImageEmbedder):
        return OneAfterTheOther(members)
    own = {name: parameter for name, parameter in first._parameters.items() if parameter is not None}
    if any(parameter.dim() for parameter in own.values()):
        raise UserError(
            f"the weights of a {type(first).__name__} cannot be stacked",
            where="ensemble",
            do="train the seeds one after the other: take the method out of the scale's `ensembles`",
        )
    whole: Any = copy.copy(first)
    whole._parameters = dict(first._parameters)
    for name in own:  # single numbers, which a loss reads as [k]
        whole._parameters[name] = stack_parameter([getattr(member, name) for member in members])
    whole._modules = dict(first._modules)  # a child may be None
    for name, _ in first.named_children():
        whole._modules[name] = stacked([member.get_submodule(name) for member in members])
    if isinstance(first, HistoryEncoder):
        whole.networks = len(members)
    if isinstance(first, Transformer):
        whole.dropout = StackedDropout([cast("Transformer", member).dropout for member in members])
    return whole


def stack_parameter(members: Sequence[Tensor]) -> nn.Parameter:
    """Parameters [...] as one [k, ...], of which they are views from now on; `members` keeps them, for their gradients."""
    whole = nn.Parameter(torch.stack([own.detach() for own in members]), members[0].requires_grad)
    for own, view in zip(members, whole.data, strict=True):
        own.data = view
    whole.members = list(members)  # type: ignore[attr-defined]
    return whole


def spread_gradients(whole: nn.Module) -> None:
    """Give each member's parameters their share of the gradients, as views."""
    for parameter in whole.parameters():
        if hasattr(parameter, "members"):
            shares = [None] * len(parameter.members) if parameter.grad is None else parameter.grad.unbind(0)
            for own, share in zip(parameter.members, shares, strict=True):
                own.grad = share


def per_member(x: Tensor, members: int) -> Tensor:
    """The rows of each of k members: [k * B, ...] to [k, B, ...]."""
    return x.unflatten(0, (members, -1))


def for_all_rows(weights_SD: Tensor, x: Tensor) -> Tensor:
    """One vector of each member, [k, D], for all of its rows in x, [k, ..., D]: [k, 1, ..., D]."""
    return weights_SD.view(len(x), *[1] * (x.dim() - 2), -1)


class StackedLinear(nn.Module):
    def __init__(self, members: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.weight = stack_parameter([member.weight for member in members])
        self.bias = stack_parameter([member.bias for member in members])

    def forward(self, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return self.to_compile(x)
        x_SND = x.reshape(len(self.weight), -1, x.shape[-1])
        return torch.baddbmm(self.bias[:, None], x_SND, self.weight.transpose(1, 2)).view(*x.shape[:-1], -1)

    def to_compile(self, x: Tensor) -> Tensor:
        """`forward` but for rounding. What follows adds the bias as it reads; in `baddbmm` a GPU writes and reads it per row."""
        x_split = per_member(x, len(self.weight))
        product_SNE = torch.bmm(x_split.flatten(1, -2), self.weight.transpose(1, 2))
        product = product_SNE.view(*x_split.shape[:-1], -1)
        return (product + for_all_rows(self.bias.to(product.dtype), product)).flatten(0, 1)


class StackedNorm(nn.Module):
    def __init__(self, members: Sequence[nn.LayerNorm]) -> None:
        super().__init__()
        self.weight = stack_parameter([member.weight for member in members])
        self.bias = stack_parameter([member.bias for member in members])
        self.eps = members[0].eps

    def forward(self, x: Tensor) -> Tensor:
        normed = functional.layer_norm(x, x.shape[-1:], eps=self.eps)
        if torch.compiler.is_compiling():
            normed = per_member(normed, len(self.weight))
            return torch.addcmul(for_all_rows(self.bias, normed), normed, for_all_rows(self.weight, normed)).flatten(
                0, 1
            )
        normed_SND = normed.view(len(self.weight), -1, x.shape[-1])
        return torch.addcmul(self.bias[:, None], normed_SND, self.weight[:, None]).view(x.shape)


FEW_LSTMS = 3
"""Most members that a GPU computes one after the other, by cuDNN. On an H200 an update of one takes 1.07 ms with 50 steps and 15.2
with 1,500. Of ten it took 3.9 and 94 with the first form of `lstm_kernels`, and takes 1.7 and 34. Between one and ten no update was
timed.
"""


class StackedLSTM(RecurrentSequence):
    """Whole sequences of all members at once (`lstm_over_time`), as cuDNN knows one network only; on a CPU, and where they are few,
    one member after the other, which is faster there. Always in float32, but see `lstm_kernels`.
    """

    def __init__(self, members: Sequence[RecurrentSequence]) -> None:
        nn.Module.__init__(self)
        first = members[0]
        self.kind, self.layers = first.kind, first.layers
        self.input_width, self.output_width = first.input_width, first.output_width
        every = [dict(member.cells.named_parameters()) for member in members]
        self.cells = nn.ParameterDict({name: stack_parameter([own[name] for own in every]) for name in every[0]})

    def _weights(self, layer: int) -> Weights:
        return Weights(*(self.cells[f"{name}_l{layer}"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")))

    @property
    def compiles(self) -> bool:
        """Whether torch.compile can have it as a whole: where all members are kernels. cuDNN's LSTMs would break the graph."""
        w_hidden = self._weights(0)[1]
        return len(w_hidden) > FEW_LSTMS and in_kernels(w_hidden)

    def forward(self, x_RTD: Tensor, time_RT: Tensor | None = None) -> Tensor:
        with torch.autocast(x_RTD.device.type, enabled=False):
            if x_RTD.device.type == "cpu" or len(self._weights(0)[0]) <= FEW_LSTMS:
                return torch.cat([h_BTH for h_BTH, _, _ in self.one_after_the_other(x_RTD.float())])
            return self.at_once(x_RTD.float())

    def run(self, x_RTD: Tensor, state: RecurrentState | None = None) -> tuple[Tensor, RecurrentState]:
        with torch.autocast(x_RTD.device.type, enabled=False):
            every_h, every_hidden, every_cell = zip(*self.one_after_the_other(x_RTD.float(), state), strict=True)
        return torch.cat(every_h), (torch.cat(every_hidden, 1), torch.cat(every_cell, 1))

    def one_after_the_other(
        self, x_RTD: Tensor, state: RecurrentState | None = None
    ) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Of each member, hidden outputs [B, T, H], and the state after the last step, [layers, B, H] each."""
        every = [weight.unbind(0) for layer in range(self.layers) for weight in self._weights(layer)]
        k = len(every[0])
        if state is None:
            zero = x_RTD.new_zeros(self.layers, len(x_RTD) // k, self.output_width)
            starts = [(zero, zero)] * k
        else:
            hidden, cell = ([part.contiguous() for part in whole.chunk(k, 1)] for whole in state)
            starts = list(zip(hidden, cell, strict=True))
        return [
            torch.lstm(x_BTD, start, own, True, self.layers, 0.0, self.training, False, True)
            for x_BTD, start, *own in zip(x_RTD.chunk(k), starts, *every, strict=True)
        ]

    def at_once(self, x_RTD: Tensor) -> Tensor:
        k = len(self._weights(0)[0])
        rows, T, width = x_RTD.shape
        weights = [weight for layer in range(self.layers) for weight in self._weights(layer)]
        return over_time(x_RTD.view(k, rows // k, T, width), weights).reshape(rows, T, -1)

    def step(self, x_RD: Tensor, state: RecurrentState) -> tuple[Tensor, RecurrentState]:
        k = len(self._weights(0)[0])
        hidden, cell = [], []
        for layer, (h_RH, c_RH) in enumerate(zip(*state, strict=True)):
            own = self._weights(layer)
            gates = own.of_inputs(x_RD.view(k, -1, x_RD.shape[-1]))
            gates = torch.baddbmm(gates, h_RH.view(k, -1, self.output_width), own.w_hidden.transpose(1, 2))
            into, forget, new, out = gates.view(len(x_RD), -1).chunk(4, -1)
            c_RH = torch.addcmul(into.sigmoid() * new.tanh(), forget.sigmoid(), c_RH)
            x_RD = out.sigmoid() * c_RH.tanh()
            hidden.append(x_RD)
            cell.append(c_RH)
        return x_RD, (torch.stack(hidden), torch.stack(cell))


class OneAfterTheOther(nn.Module):
    """What is not worth a stacked form: each member reads its own rows. Its weights are the members' own."""

    shares: Shared = None

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, x: Tensor, *more: Any) -> Tensor:
        parts = x.chunk(len(self.members))
        return torch.cat([member(part, *more) for member, part in zip(self.members, parts, strict=True)])
