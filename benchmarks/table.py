"""Results as one text table, and the machine they were taken on."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks import released
from benchmarks.harness import Result
from recollect.common.cpu.kernels import linear
from recollect.stages.circumstances import processor

HEADER = ("work", "ours", "against", "theirs", "ratio [min..max]", "goal", "reached")
RELEASED = ("released code, recorded", "ratio to it", "its goal", "met", "share of peak")


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


def row(result: Result, mark: str = "") -> tuple[str, ...]:
    """The cells of one result."""
    reached = {True: "yes", False: "no", None: "–"}[result.reached]
    return (
        result.work + mark,
        absolute(result.ours_seconds, result.unit),
        result.plain,
        absolute(result.against_seconds, result.unit),
        ratio(result),
        str(result.goal) if result.goal else "–",
        reached,
    )


def beside_released(result: Result, machine: dict[str, Any]) -> tuple[str, ...]:
    """The cells that lay a result beside the released code, on a machine (see `machine`)."""
    if not result.released:
        return ("–",) * len(RELEASED)
    line, gemm_seconds = released.lines()[result.released], machine["gemm_seconds"]
    factor, share = line.factor(gemm_seconds), released.share_of(result, machine["peak_gflops"])
    threads = f", {line.threads} threads" if line.threads != machine["threads"] else ""
    said = f"{line.date}, machine factor {'unknown' if factor is None else f'{factor:.2f}'}{threads}"
    return (
        f"{absolute(line.scaled(gemm_seconds), line.unit)} ({said})",
        f"{released.ratio_of(result, gemm_seconds):.3g}×",
        "–" if line.goal is None else f"≥ {line.goal:g}×",
        {True: "yes", False: "NOT MET", None: "–"}[released.met(result, gemm_seconds)],
        "–" if share is None else f"{100 * share:.2g} %",
    )


def text(results: Sequence[Result], machine: dict[str, Any] | None = None) -> str:
    """The whole table; notes stand below it, numbered. With a machine also beside the released code."""
    notes: list[str] = []
    rows: list[tuple[str, ...]] = [HEADER if machine is None else HEADER + RELEASED]
    for result in results:
        said = list(result.notes)
        if machine is not None and released.met(result, machine["gemm_seconds"]) is False:
            said += filter(None, [released.lines()[result.released].limit])
        notes += [note for note in said if note not in notes]
        numbers = ",".join(str(notes.index(note) + 1) for note in said)
        cells = row(result, f" ({numbers})" if numbers else "")
        rows.append(cells if machine is None else cells + beside_released(result, machine))
    widths = [max(len(cells[column]) for cells in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip() for cells in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines + [f"({number}) {note}" for number, note in enumerate(notes, 1)])


def fastest(work: Callable[[], object]) -> float:
    """Seconds of the fastest of five calls."""
    found = []
    for _ in range(5):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return min(found)


def machine() -> dict[str, Any]:
    """What the numbers depend on, and how fast this machine multiplies matrices now."""
    square, tall, wide = torch.rand(1024, 1024), torch.rand(3200, 512), torch.rand(2048, 512)
    gemm_seconds = fastest(lambda: square @ square)
    return {
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else 0.0,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "gemm_seconds": gemm_seconds,
        "gflops": round(released.GEMM_FLOP / gemm_seconds / 1e9),
        # Of the products that networks make here, through oneDNN.
        "peak_gflops": round(2 * 3200 * 512 * 2048 / fastest(lambda: linear(tall, wide)) / 1e9),
    }


def machine_text(found: dict[str, Any]) -> str:
    """The machine in two lines."""
    return (
        f"{found['processor']}; {found['cores']} cores, {found['threads']} threads, GPU {found['gpu']}; "
        f"Python {found['python']}, torch {found['torch']}\n"
        f"load {found['load']} when it began; a 1024×1024×1024 matrix product: {found['gflops']} GFLOP/s; "
        f"the fastest one, which shares of the peak are of: {found['peak_gflops']} GFLOP/s"
    )
