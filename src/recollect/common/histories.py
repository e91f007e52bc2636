"""Learning histories: everything an agent lived through in each task, in time order, as flat memory-mapped columns.

One row is one transition. Tasks stand one after the other, ascending; within a task, episodes stand in the order in
which they were played. Episodes, returns-to-go and timesteps are derived, never stored, so they cannot disagree with
the rows. A task's last episode counts only if it was played to its end; its rows stay where they are, in no episode.

Source: RA-DT (arXiv 2410.07071), specification 2.1 and 2.4.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from recollect.artifacts.sealed import read_arrays
from recollect.settings.errors import UserError

log = logging.getLogger(__name__)
KIND = "histories"
COLUMNS = ("observation", "action", "reward", "done", "task", "episode")
AGAIN = "make the histories again (`recollect generate`), or correct the reader that made them."
BLOCK = 1 << 26  # bytes of a column that are looked at or copied at once


def blocks_of(column: np.ndarray) -> Iterator[slice]:
    """The rows of a column, block by block: a mapped table may be larger than memory."""
    rows = max(1, BLOCK * len(column) // max(1, column.nbytes))
    for first in range(0, len(column), rows):
        yield slice(first, min(first + rows, len(column)))


@dataclass(frozen=True)
class EpisodeTable:
    """The complete episodes, in the order of their rows; M of them.

    Attributes:
        task: int32 [M], task index.
        index: int32 [M], 0-based place within the task's history.
        total_return: float32 [M], undiscounted sum of rewards.
        first_of_task: int64 [M], the place in this table of the task's first episode.
    """

    start: np.ndarray
    length: np.ndarray
    task: np.ndarray
    index: np.ndarray
    total_return: np.ndarray
    first_of_task: np.ndarray

    def __len__(self) -> int:
        return len(self.start)


class Histories:
    """Flat columns of N transitions, and what follows from them.

    Args:
        arrays: `observation` [N, ...] (integers or floats), `action` [N] (integers) or [N, A] (floats), `reward` [N]
            (floats), `done` [N] (bool), `task` [N] (integers), `episode` [N] (integers, index within the task).
        where: what to name in errors, e.g. the file.

    Attributes:
        observation, action, reward, done, task, episode: the columns, as given.
        incomplete_episodes, incomplete_transitions: last episodes that were not played to the end, and their rows.

    Raises:
        UserError: columns are missing, or differ in length or kind. What is *in* them is checked by `validate`.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], *, where: object = "histories") -> None:
        self.where = where
        missing = [name for name in COLUMNS if name not in arrays]
        if missing:
            raise self._error(f"there is no column {', '.join(missing)} (found: {', '.join(sorted(arrays)) or 'none'})")
        self.observation, self.action, self.reward = arrays["observation"], arrays["action"], arrays["reward"]
        self.done, self.task, self.episode = arrays["done"], arrays["task"], arrays["episode"]
        rows = len(self.reward)
        kinds = {"observation": "iuf", "action": "iuf", "reward": "f", "done": "b", "task": "iu", "episode": "iu"}
        dimensions = {"observation": (2, 9), "action": (1, 2)}
        for name in COLUMNS:
            column, (fewest, most) = arrays[name], dimensions.get(name, (1, 1))
            if len(column) != rows:
                raise self._error(f"the column {name} has {len(column)} rows, the column reward has {rows}")
            if column.dtype.kind not in kinds[name]:
                raise self._error(f"the column {name} has the wrong type, {column.dtype}")
            if not fewest <= column.ndim <= most:
                raise self._error(f"the column {name} has the wrong shape, {column.shape}")
        if self.action.ndim == 1 and self.action.dtype.kind == "f":
            raise self._error("the column action has floats but no axis of action dimensions")
        if not self.done.any():
            raise self._error(f"there is no complete episode in {rows} transitions")
        _, length, complete = self._all_episodes
        self.incomplete_episodes = int((~complete).sum())
        self.incomplete_transitions = int(length[~complete].sum())
        if self.incomplete_episodes:
            log.info(
                "%s: %d unfinished last episodes (%d of %d transitions) are left out",
                where,
                self.incomplete_episodes,
                self.incomplete_transitions,
                rows,
            )

    @classmethod
    def open(cls, path: str | Path) -> Histories:
        """Histories of a sealed file, memory-mapped, verified and validated.

        Raises:
            UserError: the file is missing, corrupted, of another kind, or holds no valid histories.
        """
        histories = cls(read_arrays(path, kind=KIND), where=path)
        histories.validate()
        return histories

    def __len__(self) -> int:
        return len(self.reward)

    def arrays(self) -> dict[str, np.ndarray]:
        return {name: getattr(self, name) for name in COLUMNS}

    @cached_property
    def _ends(self) -> np.ndarray:
        """bool [N]: the last row of an episode, complete or not."""
        ends = np.array(self.done)
        ends[:-1] |= self.task[1:] != self.task[:-1]
        ends[-1] = True
        return ends

    @cached_property
    def _all_episodes(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """First row, length, and whether it was played to its end, of every episode."""
        ends = np.flatnonzero(self._ends)
        start = np.concatenate([[0], ends[:-1] + 1]).astype(np.int64)
        return start, ends + 1 - start, self.done[ends]

    @cached_property
    def _episode_of_row(self) -> np.ndarray:
        """int64 [N]: running number of the episode, incomplete ones included."""
        return np.cumsum(self._ends) - self._ends

    @cached_property
    def episodes(self) -> EpisodeTable:
        start, length, complete = self._all_episodes
        start = start[complete]
        length = length[complete]
        task = np.asarray(self.task[start], np.int32)
        # Tasks are contiguous: an episode's index counts from where its task begins.
        first = np.flatnonzero(np.diff(task, prepend=task[0] - 1))
        episodes_of_task = np.diff(np.append(first, len(task)))
        first_of_task = np.repeat(first, episodes_of_task)
        index = (np.arange(len(task)) - first_of_task).astype(np.int32)
        return EpisodeTable(start, length, task, index, self.return_to_go[start], first_of_task)

    @cached_property
    def return_to_go(self) -> np.ndarray:
        """float32 [N]: undiscounted sum of the rewards from each row to the end of its episode, that row included."""
        ends = np.flatnonzero(self._ends)
        until = np.cumsum(self.reward, dtype=np.float64)
        result = until[ends][self._episode_of_row] - until + self.reward
        return result.astype(np.float32)

    @cached_property
    def timestep(self) -> np.ndarray:
        """int32 [N]: steps since the start of the episode."""
        start, _, _ = self._all_episodes
        return (np.arange(len(self)) - start[self._episode_of_row]).astype(np.int32)

    def episode_of_row(self, rows: np.ndarray) -> np.ndarray:
        """Which row of `episodes` each transition belongs to: any shape of row numbers -> int64 of that shape.

        Raises:
            IndexError: a row is outside the histories, or in an episode that was not played to its end.
        """
        rows, table = np.asarray(rows), self.episodes
        episode = np.searchsorted(table.start, rows, side="right") - 1
        if rows.size and (
            rows.min() < 0 or (episode < 0).any() or (rows >= table.start[episode] + table.length[episode]).any()
        ):
            raise IndexError("a row is in no complete episode")
        return episode

    def validate(
        self,
        *,
        observation_low: np.ndarray | float | None = None,
        observation_high: np.ndarray | float | None = None,
        actions: int | None = None,
    ) -> None:
        """Check the contents of every row, against these bounds if given; the error names the first wrong one."""
        for name in ("reward", "observation", "action"):
            column: np.ndarray = getattr(self, name)
            if column.dtype.kind == "f":
                self._refuse(f"the column {name} has a value that is not finite", column, _not_finite)
        seen = self.observation
        if observation_low is not None:
            self._refuse("an observation is below its range", seen, lambda block, _: block < observation_low)
        if observation_high is not None:
            self._refuse("an observation is above its range", seen, lambda block, _: block > observation_high)
        if self.action.ndim == 1:
            past = np.inf if actions is None else actions
            self._refuse("there is no such action", self.action, lambda block, _: (block < 0) | (block >= past))
        descends_N = np.append(False, self.task[1:] < self.task[:-1])
        self._refuse("the tasks are not contiguous and ascending", self.task, lambda _, rows: descends_N[rows])
        first = np.flatnonzero(np.append(True, self.task[1:] != self.task[:-1]))

        def misnumbered(episode_R: np.ndarray, rows: slice) -> np.ndarray:
            task_R = np.searchsorted(first, np.arange(rows.start, rows.stop), side="right") - 1
            return episode_R != self._episode_of_row[rows] - self._episode_of_row[first[task_R]]

        self._refuse("the episode number does not follow from task and done", self.episode, misnumbered)

    def _refuse(self, what: str, column: np.ndarray, wrong: Callable[[np.ndarray, slice], np.ndarray]) -> None:
        """Raise a UserError where something in a column is wrong.

        Args:
            wrong: a block of the column and its rows -> what of it is wrong; bool, shaped as the block.
        """
        row, count = -1, 0
        for rows in blocks_of(column):
            found = wrong(column[rows], rows)
            if count == 0 and found.any():
                row = rows.start + int(np.flatnonzero(found.reshape(len(found), -1).any(axis=1))[0])
            count += int(found.sum())
        if count:
            more = f", and {count - 1} more" if count > 1 else ""
            raise self._error(f"{what}: row {row} (task {int(self.task[row])}) has {column[row]}{more}")

    def _error(self, what: str) -> UserError:
        return UserError(f"These are no valid histories: {what}.", where=self.where, do=AGAIN)


def _not_finite(block: np.ndarray, rows: slice) -> np.ndarray:
    return ~np.isfinite(block)
