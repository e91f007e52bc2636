"""Learning histories that grow on disk, block by block: images of millions of steps fit into no memory."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from recollect.settings.errors import UserError

if TYPE_CHECKING:
    from recollect.artifacts.checkpoints import Checkpoint
    from recollect.sources.recording import Run

log = logging.getLogger(__name__)
GROWING = ".rows"
_PORTION = 1 << 24  # bytes that are hashed at a time


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


def _hash_of_first(path: Path, size: int) -> Any:
    """The sha256 of the first bytes of a file, which can be updated with what is written behind them."""
    sha256 = hashlib.sha256()
    with path.open("rb") as file:
        for begin in range(0, size, _PORTION):
            sha256.update(file.read(min(_PORTION, size - begin)))
    return sha256


class Columns:
    """Columns that grow in files without a name, so that nothing is left behind by a process that is killed.

    Args:
        folder: on the disk that has the room; None: the system's folder for temporary files.
        named: the files have names, so that another process can `go_on` with them; `remove_growing` removes them.
    """

    def __init__(self, folder: Path | None = None, *, named: bool = False) -> None:
        self.folder = Path(tempfile.gettempdir()) if folder is None else folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self.named = named
        self.length = 0
        self._files: dict[str, IO[bytes]] = {}
        self._kinds: dict[str, np.dtype[Any]] = {}  # of one row: number type and shape
        self._hashes: dict[str, Any] = {}  # sha256 of what was written, of files with names
        self._task = -1
        self._episodes = 0

    def append(self, task: int, rows: Rows, where: object) -> None:
        """Add what a task played next, in time order; tasks come one after the other, ascending.

        Args:
            where: for messages.

        Raises:
            UserError: the rows are of another kind than those before, or the disk is full.
        """
        if task != self._task:
            assert task > self._task
            self._task, self._episodes = task, 0
        episode_N = self._episodes + np.cumsum(rows.done) - rows.done
        self._episodes += int(rows.done.sum())
        self.length += len(rows)
        columns = {
            **vars(rows),
            "task": np.full(len(rows), task, np.int32),
            "episode": episode_N.astype(np.int32),
        }
        for name, array in columns.items():
            kind = np.dtype((array.dtype, array.shape[1:]))
            if name not in self._files:
                self._files[name], self._kinds[name] = self._open(name), kind
            if kind != self._kinds[name]:
                raise UserError(
                    f"{name}s are {kind}, those of other files {self._kinds[name]}",
                    where=where,
                    do="fetch the file again, or name the folder of the files that are meant",
                )
            content = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
            if self.named:
                self._hashes.setdefault(name, hashlib.sha256()).update(content)
            with self._writing():
                self._files[name].write(content)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """What is written here may only reach the disk with a later flush: so errors of both are the same message."""
        try:
            yield
        except OSError as error:
            message = f"the rows cannot be written: {error}"
            raise UserError(message, where=self.folder, do="free some space there") from error

    def _open(self, name: str, kept: int = 0) -> IO[bytes]:
        """The file of a column, cut to the bytes that are kept of it; it lives as long as the columns."""
        if not self.named:
            return tempfile.TemporaryFile(dir=self.folder)
        file = self._path(name).open("r+b" if kept else "w+b")
        file.truncate(kept)
        file.seek(kept)
        return file

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}{GROWING}"

    def state(self) -> dict[str, Any]:
        """What `go_on` needs, as JSON has it; the rows so far are on the disk when this returns.

        Raises:
            UserError: the disk is full.
        """
        with self._writing():
            for file in self._files.values():
                file.flush()
                os.fsync(file.fileno())
        kinds = {name: [kind.base.str, list(kind.shape)] for name, kind in self._kinds.items()}
        hashes = {name: sha256.hexdigest() for name, sha256 in self._hashes.items()}
        known = {"length": self.length, "task": self._task, "episodes": self._episodes}
        return {**known, "kinds": kinds, "sha256": hashes}

    def go_on(self, state: Mapping[str, Any]) -> bool:
        """Continue where `state` was asked for, dropping rows that were written after it.

        Returns:
            False where rows are missing, or are not those that were written.
        """
        length = state["length"]
        kinds = {name: np.dtype((base, tuple(tail))) for name, (base, tail) in state["kinds"].items()}
        hashes: dict[str, Any] = {}
        for name, kind in kinds.items():
            path = self._path(name)
            if not path.is_file() or path.stat().st_size < length * kind.itemsize:
                return False
            hashes[name] = _hash_of_first(path, length * kind.itemsize)
            if hashes[name].hexdigest() != state["sha256"].get(name):
                return False
        self._hashes = hashes
        self.length, self._task, self._episodes = length, state["task"], state["episodes"]
        self._kinds = kinds
        self._files = {name: self._open(name, length * kind.itemsize) for name, kind in kinds.items()}
        return True

    def arrays(self) -> dict[str, np.ndarray]:
        """The columns of `recollect.common.histories`, mapped from disk.

        Raises:
            UserError: the disk is full.
        """
        found: dict[str, np.ndarray] = {}
        for name, file in self._files.items():
            with self._writing():
                file.flush()
            kind = self._kinds[name]
            found[name] = np.memmap(file, kind.base, mode="r", shape=(self.length, *kind.shape))
        return found


def begun(run: Run | None) -> tuple[Columns, Checkpoint | None]:
    """The columns of a run, and the checkpoint that it goes on from with them.

    Returns:
        Columns in files with names beside the run's results (without a run, in files without); and the checkpoint, or None
        for a fresh start. Where the rows that a checkpoint counts on have gone or have changed, the run starts afresh.
    """
    if run is None:
        return Columns(), None
    columns = Columns(run.folder, named=True)
    checkpoint: Checkpoint | None = run.resume()
    if checkpoint is not None and not columns.go_on(checkpoint.state["columns"]):
        log.warning("%s: rows that the checkpoint counts on have gone or have changed: starting afresh", run.folder)
        run.begin_afresh()
        checkpoint = None
    return columns, checkpoint
