"""config/speeds/*.yaml: what `make gpu` timed on a device, for `recollect forecast` and the table in docs/scale.md.

A file holds rows (units of work per second, by way of computing) and jobs: what a whole job of scale `paper` takes at these
rates, with today's settings and as `recollect train` runs it. Nothing in it is from a vendor's list.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import ascii_lowercase

from pydantic import Field

from recollect.artifacts.lease import device_model
from recollect.common.work import Work
from recollect.settings.errors import UserError, nearest
from recollect.settings.loading import config_folder, read_yaml, validated
from recollect.settings.schema import Frozen
from recollect.stages.provenance import digest
from recollect.stages.stage import Job
from recollect.stages.table import STAGES
from recollect.stages.workload import work_of

FOLDER = "speeds"
Counted = tuple[float, float, float, float, float, float, float]


class NamedJob(Frozen):
    """What a row of a file says which job it is about; of whatever seed."""

    stage: str
    scale: str
    env: str
    method: str

    @property
    def job(self) -> Job:
        return Job(self.stage, self.scale, self.env, self.method)

    @staticmethod
    def names(job: Job) -> dict[str, str]:
        """Those fields of a job."""
        return {"stage": job.stage, "scale": job.scale, "env": job.env, "method": job.method}


class TimedJob(NamedJob):
    """A whole job, from the rates of its parts."""

    seconds: float = Field(gt=0, description="Without the start of Python.")
    settings: str = Field(description="A hash of the settings that it was timed with.")
    work: Counted = Field(
        description="Operations, passes and environment steps, with these settings; of the passes those that are captured, and "
        "their kernels: without recurrent cells, of cells of many seeds, and of one seed's."
    )
    seeds: int = Field(1, ge=1, description="That were timed as one network; `seconds` is one seed's share of theirs.")

    @property
    def is_of_today(self) -> bool:
        try:
            return self.settings == digest(STAGES[self.stage].settings_text(self.job))
        except (KeyError, UserError):  # what it was about is configured no more
            return False


class TimedRow(Frozen):
    """A row of the table: one part of a line, in each way of computing."""

    what: str
    unit: str
    rates: dict[str, float | str] = Field(description="Units per second, or a word for why there is no number.")
    best: str = Field("", description="The fastest way that does not disagree with the CPU.")
    gigabytes: float | None = Field(None, description="Most memory of the device, of the best.")
    roofline: float | None = Field(None, description="Share of what the device's own peaks allow, of the best.")
    agrees: bool | None = Field(None, description="Whether all ways agree with the CPU within the tolerance.")
    run: str = Field("", description="Commit and date of its best, where a file has several; else those of the file.")


class DeviceSpeeds(Frozen):
    """What was timed on one device."""

    device: str
    commit: str
    date: str
    torch: str
    peaks: dict[str, float] = Field(description="Operations per second by precision, and bytes per second of a copy.")
    jobs: tuple[TimedJob, ...] = ()
    rows: tuple[TimedRow, ...] = ()


def slug(device: str) -> str:
    """`NVIDIA H100 80GB HBM3` -> `nvidia_h100_80gb_hbm3`: the name of its file."""
    return re.sub(r"[^a-z0-9]+", "_", device.lower()).strip("_")


def path_of(device: str) -> Path:
    return config_folder() / FOLDER / f"{slug(device)}.yaml"


def known() -> dict[str, Path]:
    """The devices that were timed: the name of a file without `.yaml` -> file."""
    return {path.stem: path for path in sorted((config_folder() / FOLDER).glob("*.yaml"))}


def read(path: Path) -> DeviceSpeeds:
    return validated(DeviceSpeeds, read_yaml(path), where=path)


def speeds_of(device: str) -> DeviceSpeeds | None:
    """What was timed on a device.

    Args:
        device: a name as `known` has it; `auto`: this machine's GPU, or, where that was not timed, the only device that was;
            `cpu`: none.

    Raises:
        UserError: an unknown name, or a file that is not one of these.
    """
    files = known()
    if device == "cpu" or (device == "auto" and not files):
        return None
    if device != "auto":
        if device not in files:
            what = f"nothing was timed on a device '{device}'"
            do = f"{nearest(device, ['auto', 'cpu', *files])} (or run `make gpu` on one)"
            raise UserError(what, where=config_folder() / FOLDER, do=do)
        return read(files[device])
    here = slug(device_model())
    only = next(iter(files)) if len(files) == 1 else ""
    chosen = here if here in files else only
    return read(files[chosen]) if chosen else None


def of_today(job: Job) -> tuple[str, Counted]:
    """A hash of a job's settings as they stand, and its work with these: see `TimedJob`."""
    work = work_of(job)
    counted = (work.flop, work.passes, work.env_steps, work.captured, work.kernels, work.cells, work.apart)
    return digest(STAGES[job.stage].settings_text(job)), counted


def timed_job(job: Job, seconds: float, seeds: int = 1) -> TimedJob:
    """The record of a job that would take so long with today's settings.

    Args:
        seconds: of one seed's share, where several are one network.
        seeds: that are one network.
    """
    settings, work = of_today(job)
    return TimedJob(**NamedJob.names(job), seconds=seconds, settings=settings, work=work, seeds=seeds)


def work_then(timed: TimedJob) -> Work:
    """The work of a job as it was when it was timed: as it is counted today, where its settings are today's."""
    if timed.is_of_today:
        return work_of(timed.job)
    flop, passes, env_steps, captured, kernels, cells, apart = timed.work
    return Work(flop, passes, env_steps, captured=captured, kernels=kernels, cells=cells, apart=apart)


# ---------------------------------------------------------------------------------------------- the table of docs/scale.md

PAGE, MARKS = Path("docs/scale.md"), "gpu speeds"
WAYS = ("as set", "fp32", "TF32", "bf16", "graph")
NOTHING = "No GPU has been timed yet: `make gpu` writes this table."


def markdown(found: Sequence[DeviceSpeeds]) -> str:
    """The tables of all devices, from their files alone."""
    return "\n\n".join(_table(one) for one in found) or NOTHING


def _table(timed: DeviceSpeeds) -> str:
    """With a last column that says which run a row is of, where there are several."""
    own = f"{timed.commit}, {timed.date}"
    runs = sorted({row.run or own for row in timed.rows} or {own}, key=lambda run: run.rpartition(", ")[::-1])
    letters = dict(zip(runs, ascii_lowercase, strict=False))
    several = len(runs) > 1
    of = "; ".join(f"run {letters[run]}: commit {run}" for run in runs) if several else f"commit {own}"
    lines = [
        f"**{timed.device}**, torch {timed.torch}; {of}. Its own peaks: {peaks_text(timed.peaks)}.",
        "",
        f"| work per second | {' | '.join(WAYS)} | memory | roofline | as the CPU |{' run |' * several}",
        f"|---|{'---|' * (len(WAYS) + 3 + several)}",
    ]
    for row in timed.rows:
        cells = [cell_text(row.rates.get(way, "–")) for way in WAYS]
        if row.best in WAYS:
            place = WAYS.index(row.best)
            cells[place] = f"**{cells[place]}**"
        run = [letters[row.run or own]] * several
        lines.append(f"| {row.what}: {row.unit} | {' | '.join([*cells, *ends(row), *run])} |")
    return "\n".join(lines)


def peaks_text(peaks: Mapping[str, float]) -> str:
    """``float32 51 TFLOP/s, ..., copy 2.6 TB/s``."""
    said = [f"{name} {value / 1e12:.3g} TFLOP/s" for name, value in peaks.items() if name != "copy"]
    return ", ".join([*said, *(f"copy {value / 1e12:.3g} TB/s" for name, value in peaks.items() if name == "copy")])


def cell_text(value: float | str) -> str:
    """Three digits, or the word."""
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def ends(row: TimedRow) -> tuple[str, str, str]:
    """The last cells of a row: memory, share of the roofline, agreement."""
    memory = "–" if row.gigabytes is None else f"{row.gigabytes:.3g} GB"
    share = "–" if row.roofline is None else f"{row.roofline:.2g} %" if row.roofline < 10 else f"{row.roofline:.0f} %"
    return memory, share, {True: "yes", False: "no", None: "–"}[row.agrees]
