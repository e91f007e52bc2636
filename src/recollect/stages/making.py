"""A job of the workflow made in this process, after those that make what it reads: for Python, and for trying out."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any

from recollect.artifacts.lease import device_lease
from recollect.artifacts.threads import settle_cudnn
from recollect.stages.plan import maker
from recollect.stages.records import kept, timed
from recollect.stages.stage import Job
from recollect.stages.table import STAGES


def make_job(job: Job, device: str, told: Mapping[str, Any] | None = None) -> None:
    """Do a job of the workflow, after those that make what it reads; what is there and of today is kept."""
    stage = STAGES[job.stage]
    before = (maker(path, job.scale) for path in stage.inputs(job).values())
    for other in dict.fromkeys(filter(None, before)):
        make_job(other, device)
    if not stage.parts and kept(stage, job):
        return
    names = {name: int(value) if name in ("seed", "task") else value for name, value in job.names(stage.over).items()}
    may = stage.may_use_gpu(names) or device != "auto"
    on_device = may and "device" in inspect.signature(stage.run).parameters
    with device_lease(device if on_device else "cpu", count=max(1, stage.gpus(names))) as held:  # type: ignore[arg-type]
        on: dict[str, Any] = {}
        if held != "cpu":
            settle_cudnn()
            on = {"device": held}
        work = partial(stage.run, *names.values(), **(told or {}), **on)
        work() if stage.parts else timed(stage, job, held, work)
    stage.ended(*names.values())
