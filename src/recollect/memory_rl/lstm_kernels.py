"""One layer of an LSTM over a piece of its sequences for several networks at once, on a GPU: a kernel forward and one backward.

Cell by cell a step is some kernels, each of which takes longer to start than to compute. Here a block of the GPU goes through
all steps of 16 rows of one network by itself. It keeps their hidden and cell states in registers, and the weights in its
shared memory. Where these leave room, it reads a later step's numbers while it computes (AHEAD).

Products are of numbers of 16 bits, summed in float32. So that they are nearly float32's, a factor is a high part and a low
part, which is what rounding took from it. How near says the setting that PyTorch has for products of float32:

- Without TF32: both factors are two bfloat16 numbers, a w = ah wh + al wh + ah wl. What is left out is 2e-5 of a product at
  most. High parts of the weights (128 KB where H is 128) stay in shared memory, which has no room for the low ones: those are
  read from the GPU's second cache at each step.
- With TF32: weights are one float16 number, which has as many bits as TF32 leaves of it. States and gradients are two, and lose
  nothing. TF32 itself, which PyTorch lets cuDNN's LSTMs have by default, rounds them, too. float16 has a small range. So
  gradients are multiplied by a power of 2, which brings the largest that comes in to 64; what grows a thousandfold on its way
  is cut off.

`recollect.memory_rl.lstm_layers` calls them. Triton comes with PyTorch for GPUs.

Shapes: T steps of a piece, k networks, B rows of each, H hidden numbers, a power of 2 from 16 to 128. Gates are input, forget,
cell, output. An array of all steps is [k, steps, B, ...] or [k, B, steps, ...] in memory: kernels are told how far its rows and its
steps are apart, in widths.
"""

# mypy: allow-untyped-defs

from __future__ import annotations

import triton
import triton.language as tl

ROWS = 16  # of a block: the fewest that its units for products take at once
WARPS = 8
ROOM_AHEAD = (
    220_000  # bytes of shared memory that a block may have, as an H100's: for weights of 16 bits and two steps more
)
WIDTHS = (16, 32, 64, 128)
"""H that there are kernels for: a block must hold as many numbers."""
SIGMOID = tl.constexpr(
    "{.reg .f32 t; mul.f32 t, $1, 0fBFB8AA3B; ex2.approx.ftz.f32 t, t; add.f32 t, t, 0f3F800000; rcp.approx.ftz.f32 $0, t;}"
)
INTEGERS = ["T", "B", "span", "g_row", "g_step", "h_row", "h_step", "end"]


@triton.jit
def _parts(x, EXACT: tl.constexpr):
    if EXACT:
        high = x.to(tl.bfloat16)
    else:
        x = tl.minimum(tl.maximum(x, -60000.0), 60000.0)  # float16 ends at 65,504
        high = x.to(tl.float16)
    return high, (x - high.to(tl.float32)).to(high.dtype)


@triton.jit
def _sigmoid(x):
    """1 / (1 + exp(-x)) to 2e-7. Triton's own looks after numbers below 1e-38, which takes as long as all the rest."""
    return tl.inline_asm_elementwise(SIGMOID, "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def _tanh(x):
    return 2.0 * _sigmoid(2.0 * x) - 1.0


@triton.jit
def _plus(total, high, low, w_high, w_low, EXACT: tl.constexpr):
    """Total + a w, of the parts of a and w."""
    total = tl.dot(high, w_high, total)
    total = tl.dot(low, w_high, total)
    if EXACT:
        total = tl.dot(high, w_low, total)
    return total


@triton.jit
def _product(high, low, w_high, w_low, EXACT: tl.constexpr):
    return _plus(tl.zeros((high.shape[0], w_high.shape[1]), tl.float32), high, low, w_high, w_low, EXACT)


@triton.jit
def _low(low_ptr, high, at_w, EXACT: tl.constexpr):
    """The low part of a gate's weights, where it counts."""
    return tl.load(low_ptr + at_w) if EXACT else high


@triton.jit(do_not_specialize=INTEGERS)  # so that what was tried at other sizes is what runs
def forward_kernel(
    gates_ptr,
    bias_ptr,
    high_ptr,
    low_ptr,
    h_ptr,
    before_ptr,
    c_ptr,
    carried_ptr,
    T,
    B,
    span,
    g_row,
    g_step,
    h_row,
    h_step,
    end,
    H: tl.constexpr,
    R: tl.constexpr,
    KEEP: tl.constexpr,
    EXACT: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """Block (n, m): rows m * R and on of network n.

    Args:
        gates_ptr: what inputs add to the gates, of the piece's first step; with KEEP the gates themselves afterwards.
        bias_ptr: [k, 4H].
        high_ptr, low_ptr: the weights' parts [k, H, 4H].
        h_ptr: hidden states, of the piece's first step. KEEP: `before_ptr` the states before each step, `c_ptr` the cells after it.
        carried_ptr: [2, k, B, H], hidden and cell states after the piece before; then after this one.
        span: rows of the whole array that belong to one network, B times all steps.
        g_row, g_step: between rows and steps of the gates, of `before` and `c`; h_row, h_step: of h. In widths.
        end: 1 where the piece is the first one.
    """
    network, row, col = tl.program_id(0).to(tl.int64), tl.program_id(1) * R + tl.arange(0, R), tl.arange(0, H)
    there = (row < B)[:, None]
    of_row = row[:, None] * H + col[None, :]
    at_h = row[:, None] * (h_row * H) + col[None, :]
    at_c = row[:, None] * (g_row * H) + col[None, :]
    at_g = row[:, None] * (g_row * 4 * H) + col[None, :]
    gates_ptr += network * span * (4 * H)
    h_ptr += network * span * H
    before_ptr += network * span * H
    c_ptr += network * span * H
    carried_ptr += network * B * H
    other = tl.num_programs(0) * B * H  # from hidden to cell states
    at_w = tl.arange(0, H)[:, None] * (4 * H) + col[None, :]  # h's numbers, then the gate's
    high_ptr += network * (4 * H * H)
    low_ptr += network * (4 * H * H)
    into_high, forget_high = tl.load(high_ptr + at_w), tl.load(high_ptr + at_w + H)
    cell_high, out_high = tl.load(high_ptr + at_w + 2 * H), tl.load(high_ptr + at_w + 3 * H)
    bias_ptr += network * (4 * H)
    into_bias, forget_bias = tl.load(bias_ptr + col)[None, :], tl.load(bias_ptr + H + col)[None, :]
    cell_bias, out_bias = tl.load(bias_ptr + 2 * H + col)[None, :], tl.load(bias_ptr + 3 * H + col)[None, :]
    known = (row < tl.where(end > 0, 0, B))[:, None]  # nothing is before the first step: zeros
    h = tl.load(carried_ptr + of_row, known, 0.0)
    c = tl.load(carried_ptr + other + of_row, known, 0.0)
    for _ in tl.range(T, num_stages=3 if AHEAD else 1):
        into, forget = tl.load(gates_ptr + at_g, there, 0.0), tl.load(gates_ptr + at_g + H, there, 0.0)
        cell, out = tl.load(gates_ptr + at_g + 2 * H, there, 0.0), tl.load(gates_ptr + at_g + 3 * H, there, 0.0)
        into_low = _low(low_ptr, into_high, at_w, EXACT)  # each a product ahead of its use
        forget_low = _low(low_ptr + H, forget_high, at_w, EXACT)
        if KEEP:
            tl.store(before_ptr + at_c, h, there)
        high, low = _parts(h, EXACT)
        of_into = _plus(into, high, low, into_high, into_low, EXACT)
        cell_low = _low(low_ptr + 2 * H, cell_high, at_w, EXACT)
        of_forget = _plus(forget, high, low, forget_high, forget_low, EXACT)
        out_low = _low(low_ptr + 3 * H, out_high, at_w, EXACT)
        of_cell = _plus(cell, high, low, cell_high, cell_low, EXACT)
        of_out = _plus(out, high, low, out_high, out_low, EXACT)
        into = _sigmoid(of_into + into_bias)
        cell = _tanh(of_cell + cell_bias)
        forget = _sigmoid(of_forget + forget_bias)
        out = _sigmoid(of_out + out_bias)
        c = forget * c + into * cell
        h = out * _tanh(c)
        tl.store(h_ptr + at_h, h, there)
        if KEEP:
            tl.store(c_ptr + at_c, c, there)
            tl.store(gates_ptr + at_g, into, there)
            tl.store(gates_ptr + at_g + H, forget, there)
            tl.store(gates_ptr + at_g + 2 * H, cell, there)
            tl.store(gates_ptr + at_g + 3 * H, out, there)
            before_ptr += g_step * H
            c_ptr += g_step * H
        gates_ptr += g_step * (4 * H)
        h_ptr += h_step * H
    tl.store(carried_ptr + of_row, h, there)
    tl.store(carried_ptr + other + of_row, c, there)


@triton.jit(do_not_specialize=INTEGERS)
def backward_kernel(
    dh_ptr,
    scale_ptr,
    high_ptr,
    low_ptr,
    c_ptr,
    gates_ptr,
    d_gates_ptr,
    d_bias_ptr,
    carried_ptr,
    T,
    B,
    span,
    g_row,
    g_step,
    h_row,
    h_step,
    end,
    H: tl.constexpr,
    R: tl.constexpr,
    EXACT: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """As `forward_kernel`, from the piece's last step, which pointers are of, to its first.

    Args:
        dh_ptr: the gradient of h, in h's order; scale_ptr: what gradients are multiplied by meanwhile [k].
        d_gates_ptr: the gradient of the gates, in their order; d_bias_ptr: [k, B, 4H], to which their sums over steps are added.
        carried_ptr: [2, k, B, H], what the later piece says of h and c; then what this one says. Multiplied by the scale.
        end: 1 where the piece is the last one, 2 the first one, 3 both.
    """
    network, row, col = tl.program_id(0).to(tl.int64), tl.program_id(1) * R + tl.arange(0, R), tl.arange(0, H)
    there = (row < B)[:, None]
    of_row = row[:, None] * H + col[None, :]
    at_h = row[:, None] * (h_row * H) + col[None, :]
    at_c = row[:, None] * (g_row * H) + col[None, :]
    at_g = row[:, None] * (g_row * 4 * H) + col[None, :]
    dh_ptr += network * span * H
    c_ptr += network * span * H
    gates_ptr += network * span * (4 * H)
    d_gates_ptr += network * span * (4 * H)
    carried_ptr += network * B * H
    other = tl.num_programs(0) * B * H
    at_w = tl.arange(0, H)[:, None] + col[None, :] * (4 * H)  # the gate's numbers, then h's
    high_ptr += network * (4 * H * H)
    low_ptr += network * (4 * H * H)
    into_high, forget_high = tl.load(high_ptr + at_w), tl.load(high_ptr + at_w + H)
    cell_high, out_high = tl.load(high_ptr + at_w + 2 * H), tl.load(high_ptr + at_w + 3 * H)
    scale = tl.load(scale_ptr + network)
    back = 1.0 / scale
    known = (row < tl.where(end % 2 > 0, 0, B))[:, None]
    passed = tl.load(carried_ptr + of_row, known, 0.0)  # what the later step says of h
    dc = tl.load(carried_ptr + other + of_row, known, 0.0)
    c = tl.load(c_ptr + at_c, there, 0.0)
    into_sum, forget_sum = tl.zeros((R, H), tl.float32), tl.zeros((R, H), tl.float32)
    cell_sum, out_sum = tl.zeros((R, H), tl.float32), tl.zeros((R, H), tl.float32)
    for n in tl.range(T, num_stages=2 if AHEAD else 1):
        into, forget = tl.load(gates_ptr + at_g, there, 0.0), tl.load(gates_ptr + at_g + H, there, 0.0)
        cell, out = tl.load(gates_ptr + at_g + 2 * H, there, 0.0), tl.load(gates_ptr + at_g + 3 * H, there, 0.0)
        dh = tl.load(dh_ptr + at_h, there, 0.0) * scale + passed
        c_ptr -= g_step * H
        rows = tl.where((n + 1 < T) | (end < 2), B, 0)  # nothing is before the first step: zeros
        before = tl.load(c_ptr + at_c, (row < rows)[:, None], 0.0)
        into_low = _low(low_ptr, into_high, at_w, EXACT)
        forget_low = _low(low_ptr + H, forget_high, at_w, EXACT)
        tanh_c = _tanh(c)
        dc += dh * out * (1.0 - tanh_c * tanh_c)
        d_into = dc * cell * into * (1.0 - into)
        d_forget = dc * before * forget * (1.0 - forget)
        d_cell = dc * into * (1.0 - cell * cell)
        d_out = dh * tanh_c * out * (1.0 - out)
        dc = dc * forget
        c = before
        into_sum += d_into
        forget_sum += d_forget
        cell_sum += d_cell
        out_sum += d_out
        tl.store(d_gates_ptr + at_g, d_into * back, there)
        tl.store(d_gates_ptr + at_g + H, d_forget * back, there)
        tl.store(d_gates_ptr + at_g + 2 * H, d_cell * back, there)
        tl.store(d_gates_ptr + at_g + 3 * H, d_out * back, there)
        high, low = _parts(d_into, EXACT)
        of_into = _product(high, low, into_high, into_low, EXACT)
        cell_low = _low(low_ptr + 2 * H, cell_high, at_w, EXACT)
        high, low = _parts(d_forget, EXACT)
        of_forget = _product(high, low, forget_high, forget_low, EXACT)
        out_low = _low(low_ptr + 3 * H, out_high, at_w, EXACT)
        high, low = _parts(d_cell, EXACT)
        of_cell = _product(high, low, cell_high, cell_low, EXACT)
        high, low = _parts(d_out, EXACT)
        of_out = _product(high, low, out_high, out_low, EXACT)
        passed = (of_into + of_forget) + (of_cell + of_out)  # four sums, of which none waits for another
        dh_ptr -= h_step * H
        gates_ptr -= g_step * (4 * H)
        d_gates_ptr -= g_step * (4 * H)
    tl.store(carried_ptr + of_row, passed, there)
    tl.store(carried_ptr + other + of_row, dc, there)
    at_b = row[:, None] * (4 * H) + col[None, :]
    d_bias_ptr += network * B * (4 * H)
    earlier = tl.load(d_bias_ptr + at_b, known, 0.0)
    tl.store(d_bias_ptr + at_b, earlier + into_sum * back, there)
    earlier = tl.load(d_bias_ptr + at_b + H, known, 0.0)
    tl.store(d_bias_ptr + at_b + H, earlier + forget_sum * back, there)
    earlier = tl.load(d_bias_ptr + at_b + 2 * H, known, 0.0)
    tl.store(d_bias_ptr + at_b + 2 * H, earlier + cell_sum * back, there)
    earlier = tl.load(d_bias_ptr + at_b + 3 * H, known, 0.0)
    tl.store(d_bias_ptr + at_b + 3 * H, earlier + out_sum * back, there)
