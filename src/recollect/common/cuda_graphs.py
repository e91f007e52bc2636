"""CUDA graphs: many small kernels that the host launches at once.

A function that becomes one takes nothing and decides nothing on the host; all that it reads and changes are tensors that stay
where they are. On a CPU such a function is called as it is, so that both can be tested there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, TypeVar

import torch

Given = TypeVar("Given")

WARM_UP = 3
"""Calls beside the main stream that PyTorch asks for before a capture: libraries choose and allocate in them."""

MOST_STREAMS = 32
"""On which functions go on side by side: PyTorch has no more of them on a device."""

_failed: list[torch.cuda.CUDAGraph] = []  # the allocator still points into them


@cache
def _side_stream(device: int, place: int = 0) -> torch.cuda.Stream:
    """The first is for all warm-ups on a device: memory that was freed on a stream is not given to another one."""
    return torch.cuda.Stream(device)


def beside(function: Callable[[], Given]) -> Given:
    """Call a function on a stream beside the main one; what the main stream does next waits for it."""
    main, side = torch.cuda.current_stream(), _side_stream(torch.cuda.current_device())
    side.wait_stream(main)
    with torch.cuda.stream(side):
        given = function()
    main.wait_stream(side)
    return given


def side_by_side(functions: Sequence[Callable[[], Given]]) -> list[Given]:
    """Call functions on streams of their own, one beside the other; what the current stream does next waits for all.

    In a capture they become branches of the graph. Nothing else may use these streams: their work always lies between the
    fork and the join in here. That makes memory safe without `record_stream`, in the same way within a capture and without:

    - What a function reads and the current stream allocated, the caller holds until this returns. When it is freed, the join has
      been asked for, so that whatever the current stream writes there waits for all functions.
    - What a function allocated is given, once it is freed, to its own stream alone. The next work of that stream begins with
      another fork, which waits for all that the current stream was asked for before, so also for its reading.
    - Tensors of one function are not for another one.

    Where there are more functions than streams, some come one after the other.
    """
    main, device = torch.cuda.current_stream(), torch.cuda.current_device()
    sides = [_side_stream(device, 1 + place) for place in range(min(len(functions), MOST_STREAMS))]
    for side in sides:
        side.wait_stream(main)
    given = []
    try:
        for place, function in enumerate(functions):
            with torch.cuda.stream(sides[place % MOST_STREAMS]):
                given.append(function())
    finally:  # what fails frees its tensors, too
        for side in sides:
            main.wait_stream(side)
    return given


def captured(function: Callable[[], Given], pool: Any = None) -> tuple[torch.cuda.CUDAGraph, Given]:
    """A graph of a function after its warm-up, and where each replay leaves what the function gives.

    Capturing computes nothing. Other threads, such as those that load batches, may go on meanwhile.

    Args:
        pool: memory that graphs share (`torch.cuda.graph_pool_handle`). What the replay of one gives is read before the next
            one's. None: the graph has memory of its own.

    Raises:
        RuntimeError: it does something that a graph cannot hold.
    """
    graph, main = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    try:
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            given = function()
    except RuntimeError:
        torch.cuda.set_stream(main)  # PyTorch leaves the stream of the capture in its place
        _failed.append(graph)
        _free_generator()
        torch.cuda.set_stream(main)
        raise
    return graph, given


def _free_generator() -> None:
    """Let what draws on the device draw again: a capture that broke keeps its generator, which the end of a whole one frees."""
    with suppress(RuntimeError), torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"):
        torch.zeros((), device="cuda")
