"""Batches that a thread prepares while the learner learns from those before them.

The thread makes them one after the other, in order, so that they are what they would be without it. What else making a
batch changes must be kept beside it: the learner may stop before it has used all that was made.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import torch

from recollect.amago.trajectory_files import Batch

Made = TypeVar("Made")


def in_order(make: Callable[[int], Made], numbers: Iterable[int], ahead: int) -> Generator[Made]:
    """`make` of each number. Close it when done (`contextlib.closing`): then the thread has ended.

    Args:
        ahead: how many may be made before they are asked for; 0: none, and there is no thread.
    """
    if not ahead:
        yield from map(make, numbers)
        return
    with ThreadPoolExecutor(1, "batches") as thread:
        waiting: deque[Future[Made]] = deque()
        try:
            for number in numbers:
                waiting.append(thread.submit(make, number))
                if len(waiting) > ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def pinned(batch: Batch) -> Batch:
    """The batch as tensors in memory from which a GPU copies while the host goes on."""
    held: dict[str, Any] = {name: torch.as_tensor(array).pin_memory() for name, array in vars(batch).items()}
    return Batch(**held)
