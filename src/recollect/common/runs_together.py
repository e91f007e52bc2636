"""Runs that one process trains together: what befalls one of them stops no other."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Generic, TypeVar

from recollect.artifacts.run import Run

log = logging.getLogger(__name__)
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
            log.debug("run %d fails", place, exc_info=True)
            self.failed[place] = _without_frames(error)
            self.trainers.pop(place, None)
            return None

    def each(self, work: Callable[[int], None], places: Iterable[int]) -> None:
        """The same for several runs, of which `work` takes the places."""
        for place in list(places):
            self.attempt(place, partial(work, place))


def _without_frames(error: Exception) -> Exception:
    """Frames of a traceback hold all that the run had in memory, which the others may need."""
    told: BaseException | None = error
    seen = set[int]()
    while told is not None and id(told) not in seen:
        seen.add(id(told))
        told.__traceback__ = None
        told = told.__cause__ or told.__context__
    return error
