"""What was found as one screen: a row for each part of a line, its fastest way marked, and below it why a number is missing."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import torch

from benchmarks.gpu.lines import AS_SET, COLUMNS, LINES
from benchmarks.gpu.one_line import Row, Units
from recollect.evaluation.speed import machine
from recollect.settings.errors import UserError
from recollect.stages.circumstances import commit, processor
from recollect.stages.device_speeds import Counted, TimedRow, cell_text, ends, of_today, peaks_text
from recollect.stages.stage import Job

WORDS = {"no such setting": "·", "no time was left": "time", "out of memory": "memory", "stopped": "time"}
WHAT = 55  # letters of the first column


@dataclass(frozen=True)
class WholeJob:
    """A job of scale `paper` as it stood when its line was measured.

    Args:
        units: part -> how many.
        settings, work: see `recollect.stages.device_speeds.TimedJob`.
    """

    units: dict[str, float]
    settings: str
    work: Counted


def whole_jobs(name: str, units: Units) -> dict[str, WholeJob]:
    """Stage -> the job of a line, with today's settings."""
    line = LINES[name]
    return {
        stage: WholeJob(parts, *of_today(Job(stage, "paper", line.env, line.method))) for stage, parts in units.items()
    }


@dataclass
class Found:
    """What was measured, and on what."""

    device: str
    commit: str
    date: str
    torch: str
    quick: bool = False
    peaks: dict[str, float] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    jobs: dict[str, dict[str, WholeJob]] = field(default_factory=dict)

    @classmethod
    def of_this_machine(cls, device: str, quick: bool) -> Found:
        name = machine(device) if device != "cpu" else f"{processor()}, {machine(device)}"
        today = datetime.now(UTC).date().isoformat()
        return cls(
            name, commit() or "unknown", today, f"{torch.__version__}, Python {platform.python_version()}", quick
        )

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "rows": [asdict(row) for row in self.rows]}

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> Found:
        """Raises UserError: an older version wrote it, without the settings of its jobs."""
        if any("settings" not in job for stages in said["jobs"].values() for job in stages.values()):
            what = f"a run of {said['date']} does not say which settings it was timed with"
            raise UserError(what, where=said["device"], do="measure again: an older version wrote its file")
        jobs = {
            name: {stage: WholeJob(**{**job, "work": tuple(job["work"])}) for stage, job in stages.items()}
            for name, stages in said["jobs"].items()
        }
        return cls(**{**said, "rows": [Row(**row) for row in said["rows"]], "jobs": jobs})

    def has_as_set(self, name: str) -> bool:
        """Whether a line was timed as the settings stand, which is what its jobs are reckoned from."""
        return any(row.line == name and row.variant == AS_SET and row.rate is not None for row in self.rows)

    def timed(self) -> list[TimedRow]:
        """The rows of the table: of each part of each line all ways of computing."""
        found = []
        for name in dict.fromkeys(row.line for row in self.rows if not _absent(row)):
            own = [row for row in self.rows if row.line == name]
            parts = dict.fromkeys(row.part for row in own if row.rate is not None) or {"": None}
            found += [self._timed(name, part, own) for part in parts]
        return found

    def _timed(self, name: str, part: str, rows: Sequence[Row]) -> TimedRow:
        there = [row for row in rows if row.part == part and row.rate is not None]
        rates: dict[str, float | str] = {row.variant: _word(row.why) for row in rows if row.rate is None}
        rates |= {row.variant: row.rate for row in there if row.rate is not None}
        right = [row for row in there if row.within is not False]
        best = max(right, key=lambda row: row.rate or 0.0, default=None)
        share = best.share(self.peaks) if best and not self.quick else None
        compared = [row.within for row in there if row.within is not None]
        return TimedRow(
            what=f"{LINES[name].what}" + f", {part}" * bool(part),
            unit=there[0].unit if there else "",
            rates=rates,
            best=best.variant if best else "",
            gigabytes=best.megabytes / 1e3 if best and best.megabytes else None,
            roofline=100 * share if share is not None else None,
            agrees=all(compared) if compared else None,
            run=best.run if best else "",
        )


def joined(runs: Sequence[Found]) -> Found:
    """Several runs on one device as one, lines in the order of `LINES`. What a later one measured takes an earlier one's place.

    What a later one did not compare with the CPU stays as an earlier one has compared it.

    Raises:
        UserError: they are of two devices, or of sizes that were shrunk.
    """
    last = runs[-1]
    if len({run.device for run in runs}) > 1:
        raise UserError("two devices", where=", ".join(run.device for run in runs), do="name files of one device")
    if len(runs) > 1 and any(run.quick for run in runs):
        raise UserError("sizes were shrunk (--quick)", where=last.device, do="these are no results")
    rows: dict[tuple[str, str, str], Row] = {}
    for of, row in ((run, row) for run in runs for row in run.rows):
        row = replace(row, run=row.run or f"{of.commit}, {of.date}")
        before = rows.get((row.line, row.part, row.variant))
        if before and row.rate is not None and row.within is None and not row.why:
            row = replace(row, difference=before.difference, within=before.within)
        rows[row.line, row.part, row.variant] = row
    for line, _, variant in [key for key, row in rows.items() if row.part and row.rate is not None]:
        rows.pop((line, "", variant), None)  # why another run had no time for it
    order = sorted(rows.values(), key=lambda row: list(LINES).index(row.line))
    jobs = {name: stages for run in runs for name, stages in run.jobs.items() if stages and run.has_as_set(name)}
    peaks = {name: value for run in runs for name, value in run.peaks.items()}
    return replace(last, rows=order, jobs=jobs, peaks=peaks)


def _absent(row: Row) -> bool:
    """Whether it was not measured because the code has no such way of computing."""
    return _word(row.why) == "·" and row.rate is None


def _word(why: str) -> str:
    return next((word for start, word in WORDS.items() if why.startswith(start)), "failed")


def text(found: Found) -> str:
    """The whole table."""
    heads = ("work per second", *COLUMNS, "memory", "roofline", "as the CPU")
    widths = (WHAT, *(8 for _ in COLUMNS), 8, 8, 10)

    def line(cells: Sequence[str]) -> str:
        first, *others = (cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
        return " ".join([first.strip().ljust(WHAT), *others]).rstrip()

    lines = [
        f"{found.device}; commit {found.commit}, {found.date}, torch {found.torch}",
        f"its own peaks: {peaks_text(found.peaks) or 'not measured'}",
        "",
        line(heads),
        line(["-" * width for width in widths]),
    ]
    for row in found.timed():
        cells = [cell_text(row.rates.get(way, "–")) + "*" * (way == row.best) for way in COLUMNS]
        lines.append(line([": ".join(filter(None, (row.what, row.unit)))[:WHAT], *cells, *ends(row)]))
    lines += [
        "",
        "* the fastest that does not disagree with the CPU; memory and roofline are of it. – not asked, · no such setting",
        "as the CPU: losses and gradient norms, or outputs, of a few small steps from the same weights",
    ]
    return "\n".join(lines + _notes(found.rows))


def _notes(rows: Sequence[Row]) -> list[str]:
    """Why numbers are missing, and how far what disagrees is from the CPU; each reason once."""
    said: dict[str, list[str]] = {}
    there = {row.line for row in rows if not _absent(row)}
    for row in rows:
        if row.line not in there:
            said.setdefault(row.why, []).append(row.line)
        elif row.why and not _absent(row):
            said.setdefault(row.why, []).append(f"{row.line} {row.variant}")
        if row.within is False:
            what = f"{row.difference:.2g} of the CPU's numbers away from them"
            said.setdefault(what, []).append(f"{row.line} {row.variant}")
    return [f"{', '.join(dict.fromkeys(places))}: {why}" for why, places in said.items()]
