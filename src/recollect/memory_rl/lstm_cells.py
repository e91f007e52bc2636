"""An LSTM over whole sequences for several networks at once, cell by cell: PlainCells, and the same with PyTorch's fused cell.

With the fused cell a step is two kernels forward and three or four backward, with the plain one seven and more. `lstm_over_time`
says which is taken. A state that is multiplied at each step is so in whole float32, whatever the products beside it may be.

Shapes: T steps, k networks, B rows of each, H hidden numbers. Gates stand in PyTorch's order: input, forget, cell, output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from recollect.common.precision import full_precision


class Weights(NamedTuple):
    """Of one layer: of inputs [k, 4H, D] and hidden states [k, 4H, H], and the biases of both [k, 4H]."""

    w_in: Tensor
    w_hidden: Tensor
    b_in: Tensor
    b_hidden: Tensor

    def of_inputs(self, x: Tensor) -> Tensor:
        """What inputs [k, N, D] add to the gates [k, N, 4H]."""
        return torch.baddbmm((self.b_in + self.b_hidden)[:, None], x, self.w_in.transpose(1, 2))


class Kept(NamedTuple):
    """What the way back needs of each layer, all steps: gates [..., 4H], hidden states before each step, cells and hidden states
    after it [..., H]. `...` is k, B, T; on a GPU k, T, B in layers above the first, and for hidden states below the last.
    """

    gates: Tensor
    before: Tensor
    c: Tensor
    h: Tensor


def layers_of(weights: Sequence[Tensor]) -> list[Weights]:
    return [Weights(*weights[place : place + 4]) for place in range(0, len(weights), 4)]


def kept_of(states: Sequence[Tensor]) -> list[Kept]:
    """Each layer's, of what `recollect.memory_rl.lstm_operator.states` gives if it keeps."""
    last, *more = states
    return [Kept(*(*more, last)[place : place + 4]) for place in range(0, len(more), 4)]


class PlainCells(torch.autograd.Function):
    """The backward is written out: autograd's own adds the weights' gradient at every step."""

    @staticmethod
    @full_precision("cuda")
    def forward(ctx: Any, gates: Tensor, w_hidden: Tensor) -> Tensor:
        T, k, B, width = gates.shape
        H = width // 4
        gates = gates.clone(memory_format=torch.contiguous_format)
        h, c, tanh_c = (gates.new_empty(T, k, B, H) for _ in range(3))
        for t in range(T):
            now = gates[t] if t == 0 else gates[t].baddbmm_(h[t - 1], w_hidden)
            now[..., : 2 * H].sigmoid_()
            now[..., 2 * H : 3 * H].tanh_()
            now[..., 3 * H :].sigmoid_()
            into, forget, cell, out = now.split(H, -1)
            torch.mul(into, cell, out=c[t])
            if t:
                c[t].addcmul_(forget, c[t - 1])
            torch.tanh(c[t], out=tanh_c[t])
            torch.mul(out, tanh_c[t], out=h[t])
        ctx.save_for_backward(gates, c, tanh_c, h, w_hidden)
        return h

    @staticmethod
    @torch.autograd.function.once_differentiable
    @full_precision("cuda")
    def backward(ctx: Any, dh: Tensor) -> tuple[Tensor, Tensor]:
        gates, c, tanh_c, h, w_hidden = ctx.saved_tensors
        T, H = h.shape[0], h.shape[-1]
        into, forget, cell, out = gates.split(H, -1)
        # What no later step changes, for all steps at once: dc of each gate before its activation, and of h.
        before = torch.cat([torch.zeros_like(c[:1]), c[:-1]])
        of_c = torch.cat(
            [cell * into * (1 - into), before * forget * (1 - forget), into * (1 - cell * cell)], -1
        ).unflatten(-1, (3, H))
        of_h = tanh_c * out * (1 - out)
        c_of_h = out * (1 - tanh_c * tanh_c)
        d_gates = torch.empty_like(gates)
        dc = torch.zeros_like(c[0])
        w_back = w_hidden.transpose(1, 2)
        for t in range(T - 1, -1, -1):
            dh_t = dh[t] if t == T - 1 else torch.baddbmm(dh[t], d_gates[t + 1], w_back)
            dc = torch.addcmul(dc, dh_t, c_of_h[t])
            torch.mul(of_c[t], dc[..., None, :], out=d_gates[t, ..., : 3 * H].unflatten(-1, (3, H)))
            torch.mul(dh_t, of_h[t], out=d_gates[t, ..., 3 * H :])
            dc = dc * forget[t]
        return d_gates, of_weights(h, d_gates)


class FusedCells(torch.autograd.Function):
    """The same with PyTorch's fused cell, which keeps the gates after their activation for its backward."""

    @staticmethod
    @full_precision("cuda")
    def forward(ctx: Any, gates: Tensor, w_hidden: Tensor) -> Tensor:
        T, k, B, width = gates.shape
        gates_TRG = gates.reshape(T, k * B, width)
        hidden_RG = torch.zeros_like(gates_TRG[0])
        c_RH = gates.new_zeros(k * B, width // 4)
        h: list[Tensor] = []
        c: list[Tensor] = []
        after: list[Tensor] = []
        for t in range(T):
            if t:
                hidden_RG = torch.bmm(h[-1].view(k, B, -1), w_hidden).view(k * B, width)
            h_RH, c_RH, activated_RG = torch.ops.aten._thnn_fused_lstm_cell(gates_TRG[t], hidden_RG, c_RH)
            h.append(h_RH)
            c.append(c_RH)
            after.append(activated_RG)
        h_TSBH = torch.stack(h).view(T, k, B, -1)
        ctx.save_for_backward(w_hidden, h_TSBH, *c, *after)
        return h_TSBH

    @staticmethod
    @torch.autograd.function.once_differentiable
    @full_precision("cuda")
    def backward(ctx: Any, dh: Tensor) -> tuple[Tensor, Tensor]:
        w_hidden, h, *kept = ctx.saved_tensors
        T, k, B, H = h.shape
        c, after = kept[:T], kept[T:]
        dc_RH = torch.zeros_like(c[0])
        none_RH = torch.zeros_like(c[0])
        w_back = w_hidden.transpose(1, 2)
        dh = dh.contiguous()
        d_gates: list[Tensor] = []  # the last step's first
        for t in range(T - 1, -1, -1):
            dh_SBH = torch.baddbmm(dh[t], d_gates[-1].view(k, B, -1), w_back) if d_gates else dh[t]
            c_before_RH = c[t - 1] if t else none_RH
            d_gates_RG, dc_RH, _ = torch.ops.aten._thnn_fused_lstm_cell_backward_impl(
                dh_SBH.view(k * B, H), dc_RH, c_before_RH, c[t], after[t], False
            )
            d_gates.append(d_gates_RG)
        d_gates_TSBG = torch.stack(d_gates[::-1]).view(T, k, B, -1)
        return d_gates_TSBG, of_weights(h, d_gates_TSBG)


def of_weights(h: Tensor, d_gates: Tensor) -> Tensor:
    """The gradient of the hidden state's weights [k, H, 4H], of hidden states and gradients of the gates of all steps."""
    k = h.shape[1]
    before = h[:-1].transpose(0, 1).reshape(k, -1, h.shape[-1])
    after = d_gates[1:].transpose(0, 1).reshape(k, -1, d_gates.shape[-1])
    return torch.bmm(before.transpose(1, 2), after)
