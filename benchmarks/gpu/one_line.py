"""Measures one line, variant by variant, and hands each result on as soon as it is there: what a crash leaves is kept.

A variant that fails is a row that says why, and the next begins; one whose setting does not exist is skipped with a word. What is
begun when the time of the line is used up ends; nothing else begins.
"""

from __future__ import annotations

import gc
import importlib
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.case import Case, NoSuchSetting, Part, Subject, difference
from benchmarks.gpu.lines import AS_SET, LINES, Line, Variant
from recollect.common.precision import tf32

TOLERANCE = {"float32": 2e-3, "tf32": 5e-2, "bfloat16": 1e-1}
"""How far what a few steps give may be from what the CPU gives in float32: see `case.difference`."""

KERNELS = 25  # that a profile lists

Units = dict[str, dict[str, float]]  # of a whole job: stage -> part -> how many


@dataclass(frozen=True)
class Row:
    """One part of a line in one variant.

    Args:
        rate: units per second; None: it was not measured, and `why` says why.
        megabytes: most memory of the device that the variant took; None on a CPU.
        flop, moved: of a unit, see `Part`.
        difference: from the CPU's float32, see `case.difference`.
        within: whether that is within the tolerance.
        run: commit and date of the run that measured it, where several runs are joined.
    """

    line: str
    part: str
    variant: str
    unit: str = ""
    rate: float | None = None
    peak: str = ""
    flop: float = 0.0
    moved: float = 0.0
    megabytes: float | None = None
    difference: float | None = None
    within: bool | None = None
    why: str = ""
    run: str = ""

    def share(self, peaks: dict[str, float]) -> float | None:
        """Of the rate that the device's own peaks would allow, the nearer of arithmetic and memory."""
        if self.rate is None or self.peak not in peaks:
            return None
        return self.rate * max(self.flop / peaks[self.peak], self.moved / peaks["copy"])


@dataclass(frozen=True)
class Measured:
    """What a line gives: rows, and units of a whole job by stage and part."""

    rows: list[Row] = field(default_factory=list)
    jobs: Units = field(default_factory=dict)


def subject_of(line: Line, case: Case) -> Subject:
    module, _, function = line.builds.rpartition(".")
    made: Subject = getattr(importlib.import_module(f"benchmarks.gpu.{module}"), function)(case)
    return made


def measure(
    name: str,
    *,
    device: str,
    quick: bool,
    seconds: float,
    hand_on: Callable[[Row | Units], None],
    only: Sequence[str] | None = None,
    compares: bool = True,
    profiles: bool = False,
) -> None:
    """Measure a line in all its variants, and then compare each with the CPU.

    Args:
        seconds: after which no further variant begins.
        hand_on: gets each row, and the units of a whole job, as soon as they are known; a row once more when it was compared.
        only: the variants; None: all.
        compares: with the CPU.
        profiles: say what each part spends its time in; then its rates are not those of a run.
    """
    line, began = LINES[name], time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="recollect_gpu_") as folder:
        cases = Cases(line, device, quick, Path(folder), profiles)
        told = False
        timed: dict[str, list[Row]] = {}
        for word, variant in line.variants.items():
            if only and word not in only:
                continue
            if time.perf_counter() - began > seconds:
                hand_on(Row(name, "", word, why="no time was left"))
                continue
            for found in cases.rows(name, word, variant):
                if isinstance(found, Row):
                    hand_on(found)
                    if found.rate is not None:
                        timed.setdefault(word, []).append(found)
                elif not told:
                    told = True
                    hand_on(found)
        for word, rows in (
            timed.items() if compares else ()
        ):  # only now: a process that is stopped in here has handed on all rates
            far, why = cases.compared(line.variants[word])
            within = None if far is None else far <= TOLERANCE[line.variants[word].peak]
            for row in rows:
                hand_on(replace(row, difference=far, within=within, why=why))


@dataclass
class Cases:
    """The cases of one line; what the CPU gives is asked once."""

    line: Line
    device: str
    quick: bool
    folder: Path
    profiles: bool = False
    wanted: np.ndarray | None = None

    def case(self, variant: Variant, *, small: bool = False, device: str | None = None) -> Case:
        line = self.line
        env, method = line.quick if self.quick else (line.env, line.method)
        changes = {**(line.quick_changes if self.quick else {}), **variant.changes, **(line.small if small else {})}
        extra = {**line.extra, **variant.extra}
        return Case(
            "smoke" if self.quick else "paper",
            env,
            method,
            device or self.device,
            self.folder,
            changes,
            variant.optional,
            extra,
            seconds=0.05 if self.quick else 0.3 if self.profiles else 1.5,
            warm=1 if self.quick else 4,
        )

    def rows(self, name: str, word: str, variant: Variant) -> Iterator[Row | Units]:
        """The rows of a variant, and in front of them the units of a whole job."""
        on_gpu = self.device != "cpu"
        if on_gpu:
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        try:
            with tf32(variant.tf32, "cuda"):
                subject = subject_of(self.line, self.case(variant))
                yield {stage: dict(units) for stage, units in subject.jobs.items()}
                for part in subject.parts:  # one by one: a process that is stopped has handed on what it knows
                    if part.often or word in (AS_SET, "graph"):
                        rate = self._rate(name, word, part)
                        megabytes = torch.cuda.max_memory_allocated() / 1e6 if on_gpu else None
                        yield Row(
                            name, part.name, word, part.unit, rate, variant.peak, part.flop, part.moved, megabytes
                        )
        except NoSuchSetting as error:
            yield Row(name, "", word, why=f"no such setting: {error}")
        except Exception as error:  # one variant's failure is a row
            yield Row(name, "", word, why=_said(error))

    def _rate(self, name: str, word: str, part: Part) -> float:
        if not self.profiles:
            return part.rate()
        kind = ProfilerActivity.CPU if self.device == "cpu" else ProfilerActivity.CUDA
        with profile(activities=[kind]) as seen:
            rate = part.rate()
        by = "self_cpu_time_total" if self.device == "cpu" else "self_cuda_time_total"
        print(f"\n{name}, {part.name or part.unit}, {word}: {rate:,.4g} {part.unit} per second while it was watched")
        print(seen.key_averages().table(sort_by=by, row_limit=KERNELS, max_name_column_width=90))
        return rate

    def compared(self, variant: Variant) -> tuple[float | None, str]:
        """How far a few small steps are from what the CPU gives in float32; or why that is not known."""
        try:
            if self.wanted is None:
                # As the settings stand a CPU computes in float32.
                self.wanted = subject_of(self.line, self.case(Variant(), small=True, device="cpu")).numbers()
            with tf32(variant.tf32, "cuda"):
                found = subject_of(self.line, self.case(variant, small=True)).numbers()
            return difference(found, self.wanted), ""
        except Exception as error:
            return None, f"not compared with the CPU: {_said(error)}"


def _said(error: Exception) -> str:
    """An exception in one line; the whole of it goes to the log."""
    traceback.print_exception(error)
    if isinstance(error, torch.OutOfMemoryError):
        return "out of memory"
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"[:200]
