"""Which published file is which task's, and whether the rewards in it agree with its name.

Rooms name their files by cells (x, y): `[start]_[goal].npz`, and for Key-Door `[start]_[A]_[B].npz`, where the card of
the data says key then door and the released code says door then key. Neither is believed: a file is taken for a task in
either order, and then its rewards decide. On the door (on Dark-Room's goal) they repeat; the key pays once, or once per
episode. Mazes are named by their seed. For other worlds, or other names, `files` says how a name is made of a task.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
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
CELLS = re.compile(r"\[(\d+), ?(\d+)\](?:_\[(\d+), ?(\d+)\])+")
START: Cell = (0, 0)
# World -> the entries of a task's data that stand in its file name as cells, after the start; in any order.
CELL_NAMES = {"dark_room": ("goal",), "key_door": ("door", "key")}
NAMES = {"maze_runner": "{seed}"}
SHOWN = 8


def find_files(
    folder: Path, layout: Layout, world: str, tasks: Sequence[Task], pattern: str | None
) -> list[tuple[Path, ...]]:
    """For each task the files (or folders) that may be its; more than one only where names leave it open.

    Args:
        folder: of all tasks.
        layout: `npz` files, or folders of `episodes`.
        pattern: a file's name without suffix, e.g. "{seed}" or "{name}", filled in from the task; None: as published.

    Raises:
        UserError: the folder is missing, holds pickles in their place, or lacks files of some tasks.
    """
    if not folder.is_dir():
        raise UserError(
            "the folder of the published files is missing",
            where=folder,
            do="fetch the files (`recollect fetch --data NAME`), or correct source.hyperparameters.folder",
        )
    there = sorted(path for path in folder.iterdir() if (path.suffix == ".npz" if layout == "npz" else path.is_dir()))
    if pattern is None and world in CELL_NAMES:
        by_cells: dict[tuple[Cell, ...], list[Path]] = {}
        for path in there:
            cells = _cells(path, layout)
            if len(cells) == 1 + len(CELL_NAMES[world]):
                by_cells.setdefault(tuple(sorted(cells[1:])), []).append(path)
        wanted = [tuple(sorted(tuple(task.data[name]) for name in CELL_NAMES[world])) for task in tasks]
        found = [tuple(by_cells.get(cells, ())) for cells in wanted]
        expected = [_cell_name(world, task) for task in tasks]
    else:
        by_name = {_stem(path, layout): path for path in there}
        expected = [_filled(pattern or NAMES.get(world, "{name}"), task) for task in tasks]
        found = [(by_name[name],) if name in by_name else () for name in expected]
    missing = [name for name, paths in zip(expected, found, strict=True) if not paths]
    if missing:
        raise _missing(folder, layout, missing, len(tasks), there)
    return found


def _stem(path: Path, layout: Layout) -> str:
    name = path.name.removesuffix(".npz") if layout == "npz" else path.name
    return unquote(name)  # a browser or wget keeps %5B0%2C0%5D


def _cells(path: Path, layout: Layout) -> list[Cell]:
    """The cells in a name, or none where it is no such name."""
    stem = _stem(path, layout)
    if not CELLS.fullmatch(stem):
        return []
    return [(int(x), int(y)) for x, y in re.findall(r"\[(\d+), ?(\d+)\]", stem)]


def _cell_name(world: str, task: Task) -> str:
    return "_".join(f"[{x},{y}]" for x, y in [START, *(task.data[name] for name in CELL_NAMES[world])])


def _filled(pattern: str, task: Task) -> str:
    values: dict[str, Any] = {**task.data, "name": task.name, "index": task.index, "split": task.split}
    try:
        return pattern.format(**values)
    except (KeyError, IndexError, ValueError, AttributeError) as error:
        raise UserError(
            f"'{pattern}' is no pattern for the names of files ({type(error).__name__}: {error})",
            where="source.hyperparameters.files",
            do=f"use names in braces, of which a task here has: {', '.join(sorted(values))}",
        ) from None


def _missing(folder: Path, layout: Layout, missing: Sequence[str], tasks: int, there: Sequence[Path]) -> UserError:
    suffix = ".npz" if layout == "npz" else "/"
    names = ", ".join(name + suffix for name in missing[:SHOWN])
    more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
    what = f"files of {len(missing)} of {tasks} tasks are missing: {names}{more}"
    pickled = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLES)
    if pickled:
        return UserError(f"{what}; there are pickles instead ({pickled[0]}, ...)", where=folder, do=CONVERT)
    inside = sorted(path.name for path in folder.iterdir() if path.is_dir())
    if layout == "npz" and not there and inside:
        return UserError(what, where=folder, do=f"name one of the folders in it: {', '.join(inside[:SHOWN])}")
    if layout == "episodes" and any(folder.glob("*.npz")):
        return UserError(what, where=folder, do="set `layout: npz`, or name the folder that has one folder per task")
    return UserError(what, where=folder, do="fetch the whole data set, or correct source.hyperparameters.folder")


# ----------------------------------------------------------------------------------------------- names against rewards


class Payments:
    """On which cells (x, y) a room paid in the rows of one task.

    The cell of a reward is what the next row sees; at the end of an episode there is none, so that step is left out.

    Attributes:
        total: cell -> how often it paid.
        most: cell -> how often at most in one episode.
    """

    def __init__(self, *, skip_first: bool = False) -> None:
        self.skip_first = skip_first
        self.total: Counter[Cell] = Counter()
        self.most: Counter[Cell] = Counter()

    def add(self, rows: Rows) -> None:
        """Count the rewards of whole episodes. Observations are (row, column)."""
        paid = (rows.reward > 0) & ~rows.done
        if self.skip_first:
            paid &= rows.timestep > 0
        at = np.flatnonzero(paid)
        if not at.size:
            return
        cells_N2 = rows.observation[at + 1].astype(np.int64)
        episode_N = (np.cumsum(rows.done) - rows.done)[at]
        key_M3, count_M = np.unique(np.column_stack([cells_N2[:, ::-1], episode_N]), axis=0, return_counts=True)
        for (x, y, _), count in zip(key_M3.tolist(), count_M.tolist(), strict=True):
            self.total[x, y] += count
            self.most[x, y] = max(self.most[x, y], count)

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
    """Hold a task against the rewards of its file.

    Returns:
        False where nothing was paid, so that the name stands unchecked.

    Raises:
        UserError: the rewards are those of another task.
    """
    data: Mapping[str, Any] = task.data
    key = tuple(data["key"]) if "key" in data else None
    goal = tuple(data["goal" if key is None else "door"])
    if not paid.total:
        return False
    wrong, whole = paid.against(goal, key), sum(paid.total.values())
    if not wrong:
        return True
    named = f"goal [{goal[0]},{goal[1]}]" if key is None else f"door [{goal[0]},{goal[1]}], key [{key[0]},{key[1]}]"
    seen = paid.goal() or paid.total.most_common(1)[0][0]
    what = (
        f"the rewards of this file are not those of its task ({named}): "
        f"{wrong} of {whole} are paid elsewhere, and [{seen[0]},{seen[1]}] is where they repeat"
    )
    if seen == key:
        what += ", so key and door are exchanged"
    elif seen == goal[::-1]:
        what += ", so rows and columns may be exchanged"
    raise UserError(what, where=path, do="the file is mislabelled or of another room: fetch it again, or remove it")
