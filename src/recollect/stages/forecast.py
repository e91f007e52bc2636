"""forecast: what a target will cost before it is started. Jobs, hours, wall time on some devices, disk and memory.

The time of each job comes from the best that is known, and the report says how much of it comes from where:

- measured: the same job, or another seed of it, was finished here with today's settings (its record says how long it took),
  or `--measure` has just tried it; or `make gpu` timed its parts on the device that is reckoned with (config/speeds/);
- scaled: the nearest job of the same kind (stage, algorithm, sequence model) on the same device was measured, at whatever
  scale or environment; its time is multiplied by the ratio of the two in recollect.stages.workload's rule. Where `make gpu`
  timed no job of the kind, one of the same paper and sequence model counts;
- recorded: the same from the nearest job of the kind in config/recorded_jobs.csv, or where it has none the rule alone, whose
  constants of config/speeds.yaml are of the same CPU;
- assumed: the rule with constants that were fitted to nothing.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from recollect.artifacts.lease import usable
from recollect.settings.errors import UserError
from recollect.settings.resolve import names
from recollect.settings.still import held_still
from recollect.stages import packs
from recollect.stages.device_speeds import speeds_of
from recollect.stages.estimating import SOURCES, Estimate, Estimator, Source
from recollect.stages.fetch import FETCHED
from recollect.stages.machines import machines
from recollect.stages.plan import Plan, plan, remaining
from recollect.stages.provenance import digest
from recollect.stages.records import Record, records
from recollect.stages.selection import default_selection
from recollect.stages.stage import Job, is_large
from recollect.stages.table import STAGES
from recollect.stages.wall_time import joined, wall_seconds
from recollect.stages.worlds import missing_families


def measurements() -> dict[Job, Record]:
    """What every finished job of any scale took, or its parts, where that was the whole job with today's settings."""
    found: dict[Job, Record] = {}
    for scale in names("scales"):
        for record in records(scale):
            if not record.resumed and _is_of_today(record):
                found[record.job] = record
    return found


def _is_of_today(record: Record) -> bool:
    stage = STAGES.get(record.job.stage)
    try:
        return stage is not None and record.settings == digest(stage.settings_text(record.job))
    except UserError:  # what it was about is configured no more
        return False


def memory_of_largest(
    plan: Plan, measured: Mapping[Job, Record], together: Mapping[Job, int] | None = None
) -> tuple[float, bool]:
    """(MB of the job that needs most, whether that was measured): what jobs of a stage took here, else what they ask for.

    Where only some parts of a job ran here, the others may need what the job asks for.

    Args:
        together: how many runs with memory of their own a run's job is at once; 1 where it is not named.
    """
    took: dict[str, float] = {}
    for record in measured.values():
        if record.megabytes:  # of one that was only tried (`--measure`) it is not known
            took[record.job.stage] = max(record.megabytes, took.get(record.job.stage, 0.0))
    largest, most = (0.0, False), Counter[tuple[str, str]]()
    for job in plan.needs:
        kind = (job.stage, job.scale)
        most[kind] = max(most[kind], (together or {}).get(job, 1))
    for (name, scale), processes in most.items():
        stage = STAGES[name]
        steps = [part.name for part in stage.parts] or [name]
        known = [(took[step], True) for step in steps if step in took]
        if len(known) < len(steps):
            known.append((float(stage.asks.megabytes[is_large(scale)] * processes), False))
        largest = max(largest, *known)
    return largest


# -------------------------------------------------------------------------------------------------------- the report


class Forecast(NamedTuple):
    """What a target will cost."""

    scale: str
    plan: Plan
    estimates: dict[Job, Estimate]
    devices: int
    wall: float
    memory: float  # MB of the largest job
    memory_measured: bool
    shared: Mapping[Job, Job]  # a run that shares its job -> the run by which that job is called here
    processes: Mapping[Job, int]  # how many runs with memory of their own a run's job is at once, where several
    gpus: Mapping[Job, int]  # of those jobs that compute on several at once; their hours count for each
    timed: str = ""  # the device that `make gpu` was run on, and when, where that counts

    def seconds(self, jobs: Iterable[Job] | None = None, *, gpu: bool | None = None) -> float:
        """Seconds of some jobs, or of all, one after the other."""
        of = ((job, self.estimates[job]) for job in (self.plan.needs if jobs is None else jobs))
        return sum(e.seconds * self.gpus.get(job, 1) for job, e in of if gpu is None or e.gpu == gpu)

    def count(self, jobs: Iterable[Job]) -> int:
        """How many jobs of the workflow some jobs are, where seeds share one."""
        return len({self.shared.get(job, job) for job in jobs})

    def scratch(self, jobs: Iterable[Job]) -> list[float]:
        """What each job of the workflow keeps until it ends; one that several seeds share keeps that of all until then."""
        return list(_by_job({job: self.estimates[job].scratch for job in jobs}, self.shared).values())

    def hours(self) -> list[float]:
        """What each job of the workflow takes; seeds that train side by side are not credited with it."""
        return list(_by_job({job: each.seconds / 3600 for job, each in self.estimates.items()}, self.shared).values())

    def text(self) -> str:
        """For people."""
        if not self.plan.needs:
            return f"{', '.join(self.plan.figures)}: nothing would run at scale {self.scale}, all is made and of today"
        return "\n".join(_lines(self))


@held_still()
def forecast(
    scale: str,
    figures: Iterable[str],
    *,
    devices: int = 1,
    device: str = "auto",
    measured: Mapping[Job, Record] | None = None,
    only_remaining: bool = False,
) -> Forecast:
    """Estimate some figures at a scale; what two of them share is counted once.

    Args:
        scale, figures: names.
        devices: how many jobs that ask for a GPU run side by side; at scales without GPUs: how many jobs.
        device: `auto`; `cpu` to reckon without GPUs; or one that `make gpu` was run on (a file of config/speeds/).
        measured: what finished jobs took; default: those of this folder.
        only_remaining: leave out what is made and of today.

    Raises:
        UserError: an unknown name, or no device.
    """
    if devices < 1:
        raise UserError(f"{devices} devices", where="recollect forecast", do="name at least one")
    timed = speeds_of(device)
    found = remaining(plan(scale, figures)) if only_remaining else plan(scale, figures)
    known = measurements() if measured is None else measured
    sharing = sharing_of(found.needs)
    together = {job: len(whole) for job, whole in sharing.items()}
    estimator = Estimator(known, device, timed, together)
    estimates = {job: estimator(job) for job in found.needs}
    some = any(estimate.gpu for estimate in estimates.values())
    gpus = {job: count for job, each in estimates.items() if each.gpu and (count := gpus_of(job)) > 1}
    shared = {job: next(one for one in whole if one in found.needs) for job, whole in sharing.items()}
    seconds = _by_job({job: each.seconds for job, each in estimates.items()}, shared)
    wall = wall_seconds(
        joined(found.needs, shared),
        seconds.__getitem__,
        lambda job: min(gpus.get(job, 1), devices) if estimates[job].gpu or not some else 0,
        devices,
    )
    ran_here = {job: one for job, one in known.items() if job.scale == scale}
    at_a_time = default_selection().seeds_at_a_time
    processes = {
        job: packs.runs_in_ram(scale, job.env, job.method, at_a_time, count) for job, count in together.items()
    }
    memory, is_measured = memory_of_largest(found, ran_here, processes)
    on = f"{timed.device} ({timed.date}, commit {timed.commit})" if timed is not None and some else ""
    return Forecast(scale, found, estimates, devices, wall, memory, is_measured, shared, processes, gpus, on)


def gpus_of(job: Job) -> int:
    """On how many GPUs a job computes at once, where it has them."""
    stage = STAGES[job.stage]
    return stage.gpus(job.names(stage.over))


def sharing_of(jobs: Iterable[Job]) -> dict[Job, tuple[Job, ...]]:
    """Each run that shares its job -> all runs of that job; see `packs.sharing`."""
    alone, of_scale = Estimator({}), defaultdict[str, list[Job]](list)
    for job in jobs:
        of_scale[job.scale].append(job)
    found: dict[Job, tuple[Job, ...]] = {}
    for scale, some in of_scale.items():
        found |= packs.sharing(scale, some, lambda job: alone(job).seconds)
    return found


def _by_job(values: Mapping[Job, float], shared: Mapping[Job, Job]) -> dict[Job, float]:
    """Sums over the seeds that share a job of the workflow, under the run by which that job is called."""
    found = defaultdict[Job, float](float)
    for job, value in values.items():
        found[shared.get(job, job)] += value
    return found


def _lines(cost: Forecast) -> Iterable[str]:
    needs, of = cost.plan.needs, cost.estimates
    some = any(e.gpu for e in of.values())
    unit = "GPU time" if some else "CPU time"
    figures = cost.plan.figures
    count = cost.count(needs)
    each = f", {len(needs):,} with one for each seed" * (count != len(needs))
    yield f"{len(figures)} figure{'s' * (len(figures) != 1)} at scale {cost.scale}: {count:,} jobs{each}"
    yield ""
    yield f"{'jobs':24}{'count':>8}{unit:>12}{'CPU time' if some else '':>12}   from"
    by_stage: dict[str, list[Job]] = {}
    for job in needs:
        by_stage.setdefault(job.stage, []).append(job)
    for stage, jobs in sorted(by_stage.items(), key=lambda pair: -cost.seconds(pair[1])):
        yield _row(stage, jobs, cost, some) + _from(of[job].source for job in jobs)
    yield _row("all", list(needs), cost, some)
    yield ""
    yield f"{'figure':40}{'jobs':>8}{'time':>10}{'not shared':>12}"
    owners = Counter(job for jobs in figures.values() for job in jobs)
    for figure, taken in sorted(figures.items(), key=lambda pair: -cost.seconds(pair[1])):
        own = cost.seconds(job for job in taken if owners[job] == 1)
        yield f"{figure:40}{cost.count(taken):>8,}{said_time(cost.seconds(taken)):>10}{said_time(own):>12}"
    yield ""
    beside = ("GPU" if some else "job at a time") + ("s" if some and cost.devices != 1 else "")
    beside = beside if some or cost.devices == 1 else "jobs at a time"
    yield f"wall time   {said_time(cost.wall)} with {cost.devices} {beside}" + ", CPU jobs beside them" * some
    largest = sum(heapq.nlargest(cost.devices, cost.scratch(needs)))
    yield f"disk        {said_bytes(sum(e.disk for e in of.values()))}, and {said_bytes(largest)} of checkpoints while jobs run"
    basis = "of a job that ran here" if cost.memory_measured else "asked for by the rules"
    yield f"memory      {cost.memory / 1000:,.1f} GB for the largest job ({basis})"
    if some and not usable("auto"):
        yield "GPUs        there is none on this machine: `--device cpu` reckons without"
    if families := missing_families(needs):
        how = ", ".join(f"`make setup FAMILY={family}`" for family in families)
        yield f"packages    not all are installed here: {how}, or run with `--sdm conda`"
    fetched = [job for job in needs if STAGES[job.stage] in FETCHED]
    missing = {job.env for job in fetched if not STAGES[job.stage].is_made(job)}
    if missing:
        yield f"network     to fetch {', '.join(sorted(missing))}"
    limit, hours = default_selection().job_hours, cost.hours()
    long = [each for each in hours if each > limit]
    if long and is_large(cost.scale):
        what = f"on a cluster, {len(long):,} job{'s' * (len(long) > 1)} of more than the {limit:g} hours of a try"
        retries = math.ceil(max(long) / limit) - 1
        yield f"tries       {what}: `--retries {retries}` is enough for the longest, of {max(long):,.0f} hours"
    yield ""
    shares = {source: sum(e.seconds for e in of.values() if e.source == source) for source in SOURCES}
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


def _row(name: str, jobs: list[Job], cost: Forecast, some: bool) -> str:
    first = said_time(cost.seconds(jobs, gpu=some))
    return f"{name:24}{len(jobs):>8,}{first:>12}{said_time(cost.seconds(jobs, gpu=False)) if some else '':>12}   "


def _from(sources: Iterable[Source]) -> str:
    count = Counter(sources)
    return ", ".join(f"{source} {count[source]:,}" for source in SOURCES if count[source])


def said_time(seconds: float) -> str:
    """``45 s``, ``12 min``, ``2.5 h``, ``1,200 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    hours = seconds / 3600
    return f"{seconds / 60:.0f} min" if hours < 1.5 else f"{hours:.1f} h" if hours < 10 else f"{hours:,.0f} h"


def said_bytes(count: float) -> str:
    """``12 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:,.0f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"
