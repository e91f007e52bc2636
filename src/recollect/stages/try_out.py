"""What a training run takes, from a few seconds of it: for `recollect forecast --measure`. Nothing is kept."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from recollect.artifacts.inputs import Inputs
from recollect.evaluation.speed import Clock
from recollect.settings.errors import UserError
from recollect.settings.resolve import algorithm_module, method_path
from recollect.stages.inputs import train_inputs
from recollect.stages.plan import plan
from recollect.stages.records import Record
from recollect.stages.stage import Job
from recollect.stages.train import Training, learned
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


def try_out(job: Job, device: str) -> Record | None:
    """Train for a few seconds, as `recollect train` does; None where what the run reads is not there, or its steps are not known.

    A run that logs nothing on its way is trained to its end, and that is what the record says.

    Args:
        job: a training run, of any seed.
        device: where it learns.
    """
    of = (job.scale, job.env, job.method)
    settings, steps = settings_of(*of), work_of(job).own_steps
    module = algorithm_module(settings.method.algorithm, where=method_path(job.method))
    with tempfile.TemporaryDirectory(prefix="recollect_") as scratch:
        watch: Any = Stopwatch(Path(scratch))
        begun = time.perf_counter()
        try:
            learned(Training(module, settings, Inputs(device=device, **train_inputs(*of)), watch, {}))
            seconds = time.perf_counter() - begun  # it was over before
        except _Enough:
            if not steps:
                return None
            seconds = watch.seconds_of(steps)
        except UserError:
            return None
    return Record(job, seconds, resumed=False, megabytes=0.0, device=device, settings="")


def try_all(scale: str, figures: Iterable[str], known: Mapping[Job, Record], device: str) -> dict[Job, Record]:
    """Try every training run of some figures, one seed of each, that was not measured on this device."""
    seen = {job._replace(seed="") for job, record in known.items() if record.device == device}
    tried: dict[Job, Record] = {}
    for job in plan(scale, figures).needs:
        training = job._replace(stage="train")
        shape = training._replace(seed="")
        if job.stage == "run" and shape not in seen:
            seen.add(shape)
            record = try_out(training, device)
            if record is not None:
                tried[training] = record
    return tried
