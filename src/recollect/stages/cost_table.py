"""A forecast as tables of Markdown: a row for each figure (docs/costs.md), or for each paper (docs/scale.md)."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from pathlib import Path

from recollect.artifacts.sealed import write_bytes
from recollect.settings.catalogue import PAPERS
from recollect.settings.errors import UserError
from recollect.stages.amounts import said_bytes, said_time
from recollect.stages.between_marks import names, put_between
from recollect.stages.estimating import SOURCES, least_sure
from recollect.stages.forecast import Forecast, memory_of_largest
from recollect.stages.plan import Plan
from recollect.stages.stage import Job
from recollect.stages.table import STAGES
from recollect.stages.workload import work_of

NBSP = "\N{NO-BREAK SPACE}"  # between a number and its unit, which else stand in two lines
PEAK = 4e14  # operations per second of an H200 in TF32, as `make gpu` timed a large product
AT_ONCE = 8  # jobs of a row's last column, as on a machine of eight GPUs


def cost_table(cost: Forecast) -> str:
    """A row for each figure, with all that it needs: what two figures share is counted in both."""
    heads = ["figure", "jobs", *(["one GPU"] if cost.on_gpus else []), "one CPU core"]
    heads += ["disk", "checkpoints meanwhile", "memory", "times are"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for figure, jobs in sorted((name, jobs) for name, jobs in cost.plan.figures.items() if jobs):
        of = [cost.estimates[job] for job in jobs]
        memory, _ = memory_of_largest(Plan({job: () for job in jobs}, {figure: jobs}), {}, cost.processes)
        cells = [f"`{figure}`", f"{cost.count(jobs):,}"]
        cells += [said_time(cost.seconds(jobs, gpu=gpu)) for gpu in ((True, False) if cost.on_gpus else (False,))]
        cells += [said_bytes(sum(one.disk for one in of)), said_bytes(max(cost.scratch(jobs)))]
        cells += [f"{memory / 1000:,.0f} GB", least_sure(of)]
        lines.append(f"| {' | '.join(cell.replace(' ', NBSP) for cell in cells)} |")
    return "\n".join(lines)


def paper_table(cost: Forecast) -> str:
    """A row for each paper and one for all: what is made, hours of a GPU and of a CPU core, disk, and where hours are from.

    Beside the GPU's stands what their arithmetic alone would take at `PEAK`.
    """
    heads = ["paper", "figures", "jobs", "runs", "GPU-hours", f"at {PEAK / 1e12:.0f} TFLOP/s", "CPU-hours", "disk"]
    heads += [f"checkpoints of {AT_ONCE} jobs", "hours are"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for prefix, name in [*((f"{folder}_", paper.name) for folder, paper in PAPERS.items()), ("", "all")]:
        of = {figure: jobs for figure, jobs in cost.plan.figures.items() if jobs and figure.startswith(prefix)}
        jobs = {job for needed in of.values() for job in needed}
        if not jobs:
            continue
        runs = sum(job.stage == "run" for job in jobs)
        cells = [name, f"{len(of)}", f"{cost.count(jobs):,}", f"{runs:,}"]
        cells.append(f"{cost.seconds(jobs, gpu=True) / 3600:,.0f}")
        cells.append(f"{_operations(job for job in jobs if cost.estimates[job].gpu) / PEAK / 3600:,.0f}")
        cells.append(f"{cost.seconds(jobs, gpu=False) / 3600:,.0f}")
        cells.append(said_bytes(sum(cost.estimates[job].disk for job in jobs)))
        cells.append(said_bytes(sum(heapq.nlargest(AT_ONCE, cost.scratch(jobs)))))
        cells = [cell.replace(" ", NBSP) for cell in cells]
        shares = {
            source: cost.seconds(job for job in jobs if cost.estimates[job].source == source) for source in SOURCES
        }
        total = sum(shares.values()) or 1.0
        largest = sorted(((share / total, source) for source, share in shares.items()), reverse=True)
        cells.append(", ".join(f"{source} {share:.0%}" for share, source in largest if share >= 0.005))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _operations(jobs: Iterable[Job]) -> float:
    return sum(work_of(step).flop for job in jobs for _, step in STAGES[job.stage].steps(job))


def write_tables(pages: Iterable[Path], asked: str, cost: Forecast) -> None:
    """Put into pages the tables that they have marks for: ``forecast <scale> <figures>``, and the same with ``by paper``.

    Args:
        pages: files of Markdown.
        asked: the figures as they were named, e.g. ``all``; empty: the default ones.
        cost: their forecast.

    Raises:
        UserError: a page has neither place.
    """
    name = f"forecast {cost.scale} {asked}".strip()
    tables = {name: cost_table, f"{name} by paper": paper_table}
    for page in pages:
        text = page.read_text(encoding="utf-8")
        places = [place for place in names(text) if place in tables]
        if not places:
            do = f"write <!-- {name}: begin --> and <!-- {name}: end --> there; with `by paper` after {name}: a row for each paper"
            raise UserError("no place for this forecast", where=page, do=do)
        for place in places:
            text = put_between(text, place, tables[place](cost), page)
        write_bytes(page, text.encode())
