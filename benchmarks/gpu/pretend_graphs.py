"""CUDA graphs of a pretend GPU (`benchmarks.gpu.pretend`): as late as CUDA's, and as deaf to the host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map


def storage_of(tensor: Tensor) -> Any:
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # sparse and other tensors that have none
        return None


def tensors_of(tree: Any) -> list[Tensor]:
    found: list[Tensor] = []
    _gather(tree, found)
    return found


def _gather(tree: Any, into: list[Tensor]) -> None:
    if isinstance(tree, Tensor):
        into.append(tree)
    elif isinstance(tree, (list, tuple, dict)):
        for one in tree.values() if isinstance(tree, dict) else tree:
            _gather(one, into)


class Graph:
    """A CUDA graph: what was computed in its capture is computed anew by each replay, on the same tensors."""

    def __init__(self, *unused: Any, **also: Any) -> None:
        self.calls: list[tuple[Any, Any, Any, list[tuple[int, Tensor]]]] = []
        self.broken = False  # by what a capture refuses
        self._own: set[int] = set()  # storages that began in the capture
        self._kept: list[Any] = []  # so that no number is given twice
        self._before: dict[int, tuple[Tensor, Tensor]] = {}

    def before(self, func: Any, args: Any, kwargs: Any) -> None:
        for argument, value in zip(func._schema.arguments, args, strict=False):
            self._remember(argument, value)
        for argument in func._schema.arguments:
            if argument.name in kwargs:
                self._remember(argument, kwargs[argument.name])

    def _remember(self, argument: Any, value: Any) -> None:
        if argument.alias_info is None or not argument.alias_info.is_write:
            return
        for tensor in tensors_of(value):
            storage = storage_of(tensor)
            if id(storage) not in self._own and id(storage) not in self._before:
                whole = torch.empty(0, dtype=torch.uint8).set_(storage)
                self._before[id(storage)] = whole, whole.clone()
                self._kept.append(storage)

    def after(self, func: Any, args: Any, kwargs: Any, found: Any, known: set[int]) -> None:
        fresh = []
        for place, tensor in enumerate(tensors_of(found)):
            storage = storage_of(tensor)
            if id(storage) not in known:
                self._own.add(id(storage))
                self._kept.append(storage)
                fresh.append((place, tensor))
        held = tree_map(lambda leaf: leaf.detach() if isinstance(leaf, Tensor) else leaf, (args, kwargs))
        self.calls.append((func, *held, [(place, tensor.detach()) for place, tensor in fresh]))

    def ended(self) -> None:
        """As a capture computes nothing, what was there before is there again, and results are no numbers."""
        for now, then in self._before.values():
            now.copy_(then)
        for _, _, _, fresh in self.calls:
            for _, tensor in fresh:
                if tensor.is_floating_point():
                    tensor.fill_(torch.nan)

    def pool(self) -> tuple[int, int]:
        if self.broken:
            raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")
        return 0, 0

    def reset(self) -> None:
        self.calls, self._kept = [], []

    def replay(self) -> None:
        with as_it_is():
            for func, args, kwargs, fresh in self.calls:
                found = tensors_of(func(*args, **kwargs))
                for place, tensor in fresh:
                    tensor.copy_(found[place])


@contextmanager
def as_it_is() -> Iterator[None]:
    """Operations are computed, and nothing watches them."""
    with _disable_current_modes(), torch.no_grad(), torch._C.DisableTorchFunction():
        yield


@contextmanager
def capture(gpu: Any, graph: Graph, *unused: Any, **also: Any) -> Iterator[None]:
    """Stands in for `torch.cuda.graph` on a `PretendGpu`: what this thread asks for while inside becomes the graph."""
    gpu.here.capturing = graph
    drawn = torch.get_rng_state()
    try:
        yield
    finally:
        gpu.here.capturing = None
        with as_it_is():
            graph.ended()
            torch.set_rng_state(drawn)
