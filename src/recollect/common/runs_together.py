"""Runs that one process trains together: what befalls one of them stops no other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Generic, TypeVar

from recollect.artifacts.run import Run

Trainer = TypeVar("Trainer")
Given = TypeVar("Given")


class RunsTogether(Generic[Trainer]):
    """Keeps which runs go on.

    Attributes:
        trainers: of the runs that go on, by the place of the run.
        failed: what broke, by the place of the run that it broke.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = runs
        self.trainers: dict[int, Trainer] = {}
        self.failed: dict[int, Exception] = {}

    def attempt(self, place: int, work: Callable[[], Given]) -> Given | None:
        """Do what one run does by itself; where that fails, it alone stops, and None is given."""
        try:
            with self.runs[place].going_on():
                return work()
        except Exception as error:
            self.failed[place] = error
            self.trainers.pop(place, None)
            return None

    def each(self, work: Callable[[int], None], places: Iterable[int]) -> None:
        """The same for several runs, of which `work` takes the places."""
        for place in list(places):
            self.attempt(place, partial(work, place))
