"""Batches one step ahead: the next one is made while the present one is learned.

A thread of its own makes them, one after another, and on a GPU a stream of its own. Each batch is a function of its step
alone, so the thread changes neither their order nor a single bit of them. It may wait for its stream (an exact search
asks once whether it ended in a tie); the thread that learns never waits for the host's work or for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from typing import Any, TypeVar

import torch
from torch import Tensor

from recollect.common.ahead import in_order
from recollect.common.transfer import map_tensors

AnyBatch = TypeVar("AnyBatch")


def batches(
    batch_of: Callable[[int], AnyBatch], steps: range, device: torch.device | str, *, ahead: bool
) -> Generator[tuple[int, AnyBatch], None, None]:
    """Each step and its batch.

    Args:
        batch_of: a pure function of the step.
        ahead: in a thread, one step ahead; else each when it is asked for.
    """
    if not ahead:
        for step in steps:
            yield step, batch_of(step)
        return
    maker = _Maker(batch_of, torch.device(device))
    with closing(in_order(maker.make, steps, ahead=1)) as made:
        for step, one in zip(steps, made, strict=True):
            yield step, maker.taken(*one)


class _Maker:
    """Makes batches on a stream of its own, where the device has streams, and hands them to the stream that learns."""

    def __init__(self, batch_of: Callable[[int], Any], device: torch.device) -> None:
        self.batch_of = batch_of
        self.stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self.stream = torch.cuda.Stream(device)
            self.stream.wait_stream(torch.cuda.current_stream(device))  # what batches are made of has arrived

    def make(self, step: int) -> tuple[Any, torch.cuda.Event | None]:
        if self.stream is None:
            return self.batch_of(step), None
        with torch.cuda.stream(self.stream):
            batch = self.batch_of(step)
            ready = torch.cuda.Event()
            ready.record(self.stream)
        return batch, ready

    def taken(self, batch: Any, ready: torch.cuda.Event | None) -> Any:
        if ready is None or self.stream is None:
            return batch
        learning = torch.cuda.current_stream(self.stream.device)
        learning.wait_event(ready)

        def kept(tensor: Tensor) -> Tensor:
            tensor.record_stream(learning)  # its memory is not given away before the step that reads it is over
            return tensor

        return map_tensors(batch, kept)
