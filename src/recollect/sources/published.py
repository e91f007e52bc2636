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

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from pydantic import Field

from recollect.settings.errors import UserError
from recollect.settings.schema import Frozen
from recollect.sources.columns import Rows

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
