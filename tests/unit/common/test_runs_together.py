"""Runs that one process trains together: what befalls one of them stops no other, and takes no memory from the others."""

from __future__ import annotations

import weakref
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np

from recollect.common.runs_together import RunsTogether


def test_a_run_that_fails_leaves_its_error_and_not_what_it_had_in_memory() -> None:
    together: RunsTogether[Any] = RunsTogether([SimpleNamespace(going_on=nullcontext)] * 2)  # type: ignore[list-item]
    together.trainers = {0: "a trainer", 1: "another"}
    held: list[Any] = []

    def fails() -> None:
        large = np.zeros(3)
        held.append(weakref.ref(large))
        try:
            raise KeyError(large.sum())
        except KeyError as error:
            raise ValueError("no room") from error

    assert together.attempt(0, fails) is None
    assert together.attempt(1, lambda: 7) == 7
    assert list(together.trainers) == [1] and str(together.failed[0]) == "no room"
    assert held[0]() is None
