"""Writes what forecasts and docs/scale.md read of a device: see `recollect.stages.device_speeds`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import yaml

from benchmarks.gpu.lines import AS_SET, LINES
from benchmarks.gpu.table import Found
from recollect.artifacts.sealed import write_bytes
from recollect.settings.errors import UserError
from recollect.stages import device_speeds
from recollect.stages.between_marks import put_between
from recollect.stages.device_speeds import MARKS, PAGE, DeviceSpeeds, NamedJob, TimedJob, TimedRow
from recollect.stages.stage import Job


def write(found: Found, *, keep: bool = False) -> list[Path]:
    """config/speeds/<device>.yaml, and the table of docs/scale.md made of all such files.

    Args:
        keep: what the file has of other lines, and of other ways, stays.

    Raises:
        UserError: sizes were shrunk.
    """
    if found.quick:
        raise UserError(
            "sizes were shrunk (--quick)", where=found.device, do="these are no results: measure without it"
        )
    path = device_speeds.path_of(found.device)
    speeds = speeds_of(found)
    if keep and path.is_file():
        speeds = beside(device_speeds.read(path), speeds)
    made = speeds.model_dump(mode="json")
    head = "# Written by `make gpu`: what a device does of each kind of work, per second, and what whole jobs take at that.\n"
    content = yaml.safe_dump(made, sort_keys=False, allow_unicode=True, width=150)
    write_bytes(path, (head + content).encode())
    return [path, *([PAGE] if write_page() else [])]


def write_page() -> bool:
    """Renew the table of the page, where there is one."""
    if not PAGE.is_file():
        return False
    files = [device_speeds.read(path) for path in device_speeds.known().values()]
    text = put_between(PAGE.read_text(encoding="utf-8"), MARKS, device_speeds.markdown(files), PAGE)
    write_bytes(PAGE, text.encode())
    return True


def speeds_of(found: Found) -> DeviceSpeeds:
    return DeviceSpeeds(
        device=found.device,
        commit=found.commit,
        date=found.date,
        torch=found.torch,
        peaks=found.peaks,
        jobs=tuple(jobs_of(found)),
        rows=tuple(found.timed()),
    )


def beside(earlier: DeviceSpeeds, later: DeviceSpeeds) -> DeviceSpeeds:
    """Both as one: what the later has takes the place of what the earlier has of the same job, or of the same way of a row."""

    def with_run(speeds: DeviceSpeeds) -> dict[str, TimedRow]:
        run = f"{speeds.commit}, {speeds.date}"
        return {row.what: row.model_copy(update={"run": row.run or run}) for row in speeds.rows}

    rows = with_run(earlier)
    for what, row in with_run(later).items():
        if _numbers(row):  # else there was no time for it, or all of it failed
            rows[what] = _row_beside(rows[what], row) if what in rows else row
    jobs = {(job.job, job.seeds): job for job in (*earlier.jobs, *later.jobs)}
    names = [line.what for line in LINES.values()]

    def place(row: TimedRow) -> int:
        """Of its line, which its name begins with; the longest, as one line's name may begin with another's."""
        own = [name for name in names if row.what == name or row.what.startswith(f"{name}, ")]
        return names.index(max(own, key=len)) if own else len(names)

    return later.model_copy(update={"rows": tuple(sorted(rows.values(), key=place)), "jobs": tuple(jobs.values())})


def _numbers(row: TimedRow) -> dict[str, float]:
    return {way: rate for way, rate in row.rates.items() if not isinstance(rate, str)}


def _row_beside(earlier: TimedRow, later: TimedRow) -> TimedRow:
    """Both as one; a word of the later, for why there is no number, takes the place of nothing."""
    words = {way: rate for way, rate in later.rates.items() if way not in earlier.rates}
    rates = earlier.rates | words | _numbers(later)
    known = {row.best: rates[row.best] for row in (earlier, later) if row.best}
    best = max(known, key=lambda way: float(known[way]), default="")
    row = later if best in _numbers(later) else earlier
    agrees = earlier.agrees if later.agrees is None else later.agrees
    return row.model_copy(update={"rates": rates, "best": best, "agrees": agrees})


def jobs_of(found: Found) -> Iterator[TimedJob]:
    """Whole jobs of scale `paper` of which every part was timed as the settings stand, alone and as an ensemble.

    The rates of an ensemble count what all of its seeds do. So the seconds are one seed's share, and nothing else divides them.
    """
    known: dict[tuple[Job, int], TimedJob] = {}
    for name, stages in found.jobs.items():
        line = LINES[name]
        own = [row for row in found.rows if row.line == name and row.variant == AS_SET]
        rates = {row.part: row.rate for row in own if row.rate}
        for stage, whole in stages.items():
            units = {part: count for part, count in whole.units.items() if count}
            if all(part in rates for part in units):
                seconds = sum(count / rates[part] for part, count in units.items())
                seeds = max(1, int(str(line.extra.get("members", 0))))
                job = Job(stage, "paper", line.env, line.method)
                named = NamedJob.names(job)
                timed = TimedJob(**named, seconds=seconds, settings=whole.settings, work=whole.work, seeds=seeds)
                known.setdefault((job, seeds), timed)
    yield from known.values()


if __name__ == "__main__":  # after a file was added by hand
    write_page()
