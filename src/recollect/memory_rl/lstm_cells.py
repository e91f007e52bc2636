"""An LSTM over whole sequences for several networks at once: cuDNN knows one network only.

On a GPU all steps are one kernel (`lstm_kernels`). Where that cannot be, they go cell by cell: with PyTorch's fused cell, so that a
step is two kernels forward and three or four backward, or with the plain one, of seven and more. What is not plain is tried
before it is taken, on random numbers, gradients included. Where it is not there, or gives other numbers, the next one is.

Shapes: T steps, k networks, B rows of each, H hidden numbers. Gates stand in PyTorch's order: input, forget, cell, output.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

import torch
from torch import Tensor

log = logging.getLogger(__name__)
NEAR = 1e-4  # how far numbers may be from the plain cell's

Cells = type[torch.autograd.Function]
"""(gates [T, k, B, 4H], weights of the hidden state [k, H, 4H]) -> hidden states [T, k, B, H], with a backward."""


def over_time(gates: Tensor, w_hidden: Tensor) -> Tensor:
    """Hidden states [T, k, B, H] of what the inputs add to the gates [T, k, B, 4H] and weights of the hidden state [k, H, 4H]."""
    cells = fastest(gates.device, w_hidden.shape[1]) if gates.is_cuda else PlainCells
    h_TSBH: Tensor = cells.apply(gates, w_hidden)  # type: ignore[no-untyped-call]
    return h_TSBH


@cache
def fastest(device: torch.device, width: int) -> Cells:
    """The first that works on a device, of cells for H = `width`; asked once, never while a graph is captured."""
    for cells in (_kernel_cells(width), FusedCells):
        if cells is not None and works(cells, device, width):
            return cells
    return PlainCells


def _kernel_cells(width: int) -> Cells | None:
    """All steps in one kernel; None: Triton is not installed, or a block of the GPU has no room for such weights."""
    try:
        from recollect.memory_rl import lstm_kernels
    except ImportError as error:
        log.debug("LSTMs of several seeds go cell by cell: %s", error)
        return None
    return lstm_kernels.KernelCells if width in lstm_kernels.WIDTHS else None


class PlainCells(torch.autograd.Function):
    """The backward is written out: autograd's own adds the weights' gradient at every step."""

    @staticmethod
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


def works(cells: Cells, device: torch.device, width: int) -> bool:
    """Whether cells are there on a device, and give what the plain ones give, with gradients and without."""
    draws = torch.Generator().manual_seed(0)
    steps, networks, rows = 5, 2, 19
    shapes = (steps, networks, rows, 4 * width), (networks, width, 4 * width), (steps, networks, rows, width)
    gates, w_hidden, weight = (torch.randn(shape, generator=draws).to(device) for shape in shapes)
    w_hidden /= width**0.5
    found = []
    try:
        for each in (PlainCells, cells):
            given = [tensor.clone().requires_grad_() for tensor in (gates, w_hidden)]
            with torch.enable_grad():
                h: Tensor = each.apply(*given)  # type: ignore[no-untyped-call]
                found.append([h.detach(), *torch.autograd.grad((h * weight).sum(), given)])
            with torch.no_grad():
                found[-1].append(each.apply(gates, w_hidden))  # type: ignore[no-untyped-call]
    except Exception as error:  # a compiler may fail in its own ways
        log.debug("%s do not work here: %s", cells.__name__, str(error).partition("\n")[0])
        return False
    same = all(
        torch.allclose(one, other, NEAR, NEAR * float(one.abs().max())) for one, other in zip(*found, strict=True)
    )
    if not same:
        log.warning("on this GPU %s give other numbers than plain cells; LSTMs go on without, slower", cells.__name__)
    return same
