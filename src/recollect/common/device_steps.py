"""Steps on a GPU that the host never waits in: arrays are moved from pinned memory, and a whole step is one CUDA graph.

On a CPU arrays stay where they are and functions are called as they are, so that both can be tested there.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import numpy as np
import torch
from torch import Tensor

EAGER_CALLS = 3  # PyTorch asks for some calls on a side stream before a capture


def moved(array: np.ndarray | Tensor, device: torch.device) -> Tensor:
    """An array on a device; on a CPU it shares the array's memory, on a GPU the host does not wait for the copy."""
    on_host = torch.from_numpy(array) if isinstance(array, np.ndarray) else array
    if device.type != "cuda" or on_host.device.type != "cpu":
        return on_host.to(device)
    return on_host.pin_memory().to(device, non_blocking=True)


@contextmanager
def gpu_products(kind: Literal["float32", "tf32"], device: torch.device) -> Iterator[None]:
    """Inside, a GPU multiplies float32 numbers as they are, or as TF32 (ten bits of fraction), convolutions too."""
    if device.type != "cuda":
        yield
        return
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if kind == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = kind == "tf32"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


class GraphedStep:
    """A function of one tensor, on a GPU replayed as one CUDA graph for each shape from its fourth call on.

    The first calls are made as they are; they count, so the function may keep state in tensors that it changes in place.
    It must decide nothing by what tensors hold, and make no tensor on the host. What it gives is overwritten by the next
    call. Where the capture fails it is called as it is from then on, with one warning.
    """

    def __init__(self, function: Callable[[Tensor], Tensor], *, graphed: bool = True) -> None:
        self.function, self.graphed = function, graphed
        self._calls: dict[torch.Size, int] = {}
        self._captured: dict[torch.Size, tuple[torch.cuda.CUDAGraph, Tensor, Tensor]] = {}

    def __call__(self, x: Tensor) -> Tensor:
        if x.device.type != "cuda" or not self.graphed:
            return self.function(x)
        calls = self._calls[x.shape] = self._calls.get(x.shape, 0) + 1
        if calls <= EAGER_CALLS:
            return self._beside(x)
        if x.shape not in self._captured:
            try:
                self._captured[x.shape] = self._capture(x)
            except RuntimeError as error:
                warnings.warn(f"no CUDA graph could be made, steps are taken without: {error}", stacklevel=2)
                self.graphed = False
                return self.function(x)
        graph, given, found = self._captured[x.shape]
        given.copy_(x)
        graph.replay()
        return found

    def _beside(self, x: Tensor) -> Tensor:
        main, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            found = self.function(x)
        main.wait_stream(side)
        return found

    def _capture(self, x: Tensor) -> tuple[torch.cuda.CUDAGraph, Tensor, Tensor]:
        graph, given = torch.cuda.CUDAGraph(), x.clone()
        with torch.cuda.graph(graph):
            found = self.function(given)
        return graph, given, found
