"""Tasks that are made when somebody asks for them.

A thousand mazes take three seconds. Most who list the tasks of a world want to know how many there are, or make one
instance to see its spaces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, overload

from recollect.environments.base import Task


class LazyTasks(Sequence[Task]):
    """The tasks of a split, equal to a list of them.

    Args:
        count: how many there are.
        make: makes the task of an index; called once for each that is asked for.
    """

    def __init__(self, count: int, make: Callable[[int], Task]) -> None:
        self._make, self._made = make, list[Task | None]([None] * count)

    def __len__(self) -> int:
        return len(self._made)

    @overload
    def __getitem__(self, index: int) -> Task: ...

    @overload
    def __getitem__(self, index: slice) -> list[Task]: ...

    def __getitem__(self, index: int | slice) -> Task | list[Task]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        task = self._made[index]
        if task is None:
            task = self._made[index] = self._make(index % len(self))
        return task

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __add__(self, others: Sequence[Task]) -> list[Task]:
        return [*self, *others]

    def __radd__(self, others: Sequence[Task]) -> list[Task]:
        return [*others, *self]

    def __reduce__(self) -> Any:
        """Another process gets them as a list."""
        return list, (list(self),)
