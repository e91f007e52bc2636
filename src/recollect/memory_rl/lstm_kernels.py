"""An LSTM over whole sequences for several networks at once, on a GPU in one kernel forward and one backward.

Cell by cell a step is some kernels, each of which takes longer to start than to compute. Here a block of the GPU goes through
all steps of 16 rows of one network by itself. It keeps their hidden and cell states in registers, and most of the weights in
its shared memory.

Products are of bfloat16 numbers, summed in float32. So that they are nearly float32's, each factor is a high part and a low
part, which is what rounding took from it: a w = ah wh + al wh + ah wl. What is left out is 2e-5 of a product at most; TF32,
which PyTorch lets cuDNN's LSTMs have by default, is off by up to 1e-3. High parts of the weights (128 KB where H is 128) stay in
shared memory, which has no room for the low ones: those are read from the GPU's second cache at each step.

`recollect.memory_rl.lstm_over_time` says where these are taken. Triton comes with PyTorch for GPUs.

Shapes: T steps, k networks, B rows of each, H hidden numbers, a power of 2 from 16 to 128. Gates are input, forget, cell, output.
"""

# mypy: allow-untyped-defs

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from recollect.memory_rl.lstm_cells import of_weights

ROWS = 16  # of a block: the fewest that its units for products take at once
WARPS = 8
WIDTHS = (16, 32, 64, 128)
"""H that there are kernels for: a block must hold as many numbers."""


@triton.jit
def _parts(x):
    high = x.to(tl.bfloat16)
    return high, (x - high.to(tl.float32)).to(tl.bfloat16)


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _tanh(x):
    return 2.0 / (1.0 + tl.exp(-2.0 * x)) - 1.0


@triton.jit
def _plus(total, high, low, w_high, w_low):
    """Total + a w, of the parts of a and w."""
    total = tl.dot(high, w_high, total)
    total = tl.dot(low, w_high, total)
    return tl.dot(high, w_low, total)


@triton.jit(do_not_specialize=["T", "B"])  # so that what was tried at other sizes is what runs
def forward_kernel(
    gates_ptr, high_ptr, low_ptr, h_ptr, c_ptr, after_ptr, T, B, H: tl.constexpr, R: tl.constexpr, KEEP: tl.constexpr
):
    """Block (n, m): rows m * R and on of network n. Pointers are to [k, T, B, ...] and, of weights, [k, H, 4H]."""
    network, row, col = tl.program_id(0).to(tl.int64), tl.program_id(1) * R + tl.arange(0, R), tl.arange(0, H)
    there = (row < B)[:, None]
    at_h = row[:, None] * H + col[None, :]
    at_g = row[:, None] * (4 * H) + col[None, :]
    step = B * H
    first = network * T * step
    gates_ptr += 4 * first
    after_ptr += 4 * first
    h_ptr += first
    c_ptr += first
    at_w = tl.arange(0, H)[:, None] * (4 * H) + col[None, :]  # h's numbers, then the gate's
    high_ptr += network * (4 * H * H)
    low_ptr += network * (4 * H * H)
    into_high, forget_high = tl.load(high_ptr + at_w), tl.load(high_ptr + at_w + H)
    cell_high, out_high = tl.load(high_ptr + at_w + 2 * H), tl.load(high_ptr + at_w + 3 * H)
    h = tl.zeros((R, H), tl.float32)
    c = tl.zeros((R, H), tl.float32)
    for _ in range(T):
        into, forget = tl.load(gates_ptr + at_g, there, 0.0), tl.load(gates_ptr + at_g + H, there, 0.0)
        cell, out = tl.load(gates_ptr + at_g + 2 * H, there, 0.0), tl.load(gates_ptr + at_g + 3 * H, there, 0.0)
        into_low, forget_low = tl.load(low_ptr + at_w), tl.load(low_ptr + at_w + H)  # each a product ahead of its use
        high, low = _parts(h)
        into = _sigmoid(_plus(into, high, low, into_high, into_low))
        cell_low = tl.load(low_ptr + at_w + 2 * H)
        forget = _sigmoid(_plus(forget, high, low, forget_high, forget_low))
        out_low = tl.load(low_ptr + at_w + 3 * H)
        cell = _tanh(_plus(cell, high, low, cell_high, cell_low))
        out = _sigmoid(_plus(out, high, low, out_high, out_low))
        c = forget * c + into * cell
        h = out * _tanh(c)
        tl.store(h_ptr + at_h, h, there)
        if KEEP:
            tl.store(c_ptr + at_h, c, there)
            tl.store(after_ptr + at_g, into, there)
            tl.store(after_ptr + at_g + H, forget, there)
            tl.store(after_ptr + at_g + 2 * H, cell, there)
            tl.store(after_ptr + at_g + 3 * H, out, there)
            c_ptr += step
            after_ptr += 4 * step
        gates_ptr += 4 * step
        h_ptr += step


@triton.jit(do_not_specialize=["T", "B"])
def backward_kernel(dh_ptr, high_ptr, low_ptr, c_ptr, after_ptr, d_gates_ptr, T, B, H: tl.constexpr, R: tl.constexpr):
    """As `forward_kernel`, from the last step to the first."""
    network, row, col = tl.program_id(0).to(tl.int64), tl.program_id(1) * R + tl.arange(0, R), tl.arange(0, H)
    there = (row < B)[:, None]
    at_h = row[:, None] * H + col[None, :]
    at_g = row[:, None] * (4 * H) + col[None, :]
    step = B * H
    last = (network * T + T - 1) * step
    dh_ptr += last
    c_ptr += last
    after_ptr += 4 * last
    d_gates_ptr += 4 * last
    at_w = tl.arange(0, H)[:, None] + col[None, :] * (4 * H)  # the gate's numbers, then h's
    high_ptr += network * (4 * H * H)
    low_ptr += network * (4 * H * H)
    into_high, forget_high = tl.load(high_ptr + at_w), tl.load(high_ptr + at_w + H)
    cell_high, out_high = tl.load(high_ptr + at_w + 2 * H), tl.load(high_ptr + at_w + 3 * H)
    passed = tl.zeros((R, H), tl.float32)  # what the later step says of h
    dc = tl.zeros((R, H), tl.float32)
    c = tl.load(c_ptr + at_h, there, 0.0)
    for n in range(T):
        into, forget = tl.load(after_ptr + at_g, there, 0.0), tl.load(after_ptr + at_g + H, there, 0.0)
        cell, out = tl.load(after_ptr + at_g + 2 * H, there, 0.0), tl.load(after_ptr + at_g + 3 * H, there, 0.0)
        dh = tl.load(dh_ptr + at_h, there, 0.0) + passed
        c_ptr -= step
        rows = tl.where(n + 1 < T, B, 0)  # nothing is before the first step: zeros
        before = tl.load(c_ptr + at_h, (row < rows)[:, None], 0.0)
        into_low, forget_low = tl.load(low_ptr + at_w), tl.load(low_ptr + at_w + H)
        tanh_c = _tanh(c)
        dc += dh * out * (1.0 - tanh_c * tanh_c)
        d_into = dc * cell * into * (1.0 - into)
        d_forget = dc * before * forget * (1.0 - forget)
        d_cell = dc * into * (1.0 - cell * cell)
        d_out = dh * tanh_c * out * (1.0 - out)
        dc = dc * forget
        c = before
        tl.store(d_gates_ptr + at_g, d_into, there)
        tl.store(d_gates_ptr + at_g + H, d_forget, there)
        tl.store(d_gates_ptr + at_g + 2 * H, d_cell, there)
        tl.store(d_gates_ptr + at_g + 3 * H, d_out, there)
        high, low = _parts(d_into)
        passed = _plus(tl.zeros((R, H), tl.float32), high, low, into_high, into_low)
        cell_low = tl.load(low_ptr + at_w + 2 * H)
        high, low = _parts(d_forget)
        passed = _plus(passed, high, low, forget_high, forget_low)
        out_low = tl.load(low_ptr + at_w + 3 * H)
        high, low = _parts(d_cell)
        passed = _plus(passed, high, low, cell_high, cell_low)
        high, low = _parts(d_out)
        passed = _plus(passed, high, low, out_high, out_low)
        dh_ptr -= step
        after_ptr -= 4 * step
        d_gates_ptr -= 4 * step


class KernelCells(torch.autograd.Function):
    """See `recollect.memory_rl.lstm_over_time`. All lies in memory as [k, T, B, ...], which is how gates come: no copies."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, w_hidden: Tensor) -> Tensor:
        gates, (high, low), keeps = gates.transpose(0, 1).contiguous(), parts(w_hidden), any(ctx.needs_input_grad)
        k, T, B, width = gates.shape
        H = width // 4
        h = gates.new_empty(k, T, B, H)
        c, after = (torch.empty_like(h), torch.empty_like(gates)) if keeps else (h, gates)
        grid = (k, triton.cdiv(B, ROWS))
        forward_kernel[grid](gates, high, low, h, c, after, T, B, H, ROWS, keeps, num_warps=WARPS, num_stages=1)
        h = h.transpose(0, 1)
        if keeps:
            ctx.save_for_backward(w_hidden, h, c, after)
        return h

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dh: Tensor) -> tuple[Tensor, Tensor]:
        w_hidden, h, c, after = ctx.saved_tensors
        k, T, B, H = c.shape
        dh, (high, low), d_gates = dh.transpose(0, 1).contiguous(), parts(w_hidden), torch.empty_like(after)
        grid = (k, triton.cdiv(B, ROWS))
        backward_kernel[grid](dh, high, low, c, after, d_gates, T, B, H, ROWS, num_warps=WARPS, num_stages=1)
        d_gates = d_gates.transpose(0, 1)
        return d_gates, of_weights(h, d_gates)


def parts(x: Tensor) -> tuple[Tensor, Tensor]:
    """A tensor as the sum of two in bfloat16."""
    high = x.to(torch.bfloat16, memory_format=torch.contiguous_format)
    return high, (x - high).to(torch.bfloat16, memory_format=torch.contiguous_format)
