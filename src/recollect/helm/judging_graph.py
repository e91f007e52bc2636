"""What the network says while it acts, on a GPU as one CUDA graph: about twenty small kernels, launched at once.

A graph is of one number of rows. It reads images and history vectors where they are copied to, and weights where they are
trained and loaded, so it always reads the newest. A training has one graph, an evaluation one more for fewer games at its end.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from recollect.common.cuda_graphs import Captured

MOST = 4
"""Numbers of rows that become graphs; with others the kernels are launched one by one."""

Rows = tuple[Tensor, ...]
"""What a step is about, [B, ...] each."""


class JudgingGraph:
    """Calls a function of tensors of B rows; on a GPU by a graph for each B, from the fourth call with it on.

    Where a graph cannot be captured, one warning says so, and the function is called as it is.

    Args:
        judge: it asks the device for no number, and neither draws nor changes anything.

    Attributes:
        graphed: False: no graph is made.
    """

    def __init__(self, judge: Callable[..., Tensor]) -> None:
        self.judge = judge
        self.graphed = True
        self._made: dict[int, tuple[Rows, Captured[Tensor]]] = {}

    @torch.no_grad()
    def __call__(self, *rows: Tensor) -> Tensor:
        """What the function gives, in a graph's case until the next call."""
        if rows[0].device.type != "cuda" or not self.graphed:
            return self.judge(*rows)
        batch = len(rows[0])
        if batch not in self._made:
            if len(self._made) == MOST or any(step.failed for _, step in self._made.values()):
                return self.judge(*rows)
            given = tuple(torch.empty_like(one) for one in rows)
            self._made[batch] = given, Captured(partial(self.judge, *given), "acting goes on without CUDA graphs")
        given, step = self._made[batch]
        for own, one in zip(given, rows, strict=True):
            own.copy_(one)
        return step()
