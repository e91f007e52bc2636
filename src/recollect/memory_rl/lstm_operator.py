"""All layers of LSTMs over whole sequences, for several networks at once, as one operator that torch.compile leaves as it is.

Traced cell by cell, the graph of a loss would have all steps one after the other. Here it has one node forward and one backward,
and what stands around them is compiled. On a GPU the operators are the kernels of `lstm_layers`; elsewhere they go cell by cell,
with the plain cell of `lstm_cells`.

torch.compile computes with their results before they have run, as `_like_states` and `_like_gradients` say they will lie in memory.
So what an operator gives lies in one piece, and shares no memory with anything.

Shapes: k networks, B rows of each, T steps, D input numbers, H hidden ones. Gates are input, forget, cell, output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from recollect.memory_rl.lstm_cells import PlainCells, kept_of, layers_of


def as_operator(x: Tensor, *weights: Tensor) -> Tensor:
    """Hidden states of the last layer [k, B, T, H], of inputs [k, B, T, D] and each layer's `Weights`, one behind the other."""
    keeps = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (x, *weights))
    h: Tensor = states(x.contiguous(), list(weights), keeps)[0]
    return h


@torch.library.custom_op("recollect::lstm_states", mutates_args=())
def states(x: Tensor, weights: list[Tensor], keeps: bool) -> list[Tensor]:
    """Hidden states of the last layer [k, B, T, H].

    Args:
        keeps: for a gradient: behind them stands what `Kept` names of each layer, without the last one's hidden states.
    """
    kept: list[Tensor] = []
    for own in layers_of(weights):
        (k, B, T, D), known = x.shape, _Known()
        gates = own.of_inputs(x.reshape(k, B * T, D)).view(k, B, T, -1)
        h = PlainCells.forward(known, gates.permute(2, 0, 1, 3), own.w_hidden.transpose(1, 2))
        after, c, *_ = known.saved_tensors
        before = torch.cat([torch.zeros_like(h[:1]), h[:-1]])
        kept += [_by_row(each) for each in (after, before, c, h)]
        x = kept[-1]
    return [kept[-1], *kept[:-1]] if keeps else [kept[-1]]


@states.register_kernel("cuda")
def _(x: Tensor, weights: list[Tensor], keeps: bool) -> list[Tensor]:
    from recollect.memory_rl import lstm_layers

    return lstm_layers.forward(x.contiguous(), layers_of(weights), keeps=keeps, exact=is_exact())


@states.register_fake
def _like_states(x: Tensor, weights: list[Tensor], keeps: bool) -> list[Tensor]:
    (k, B, T, _), layers, turned = x.shape, layers_of(weights), x.device.type == "cuda"
    by_row, by_step, H = (k, B, T), (k, T, B), layers[0].w_hidden.shape[2]
    found = [x.new_empty(*by_row, H)]
    for place in range(len(layers) if keeps else 0):
        lies = by_step if turned and place else by_row
        found += [x.new_empty(*lies, 4 * H), x.new_empty(*lies, H), x.new_empty(*lies, H)]
        if place + 1 < len(layers):
            found.append(x.new_empty(*(by_step if turned else by_row), H))
    return found


@torch.library.custom_op("recollect::lstm_gradients", mutates_args=())
def gradients(dh: Tensor, x: Tensor, weights: list[Tensor], known: list[Tensor]) -> list[Tensor]:
    """Gradients of x and, of each layer, of both weights and of a bias; of h's [k, B, T, H] and of what `states` gave."""
    found: list[Tensor] = []
    layers, kept = layers_of(weights), kept_of(known)
    inputs = [x, *(own.h for own in kept[:-1])]
    for own, (after, _, c, h), given in zip(reversed(layers), reversed(kept), reversed(inputs), strict=True):
        k, B, T, _ = given.shape
        saved = _Known(*(_by_step(each) for each in (after, c, c.tanh(), h)), own.w_hidden.transpose(1, 2))
        d_gates, d_hidden = PlainCells.backward(saved, _by_step(dh))
        d_gates = _by_row(d_gates).view(k, B * T, -1)
        d_in = torch.bmm(d_gates.transpose(1, 2), given.reshape(k, B * T, -1))
        found = [d_in, d_hidden.transpose(1, 2).contiguous(), d_gates.sum(1), *found]
        dh = torch.bmm(d_gates, own.w_in).view(given.shape)
    return [dh, *found]


@gradients.register_kernel("cuda")
def _(dh: Tensor, x: Tensor, weights: list[Tensor], known: list[Tensor]) -> list[Tensor]:
    from recollect.memory_rl import lstm_layers

    kept = kept_of([tensor.contiguous() for tensor in known])
    return lstm_layers.backward(dh.contiguous(), x.contiguous(), layers_of(weights), kept, exact=is_exact())


@gradients.register_fake
def _like_gradients(dh: Tensor, x: Tensor, weights: list[Tensor], known: list[Tensor]) -> list[Tensor]:
    found = [x.new_empty(x.shape)]
    for own in layers_of(weights):
        found += [each.new_empty(each.shape) for each in own[:3]]
    return found


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    x, weights, keeps = inputs
    if not keeps:
        raise ValueError("an LSTM that a gradient goes through must keep its cells")
    ctx.set_materialize_grads(False)  # those of all but the first would be zeros of their size
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(x, *weights, *output)
    ctx.weights = len(weights)


def _backward(ctx: Any, grads: Sequence[Tensor | None]) -> tuple[Tensor | None, list[Tensor | None], None]:
    saved = ctx.saved_tensors
    x, weights, known = saved[0], saved[1 : 1 + ctx.weights], saved[1 + ctx.weights :]
    if grads[0] is None:
        return None, [None] * len(weights), None
    dx, *found = gradients(grads[0].contiguous(), x, list(weights), list(known))
    by_weight: list[Tensor | None] = []
    for place in range(0, len(found), 3):
        by_weight += [*found[place : place + 3], found[place + 2]]  # both biases have the same
    return dx, by_weight, None


states.register_autograd(_backward, setup_context=_keep_for_backward)


def is_exact() -> bool:
    """Whether products of float32 are whole, or may be in TF32."""
    return torch.get_float32_matmul_precision() == "highest"


class _Known:
    """What plain cells keep from forward to backward, where autograd does not."""

    def __init__(self, *tensors: Tensor) -> None:
        self.saved_tensors = tensors

    def save_for_backward(self, *tensors: Tensor) -> None:
        self.saved_tensors = tensors


def _by_row(x_TSB: Tensor) -> Tensor:
    """[T, k, B, ...] as [k, B, T, ...], in memory of its own."""
    return x_TSB.permute(1, 2, 0, 3).clone(memory_format=torch.contiguous_format)


def _by_step(x_SBT: Tensor) -> Tensor:
    return x_SBT.permute(2, 0, 1, 3)
