"""All layers of an LSTM over whole sequences for several networks at once, on a GPU: kernels of `lstm_kernels`, side by side.

A layer's kernel uses a third of the GPU, as its blocks are few and each goes from step to step. So layers work at the same time,
each on a stream of its own: sequences are cut into pieces of time, and a layer begins a piece when the layer below has done with
it. Backward it is the other way round. What a layer's inputs add to its gates is one product per piece.

Batches of sequences come as [k, B, T, ...]. The first layer reads and the last one writes that order, others [k, T, B, ...], where
a piece of time lies together: nothing is copied from one order to the other.

Shapes: k networks, B rows of each, T steps, D input numbers, H hidden ones. Gates are input, forget, cell, output.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from recollect.memory_rl.lstm_cells import Kept, Weights
from recollect.memory_rl.lstm_kernels import ROOM_AHEAD, ROWS, WARPS, backward_kernel, forward_kernel

MOST_PIECES = 15
SHORTEST = 25  # steps of a piece: more of them would cost more to start than they save


class Order(NamedTuple):
    """How an array of all steps lies in memory: how far rows and steps are apart, in widths."""

    row: int
    step: int


def forward(x: Tensor, layers: Sequence[Weights], *, keeps: bool, exact: bool) -> list[Tensor]:
    """As `lstm_operator.states`: hidden states [k, B, T, H] of the last layer; if it keeps, then what `backward` needs.

    Args:
        exact: whether products are as of float32, or weights of 11 bits; see `lstm_kernels`.
    """
    k, B, T, D = x.shape
    H = layers[0].w_hidden.shape[2]
    first, between, span, ahead = Order(T, 1), Order(1, B), B * T, reads_ahead(x.device, exact)
    made, parts, biases = [], [], []
    for place, own in enumerate(layers):
        lies = (B, T) if place == 0 else (T, B)
        gates, h = x.new_empty(k, *lies, 4 * H), x.new_empty(k, *((B, T) if own is layers[-1] else (T, B)), H)
        before, c = (x.new_empty(k, *lies, H) if keeps else h for _ in range(2))
        made.append((gates, before, c, h))
        parts.append(_parts(own.w_hidden.transpose(1, 2), exact))
        biases.append(own.b_in + own.b_hidden)
    carried = [x.new_empty(2, k, B, H) for _ in layers]
    torch.bmm(x.view(k, span, D), layers[0].w_in.transpose(1, 2), out=made[0][0].view(k, span, 4 * H))
    with _SideBySide(x.device, len(layers)) as streams:
        for start, end in _pieces(T, len(layers)):
            for place, own in enumerate(layers):
                gates, before, c, h = made[place]
                g, of_h = first if place == 0 else between, first if own is layers[-1] else between
                with streams.on(place, after=place - 1):
                    if place:
                        below, here = made[place - 1][3][:, start:end], gates[:, start:end]
                        torch.bmm(below.flatten(1, 2), own.w_in.transpose(1, 2), out=here.flatten(1, 2))
                    forward_kernel[k, -(-B // ROWS)](
                        _at(gates, g, start),
                        biases[place],
                        *parts[place],
                        _at(h, of_h, start),
                        _at(before, g if keeps else of_h, start),
                        _at(c, g if keeps else of_h, start),
                        carried[place],
                        end - start,
                        B,
                        span,
                        *g,
                        *of_h,
                        int(start == 0),
                        H,
                        ROWS,
                        keeps,
                        exact,
                        ahead,
                        num_warps=WARPS,
                        num_stages=1,
                    )
    *kept, last = (each for own in made for each in own)
    return [last, *kept] if keeps else [last]


def backward(dh: Tensor, x: Tensor, layers: Sequence[Weights], kept: Sequence[Kept], *, exact: bool) -> list[Tensor]:
    """As `lstm_operator.gradients`: of x and, of each layer, of both weights and of a bias."""
    k, B, T, H = dh.shape
    first, between, span, ahead = Order(T, 1), Order(1, B), B * T, reads_ahead(x.device, exact)
    d_gates = [torch.empty_like(own.gates) for own in kept]
    d_bias = [dh.new_empty(k, B, 4 * H) for _ in layers]
    d_w_in, d_w_hidden = (
        [torch.empty_like(own[kind], memory_format=torch.contiguous_format) for own in layers] for kind in (0, 1)
    )
    dhs = [dh if own is layers[-1] else torch.empty_like(kept[place].h) for place, own in enumerate(layers)]
    parts = [_parts(own.w_hidden.transpose(1, 2), exact) for own in layers]
    carried = [dh.new_empty(2, k, B, H) for _ in layers]
    scale = _scale_of(dh, exact)
    inputs = [x, *(own.h for own in kept[:-1])]
    with _SideBySide(dh.device, len(layers)) as streams:
        for start, end in reversed(_pieces(T, len(layers))):
            for place in reversed(range(len(layers))):
                gates, _, c, _ = kept[place]
                g, of_h = first if place == 0 else between, first if place + 1 == len(layers) else between
                with streams.on(place, after=place + 1):
                    if place + 1 < len(layers):
                        above, here = d_gates[place + 1][:, start:end], dhs[place][:, start:end]
                        torch.bmm(above.flatten(1, 2), layers[place + 1].w_in, out=here.flatten(1, 2))
                    backward_kernel[k, -(-B // ROWS)](
                        _at(dhs[place], of_h, end - 1),
                        scale,
                        *parts[place],
                        _at(c, g, end - 1),
                        _at(gates, g, end - 1),
                        _at(d_gates[place], g, end - 1),
                        d_bias[place],
                        carried[place],
                        end - start,
                        B,
                        span,
                        *g,
                        *of_h,
                        int(end == T) + 2 * int(start == 0),
                        H,
                        ROWS,
                        exact,
                        ahead,
                        num_warps=WARPS,
                        num_stages=1,
                    )
        for place in reversed(range(len(layers))):
            with streams.on(place, after=place):
                of_gates = d_gates[place].view(k, span, 4 * H).transpose(1, 2)
                torch.bmm(of_gates, kept[place].before.view(k, span, H), out=d_w_hidden[place])
                torch.bmm(of_gates, inputs[place].view(k, span, -1), out=d_w_in[place])
    dx = torch.bmm(d_gates[0].view(k, span, 4 * H), layers[0].w_in).view(x.shape)
    found = [dx]
    for of_in, of_hidden, of_bias in zip(d_w_in, d_w_hidden, d_bias, strict=True):
        found += [of_in, of_hidden, of_bias.sum(1)]
    return found


@cache
def reads_ahead(device: torch.device, exact: bool) -> bool:
    """Whether a block has room for a later step's numbers, beside the weights."""
    if exact or device.type == "cpu":  # which interprets the kernels, in tests
        return not exact
    room: int = getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 0)
    return room >= ROOM_AHEAD


def _pieces(steps: int, layers: int) -> list[tuple[int, int]]:
    """The steps' pieces: from, to."""
    if layers == 1:
        return [(0, steps)]
    length = max(SHORTEST, -(-steps // MOST_PIECES))
    return [(start, min(start + length, steps)) for start in range(0, steps, length)]


def _at(array: Tensor, order: Order, step: int) -> Tensor:
    """An array's memory from a step on."""
    return array.view(-1)[step * order.step * array.shape[-1] :]


def _parts(weights: Tensor, exact: bool) -> tuple[Tensor, Tensor]:
    """Weights as the sum of two in bfloat16; or as one in float16, twice."""
    high = weights.to(torch.bfloat16 if exact else torch.float16, memory_format=torch.contiguous_format)
    return high, (weights - high).to(high.dtype, memory_format=torch.contiguous_format) if exact else high


def _scale_of(dh: Tensor, exact: bool) -> Tensor:
    """The power of 2 [k] that brings each network's largest gradient to 64 or nearly; 1 where none is needed."""
    if exact:
        return dh.new_ones(len(dh))
    largest = torch.linalg.vector_norm(dh, float("inf"), dim=(1, 2, 3)).clamp(1e-30, 1e30)
    return torch.exp2(6.0 - torch.ceil(torch.log2(largest)))


class _SideBySide:
    """Layers' streams of a device, which begin after what is queued, and which all that comes afterwards waits for."""

    def __init__(self, device: torch.device, layers: int) -> None:
        self.streams = _streams(device, layers) if device.type == "cuda" and layers > 1 else ()
        self.done: dict[int, torch.cuda.Event] = {}

    def __enter__(self) -> _SideBySide:
        for stream in self.streams:
            stream.wait_stream(torch.cuda.current_stream(stream.device))
        return self

    def on(self, layer: int, *, after: int) -> AbstractContextManager[Any]:
        """A layer's piece, behind what another layer has queued last: `after`, where there is such a layer."""
        if not self.streams:
            return nullcontext()
        return _Piece(self, layer, after)

    def __exit__(self, *_: object) -> None:
        for stream in self.streams:
            torch.cuda.current_stream(stream.device).wait_stream(stream)


class _Piece:
    def __init__(self, whole: _SideBySide, layer: int, after: int) -> None:
        self.whole, self.layer, self.after = whole, layer, after
        self.stream = whole.streams[layer]
        self.inside = torch.cuda.stream(self.stream)

    def __enter__(self) -> None:
        if self.after in self.whole.done:
            self.stream.wait_event(self.whole.done[self.after])
        self.inside.__enter__()

    def __exit__(self, *raised: Any) -> None:
        self.inside.__exit__(*raised)
        self.whole.done[self.layer] = self.stream.record_event()


@cache
def _streams(device: torch.device, layers: int) -> tuple[torch.cuda.Stream, ...]:
    return tuple(torch.cuda.Stream(device) for _ in range(layers))
