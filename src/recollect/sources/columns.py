"""Learning histories that grow on disk, whole episodes at a time: images of millions of steps fit into no memory."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from recollect.settings.errors import UserError

GROWING = ".rows"


@dataclass(frozen=True)
class Rows:
    """N transitions of one task, in time order."""

    observation: np.ndarray  # [N, ...], before the action
    action: np.ndarray  # [N] integers or [N, A] floats
    reward: np.ndarray  # float32 [N]
    done: np.ndarray  # bool [N], the episode ended with this step

    def __len__(self) -> int:
        return len(self.reward)

    def take(self, rows: Any) -> Rows:
        return Rows(self.observation[rows], self.action[rows], self.reward[rows], self.done[rows])

    @property
    def timestep(self) -> np.ndarray:
        """int64 [N]: steps since the row after the last end."""
        start = np.concatenate([[0], np.flatnonzero(self.done) + 1])
        return np.arange(len(self)) - start[np.cumsum(self.done) - self.done]


def remove_growing(folder: Path) -> None:
    """Remove columns that grew in a folder, when what they became is sealed."""
    for path in folder.glob(f"*{GROWING}"):
        path.unlink()


class Columns:
    """Columns that grow in files without a name, so that nothing is left behind by a process that is killed.

    Args:
        folder: on the disk that has the room; None: the system's folder for temporary files.
        named: the files have names, so that another process can `go_on` with them; `remove_growing` removes them.
    """

    def __init__(self, folder: Path | None = None, *, named: bool = False) -> None:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        assert folder is not None or not named
        self.folder, self.named = folder, named
        self.length = 0
        self._files: dict[str, tuple[IO[bytes], np.dtype[Any], tuple[int, ...]]] = {}
        self._task = -1
        self._episodes = 0

    def append(self, task: int, rows: Rows, where: object) -> None:
        """Add whole episodes of a task; tasks come one after the other, ascending."""
        if task != self._task:
            assert task > self._task
            self._task, self._episodes = task, 0
        episode_N = self._episodes + np.cumsum(rows.done) - rows.done
        self._episodes += int(rows.done.sum())
        self._write("observation", rows.observation, where)
        self._write("action", rows.action, where)
        self._write("reward", rows.reward, where)
        self._write("done", rows.done, where)
        self._write("task", np.full(len(rows), task, np.int32), where)
        self._write("episode", episode_N.astype(np.int32), where)
        self.length += len(rows)

    def _write(self, name: str, array: np.ndarray, where: object) -> None:
        if name not in self._files:
            self._files[name] = (self._open(name), array.dtype, array.shape[1:])
        into, dtype, tail = self._files[name]
        if (array.dtype, array.shape[1:]) != (dtype, tail):
            raise UserError(
                f"{name}s are {array.dtype} {array.shape[1:]}, those of other files {dtype} {tail}",
                where=where,
                do="fetch the file again, or name the folder of the files that are meant",
            )
        try:
            into.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        except OSError as error:
            place = self.folder or tempfile.gettempdir()
            raise UserError(f"the rows cannot be written: {error}", where=place, do="free some space there") from error

    def _open(self, name: str, kept: int = 0) -> IO[bytes]:
        """The file of a column, cut to the bytes that are kept of it; it lives as long as the columns."""
        if not self.named:
            return tempfile.TemporaryFile(dir=self.folder)
        file = self._path(name).open("r+b" if kept else "w+b")
        file.truncate(kept)
        file.seek(kept)
        return file

    def _path(self, name: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{name}{GROWING}"

    def state(self) -> dict[str, Any]:
        """What `go_on` needs, as JSON has it; the rows so far are on the disk when this returns."""
        for file, _, _ in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        kinds = {}
        for name, (_, dtype, tail) in self._files.items():
            kinds[name] = [dtype.str, list(tail)]
        return {"length": self.length, "task": self._task, "episodes": self._episodes, "kinds": kinds}

    def go_on(self, state: Mapping[str, Any]) -> bool:
        """Continue where `state` was asked for, dropping rows that were written after it; False where rows are missing."""
        sizes = {}
        for name, (kind, tail) in state["kinds"].items():
            sizes[name] = state["length"] * np.dtype(kind).itemsize * math.prod(tail)
            path = self._path(name)
            if not path.is_file() or path.stat().st_size < sizes[name]:
                return False
        self.length = state["length"]
        self._task, self._episodes = state["task"], state["episodes"]
        for name, (kind, tail) in state["kinds"].items():
            self._files[name] = (self._open(name, sizes[name]), np.dtype(kind), tuple(tail))
        return True

    def arrays(self) -> dict[str, np.ndarray]:
        """The columns of `recollect.common.histories`, mapped from disk."""
        found: dict[str, np.ndarray] = {}
        for name, (file, dtype, tail) in self._files.items():
            file.flush()
            found[name] = np.memmap(file, dtype, mode="r", shape=(self.length, *tail))
        return found
