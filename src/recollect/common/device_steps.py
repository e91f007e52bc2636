"""Steps on a GPU that the host never waits in: arrays are moved from pinned memory, and a whole step is one CUDA graph.

On a CPU arrays stay where they are and functions are called as they are, so that both can be tested there.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from recollect.settings.errors import UserError

EAGER_CALLS = 3  # PyTorch asks for some calls on a side stream before a capture
NEAR = 2e-2  # how far what a graph gives may be from what the step gives, where the largest number is 1: bfloat16 rounds at 4e-3

Read = tuple[Tensor, list[Tensor]]
"""What a memory says of its newest inputs, and of each layer how it attends to what is remembered."""


def moved(array: np.ndarray | Tensor, device: torch.device) -> Tensor:
    """An array on a device; on a CPU it shares the array's memory, on a GPU the host does not wait for the copy."""
    on_host = torch.from_numpy(array) if isinstance(array, np.ndarray) else array
    if device.type != "cuda" or on_host.device.type != "cpu":
        return on_host.to(device)
    return on_host.pin_memory().to(device, non_blocking=True)


class GraphedStep:
    """A step of a memory, on a GPU replayed as one CUDA graph for each shape of its inputs from the fourth call on.

    Where the capture fails the step is taken as it is from then on, with one warning. What it gives is overwritten by the
    next call.

    Args:
        step: changes tensors in place and decides nothing by what tensors hold. The first calls are real ones.
        peek: gives the same and changes nothing; the first replay is compared with it.
        graphed: False: no graph is made.

    Raises:
        UserError: a graph gives other numbers.
    """

    def __init__(self, step: Callable[[Tensor], Read], peek: Callable[[Tensor], Read], *, graphed: bool = True) -> None:
        self.step, self.peek, self.graphed = step, peek, graphed
        self._calls: dict[torch.Size, int] = {}
        self._captured: dict[torch.Size, tuple[torch.cuda.CUDAGraph, Tensor, Read]] = {}

    def __call__(self, x: Tensor) -> Read:
        if x.device.type != "cuda" or not self.graphed:
            return self.step(x)
        calls = self._calls[x.shape] = self._calls.get(x.shape, 0) + 1
        if calls <= EAGER_CALLS:
            return self._beside(x)
        if x.shape in self._captured:
            return self._replayed(x)
        expected = self.peek(x)[0].clone()
        try:
            self._captured[x.shape] = self._capture(x)
        except RuntimeError as error:
            warnings.warn(f"no CUDA graph could be made, steps are taken without: {error}", stacklevel=2)
            self.graphed = False
            return self.step(x)
        found = self._replayed(x)
        apart = float((found[0] - expected).abs().max() / expected.abs().max().clamp(min=1))
        if not apart < NEAR:
            raise UserError(
                f"a CUDA graph gives other numbers than its kernels one by one: {apart:.1e} apart",
                where="language_graph",
                do="set language_graph: false",
            )
        return found

    def _beside(self, x: Tensor) -> Read:
        main, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            found = self.step(x)
        main.wait_stream(side)
        return found

    def _capture(self, x: Tensor) -> tuple[torch.cuda.CUDAGraph, Tensor, Read]:
        graph, given = torch.cuda.CUDAGraph(), x.clone()
        with torch.cuda.graph(graph):
            found = self.step(given)
        return graph, given, found

    def _replayed(self, x: Tensor) -> Read:
        graph, given, found = self._captured[x.shape]
        given.copy_(x)
        graph.replay()
        return found
