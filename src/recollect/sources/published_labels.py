"""Which published file is which task's, and whether the rewards in it agree with its name.

Rooms name their files by cells (x, y): `[start]_[goal].npz`, and for Key-Door `[start]_[A]_[B].npz`, where the card of
the data says key then door and the released code says door then key. Neither is believed: the rewards decide. On the
door (on Dark-Room's goal) they repeat; the key pays once, or once per episode. Mazes are named by their seed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote

import numpy as np

from recollect.environments.base import Task
from recollect.settings.errors import UserError
from recollect.sources.columns import Rows
from recollect.sources.published import CONVERT, PICKLES

Layout = Literal["npz", "episodes"]
Cell = tuple[int, int]
START: Cell = (0, 0)
# World -> the entries of a task's data that stand in its file name as cells, after the start; in any order.
CELL_NAMES = {"dark_room": ("goal",), "key_door": ("door", "key")}
CELLS = re.compile(r"\[\d+, ?\d+\](_\[\d+, ?\d+\])+")
NAMES = {"maze_runner": "{seed}"}
SHOWN = 8


def find_files(
    folder: Path, layout: Layout, world: str, tasks: Sequence[Task], pattern: str | None
) -> list[tuple[Path, ...]]:
    """For each task the files (or folders) that may be its; more than one only where names leave it open.

    `pattern` is a name without suffix, filled in from the task (None: as published). Missing files are a UserError.
    """
    if not folder.is_dir():
        do = "fetch the files (`recollect fetch --data NAME`), or correct source.hyperparameters.folder"
        raise UserError("the folder of the published files is missing", where=folder, do=do)
    by_cells = pattern is None and world in CELL_NAMES
    candidates: dict[Any, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix == ".npz" if layout == "npz" else path.is_dir():
            stem = unquote(path.name.removesuffix(".npz"))  # a browser or wget keeps %5B0%2C0%5D
            candidates.setdefault(_cells(stem) if by_cells else stem, []).append(path)
    files, missing = [], []
    for task in tasks:
        if by_cells:
            cells = [tuple(task.data[name]) for name in CELL_NAMES[world]]
            name = "_".join(f"[{x},{y}]" for x, y in [START, *cells])
            paths = candidates.get(tuple(sorted(cells)), [])
        else:
            name = _filled(pattern or NAMES.get(world, "{name}"), task)
            paths = candidates.get(name, [])
        files.append(tuple(paths))
        if not paths:
            missing.append(name + (".npz" if layout == "npz" else "/"))
    if missing:
        more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
        message = f"files of {len(missing)} of {len(tasks)} tasks are missing: {', '.join(missing[:SHOWN])}{more}"
        raise _missing(message, folder, layout, nothing=not candidates)
    return files


def _cells(stem: str) -> tuple[Cell, ...]:
    """The cells in a name after the first, in ascending order; none where it is no such name."""
    if not CELLS.fullmatch(stem):
        return ()
    cells = [(int(x), int(y)) for x, y in re.findall(r"\[(\d+), ?(\d+)\]", stem)]
    return tuple(sorted(cells[1:]))


def _filled(pattern: str, task: Task) -> str:
    values: dict[str, Any] = {**task.data, "name": task.name, "index": task.index, "split": task.split}
    try:
        return pattern.format(**values)
    except (KeyError, IndexError, ValueError, AttributeError) as error:
        message = f"'{pattern}' is no pattern for the names of files ({type(error).__name__}: {error})"
        do = f"use names in braces, of which a task here has: {', '.join(sorted(values))}"
        raise UserError(message, where="source.hyperparameters.files", do=do) from None


def _missing(message: str, folder: Path, layout: Layout, *, nothing: bool) -> UserError:
    """The error about missing files, with what to do by what lies in the folder instead (`nothing` of the layout)."""
    inside = sorted(folder.iterdir())
    pickles = [path.name for path in inside if path.suffix in PICKLES]
    folders = [path.name for path in inside if path.is_dir()]
    do = "fetch the whole data set, or correct source.hyperparameters.folder"
    if pickles:
        message += f"; there are pickles instead ({pickles[0]}, ...)"
        do = CONVERT
    elif layout == "npz" and nothing and folders:
        do = f"name one of the folders in it: {', '.join(folders[:SHOWN])}"
    elif layout == "episodes" and any(path.suffix == ".npz" for path in inside):
        do = "set `layout: npz`, or name the folder that has one folder per task"
    return UserError(message, where=folder, do=do)


# ----------------------------------------------------------------------------------------------- names against rewards


class Payments:
    """On which cells (x, y) a room paid in the rows of one task: in total, and at most in one episode."""

    def __init__(self, *, skip_first: bool = False) -> None:
        self.skip_first = skip_first
        self.total: Counter[Cell] = Counter()
        self.most: Counter[Cell] = Counter()

    def add(self, rows: Rows) -> None:
        """Count the rewards of whole episodes. Observations are (row, column)."""
        paid_N = (rows.reward > 0) & ~rows.done  # the next row sees the cell, and behind an end there is none
        if self.skip_first:
            paid_N &= rows.timestep > 0
        episode_N = np.cumsum(rows.done) - rows.done
        in_episode: Counter[tuple[Cell, int]] = Counter()
        for at in np.flatnonzero(paid_N).tolist():
            row, column = rows.observation[at + 1].tolist()
            cell = (int(column), int(row))
            self.total[cell] += 1
            in_episode[cell, int(episode_N[at])] += 1
        for (cell, _), count in in_episode.items():
            self.most[cell] = max(self.most[cell], count)

    def against(self, goal: Cell, key: Cell | None) -> int:
        """How many rewards cannot be if this is the goal (or door) and this the key."""
        wrong = sum(count for cell, count in self.total.items() if cell not in (goal, key))
        if key is not None and key != goal and self.most[key] > 1:
            wrong += self.total[key]
        return wrong

    def goal(self) -> Cell | None:
        """The cell that paid again and again within an episode; None where none did."""
        repeated = [cell for cell, most in self.most.items() if most > 1]
        return max(repeated, key=lambda cell: (self.total[cell], cell)) if repeated else None


def payments_of(world: str, task: Task) -> Payments | None:
    """What is to be counted in the rows of a task; None where the world's rewards say nothing about names."""
    if world not in CELL_NAMES:
        return None
    # A key in the start cell is taken with the first step, wherever that leads.
    return Payments(skip_first=tuple(task.data.get("key", (-1, -1))) == START)


def check_rewards(task: Task, paid: Payments, path: Path) -> bool:
    """Raise a UserError if a file's rewards are of another task. False: nothing is paid, so it cannot be told."""
    key = tuple(task.data["key"]) if "key" in task.data else None
    goal = tuple(task.data["goal" if key is None else "door"])
    wrong = paid.against(goal, key)
    if not wrong:
        return bool(paid.total)
    named = f"goal [{goal[0]},{goal[1]}]" if key is None else f"door [{goal[0]},{goal[1]}], key [{key[0]},{key[1]}]"
    seen = paid.goal() or paid.total.most_common(1)[0][0]
    message = (
        f"the rewards of this file are not those of its task ({named}): {wrong} of {sum(paid.total.values())} "
        f"are paid elsewhere, and [{seen[0]},{seen[1]}] is where they repeat"
    )
    if seen == key:
        message += ", so key and door are exchanged"
    elif seen == goal[::-1]:
        message += ", so rows and columns may be exchanged"
    raise UserError(message, where=path, do="the file is mislabelled or of another room: fetch it again, or remove it")
