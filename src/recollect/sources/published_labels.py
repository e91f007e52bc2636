"""Which published file is which task's, and whether it is: its rewards, and its first episode played in our own world.

Rooms name their files by cells (x, y): `[start]_[goal].npz`, and for Key-Door `[start]_[A]_[B].npz`, where the card of
the data says key then door and the released code says door then key. Neither is believed: the rewards decide. On the
door (on Dark-Room's goal) they repeat; the key pays once, or once per episode. Mazes are named by their seed.

Policies are trained on published rows and judged in our worlds. Another order of coordinates, another meaning of an
action or another maze would train without a complaint and fail at evaluation; the replay stops it before any work.
Passed over: tasks whose episodes start at random, worlds of images (whose levels are not known) and of continuous
actions. What is paid at an episode's last step is not compared: that is an option of the environment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote

import numpy as np

from recollect.environments import registry
from recollect.environments.base import Task
from recollect.settings.errors import UserError
from recollect.settings.seeding import seed_of
from recollect.sources.columns import Rows
from recollect.sources.published import CONVERT, PICKLES, ROUNDING

Layout = Literal["npz", "episodes"]
Cell = tuple[int, int]
START: Cell = (0, 0)
# World -> the entries of a task's data that stand in its file name as cells, after the start; in any order.
CELL_NAMES = {"dark_room": ("goal",), "key_door": ("door", "key")}
NAMES = {"maze_runner": "{seed}"}
SHOWN = 8
RESETS = 4  # starts that must be the same for a task to count as one with a fixed start
SHORT: Any = {"precision": 4, "separator": ", ", "threshold": 12}


def find_files(
    folder: Path, layout: Layout, world: str, tasks: Sequence[Task], pattern: str | None
) -> list[tuple[Path, ...]]:
    """For each task the files (or folders) that may be its; more than one only where names leave it open.

    `pattern` is a name without suffix, filled in from the task (None: as published). Missing files are a UserError.
    """
    if not folder.is_dir():
        do = "fetch the files (`recollect fetch --data NAME`), or correct source.hyperparameters.folder"
        raise UserError("the folder of the published files is missing", where=folder, do=do)
    named_by = () if pattern else CELL_NAMES.get(world, ())
    there: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix == ".npz" if layout == "npz" else path.is_dir():
            name = unquote(path.name.removesuffix(".npz"))  # a browser or wget keeps %5B0%2C0%5D
            if named_by:
                name = name.replace(" ", "").partition("_")[2]  # wherever episodes start
            there.setdefault(name, []).append(path)
    files, missing = [], []
    for task in tasks:
        names = [_filled(pattern or NAMES.get(world, "{name}"), task)]
        first = names[0]
        if named_by:
            cells = [_shown(task.data[entry]) for entry in named_by]
            names = ["_".join(order) for order in permutations(cells)]
            first = f"{_shown(START)}_{names[0]}"
        paths = [path for name in dict.fromkeys(names) for path in there.get(name, ())]
        files.append(tuple(paths))
        if not paths:
            missing.append(first + (".npz" if layout == "npz" else "/"))
    if missing:
        more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
        message = f"files of {len(missing)} of {len(tasks)} tasks are missing: {', '.join(missing[:SHOWN])}{more}"
        raise _missing(message, folder, layout, nothing=not there)
    return files


def _shown(cell: Cell) -> str:
    return f"[{cell[0]},{cell[1]}]"


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
        at_M = np.flatnonzero(paid_N)
        episode_M = (np.cumsum(rows.done) - rows.done)[at_M]
        cells = [(int(column), int(row)) for row, column in rows.observation[at_M + 1]]
        self.total.update(cells)
        for (cell, _), count in Counter(zip(cells, episode_M.tolist(), strict=True)).items():
            self.most[cell] = max(self.most[cell], count)

    def goal(self) -> Cell | None:
        """The cell that paid again and again within an episode; None where none did."""
        repeated = [cell for cell, most in self.most.items() if most > 1]
        return max(repeated, key=lambda cell: (self.total[cell], cell), default=None)


def payments_of(world: str, task: Task) -> Payments | None:
    """What is to be counted in the rows of a task; None where the world's rewards say nothing about names."""
    if world not in CELL_NAMES:
        return None
    # A key in the start cell is taken with the first step, wherever that leads. Where the door is there, episodes begin at random
    # cells, sometimes on the key.
    places = [tuple(task.data[name]) for name in ("key", "door") if name in task.data]
    return Payments(skip_first=START in places)


def check_rewards(task: Task, paid: Payments, path: Path) -> bool:
    """Raise a UserError if a file's rewards are of another task. False: nothing is paid, so it cannot be told."""
    key = tuple(task.data["key"]) if "key" in task.data else None
    goal = tuple(task.data["goal" if key is None else "door"])
    wrong = sum(count for cell, count in paid.total.items() if cell not in (goal, key))
    if key is not None and key != goal and paid.most[key] > 1:
        wrong += paid.total[key]
    if not wrong:
        return bool(paid.total)
    named = f"goal {_shown(goal)}" if key is None else f"door {_shown(goal)}, key {_shown(key)}"
    seen = paid.goal() or paid.total.most_common(1)[0][0]
    message = (
        f"the rewards of this file are not those of its task ({named}): {wrong} of {paid.total.total()} "
        f"are paid elsewhere, and {_shown(seen)} is where they repeat"
    )
    if seen == key:
        message += ", so key and door are exchanged"
    elif seen == goal[::-1]:
        message += ", so rows and columns may be exchanged"
    raise UserError(message, where=path, do="the file is mislabelled or of another room: fetch it again, or remove it")


# ------------------------------------------------------------------------------------------- episodes against our world


@dataclass
class Replay:
    """How the first episodes went in our world: of how many tasks, and of which (by place) the first difference in
    observations and ends (`ways`), and in `rewards`."""

    world: str
    paths: Sequence[Path]
    compared: int = 0
    ways: dict[int, str] = field(default_factory=dict)
    rewards: dict[int, str] = field(default_factory=dict)

    def check(self, differences: Mapping[int, str]) -> None:
        if differences:
            first = min(differences)
            message = (
                f"the first episode of {len(differences)} of {self.compared} files does not go as in the world "
                f"'{self.world}': {differences[first]}"
            )
            do = "name the files of this environment, or correct its options; `replay: false` reads the files as they are"
            raise UserError(message, where=self.paths[first], do=do)


def replay(
    world: str, options: Mapping[str, Any], tasks: Sequence[Task], firsts: Sequence[Rows], paths: Sequence[Path]
) -> Replay:
    """Play one episode per task: `firsts` are the rows of one whole episode of each, or there are none."""
    found = Replay(world, paths)
    if not firsts:
        return found
    starts_BD = []
    for r in range(RESETS - 1, -1, -1):
        seeds_B = np.array([seed_of("published-replay", r, task.index) for task in tasks], np.uint64)
        played = registry.make_world(world, options, tasks, seeds_B)
        observation_BD, _ = played.reset()
        starts_BD.append(observation_BD)
    live_B = (np.stack(starts_BD) == observation_BD).all(axis=(0, 2))
    found.compared = int(live_B.sum())
    t = 0
    while live_B.any():
        going = np.flatnonzero(live_B).tolist()
        action_B = np.zeros(len(tasks), np.int64)
        for b in going:
            rows = firsts[b]
            action_B[b] = rows.action[t]
            theirs_D, ours_D = rows.observation[t], observation_BD[b]
            if (np.abs(theirs_D - ours_D.astype(np.float64)) > ROUNDING).any():
                before = f" after action {rows.action[t - 1]}" if t else ""
                theirs, ours = (np.array2string(each_D, **SHORT) for each_D in (theirs_D, ours_D))
                found.ways.setdefault(b, f"at step {t}{before} the file sees {theirs}, our world {ours}")
        observation_BD, reward_B, terminated_B, truncated_B, _ = played.step(action_B)
        ended_B = terminated_B | truncated_B
        for b in going:
            paid, ended = firsts[b].reward[t], bool(firsts[b].done[t])
            if ended != ended_B[b]:
                ends, goes_on = ("the file", "our world") if ended else ("our world", "the file")
                found.ways.setdefault(b, f"at step {t} {ends}'s episode ends, {goes_on}'s does not")
            if not ended_B[b] and abs(paid - reward_B[b]) > ROUNDING:
                found.rewards.setdefault(b, f"at step {t} the file pays {paid:g}, our world {reward_B[b]:g}")
            live_B[b] = not ended
        if ended_B.any():
            observation_BD, _ = played.reset(options={"reset_mask": ended_B})
        t += 1
    return found
