"""Published trajectories: what their rows must be, which episodes are kept, and how they become learning histories.

The files of RA-DT's authors come in two layouts, each read by a file of its own: one npz per task (`published_npz`) and
one folder per task with a file per episode (`published_episodes`). Both are brought to the same `Rows` here, so that
the same data give the same histories, to the byte, whatever layout and number types they were stored in.

- Arrays may have an axis of length one for "environments side by side" behind the time axis, as replay buffers have.
- Numbers may be stored as any integer or float. What is not a whole number where one is needed, not finite, or outside
  of the world, is refused with file and row: data of another world would train without a complaint.
- Upstream casts everything to float32 and checks nothing but NaN. A trailing episode without end is left out by both.
- Upstream leaves episodes in the order of its filters (by return, or shuffled); here they stay in time order.

Source: RA-DT (arXiv 2410.07071), released loader; specification 2.2 to 2.4.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
from pydantic import Field

from recollect.settings.errors import UserError
from recollect.settings.schema import Frozen

ROUNDING = 1e-4  # how far stored floats may lie outside of a bound
PICKLES = {".pkl", ".pickle", ".pkl.gz", ".joblib", ".dill"}
CONVERT = (
    "a pickle can run code when it is opened, so none is. If you trust the file, convert it once by hand "
    '(docs/formats.md, "Published data", shows how).'
)


class Keep(Frozen):
    """Which episodes of each task are kept; the shares are taken one after the other, in this order."""

    top_p: float = Field(1.0, gt=0, le=1, description="Share of episodes with the highest return.")
    uniform_p: float = Field(1.0, gt=0, le=1, description="Share drawn at random, longer episodes more likely.")
    first_p: float = Field(1.0, gt=0, le=1, description="Share of the earliest episodes.")
    longest: int | None = Field(None, ge=1, description="Episodes are cut after this many steps; null: not cut.")


@dataclass(frozen=True)
class Form:
    """What one row of a world looks like.

    Attributes:
        observation_shape: None: vectors of any one size.
        observation_dtype: what observations are stored as; an integer type asks for whole numbers.
        low, high: bounds of observations, broadcast against one; None: unbounded.
        actions: number of discrete actions; 0: continuous actions.
        action_shape: () where actions are discrete.
        action_low, action_high: bounds of continuous actions.
        unpaid_at: episodes of exactly this length have their last reward set to 0; None: all are as stored.
    """

    observation_shape: tuple[int, ...] | None
    observation_dtype: np.dtype[Any]
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    actions: int = 0
    action_shape: tuple[int, ...] = ()
    action_low: np.ndarray | None = None
    action_high: np.ndarray | None = None
    unpaid_at: int | None = None

    @property
    def action_dtype(self) -> np.dtype[Any]:
        """What actions are stored as."""
        return np.dtype(np.float32 if not self.actions else np.int8 if self.actions <= 127 else np.int16)


@dataclass(frozen=True)
class Rows:
    """N transitions of one task, in time order.

    Attributes:
        observation: [N, ...], before the action.
        action: [N] integers or [N, A] floats.
        reward: float32 [N].
        done: bool [N], the episode ended with this step.
    """

    observation: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    done: np.ndarray

    def __len__(self) -> int:
        return len(self.reward)

    def take(self, rows: Any) -> Rows:
        """Some of the rows."""
        return Rows(self.observation[rows], self.action[rows], self.reward[rows], self.done[rows])

    @property
    def timestep(self) -> np.ndarray:
        """int64 [N]: steps since the row after the last end."""
        start = np.concatenate([[0], np.flatnonzero(self.done) + 1])
        return np.arange(len(self)) - start[np.cumsum(self.done) - self.done]


class Recording(Protocol):
    """All complete episodes of one task, in time order.

    Attributes:
        where: the file or folder.
        length_M, return_M: int64 and float64 [M], of each episode.
        left_out: rows of a last episode that has no end.
    """

    where: Path
    length_M: np.ndarray
    return_M: np.ndarray
    left_out: int

    def read(self, episodes_K: np.ndarray) -> Iterator[Rows]:
        """The rows of some episodes (ascending), in portions that hold whole episodes."""
        ...


# ------------------------------------------------------------------------------------------------------ one file's rows


def rows_of(arrays: Mapping[str, np.ndarray], form: Form, where: object) -> Rows:
    """The rows of a file, checked and in the form of the world.

    Args:
        arrays: of observation, action, reward and done, in this order, by their names in the file.

    Raises:
        UserError: an array has another shape, length or kind, or a number that cannot be.
    """
    (seen, observation), (did, action), (got, reward), (ended, done) = arrays.items()
    if form.observation_shape is None:
        size = observation.shape[-1] if observation.ndim > 1 else 0
        observation_ND = _flat(seen, observation, (size,), where)
    else:
        observation_ND = _flat(seen, observation, form.observation_shape, where)
    action_N = _flat(did, action, form.action_shape, where)
    reward_N, done_N = _flat(got, reward, (), where), _flat(ended, done, (), where)
    for name, array in ((seen, observation_ND), (did, action_N), (ended, done_N)):
        if len(array) != len(reward_N):
            raise broken(f"{name} has {len(array)} rows, {got} has {len(reward_N)}", where)
    if observation_ND.dtype.kind == "f":
        _refuse(seen, observation_ND, ~np.isfinite(observation_ND), "is not finite", where)
    with np.errstate(over="ignore"):  # what does not fit into float32 becomes infinite, and is refused
        kept_N = reward_N.astype(np.float32)
    _refuse(got, reward_N, ~np.isfinite(kept_N), "is not a finite number", where)
    _refuse(did, action_N, ~np.isfinite(action_N), "is not finite", where)
    _refuse(ended, done_N, (done_N != 0) & (done_N != 1), "is neither 0 nor 1", where)
    slack = 0.0
    if form.observation_dtype.kind == "f":
        slack = ROUNDING
    elif observation_ND.dtype.kind == "f":
        _refuse(seen, observation_ND, observation_ND != np.floor(observation_ND), "is no whole number", where)
    if form.low is not None and form.high is not None:
        outside = (observation_ND < form.low - slack) | (observation_ND > form.high + slack)
        _refuse(seen, observation_ND, outside, "is outside of the world", where, low=form.low, high=form.high)
    if form.actions:
        wrong = (action_N < 0) | (action_N >= form.actions) | (action_N != np.floor(action_N))
        _refuse(did, action_N, wrong, f"is none of the {form.actions} actions 0 to {form.actions - 1}", where)
    elif form.action_low is not None and form.action_high is not None:
        outside = (action_N < form.action_low - ROUNDING) | (action_N > form.action_high + ROUNDING)
        _refuse(did, action_N, outside, "is out of range", where, low=form.action_low, high=form.action_high)
    rows = Rows(
        observation_ND.astype(form.observation_dtype),
        action_N.astype(form.action_dtype),
        kept_N,
        done_N.astype(bool),
    )
    if form.unpaid_at is not None:
        rows.reward[rows.done & (rows.timestep == form.unpaid_at - 1)] = 0
    return rows


def estimates_at_the_limit(rows: Rows, limit: int) -> int:
    """How many episodes of `limit` steps end with a reward that is no whole number, where all other rewards are whole.

    The released source agent adds its estimate of what would follow to the reward at a time limit, and stores the sum.
    """
    whole_N = rows.reward == np.floor(rows.reward)
    if not whole_N[~rows.done].all():
        return 0
    return int((rows.done & (rows.timestep == limit - 1) & ~whole_N).sum())


def _flat(name: str, array: np.ndarray, tail: tuple[int, ...], where: object) -> np.ndarray:
    """[N, *tail] of an array that may have axes of length one behind the first."""
    if array.dtype.kind not in "biuf":
        raise broken(f"{name} holds {array.dtype}, not numbers", where)
    extra = array.ndim - 1 - len(tail)
    if array.ndim and 0 <= extra <= (1 if tail else 2) and array.shape[1:] == (1,) * extra + tail:
        return array.reshape(len(array), *tail)
    wanted = ", ".join(str(("N", *(1,) * n, *tail)).replace("'", "") for n in range(2 if tail else 3))
    if extra == 1 and array.ndim > 1 and array.shape[2:] == tail:
        raise UserError(
            f"{name} holds {array.shape[1]} environments side by side (shape {array.shape})",
            where=where,
            do="write one file per environment: array[:, 0], array[:, 1], ...",
        )
    raise broken(f"{name} has shape {array.shape}, not one of {wanted}", where)


def _refuse(
    name: str,
    array: np.ndarray,
    wrong: np.ndarray,
    what: str,
    where: object,
    *,
    low: np.ndarray | None = None,
    high: np.ndarray | None = None,
) -> None:
    if wrong.any():
        row = int(np.flatnonzero(wrong.reshape(len(wrong), -1).any(axis=1))[0])
        count = int(wrong.reshape(len(wrong), -1).any(axis=1).sum())
        shown = np.array2string(np.asarray(array[row]), threshold=12, edgeitems=3, separator=", ").replace("\n", "")
        bounds = "" if low is None or high is None else f" ({_span(low)} to {_span(high)})"
        more = f", and {count - 1} rows more" if count > 1 else ""
        raise UserError(
            f"{name} {what}{bounds}: row {row} has {shown}{more}",
            where=where,
            do="check that the file belongs to this environment (its size, and the meaning of its columns)",
        )


def _span(bound: np.ndarray) -> str:
    values = np.unique(bound)
    return f"{values[0]:g}" if len(values) == 1 else np.array2string(np.asarray(bound), threshold=12, separator=", ")


def broken(what: str, where: object) -> UserError:
    """The error of a file that is not what it should be."""
    return UserError(what, where=where, do="fetch the file again, or name the folder of the files that are meant")


# ---------------------------------------------------------------------------------------------------- which episodes


def kept_episodes(
    length_M: np.ndarray, return_M: np.ndarray, keep: Keep, draw: Callable[[], np.random.Generator]
) -> np.ndarray:
    """The episodes that are kept, int64 [K], ascending.

    As upstream: the number kept is rounded down, of equal returns the later one is kept, and the random share is drawn
    without replacement with probability proportional to length.

    Args:
        draw: makes the generator of the random share.
    """
    kept_K = np.arange(len(length_M))
    if keep.top_p < 1:
        kept_K = kept_K[np.argsort(return_M, kind="stable")[len(kept_K) - _share(len(kept_K), keep.top_p) :]]
        kept_K.sort()
    if keep.uniform_p < 1:
        length_K = length_M[kept_K].astype(np.float64)
        count = _share(len(kept_K), keep.uniform_p)
        kept_K = np.sort(draw().choice(kept_K, size=count, replace=False, p=length_K / length_K.sum()))
    if keep.first_p < 1:
        kept_K = kept_K[: _share(len(kept_K), keep.first_p)]
    return kept_K.astype(np.int64)


def _share(count: int, share: float) -> int:
    return int(np.floor(count * share + 1e-9))


def cut(rows: Rows, longest: int | None) -> Rows:
    """The first `longest` steps of every episode; a cut episode ends with its last step."""
    if longest is None:
        return rows
    timestep_N = rows.timestep
    done_N = rows.done | (timestep_N == longest - 1)
    return Rows(rows.observation, rows.action, rows.reward, done_N).take(timestep_N < longest)


# ------------------------------------------------------------------------------------------------ writing them down

GROWING = ".rows"


def remove_growing(folder: Path) -> None:
    """Remove columns that grew in a folder, when what they became is sealed."""
    for path in folder.glob(f"*{GROWING}"):
        path.unlink()


class Columns:
    """Columns of learning histories that grow on disk, in files without a name: images of millions of steps fit into no
    memory, and nothing is left behind by a process that is killed.

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
        """Add whole episodes of a task; tasks come one after the other, ascending.

        Raises:
            UserError: observations have another shape than those before, or the disk is full.
        """
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
            raise broken(f"{name}s are {array.dtype} {array.shape[1:]}, those of other files {dtype} {tail}", where)
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
        kinds = {name: [dtype.str, list(tail)] for name, (_, dtype, tail) in self._files.items()}
        return {"length": self.length, "task": self._task, "episodes": self._episodes, "kinds": kinds}

    def go_on(self, state: Mapping[str, Any]) -> bool:
        """Continue where `state` was asked for, dropping rows that were written after it; False where rows are missing."""
        kinds = {name: (np.dtype(kind), tuple(tail)) for name, (kind, tail) in state["kinds"].items()}
        kept = {name: state["length"] * dtype.itemsize * math.prod(tail) for name, (dtype, tail) in kinds.items()}
        if not all(self._path(name).is_file() and self._path(name).stat().st_size >= kept[name] for name in kinds):
            return False
        self.length, self._task, self._episodes = state["length"], state["task"], state["episodes"]
        self._files = {name: (self._open(name, kept[name]), dtype, tail) for name, (dtype, tail) in kinds.items()}
        return True

    def arrays(self) -> dict[str, np.ndarray]:
        """The columns of `recollect.common.histories`, mapped from disk."""
        found: dict[str, np.ndarray] = {}
        for name, (file, dtype, tail) in self._files.items():
            file.flush()
            found[name] = np.memmap(file, dtype, mode="r", shape=(self.length, *tail))
        return found
