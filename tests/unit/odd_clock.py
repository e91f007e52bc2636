"""Runs and scorings that are stopped at odd moments, and whose checkpoints come when an odd clock says so."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from recollect.artifacts.cadence import Cadence
from recollect.artifacts.run import Run
from recollect.artifacts.scoring import Scoring


class Stopped(Exception):
    """Stands for a kill."""


class OddRun(Run):
    """A run by a clock whose seconds pass in odd leaps, which stops when it was asked so often for a checkpoint."""

    def __init__(self, folder: Path, *, stop: int, seed: int, evaluate: Any = None) -> None:
        self.now, self.asked, self.stop = 0.0, 0, stop
        self.draws = np.random.default_rng(seed)
        checkpoints = folder / "checkpoints"
        super().__init__(folder, checkpoints, settings_text="same", evaluate=evaluate, clock=lambda: self.now)

    def due(self, step: int, every: int) -> bool:
        self.asked += 1
        if self.asked == self.stop:
            raise Stopped
        self.now += self.draws.choice([0.01, 3.0, 200.0])
        return super().due(step, 0)


class OddlyJudgedRun(OddRun):
    """The same, but it stops while it is judged, a moment after what it is judged by was saved so often."""

    def due(self, step: int, every: int) -> bool:
        self.now += self.draws.choice([0.01, 3.0, 200.0])
        return Run.due(self, step, 0)

    def scoring(self, policy: Any, step: int) -> Scoring:
        made = super().scoring(policy, step)
        due, saves = made.due, made.saves

        def asked(**how: Any) -> bool:
            nonlocal saves
            self.asked += made.saves - saves
            saves = made.saves
            if self.asked == self.stop:
                raise Stopped
            self.now += self.draws.choice([0.01, 3.0, 200.0])
            return due(**how)

        made.due = asked  # type: ignore[method-assign]
        return made


def ends_the_same(
    train: Callable[[Run], dict[str, Any]],
    folder: Path,
    stops: tuple[int, ...],
    *,
    kind: type[OddRun] = OddRun,
    evaluate: Any = None,
) -> int:
    """Train unbroken, and stopped again and again; same arrays and table. Returns how often a checkpoint was used."""
    there = folder / "whole"
    whole = Run(there, there / "checkpoints", settings_text="same", evaluate=evaluate, clock=lambda: 0.0)
    expected, used = train(whole), 0
    for number, stop in enumerate((*stops, -1)):
        run = kind(folder / "odd", stop=stop, seed=number, evaluate=evaluate)
        with suppress(Stopped):
            found = train(run)
        used += run.resumed
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert np.asarray(found[name]).tobytes() == np.asarray(value).tobytes(), name
    assert run.table().equals(whole.table())
    return used


class OddScoring(Scoring):
    """A scoring by such a clock, which stops when it was asked so often whether it is to be saved."""

    def __init__(self, folder: Path, *, stop: int, seed: int) -> None:
        self.now, self.asked, self.stop = 0.0, 0, stop
        self.draws = np.random.default_rng(seed)
        super().__init__(folder, lambda: "same", Cadence(lambda: self.now))
        self.resumed = bool(self.saves)

    def due(self, **how: Any) -> bool:
        self.asked += 1
        if self.asked == self.stop:
            raise Stopped
        self.now += self.draws.choice([0.01, 3.0, 200.0])
        return super().due(**how)
