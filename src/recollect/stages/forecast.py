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

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from recollect.settings.errors import UserError
from recollect.settings.resolve import names
from recollect.settings.still import held_still
from recollect.stages import packs
from recollect.stages.device_speeds import speeds_of
from recollect.stages.estimating import Estimate, Estimator
from recollect.stages.plan import Plan, plan, remaining
from recollect.stages.provenance import digest
from recollect.stages.records import Record, records
from recollect.stages.selection import default_selection
from recollect.stages.stage import Job, is_large
from recollect.stages.table import STAGES
from recollect.stages.wall_time import joined, wall_seconds


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

    @property
    def on_gpus(self) -> bool:
        """Whether any job computes on one."""
        return any(estimate.gpu for estimate in self.estimates.values())

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
