"""Results as one text table, and the machine they were taken on."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks import released
from benchmarks.harness import Result
from recollect.stages.circumstances import processor

HEADER = ("work", "ours", "against", "theirs", "ratio [min..max]", "goal", "reached")
RELEASED = ("released code, recorded", "ratio to it", "its goal", "met")


def amount(value: float) -> str:
    """Three digits and a prefix: 1234567 -> 1.23 M."""
    for size, prefix in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{prefix}"
    return f"{value:.3g}"


def absolute(seconds_per_unit: float | None, unit: str) -> str:
    """A rate, or a time where there is no unit to count."""
    if seconds_per_unit is None:
        return "–"
    if unit:
        return f"{amount(1 / seconds_per_unit)} {unit}/s"
    return f"{seconds_per_unit:.3g} s" if seconds_per_unit >= 0.1 else f"{1000 * seconds_per_unit:.3g} ms"


def ratio(result: Result) -> str:
    """The median ratio with the extremes of the rounds."""
    if not result.ratios:
        return "–"
    shown = (f"{value:.3g}" if value < 1000 else f"{value:.0f}" for value in (min(result.ratios), max(result.ratios)))
    middle = f"{result.ratio:.3g}" if result.ratio < 1000 else f"{result.ratio:.0f}"
    return f"{middle}× [{'..'.join(shown)}]"


def row(result: Result, mark: str = "", gemm_seconds: float | None = None) -> tuple[str, ...]:
    """The cells of one result; with the seconds of a matrix product now, also beside the released code."""
    reached = {True: "yes", False: "no", None: "–"}
    cells = (
        result.work + mark,
        absolute(result.ours_seconds, result.unit),
        result.plain,
        absolute(result.against_seconds, result.unit),
        ratio(result),
        str(result.goal) if result.goal else "–",
        reached[result.reached],
    )
    if gemm_seconds is None:
        return cells
    if not result.released:
        return (*cells, *["–"] * len(RELEASED))
    line = released.lines()[result.released]
    factor = line.factor(gemm_seconds)
    threads = f", {line.threads} threads" if line.threads != torch.get_num_threads() else ""
    said = f"{line.date}, machine factor {'unknown' if factor is None else f'{factor:.2f}'}{threads}"
    found = released.ratio_of(result, gemm_seconds)
    goal = "–" if line.goal is None else f"≥ {line.goal:g}×"
    verdict = {True: "yes", False: "NOT MET", None: "–"}[released.met(result, gemm_seconds)]
    return (*cells, f"{absolute(line.scaled(gemm_seconds), line.unit)} ({said})", f"{found:.3g}×", goal, verdict)


def text(results: Sequence[Result], gemm_seconds: float | None = None) -> str:
    """The whole table; notes stand below it, numbered."""
    notes: list[str] = []
    rows: list[tuple[str, ...]] = [HEADER if gemm_seconds is None else HEADER + RELEASED]
    for result in results:
        said = list(result.notes)
        if gemm_seconds is not None and released.met(result, gemm_seconds) is False:
            said += filter(None, [released.lines()[result.released].limit])
        notes += [note for note in said if note not in notes]
        marks = ",".join(str(notes.index(note) + 1) for note in said)
        rows.append(row(result, f" ({marks})" if marks else "", gemm_seconds))
    widths = [max(len(cells[column]) for cells in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip() for cells in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines + [f"({number}) {note}" for number, note in enumerate(notes, 1)])


def machine() -> dict[str, Any]:
    """What the numbers depend on, and how fast this machine multiplies matrices now."""
    square = torch.rand(1024, 1024)
    fastest = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        square @ square
        fastest = min(fastest, time.perf_counter() - began)
    return {
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else 0.0,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "gemm_seconds": fastest,
        "gflops": round(released.GEMM_FLOP / fastest / 1e9),
    }


def machine_text(found: dict[str, Any]) -> str:
    """The machine in two lines."""
    return (
        f"{found['processor']}; {found['cores']} cores, {found['threads']} threads, GPU {found['gpu']}; "
        f"Python {found['python']}, torch {found['torch']}\n"
        f"load {found['load']} when it began; a 1024×1024×1024 matrix product: {found['gflops']} GFLOP/s"
    )
