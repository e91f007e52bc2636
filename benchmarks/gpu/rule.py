"""`python -m benchmarks.gpu.rule`: how near the forecast's rule comes to what `make gpu` timed.

Each job that was timed on a device is reckoned as if it alone had not been: from the nearest other of its kind. With `--write` the
table stands in docs/scale.md.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from recollect.artifacts.sealed import write_bytes
from recollect.settings.still import held_still
from recollect.stages import device_speeds
from recollect.stages.between_marks import put_between
from recollect.stages.device_speeds import DeviceSpeeds, TimedJob
from recollect.stages.estimating import Estimator

PAGE, MARKS = Path("docs/scale.md"), "gpu rule"


class Row(NamedTuple):
    """A timed job, and what it is reckoned without its own time. Seconds of all seeds that are one network."""

    job: TimedJob
    timed: float
    reckoned: float

    @property
    def ratio(self) -> float:
        return self.reckoned / self.timed


def rows_of(speeds: DeviceSpeeds) -> list[Row]:
    """The jobs of today of which another of their kind was timed, too."""
    rows = []
    for one in speeds.jobs:
        if not one.is_of_today:
            continue
        others = tuple(other for other in speeds.jobs if other != one)
        estimator = Estimator({}, timed=speeds.model_copy(update={"jobs": others}), together={one.job: one.seeds})
        estimate = estimator(one.job)
        if estimate.source == "scaled":
            start = estimator.machines["cuda"].startup
            rows.append(Row(one, one.seconds * one.seeds, estimate.seconds * one.seeds - start))
    return rows


def typical(rows: Sequence[Row]) -> float:
    """By what factor they are off: the geometric mean, whichever is the larger."""
    return math.exp(fmean(abs(math.log(row.ratio)) for row in rows))


def markdown(found: Sequence[DeviceSpeeds]) -> str:
    with held_still():  # files of settings are read once
        return "\n\n".join(_table(speeds) for speeds in found)


def _table(speeds: DeviceSpeeds) -> str:
    rows = rows_of(speeds)
    lines = [
        f"| {speeds.device} | timed, hours | reckoned, hours | ratio |",
        "|---|---|---|---|",
        *(
            f"| {_name(row.job)} | {row.timed / 3600:.3g} | {row.reckoned / 3600:.3g} | {row.ratio:.2f} |"
            for row in rows
        ),
    ]
    if not rows:
        return f"{speeds.device}: no two jobs of a kind were timed."
    near = sum(1 / 1.5 <= row.ratio <= 1.5 for row in rows)
    said = f"{near} of {len(rows)} are right to a factor of 1.5; on average they are {typical(rows):.2f} times off."
    return "\n".join([*lines, "", said])


def _name(one: TimedJob) -> str:
    seeds = f", {one.seeds} seeds" if one.seeds > 1 else ""
    return f"{one.stage} `{one.env}` `{one.method}`{seeds}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.rule", description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help=f"put it into {PAGE}")
    asked = parser.parse_args(arguments)
    text = markdown([device_speeds.read(path) for path in device_speeds.known().values()])
    print(text)
    if asked.write:
        page = PAGE.read_text(encoding="utf-8")
        write_bytes(PAGE, put_between(page, MARKS, text, PAGE).encode())


if __name__ == "__main__":
    main()
