"""What `recollect forecast` prints: jobs by stage, what each figure takes, wall time, disk and memory, how it is known."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Iterator

from recollect.artifacts.lease import usable
from recollect.stages.amounts import said_bytes, said_time
from recollect.stages.estimating import SOURCES, Source
from recollect.stages.fetch import FETCHED
from recollect.stages.forecast import Forecast
from recollect.stages.machines import machines
from recollect.stages.selection import default_selection
from recollect.stages.stage import Job, is_large
from recollect.stages.table import STAGES
from recollect.stages.worlds import missing_families


def cost_text(cost: Forecast) -> str:
    """A forecast for people: several lines."""
    if not cost.plan.needs:
        return f"{', '.join(cost.plan.figures)}: nothing would run at scale {cost.scale}, all is made and of today"
    return "\n\n".join("\n".join(part(cost)) for part in (_heading, _stages, _figures, _totals, _sources))


def _heading(cost: Forecast) -> Iterator[str]:
    figures, runs, count = len(cost.plan.figures), len(cost.plan.needs), cost.count(cost.plan.needs)
    each = f", {runs:,} with one for each seed" * (count != runs)
    yield f"{figures} figure{'s' * (figures != 1)} at scale {cost.scale}: {count:,} jobs{each}"


def _stages(cost: Forecast) -> Iterator[str]:
    """What the jobs of each stage take: on GPUs and on CPUs, where both are used."""
    unit, other = ("GPU time", "CPU time") if cost.on_gpus else ("CPU time", "")
    yield f"{'jobs':24}{'count':>8}{unit:>12}{other:>12}   from"
    by_stage: dict[str, list[Job]] = {}
    for job in cost.plan.needs:
        by_stage.setdefault(job.stage, []).append(job)
    for stage, jobs in sorted(by_stage.items(), key=lambda pair: -cost.seconds(pair[1])):
        yield _row(stage, jobs, cost) + _from(cost.estimates[job].source for job in jobs)
    yield _row("all", list(cost.plan.needs), cost)


def _row(name: str, jobs: list[Job], cost: Forecast) -> str:
    first = said_time(cost.seconds(jobs, gpu=cost.on_gpus))
    second = said_time(cost.seconds(jobs, gpu=False)) if cost.on_gpus else ""
    return f"{name:24}{len(jobs):>8,}{first:>12}{second:>12}   "


def _from(sources: Iterable[Source]) -> str:
    count = Counter(sources)
    return ", ".join(f"{source} {count[source]:,}" for source in SOURCES if count[source])


def _figures(cost: Forecast) -> Iterator[str]:
    """What each figure takes, and how much of that no other needs."""
    yield f"{'figure':40}{'jobs':>8}{'time':>10}{'not shared':>12}"
    figures = cost.plan.figures
    owners = Counter(job for jobs in figures.values() for job in jobs)
    for figure, taken in sorted(figures.items(), key=lambda pair: -cost.seconds(pair[1])):
        own = cost.seconds(job for job in taken if owners[job] == 1)
        yield f"{figure:40}{cost.count(taken):>8,}{said_time(cost.seconds(taken)):>10}{said_time(own):>12}"


def _totals(cost: Forecast) -> Iterator[str]:
    """Wall time, disk and memory, then what has to be seen to before the start."""
    several = "s" * (cost.devices != 1)
    with_them = f"GPU{several}, CPU jobs beside them" if cost.on_gpus else f"job{several} at a time"
    yield f"wall time   {said_time(cost.wall)} with {cost.devices} {with_them}"
    kept, largest = (
        sum(e.disk for e in cost.estimates.values()),
        heapq.nlargest(cost.devices, cost.scratch(cost.plan.needs)),
    )
    yield f"disk        {said_bytes(kept)}, and {said_bytes(sum(largest))} of checkpoints while jobs run"
    basis = "of a job that ran here" if cost.memory_measured else "asked for by the rules"
    yield f"memory      {cost.memory / 1000:,.1f} GB for the largest job ({basis})"
    if cost.on_gpus and not usable("auto"):
        yield "GPUs        there is none on this machine: `--device cpu` reckons without"
    if families := missing_families(cost.plan.needs):
        how = ", ".join(f"`make setup FAMILY={family}`" for family in families)
        yield f"packages    not all are installed here: {how}, or run with `--sdm conda`"
    fetched = [job for job in cost.plan.needs if STAGES[job.stage] in FETCHED]
    if missing := {job.env for job in fetched if not STAGES[job.stage].is_made(job)}:
        yield f"network     to fetch {', '.join(sorted(missing))}"
    limit = default_selection().job_hours
    long = [each for each in cost.hours() if each > limit]
    if long and is_large(cost.scale):
        what = f"on a cluster, {len(long):,} job{'s' * (len(long) > 1)} of more than the {limit:g} hours of a try"
        retries = math.ceil(max(long) / limit) - 1
        yield f"tries       {what}: `--retries {retries}` is enough for the longest, of {max(long):,.0f} hours"


def _sources(cost: Forecast) -> Iterator[str]:
    """How much of the time is known from where."""
    shares = {source: sum(e.seconds for e in cost.estimates.values() if e.source == source) for source in SOURCES}
    total = sum(shares.values()) or 1.0
    by_parts = f", or its parts were timed on {cost.timed}" if cost.timed else ""
    meaning = {
        "measured": "the same job was finished here" + by_parts,
        "scaled": f"from {'such' if cost.timed else 'finished'} jobs of the same kind here, by operations and passes",
        "recorded": f"from jobs that were finished on {machines()['cpu'].name}, by operations and passes",
        "assumed": f"config/speeds.yaml, nothing timed: {machines()['cuda'].name}",
    }
    for source, share in shares.items():
        if share:
            yield f"{share / total:>4.0%} of the time is {source}: {meaning[source]}"
