"""Results as one text table, and the machine they were taken on."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
import yaml

from benchmarks import released
from benchmarks.harness import Rates, Result
from recollect.common.cpu.kernels import linear
from recollect.stages.circumstances import processor

HEADER = ("work", "ours", "against", "theirs", "ratio [min..max]", "goal", "reached")
LEAST_SHARE = 0.005  # of the peak: below that the arithmetic says nothing
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


def share(result: Result) -> str:
    """The share of the peak, and how many times as fast as the released code it would be at the peak itself."""
    found, ratio_to_it = released.share_of(result), released.ratio_of(result)
    if found is None or found < LEAST_SHARE:
        return "–"
    return f"{100 * found:.2g} %" + ("" if ratio_to_it is None else f" (all of it: {ratio_to_it / found:.3g}×)")


def beside_released(result: Result) -> tuple[str, ...]:
    """The cells that lay a result beside the released code."""
    line = released.line_of(result)
    if line is None or result.rates is None:
        return (*("–",) * (len(RELEASED) - 1), share(result))
    factor = line.factor(result.rates)
    threads = f", {line.threads} threads" if line.threads != result.rates.threads else ""
    said = f"{line.date}, {'not scaled' if factor is None else f'machine factor {factor:.2f}'}{threads}"
    return (
        f"{absolute(line.scaled(result.rates), line.unit)} ({said})",
        f"{released.ratio_of(result):.3g}×",
        "–" if line.goal is None else f"≥ {line.goal:g}×",
        {True: "yes", False: "NOT MET", None: "–"}[released.met(result)],
        share(result),
    )


@cache
def limits() -> dict[str, str]:
    """Work -> what keeps its goal beside the plain form from being reached."""
    found: dict[str, str] = yaml.safe_load(Path(__file__).with_name("limits.yaml").read_text())
    return found


def limits_of(result: Result) -> tuple[str, str]:
    """What keeps a result from its goal beside the plain form, and from that beside the released code; "" where it is met."""
    plain = limits().get(result.work, "") if result.reached is False else ""
    return plain, released.lines()[result.released].limit if released.met(result) is False else ""


def text(results: Sequence[Result], *, with_released: bool = False) -> str:
    """The whole table; notes stand below it, numbered."""
    notes: list[str] = []
    rows: list[tuple[str, ...]] = [HEADER + RELEASED if with_released else HEADER]
    for result in results:
        said = [*result.notes, *filter(None, limits_of(result) if with_released else ())]
        notes += [note for note in said if note not in notes]
        numbers = ",".join(str(notes.index(note) + 1) for note in said)
        cells = row(result, f" ({numbers})" if numbers else "")
        rows.append(cells + beside_released(result) if with_released else cells)
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


def rates() -> Rates:
    """How fast this machine multiplies matrices now."""
    square, tall, wide = torch.rand(1024, 1024), torch.rand(3200, 512), torch.rand(2048, 512)
    gemm_seconds = fastest(lambda: square @ square)
    as_networks = 2 * 3200 * 512 * 2048 / fastest(lambda: linear(tall, wide))  # through oneDNN
    return Rates(torch.get_num_threads(), gemm_seconds, max(released.GEMM_FLOP / gemm_seconds, as_networks) / 1e9)


def machine() -> dict[str, Any]:
    """What the numbers depend on."""
    return {
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else 0.0,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def machine_text(found: dict[str, Any], measured: Sequence[Rates]) -> str:
    """The machine in two lines."""
    square = [released.GEMM_FLOP / rates.gemm_seconds / 1e9 for rates in measured]
    return (
        f"{found['processor']}; {found['cores']} cores, {counted(found['threads'], 'thread')}, GPU {found['gpu']}; "
        f"Python {found['python']}, torch {found['torch']}\n"
        f"load {found['load']} when it began; a 1024×1024×1024 matrix product: {_range(square)} GFLOP/s; "
        f"the fastest one, which shares of the peak are of: {_range([rates.peak_gflops for rates in measured])} GFLOP/s"
    )


def counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _range(values: Sequence[float]) -> str:
    if not values:
        return "unknown"
    least, most = f"{min(values):.0f}", f"{max(values):.0f}"
    return least if least == most else f"{least} to {most}"
