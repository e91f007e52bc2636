"""estimating: how long a job will take, by what was measured and by the rule of recollect.stages.machines; see `forecast`."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from statistics import median
from typing import Literal, NamedTuple

from recollect.settings.errors import UserError
from recollect.stages import recorded_jobs
from recollect.stages.device_speeds import DeviceSpeeds, TimedJob, work_then
from recollect.stages.machines import machines
from recollect.stages.records import Record
from recollect.stages.stage import Job
from recollect.stages.table import STAGES
from recollect.stages.workload import family_of, kind_of, work_of

Source = Literal["measured", "scaled", "recorded", "assumed"]
SOURCES: tuple[Source, ...] = ("measured", "scaled", "recorded", "assumed")
FARTHER = 3.0
"""A job of this machine tells of others; but not where a recorded one is nearer in size by more than this factor."""

LEAST = 0.1
"""Share of a job's time that is not its environment's, at the least, where the two are told apart."""

COUNTS = 0.05
"""Share of the time from which on it matters how sure a part of it is known."""


class Known(NamedTuple):
    """What a job took once it had started: seconds by the rule, those of them of environment steps, seconds that were measured,
    and how many seeds were one network.

    The start of a process counts (`starts`) for what `make gpu` timed. Finished jobs were often forked from one that had started.
    """

    by_rule: float
    plays: float
    seconds: float
    seeds: int
    starts: bool = False

    def of(self, by_rule: float, plays: float) -> float:
        """Seconds of another job of the kind: its world's steps are known, and the rest is carried over as the rule has it."""
        computed, rest = self.by_rule - self.plays, self.seconds - self.plays
        if rest <= LEAST * self.seconds or computed <= 0:  # its steps did not take what they are said to
            return self.seconds * by_rule / self.by_rule
        return plays + rest * (by_rule - plays) / computed


class Estimate(NamedTuple):
    """What a job will take."""

    seconds: float
    source: Source
    gpu: bool
    disk: float
    scratch: float


def least_sure(parts: Sequence[Estimate]) -> Source:
    """Where the least sure of those parts of some work is from that take a part of its time."""
    seconds: dict[Source, float] = defaultdict(float)
    for part in parts:
        seconds[part.source] += part.seconds
    return max((source for source in seconds if seconds[source] >= COUNTS * sum(seconds.values())), key=SOURCES.index)


class Estimator:
    """Estimates jobs from measurements and machines.

    Args:
        measured: what finished jobs took.
        device: `cpu`: as if no job had a GPU; anything else: each as its rule asks.
        timed: what `make gpu` timed on the GPU.
        together: run -> how many seeds have its job together; where they are one network a run's time is its share.
    """

    def __init__(
        self,
        measured: Mapping[Job, Record],
        device: str = "auto",
        timed: DeviceSpeeds | None = None,
        together: Mapping[Job, int] | None = None,
    ) -> None:
        self.device = device
        self.machines = machines()
        self.together = together or {}
        self._known: dict[tuple[Job, int], Estimate] = {}
        # Seconds of the same job, of whatever seed, on a device, trained as one network with so many seeds.
        self._same = defaultdict[tuple[Job, str, int], list[float]](list)
        for job, record in measured.items():
            seeds = self._as_one(job, record.device, record.seeds)
            self._same[job.shape, record.device, seeds].append(record.seconds)
        # Of those that `make gpu` timed, without the start of a process.
        self._timed: dict[tuple[Job, str, int], float] = {}
        # Of jobs of one kind on a device; and of those that `make gpu` timed, by their paper and sequence model.
        self._like = defaultdict[tuple[str, str], list[Known]](list)
        self._related = defaultdict[tuple[str, str], list[Known]](list)
        # The same of jobs that were finished on another machine, under both names.
        self._recorded = defaultdict[str, list[Known]](list)
        for (job, on, seeds), seconds in self._same.items():
            machine = self.machines.get(on)
            if machine is not None:
                by_rule, plays = machine.works(job, work_of(job), seeds), machine.plays(job, work_of(job), seeds)
                self._like[kind_of(job), on].append(Known(by_rule, plays, median(seconds), seeds))
        for one in () if timed is None else timed.jobs:
            with suppress(UserError):  # what it was about is configured no more
                self._add(one)
        for row in recorded_jobs.read():
            with suppress(UserError):
                cpu = self.machines["cpu"]
                by_rule, plays = cpu.works(row.job, row.work), cpu.plays(row.job, row.work)
                known = Known(by_rule, plays, row.seconds, seeds=1)
                for name in (kind_of(row.job), family_of(row.job)):
                    self._recorded[name].append(known)

    def _as_one(self, job: Job, on: str, seeds: int) -> int:
        return self.machines[on].as_one(job, seeds) if on in self.machines else 1

    def _add(self, timed: TimedJob) -> None:
        """A job whose parts were timed. One that was finished here is known better."""
        job, on, seeds = timed.job, "cuda", timed.seeds
        if self._as_one(job, on, seeds) != seeds:
            return  # as one network, and its seeds are trained one by one now
        if timed.is_of_today:
            self._timed[job, on, seeds] = timed.seconds
        machine, work = self.machines[on], work_then(timed)
        by_rule, plays = machine.works(job, work, seeds), machine.plays(job, work, seeds)
        known = Known(by_rule, plays, timed.seconds, seeds, starts=True)
        self._like[kind_of(job), on].append(known)
        self._related[family_of(job), on].append(known)

    def __call__(self, job: Job) -> Estimate:
        """What a job will take; the same for all seeds and tasks, but for how many seeds have a job together."""
        of = job.shape, self.together.get(job, 1)
        if of not in self._known:
            self._known[of] = self._estimate(*of)
        return self._known[of]

    def _estimate(self, job: Job, seeds: int) -> Estimate:
        """Of a job with parts: the sum of them, which is as sure as the least sure of those that take a part of its time."""
        stage = STAGES[job.stage]
        gpu = stage.on_gpu(job) and self.device != "cpu"
        steps = [step for _, step in stage.steps(job)]
        parts = [self._estimate_step(step, gpu, seeds, starts=step == steps[0]) for step in steps]
        seconds, disk = sum(part.seconds for part in parts), sum(part.disk for part in parts)
        source = least_sure(parts)
        return Estimate(seconds, source, gpu, disk, max(part.scratch for part in parts))

    def _estimate_step(self, job: Job, gpu: bool, seeds: int, *, starts: bool) -> Estimate:
        """Of one part of a job. `starts`: the process begins with it; the others follow in the same one."""
        on = "cuda" if gpu else "cpu"
        work, seeds = work_of(job), self._as_one(job, on, seeds)
        if (job, on, seeds) in self._same:
            return Estimate(median(self._same[job, on, seeds]), "measured", gpu, work.disk, work.scratch)
        machine = self.machines[on]
        by_rule = machine.works(job, work, seeds)
        start = machine.takes(job, work, seeds) - by_rule if starts else 0.0
        if (job, on, seeds) in self._timed:
            return Estimate(start + self._timed[job, on, seeds], "measured", gpu, work.disk, work.scratch)
        like = self._like.get((kind_of(job), on)) or self._related.get((family_of(job), on)) or []
        recorded = [] if gpu else self._recorded.get(kind_of(job)) or self._recorded.get(family_of(job)) or []
        near, other = (_nearest(known, by_rule, seeds) for known in (like, recorded))
        source: Source = "scaled"
        if near is None or (other is not None and _times(near, by_rule) > FARTHER * _times(other, by_rule)):
            near, source = other, "recorded"
        if near is None:
            return Estimate(start + by_rule, machine.basis, gpu, work.disk, work.scratch)
        return Estimate(
            start * near.starts + near.of(by_rule, machine.plays(job, work, seeds)),
            source,
            gpu,
            work.disk,
            work.scratch,
        )


def _times(known: Known, by_rule: float) -> float:
    """How many times as large the larger of two jobs is."""
    return max(known.by_rule / by_rule, by_rule / known.by_rule)


def _nearest(known: Sequence[Known], by_rule: float, seeds: int) -> Known | None:
    """The known job that is nearest: in how many seeds are one network, and then in size.

    None where there is none, and for a job whose size the rule does not know.
    """
    sized = [one for one in known if one.by_rule > 0 and by_rule > 0]

    def distance(one: Known) -> tuple[float, float]:
        return abs(math.log(one.seeds / seeds)), abs(math.log(one.by_rule / by_rule))

    return min(sized, key=distance, default=None)
