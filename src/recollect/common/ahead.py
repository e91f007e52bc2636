"""What a thread makes ahead of those who use it: one after the other, in order, so that it is what it would be without.

What else making changes must be kept beside what is made: who uses it may stop before all was used.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

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
