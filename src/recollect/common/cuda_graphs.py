"""CUDA graphs: many small kernels that the host launches at once.

A function that becomes one takes nothing and decides nothing on the host; all that it reads and changes are tensors that stay
where they are. On a CPU such a function is called as it is, so that both can be tested there.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, Generic, TypeVar, cast

import torch

log = logging.getLogger(__name__)
Given = TypeVar("Given")

WARM_UP = 3
"""Calls beside the main stream that PyTorch asks for before a capture: libraries choose and allocate in them."""


_failed: list[torch.cuda.CUDAGraph] = []  # the allocator still points into them


@cache
def _side_stream(device: int) -> torch.cuda.Stream:
    """One for all warm-ups on a device: memory that was freed on a stream is not given to another one."""
    return torch.cuda.Stream(device)


def on_side_stream(function: Callable[[], Given]) -> Given:
    """Call a function on a stream beside the main one; what the main stream does next waits for it."""
    main, side = torch.cuda.current_stream(), _side_stream(torch.cuda.current_device())
    side.wait_stream(main)
    with torch.cuda.stream(side):
        given = function()
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
    pool = torch.cuda.graph_pool_handle() if pool is None else pool
    try:
        with _nothing_collected(), torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            given = function()
    except RuntimeError:
        torch.cuda.set_stream(main)  # PyTorch leaves the stream of the capture in its place
        if _is_whole(graph):  # the function failed, as where memory runs out: what it took is given back
            graph.reset()
        else:
            _failed.append(graph)
            # PyTorch 2.11 leaves the allocator in the capture; this fails where another version has ended it.
            with suppress(RuntimeError):
                torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
            _free_generator()
            torch.cuda.set_stream(main)
        raise
    return graph, given


def _is_whole(graph: torch.cuda.CUDAGraph) -> bool:
    """Whether its capture came to an end."""
    try:
        graph.pool()
    except RuntimeError:
        return False
    return True


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """While inside, Python's garbage stays: an old graph that is destroyed in a capture breaks it."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _free_generator() -> None:
    """Let what draws on the device draw again: a capture that broke keeps its generator, which the end of a whole one frees."""
    with suppress(RuntimeError), torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"):
        torch.zeros((), device="cuda")


class Captured(Generic[Given]):
    """On a GPU: a function without arguments that, from its fourth call on, is one CUDA graph.

    Args:
        without: what the warning says of going on without a graph, such as "updates are made without CUDA graphs".
        pool: memory that it shares with other graphs, see `captured`.

    Attributes:
        graph: None: there is none yet, or it could not be captured.
        failed: whether it could not.
    """

    def __init__(self, function: Callable[[], Given], without: str, pool: Any = None) -> None:
        self.function, self.without, self.pool = function, without, pool
        self.calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.failed = False
        self._given: Given | None = None

    def __call__(self) -> Given:
        """What the function gives, in a graph's case until the next call."""
        self.calls += 1
        if self.calls <= WARM_UP:
            return on_side_stream(self.function)
        if self.calls == WARM_UP + 1:
            self._capture()
        if self.graph is None:
            return self.function()
        self.graph.replay()
        return cast("Given", self._given)

    def _capture(self) -> None:
        """Where it fails, each call launches its kernels one by one, as before."""
        try:
            self.graph, self._given = captured(self.function, self.pool)
        except RuntimeError as error:
            self.failed = True
            log.warning("%s, which is slower: %s", self.without, error)
