"""Steps of acting as CUDA graphs, one for each key: such as one per number of slots that are read of a cache."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import Any, ClassVar, TypeVar, cast

import torch
from torch import Tensor

from recollect.common.cuda_graphs import WARM_UP, captured, on_side_stream

log = logging.getLogger(__name__)
Given = TypeVar("Given")


class StepGraphs:
    """Functions of tensors that stay where they are as CUDA graphs; on a CPU, and where one cannot be captured, as they are.

    Args:
        near: a new graph is one that cannot be captured if the tensor it gives is further than this from the function's own.
            None: nothing is compared.

    Attributes:
        works: whether graphs can be captured here; the first that cannot is warned of, and none is tried again.
        made: by their keys, and where their replays leave what is given.
    """

    works: ClassVar[bool] = True

    def __init__(self, device: torch.device, near: float | None = None) -> None:
        self.device, self.near = device, near
        self.made: dict[Hashable, tuple[torch.cuda.CUDAGraph, Any]] = {}

    def run(self, key: Hashable, function: Callable[[], Given], changed: tuple[Tensor, ...] = ()) -> Given:
        """What the function gives, in a graph's case until the next call.

        Args:
            key: functions with one key are one function.
            changed: the tensors from which it begins, and which it leaves as the next one begins.
        """
        if self.device.type != "cuda" or not StepGraphs.works:
            return function()
        if key not in self.made:
            try:
                self.made[key] = self._captured(function, changed)
            except RuntimeError as error:
                StepGraphs.works = False
                log.warning("acting goes on without CUDA graphs, which is slower: %s", error)
        if key not in self.made:  # behind the error, whose frames hold what the capture made
            return function()
        graph, given = self.made[key]
        graph.replay()
        return cast("Given", given)

    def _captured(
        self, function: Callable[[], Given], changed: tuple[Tensor, ...]
    ) -> tuple[torch.cuda.CUDAGraph, Given]:
        """A graph and where its replay leaves what is given. What comes next draws and begins as if there had been no warm-up."""
        drawn, before = torch.cuda.get_rng_state(), tuple(one.clone() for one in changed)

        def undo() -> None:
            for own, one in zip(changed, before, strict=True):
                own.copy_(one)

        try:
            for _ in range(WARM_UP):
                expected = on_side_stream(function)
                undo()
            graph, given = captured(function)
            if self.near is not None:
                graph.replay()
                if not torch.allclose(cast("Tensor", given), cast("Tensor", expected), rtol=self.near, atol=self.near):
                    raise RuntimeError("a captured step gives other numbers than the step itself")
                undo()
            return graph, given
        finally:
            torch.cuda.set_rng_state(drawn)
