"""What the released code took where it was timed (`released.yaml`), scaled to the machine that runs now.

A matrix product of 1024 x 1024 x 1024 was timed there, and is timed here before each comparison; how much faster it is here scales
the recorded time. That is fair where both codes multiply matrices, and rough where they do not. A time with another number of
threads than there are here stays as it was. Nothing of the released code is needed to read this.
"""

from __future__ import annotations

import datetime
from functools import cache
from pathlib import Path
from typing import Literal

import yaml
from pydantic import model_validator

from benchmarks.harness import Rates, Result
from recollect.settings.schema import Frozen

GEMM_FLOP = 2 * 1024**3


class Line(Frozen):
    """One line of the file; its fields are described there."""

    of: str
    unit: str
    per_second: float | None = None
    seconds: float | None = None
    threads: int
    date: datetime.date
    gemm_seconds: float | Literal["unknown"]
    goal: float | None
    gflop: float | None = None
    limit: str = ""

    @model_validator(mode="after")
    def _check(self) -> Line:
        if (self.per_second is None) == (self.seconds is None):
            raise ValueError("give either per_second or seconds")
        return self

    def factor(self, rates: Rates) -> float | None:
        """How many times as long things take now as then; None where that is unknown, or the threads are not as many."""
        if self.gemm_seconds == "unknown" or self.threads != rates.threads:
            return None
        return rates.gemm_seconds / self.gemm_seconds

    def scaled(self, rates: Rates) -> float:
        """Seconds per unit, as they would be now (as they were, where no factor is known)."""
        recorded = self.seconds if self.per_second is None else 1 / self.per_second
        assert recorded is not None
        return recorded * (self.factor(rates) or 1.0)


@cache
def lines() -> dict[str, Line]:
    """All of them, by name."""
    content = yaml.safe_load(Path(__file__).with_name("released.yaml").read_text())
    return {name: Line.model_validate(line) for name, line in content["lines"].items()}


def line_of(result: Result) -> Line | None:
    """The line that a result is to be compared with; None where there is none, or the machine's rates are not known."""
    return lines()[result.released] if result.released and result.rates is not None else None


def ratio_of(result: Result) -> float | None:
    """How many times as fast ours is; None where the released code was not timed."""
    line = line_of(result)
    return None if line is None or result.rates is None else line.scaled(result.rates) / result.ours_seconds


def share_of(result: Result) -> float | None:
    """Which part of the fastest matrix product's rate ours computes at; None where there is no arithmetic that was counted."""
    line = line_of(result)
    gflop = result.gflop if result.gflop is not None or line is None else line.gflop
    return None if gflop is None or result.rates is None else gflop / result.ours_seconds / result.rates.peak_gflops


def met(result: Result) -> bool | None:
    """Whether the line's goal is met; None without one."""
    line, ratio = line_of(result), ratio_of(result)
    return None if line is None or line.goal is None or ratio is None else ratio >= line.goal
