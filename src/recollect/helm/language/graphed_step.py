"""A memory's step on a GPU as one CUDA graph for each shape of its inputs; on a CPU it is taken as it is."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from recollect.common.cuda_graphs import WARM_UP, captured, on_side_stream
from recollect.settings.errors import UserError

NEAR = 2e-2  # how far what a graph gives may be from what the step gives, where the largest number is 1: bfloat16 rounds at 4e-3

Read = tuple[Tensor, list[Tensor]]
"""What a memory says of its newest inputs, and of each layer how it attends to what is remembered."""


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
        if calls <= WARM_UP:
            return on_side_stream(partial(self.step, x))
        if x.shape in self._captured:
            return self._replayed(x)
        expected = self.peek(x)[0].clone()
        try:
            self._captured[x.shape] = self._capture(x)
        except RuntimeError as error:
            warnings.warn(f"no CUDA graph could be made, steps are taken without: {error}", stacklevel=2)
            self.graphed = False
        if not self.graphed:  # behind the error, whose frames hold what the capture made
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

    def _capture(self, x: Tensor) -> tuple[torch.cuda.CUDAGraph, Tensor, Read]:
        given = x.clone()
        graph, found = captured(partial(self.step, given))
        return graph, given, found

    def _replayed(self, x: Tensor) -> Read:
        graph, given, found = self._captured[x.shape]
        given.copy_(x)
        graph.replay()
        return found
