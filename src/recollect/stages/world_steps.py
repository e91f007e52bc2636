"""config/world_steps.csv: what a step takes of worlds that a package plays, for `recollect forecast`.

`python -m benchmarks.worlds` writes it, with the processor and the day of each row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean

from pydantic import Field, field_validator

from recollect.settings.loading import config_folder
from recollect.settings.schema import Frozen
from recollect.stages.csv_rows import read_rows, text_of

PLAYED_BY_OTHERS = {"procgen": 20}
"""World that a process of its own plays for each seed, side by side where seeds are trained together -> how many seeds' processes
fit into the memory that a run asks for. Of sixteen games of Procgen one takes 380 MB."""


class WorldStep(Frozen):
    """A row: one environment, played by one core with random actions."""

    env: str
    world: str = Field(description="Its `world:`; other environments of it take the mean of those that were timed.")
    microseconds: float = Field(gt=0, description="Of a step of one instance, beginnings of episodes included.")
    instances: int = Field(ge=1, description="That were played in turn.")
    in_two: float | None = Field(
        None,
        gt=0,
        description="The same where two processes play it, on two cores; null: one plays it, whatever threads there are.",
    )
    processor: str
    date: str
    commit: str

    @field_validator("in_two", mode="before")
    @classmethod
    def _nothing(cls, cell: object) -> object:
        return None if cell == "" else cell


def path() -> Path:
    return config_folder() / "world_steps.csv"


def read() -> list[WorldStep]:
    """The rows; none where there is no file.

    Raises:
        UserError: the file is not one of these; it says which row.
    """
    return read_rows(WorldStep, path())


def text(rows: Iterable[WorldStep]) -> str:
    """The file: rows by the names of worlds and environments."""
    return text_of(WorldStep, sorted(rows, key=lambda row: (row.world, row.env)))


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
    """What two processes took longer than half the time of one, more of them take, too: requests, and waiting for each other."""
    alone = row.microseconds
    if processes > 1 and row.in_two is not None:
        alone = min(alone, alone / processes + max(0.0, row.in_two - alone / 2))
    return alone * 1e-6
