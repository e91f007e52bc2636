"""config/recorded_jobs.csv: what finished jobs took on the `cpu` of config/speeds.yaml, for forecasts where nothing has run yet.

A job is reckoned from the nearest one of its kind, as `recollect.stages.estimating` does with jobs that were finished here.
`python -m benchmarks.jobs` writes the file from the records of a folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median

from pydantic import Field

from recollect.common.work import Work
from recollect.settings.errors import UserError
from recollect.settings.loading import config_folder
from recollect.stages.csv_rows import read_rows, text_of
from recollect.stages.device_speeds import NamedJob
from recollect.stages.records import Record
from recollect.stages.stage import Job
from recollect.stages.workload import work_of


class RecordedJob(NamedJob):
    """A row: a job, and the work that it was."""

    seconds: float = Field(gt=0, description="Without the start of Python; the median of its seeds.")
    flop: float = Field(ge=0, description="Operations.")
    passes: float = Field(ge=0)
    env_steps: float = Field(ge=0)

    @property
    def work(self) -> Work:
        return Work(self.flop, self.passes, self.env_steps)


def path() -> Path:
    return config_folder() / "recorded_jobs.csv"


def read() -> list[RecordedJob]:
    """The recorded jobs; none where there is no file.

    Raises:
        UserError: the file is not one of these; it says which row.
    """
    return read_rows(RecordedJob, path())


def recorded(finished: Iterable[Record], scales: Sequence[str]) -> list[RecordedJob]:
    """The jobs of some scales whose work is counted.

    Args:
        finished: what jobs took, with today's settings, each from its start to its end.

    Raises:
        UserError: a scale has none.
    """
    seconds: dict[Job, list[float]] = {}
    for one in finished:
        if one.job.scale in scales and one.device == "cpu" and one.seconds > 0 and any(work_of(one.job)):
            seconds.setdefault(one.job.shape, []).append(one.seconds)
    for scale in scales:
        if not any(job.scale == scale for job in seconds):
            what = f"no job of scale '{scale}' was finished on a CPU here with today's settings"
            do = f"make its figures first: `snakemake --config scale={scale}`"
            raise UserError(what, where=Path("logs", scale), do=do)
    return [_row(job, median(found)) for job, found in seconds.items()]


def _row(job: Job, seconds: float) -> RecordedJob:
    flop, passes, env_steps = work_of(job)[:3]
    return RecordedJob(**NamedJob.names(job), seconds=seconds, flop=flop, passes=passes, env_steps=env_steps)


def text(jobs: Iterable[RecordedJob]) -> str:
    """The file's content, numbers with four digits."""
    return text_of(RecordedJob, sorted(jobs, key=lambda one: one.job))
