"""Paired timing: ours and the plain way take turns, and what counts is the ratio within a round.

A machine drifts by tens of percent from minute to minute (other people's jobs, clock speed); within a round of a second
it hardly does. So both ways run in every round, in alternating order, and the median of the rounds' ratios is reported
with their extremes. Absolute numbers are medians too; they are only for orientation.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Literal

import torch

from benchmarks.arithmetic import Arithmetic

ROUNDS = 5
AT_LEAST = 0.2  # seconds: a measurement of something shorter runs it several times


@dataclass(frozen=True)
class Side:
    """One of the two ways.

    Args:
        run: does the work once.
        units: how much work that is (steps, windows, ...); may be less than what the other side does in one call.
        prepare: called before every measurement, not timed.
        once: `run` continues from where it stands, so it must not be repeated within a measurement.
        cold: there is nothing to warm up (a process of its own).
    """

    run: Callable[[], object]
    units: float
    prepare: Callable[[], object] | None = None
    once: bool = False
    cold: bool = False


def waiting(work: Callable[[], object], device: str) -> Callable[[], None]:
    """The work, and on a GPU the wait for its end."""

    def run() -> None:
        work()
        if device != "cpu":
            torch.cuda.synchronize()

    return run


@dataclass(frozen=True)
class Goal:
    """What section 7 of the design promises: a ratio of at least so much, or (without a plain way) a time below so much."""

    value: float
    kind: Literal["ratio", "seconds"] = "ratio"
    text: str = ""

    def reached(self, result: Result) -> bool:
        """Whether a result keeps the promise."""
        return result.ratio >= self.value if self.kind == "ratio" else result.ours_seconds < self.value

    def __str__(self) -> str:
        return self.text or (f"≥ {self.value:g}×" if self.kind == "ratio" else f"< {self.value:g} s")


@dataclass(frozen=True)
class Comparison:
    """One row of the table.

    Args:
        work: what is done.
        unit: what rates are counted in, per second; "" if seconds per call say more.
        plain: in a few words, the plain way.
        ours, against: the two ways; None: there is nothing to compare with.
        difference: computes the same thing in both ways and gives the largest difference between the results.
        tolerance: the largest difference that rounding explains.
        goal: None where the design promises nothing.
        rounds: how often both ways are timed at most (slow ones); None: as often as the others.
        notes: what a reader must know, e.g. that a time was scaled up.
        released: name of the line of `released.yaml` that this is to be compared with, if any.
        float32: ours computes in it, so that its share of the machine's peak in float32 can be said.
    """

    work: str
    unit: str
    plain: str
    ours: Side
    against: Side | None
    difference: Callable[[], float]
    tolerance: float = 0.0
    goal: Goal | None = None
    rounds: int | None = None
    notes: tuple[str, ...] = ()
    released: str = ""
    float32: bool = True


@dataclass(frozen=True)
class Rates:
    """How fast the machine multiplied matrices just before a comparison.

    Args:
        threads: that it did it with, and ours has.
        gemm_seconds: of a product of 1024 x 1024 x 1024.
        peak_gflops: of that product, or of 3200 x 512 x 2048 through oneDNN where this is faster.
    """

    threads: int
    gemm_seconds: float
    peak_gflops: float


@dataclass(frozen=True)
class Result:
    """What was measured: seconds per unit of work, and the ratio theirs/ours of each round.

    Args:
        gflop: arithmetic of a unit of ours, see `arithmetic`; None where none was seen.
        rates: of the machine; None where they were not measured.
    """

    work: str
    unit: str
    plain: str
    goal: Goal | None
    notes: tuple[str, ...]
    difference: float
    ours_seconds: float
    against_seconds: float | None
    ratios: tuple[float, ...] = field(default=())
    released: str = ""
    gflop: float | None = None
    rates: Rates | None = None

    @property
    def ratio(self) -> float:
        """The median over the rounds; 0 where nothing was compared."""
        return statistics.median(self.ratios) if self.ratios else 0.0

    @property
    def reached(self) -> bool | None:
        """Whether the goal is reached; None without a goal."""
        return None if self.goal is None else self.goal.reached(self)


class NotTheSame(AssertionError):
    """The two ways of a comparison do not compute the same, so their times cannot be compared."""


def checked(comparison: Comparison) -> float:
    """The difference between the results of the two ways.

    Raises:
        NotTheSame: it is larger than rounding explains.
    """
    difference = comparison.difference()
    if not difference <= comparison.tolerance:  # also where it is NaN
        raise NotTheSame(
            f"{comparison.work}: the results of the two ways differ by {difference:g}, "
            f"more than {comparison.tolerance:g}; no time was taken"
        )
    return difference


def seconds(side: Side, calls: int) -> float:
    """Seconds per unit of work, over so many calls."""
    if side.prepare is not None:
        side.prepare()
    began = time.perf_counter()
    for _ in range(calls):
        side.run()
    return (time.perf_counter() - began) / (calls * side.units)


def calls_for(side: Side, at_least: float, watching: AbstractContextManager[object] | None = None) -> int:
    """How many calls last long enough to be timed; this is also the warm-up: the first call is `watching`, and not timed."""
    if side.cold:
        return 1
    with watching or nullcontext():
        seconds(side, 1)
    if side.once:
        return 1
    calls = 1
    while True:
        lasted = seconds(side, calls) * calls * side.units
        if lasted >= at_least:
            return calls
        calls = max(calls * 2, math.ceil(calls * at_least / max(lasted, 1e-9)))


def measure(comparison: Comparison, *, rounds: int = ROUNDS, at_least: float = AT_LEAST) -> Result:
    """Check that both ways do the same, warm both up, and time them in turn.

    Raises:
        NotTheSame: see `checked`.
    """
    difference = checked(comparison)
    rounds = min(rounds, comparison.rounds or rounds)
    ours, against = comparison.ours, comparison.against
    # A mode of PyTorch's would break CUDA graphs and compiled code.
    arithmetic = Arithmetic() if comparison.float32 and not torch.cuda.is_available() else None
    our_calls = calls_for(ours, at_least, arithmetic)
    their_calls = calls_for(against, at_least) if against is not None else 0
    our_times: list[float] = []
    their_times: list[float] = []
    for number in range(rounds):
        if number % 2 or against is None:
            our_times.append(seconds(ours, our_calls))
        if against is not None:
            their_times.append(seconds(against, their_calls))
        if not number % 2 and against is not None:
            our_times.append(seconds(ours, our_calls))
    return Result(
        work=comparison.work,
        unit=comparison.unit,
        plain=comparison.plain,
        goal=comparison.goal,
        notes=comparison.notes,
        difference=difference,
        ours_seconds=statistics.median(our_times),
        against_seconds=statistics.median(their_times) if their_times else None,
        ratios=tuple(theirs / mine for theirs, mine in zip(their_times, our_times, strict=False)),
        released=comparison.released,
        gflop=arithmetic.flop / ours.units / 1e9 if arithmetic is not None and arithmetic.flop else None,
    )
