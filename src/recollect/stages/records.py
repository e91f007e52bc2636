"""What a finished job took: a small sealed file in `logs/`, which forecasts and the report read."""

from __future__ import annotations

import logging
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from recollect.artifacts.sealed import check_writable, read_json, sweep, write_json
from recollect.settings.errors import UserError
from recollect.stages.circumstances import made_with
from recollect.stages.provenance import digest
from recollect.stages.stage import Job, Stage

KIND = "record"
beside = 1
"""How many jobs share the device of this process; each is said to have taken its share of the time."""


class Record(NamedTuple):
    """What one job took.

    Args:
        job: which.
        seconds: wall time, without the start of Python.
        resumed: it only went on from a checkpoint, so this is the time of the rest.
        megabytes: most RAM that its process held.
        device: cpu or cuda.
        settings: a hash of the settings that it ran with.
        seeds: that were trained with it as one network, itself included; the seconds are its share of theirs.
        made_with: commit, processor, GPU and versions at its last start; None: an older version wrote the record.
    """

    job: Job
    seconds: float
    resumed: bool
    megabytes: float
    device: str
    settings: str
    seeds: int = 1
    made_with: dict[str, str] | None = None


def place(job: Job) -> Path:
    """Where a job's record lies: `logs/demo/dark_room_10x10/radt/seed_0/train.json`."""
    folders = [
        job.scale,
        job.env,
        job.method,
        f"seed_{job.seed}" if job.seed else "",
        f"task_{job.task}" if job.task else "",
    ]
    return Path("logs", *filter(None, folders), f"{job.stage}.json")


def kept(stage: Stage, job: Job) -> bool:
    """Whether a job need not be done: its artifacts are there and of today. What a kill behind the last of them left goes."""
    if not stage.is_made(job):
        return False
    logging.getLogger("recollect").info("%s: kept, it is of today's settings, code and inputs", job)
    if place(job).parent.is_dir():
        sweep(place(job).parent)
    return True


def timed(stage: Stage, job: Job, device: str, work: Callable[[], object]) -> object:
    """Do the work of a job, and when it has ended well write down what it took. Returns what the work returns.

    Raises:
        UserError: what the job makes could not be written; or what the work raises.
    """
    for path in (*stage.makes(job), place(job)):
        check_writable(path)
    known = made_with(device)  # now: files may be edited while it works
    settings, begun = digest(stage.settings_text(job)), time.perf_counter()
    returned = work()
    note(job, device, settings, known, seconds=(time.perf_counter() - begun) / beside, resumed=returned is True)
    return returned


def note(
    job: Job, device: str, settings: str, made_with: dict[str, str], *, seconds: float, resumed: bool, seeds: int = 1
) -> None:
    """Write down what a job took."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    known = Record(
        job,
        seconds=round(seconds, 3),
        resumed=resumed,
        megabytes=round(peak * (1 if sys.platform == "darwin" else 1024) / 1e6, 1),
        device=device,
        settings=settings,
        seeds=seeds,
        made_with=made_with,
    )
    write_json(place(job), known._asdict(), kind=KIND)


def read(path: Path) -> Record | None:
    """A record; None where there is none or it is damaged."""
    try:
        known = read_json(path, kind=KIND)
        return Record(**{**known, "job": Job(*known["job"])})
    except (UserError, TypeError, KeyError):
        return None


def records(scale: str) -> list[Record]:
    found = [read(path) for path in sorted(Path("logs", scale).rglob("*.json"))]
    return [one for one in found if one is not None]
