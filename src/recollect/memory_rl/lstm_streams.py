"""LSTMs of several networks over whole sequences, side by side on a GPU, each on a stream of its own.

cuDNN knows one network only, and one of these sizes leaves most of a GPU idle. Both passes are one node of autograd's graph,
which forks from the current stream and joins it again: left to itself, autograd would run the backward of each network on the
stream of its forward, too, but when it frees what these streams still read, and lets others wait for them, is its own affair.

Shapes: k networks, B rows of each, T steps, D features, H hidden numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from recollect.common.cuda_graphs import side_by_side


def hidden_states(layers: int, training: bool, x_BTD: Tensor, *weights: Tensor) -> Tensor:
    """Of one LSTM [B, T, H], from zero; weights of each layer in PyTorch's order."""
    width = weights[1].shape[-1]
    zero = x_BTD.new_zeros(layers, len(x_BTD), width)
    h_BTH: Tensor = torch.lstm(x_BTD, (zero, zero), weights, True, layers, 0.0, training, False, True)[0]
    return h_BTH


def members_of(x_RTD: Tensor, weights: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
    """Each network's inputs [B, T, D] and weights, of all inputs [k * B, T, D] and stacked weights [k, ...]: views."""
    return list(zip(x_RTD.chunk(len(weights[0])), *(weight.unbind(0) for weight in weights), strict=True))


def beside_each_other(layers: int, training: bool, x_RTD: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """Hidden states [k * B, T, H] of k LSTMs, of inputs [k * B, T, D] and stacked weights [k, ...], on a GPU."""
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (x_RTD, *weights)):
        h_RTH: Tensor = _BesideEachOther.apply(layers, training, x_RTD, *weights)  # type: ignore[no-untyped-call]
        return h_RTH
    members = members_of(x_RTD, weights)
    return torch.cat(side_by_side([partial(hidden_states, layers, training, *member) for member in members]))


class _BesideEachOther(torch.autograd.Function):
    """Keeps a graph of each network, which begins at views of its inputs and weights and is gone through in the backward.

    Those views hold the memory that other streams read until the join, as `side_by_side` asks for.
    """

    @staticmethod
    def forward(ctx: Any, layers: int, training: bool, x_RTD: Tensor, *weights: Tensor) -> Tensor:
        wanted = ctx.needs_input_grad[2:]
        every = [
            [own.detach().requires_grad_(wants) for own, wants in zip(member, wanted, strict=True)]
            for member in members_of(x_RTD, weights)
        ]
        with torch.enable_grad():
            found = side_by_side([partial(hidden_states, layers, training, *own) for own in every])
        ctx.graphs = every, found
        return torch.cat(found)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dh_RTH: Tensor) -> tuple[Tensor | None, ...]:
        every, found = ctx.graphs
        ctx.graphs = None  # not kept for as long as the loss is
        sources = [[own for own in member if own.requires_grad] for member in every]
        parts = zip(found, sources, dh_RTH.chunk(len(found)), strict=True)
        gradients = side_by_side([partial(torch.autograd.grad, *part) for part in parts])
        joint = zip(*gradients, strict=True)
        x_wants, *weights_want = ctx.needs_input_grad[2:]
        dx_RTD = torch.cat(next(joint)) if x_wants else None
        return None, None, dx_RTD, *(torch.stack(next(joint)) if wants else None for wants in weights_want)
