"""What a training run takes, from a few seconds of it: for `recollect forecast --measure`. Nothing is kept."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from recollect.settings.errors import UserError
from recollect.settings.resolve import algorithm_module, method_path
from recollect.stages.forecast import Measurement
from recollect.stages.inputs import run_inputs
from recollect.stages.measure import Clock
from recollect.stages.plan import Job, plan
from recollect.stages.workload import settings_of, work_of

SECONDS = 20.0


class _Enough(Exception):
    """The clock has seen enough."""


class Stopwatch(Clock):
    """A run that ends itself at the first point of its learning curve behind so many seconds, the third at the earliest."""

    def log(self, step: int, **metrics: float) -> None:
        """Note the time; points of one step are one."""
        now = time.perf_counter()
        if not self.at or step > self.at[-1][0]:
            self.at.append((step, now))
        if len(self.at) > 2 and now - self.at[0][1] > SECONDS:
            raise _Enough

    def seconds_of(self, steps: float) -> float:
        """What so many steps take, at the pace behind the first noted one."""
        (first, begun), (last, ended) = self.at[min(1, len(self.at) - 2)], self.at[-1]
        return (ended - begun) / (last - first) * steps


def try_out(job: Job, device: str) -> Measurement | None:
    """Train for a few seconds; None where what the run reads is not there, or it logs nothing on its way.

    Args:
        job: a training run, of any seed.
        device: where it learns.
    """
    settings, steps = settings_of(job.scale, job.env, job.method), work_of(job).own_steps
    module = algorithm_module(settings.method.algorithm, where=method_path(job.method))
    watch: Any = Stopwatch(settings)
    begun = time.perf_counter()
    try:
        module.train(settings, run_inputs(settings, device), watch)
    except _Enough:
        pass
    except UserError:
        return None
    else:
        return Measurement(time.perf_counter() - begun, device, None)  # it was over before
    return Measurement(watch.seconds_of(steps), device, None) if steps else None


def try_all(
    scale: str, figures: Iterable[str], known: Mapping[Job, Measurement], device: str
) -> dict[Job, Measurement]:
    """Try every training run of some figures, one seed of each, that was not measured on this device."""
    seen = {job._replace(seed="") for job, one in known.items() if one.device == device}
    runs = {job._replace(seed=""): job for job in plan(scale, figures).needs if job.rule == "train"}
    tried = {job: try_out(job, device) for shape, job in runs.items() if shape not in seen}
    return {job: one for job, one in tried.items() if one is not None}
