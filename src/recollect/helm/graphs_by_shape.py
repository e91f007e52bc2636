"""A function of tensors of a few shapes, on a GPU as one CUDA graph for each: its many small kernels are launched at once.

A graph always reads from the same places. So inputs are copied to there before each replay, and weights are trained and loaded
where they are. Acting has a graph for the games of training, and one for fewer at the end of an evaluation. Updates have one for
each size of a minibatch. The graphs share their memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from recollect.common.cuda_graphs import Captured

MOST = 4
"""Shapes that become graphs; with others the kernels are launched one by one."""

Given = TypeVar("Given")


class GraphsByShape(Generic[Given]):
    """Calls a function of tensors; on a GPU by a graph for each of their shapes, from the fourth call with it on.

    Where a graph cannot be captured, one warning says so, and the function is called as it is.

    Args:
        function: it asks the device for no number.
        without: what the warning says of going on without a graph.

    Attributes:
        graphed: False: no graph is made.
        steps: what was captured, or will be, by the shapes of the tensors.
    """

    def __init__(self, function: Callable[..., Given], without: str) -> None:
        self.function, self.without = function, without
        self.graphed = True
        self.steps: dict[tuple[torch.Size, ...], Captured[Given]] = {}
        self._read: dict[tuple[torch.Size, ...], tuple[Tensor, ...]] = {}
        self._pool: Any = None

    def __call__(self, *tensors: Tensor) -> Given:
        """What the function gives, in a graph's case until the next call."""
        if tensors[0].device.type != "cuda" or not self.graphed:
            return self.function(*tensors)
        shapes = tuple(one.shape for one in tensors)
        if shapes not in self.steps:
            if len(self.steps) == MOST or any(step.failed for step in self.steps.values()):
                return self.function(*tensors)
            if self._pool is None:
                self._pool = torch.cuda.graph_pool_handle()
            read = self._read[shapes] = tuple(torch.empty_like(one) for one in tensors)
            self.steps[shapes] = Captured(partial(self.function, *read), self.without, self._pool)
        for own, one in zip(self._read[shapes], tensors, strict=True):
            own.copy_(one)
        return self.steps[shapes]()
