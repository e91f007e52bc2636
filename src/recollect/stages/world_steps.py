"""config/world_steps.csv: what a step takes of worlds that a package plays, for `recollect forecast`.

`python -m benchmarks.worlds` writes it, with the processor and the day of each row.
"""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean

from pydantic import Field

from recollect.settings.loading import config_folder, validated
from recollect.settings.schema import Frozen

WAITS = 6e-5
"""Seconds that processes add to a step of an instance: requests, and waiting for the slowest and for new episodes. Two processes on
two cores took 40 to 80 microseconds longer than half of the time of one (MiniWorld, PyBullet, Meta-World, DMControl; Crafter 190).
"""


class WorldStep(Frozen):
    """A row: one environment, played by one core with random actions."""

    env: str
    world: str = Field(description="Its `world:`; other environments of it take the mean of those that were timed.")
    microseconds: float = Field(gt=0, description="Of a step of one instance, beginnings of episodes included.")
    instances: int = Field(ge=1, description="That were played in turn.")
    parallel: bool = Field(description="Whether several processes play it where a job has threads.")
    processor: str
    date: str
    commit: str


def path() -> Path:
    return config_folder() / "world_steps.csv"


def read() -> list[WorldStep]:
    """The rows; none where there is no file.

    Raises:
        UserError: the file is not one of these; it says which row.
    """
    if not path().is_file():
        return []
    rows = csv.DictReader(io.StringIO(path().read_text(encoding="utf-8")))
    return [validated(WorldStep, row, where=f"{path()}, line {rows.line_num}") for row in rows]


def text(rows: Iterable[WorldStep]) -> str:
    """The file: rows by the names of worlds and environments."""
    out = io.StringIO()
    table = csv.DictWriter(out, list(WorldStep.model_fields), lineterminator="\n")
    table.writeheader()
    table.writerows(row.model_dump() for row in sorted(rows, key=lambda row: (row.world, row.env)))
    return out.getvalue()


def of_environments(rows: Iterable[WorldStep], processes: int = 1) -> dict[str, float]:
    """Seconds of a step of each environment that was timed, where so many processes play those that several may play."""
    return {row.env: _seconds(row, processes) for row in rows}


def of_worlds(rows: Iterable[WorldStep], processes: int = 1) -> dict[str, float]:
    """Seconds of a step of each world: the mean of its environments."""
    seconds = defaultdict[str, list[float]](list)
    for row in rows:
        seconds[row.world].append(_seconds(row, processes))
    return {world: fmean(found) for world, found in seconds.items()}


def _seconds(row: WorldStep, processes: int) -> float:
    alone = row.microseconds * 1e-6
    return min(alone, alone / processes + WAITS) if row.parallel and processes > 1 else alone
