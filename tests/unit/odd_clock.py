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

    def __init__(self, folder: Path, *, stop: int, seed: int) -> None:
        self.now, self.asked, self.stop = 0.0, 0, stop
        self.draws = np.random.default_rng(seed)
        super().__init__(folder, folder / "checkpoints", settings_text="same", clock=lambda: self.now)

    def due(self, step: int, every: int) -> bool:
        self.asked += 1
        if self.asked == self.stop:
            raise Stopped
        self.now += self.draws.choice([0.01, 3.0, 200.0])
        return super().due(step, 0)


def ends_the_same(train: Callable[[Run], dict[str, Any]], folder: Path, stops: tuple[int, ...]) -> int:
    """Train unbroken, and stopped again and again; same arrays and table. Returns how often a checkpoint was used."""
    whole = Run(folder / "whole", folder / "whole" / "checkpoints", settings_text="same", clock=lambda: 0.0)
    expected, used = train(whole), 0
    for number, stop in enumerate((*stops, -1)):
        run = OddRun(folder / "odd", stop=stop, seed=number)
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

    def due(self) -> bool:
        self.asked += 1
        if self.asked == self.stop:
            raise Stopped
        self.now += self.draws.choice([0.01, 3.0, 200.0])
        return super().due()
