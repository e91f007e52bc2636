"""Published trajectories: what their rows must be, and which episodes are kept.

docs/formats.md, "Published data", says which shapes and numbers there may be. What cannot be is refused with file and row:
data of another world would train without a complaint. Upstream checks nothing but NaN, and mixes the order of episodes.

Source: RA-DT (arXiv 2410.07071), released loader; specification 2.2 to 2.4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from recollect.settings.errors import UserError
from recollect.settings.schema import Frozen
from recollect.sources.columns import Rows
from recollect.sources.recording import action_dtype

AGAIN = "fetch the file again, or name the folder of the files that are meant"
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
    """What one row of a world looks like; bounds are broadcast against a row."""

    observation_shape: tuple[int, ...] | None  # None: vectors of any one size
    observation_dtype: np.dtype[Any]  # integers: only whole numbers may be
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    actions: int = 0  # number of discrete actions; 0: they are continuous
    action_shape: tuple[int, ...] = ()
    action_low: np.ndarray | None = None
    action_high: np.ndarray | None = None
    unpaid_at: int | None = None  # the last reward of episodes of so many steps becomes 0

    @property
    def action_dtype(self) -> np.dtype[Any]:
        return action_dtype(self.actions)


def rows_of(arrays: Mapping[str, np.ndarray], form: Form, where: object) -> Rows:
    """The rows of a file, checked and in the form of the world; what cannot be is a UserError.

    Args:
        arrays: of observation, action, reward and done, in this order, by their names in the file.
    """
    seen, did, got, ended = arrays
    observation_ND, action_N, reward_N, done_N = flat_columns(arrays, form, where)
    if not len(action_N):
        raise broken("there are no rows in it", where)
    with np.errstate(over="ignore"):  # what does not fit into float32 becomes infinite, and is refused
        paid_N = reward_N.astype(np.float32)
        played_N = action_N if form.actions else action_N.astype(np.float32)
        whole = form.observation_dtype.kind != "f"
        stored_ND = observation_ND if whole else observation_ND.astype(form.observation_dtype)
    found = [
        (got, reward_N, ~np.isfinite(paid_N), "is not a finite number"),
        (did, action_N, ~np.isfinite(played_N), "is not finite"),
        (ended, done_N, (done_N != 0) & (done_N != 1), "is neither 0 nor 1"),
    ]
    if observation_ND.dtype.kind == "f":
        found.append((seen, observation_ND, ~np.isfinite(stored_ND), "is not finite"))
        if whole:
            found.append((seen, observation_ND, observation_ND != np.floor(observation_ND), "is no whole number"))
    if form.actions:
        wrong_N = (action_N < 0) | (action_N >= form.actions) | (action_N != np.floor(action_N))
        found.append((did, action_N, wrong_N, f"is none of the {form.actions} actions 0 to {form.actions - 1}"))
    bounds = [
        (seen, observation_ND, form.low, form.high, 0.0 if whole else ROUNDING, "is outside of the world"),
        (did, action_N, form.action_low, form.action_high, ROUNDING, "is out of range"),
    ]
    for name, array, low, high, slack, message in bounds:
        if low is not None and high is not None:
            outside = (array < low - slack) | (array > high + slack)
            found.append((name, array, outside, f"{message} ({_numbers(low)} to {_numbers(high)})"))
    for name, array, wrong, message in found:
        wrong_rows = np.flatnonzero(wrong.reshape(len(wrong), -1).any(axis=1)).tolist()
        if wrong_rows:
            row = wrong_rows[0]
            more = f", and {len(wrong_rows) - 1} rows more" if len(wrong_rows) > 1 else ""
            message = f"{name} {message}: row {row} has {_numbers(array[row], merge=False)}{more}"
            do = "check that the file belongs to this environment (its size, and the meaning of its columns)"
            raise broken(message, where, do=do)

    stored_ND = stored_ND.astype(form.observation_dtype, copy=False)
    rows = Rows(stored_ND, played_N.astype(form.action_dtype, copy=False), paid_N, done_N.astype(bool))
    if form.unpaid_at is not None:
        rows.reward[rows.done & (rows.timestep == form.unpaid_at - 1)] = 0
    return rows


def flat_columns(arrays: Mapping[str, np.ndarray], form: Form, where: object) -> list[np.ndarray]:
    """Observations [N, ...], actions, rewards and ends [N] of the arrays of a file; their shapes are checked, no number is."""
    seen, did, got, ended = arrays
    shape = arrays[seen].shape[-1:] if form.observation_shape is None else form.observation_shape
    tails = {seen: shape, did: form.action_shape, got: (), ended: ()}
    found = {name: flat(name, array, tails[name], where) for name, array in arrays.items()}
    for name, array in found.items():
        if len(array) != len(found[got]):
            raise broken(f"{name} has {len(array)} rows, {got} has {len(found[got])}", where)
    return list(found.values())


def flat(name: str, array: np.ndarray, tail: tuple[int, ...], where: object) -> np.ndarray:
    """[N, *tail] of an array that may have axes of length one behind the first."""
    if array.dtype.kind not in "biuf":
        raise broken(f"{name} holds {array.dtype}, not numbers", where)
    allowed = [(1,) * ones + tail for ones in range(2 if tail else 3)]
    if array.ndim and array.shape[1:] in allowed:
        return array.reshape(len(array), *tail)
    if array.ndim > 1 and array.shape[2:] == tail:
        message = f"{name} holds {array.shape[1]} environments side by side (shape {array.shape})"
        raise broken(message, where, do="write one file per environment: array[:, 0], array[:, 1], ...")
    wanted = ", ".join(str(("N", *shape)).replace("'", "") for shape in allowed)
    raise broken(f"{name} has shape {array.shape}, not one of {wanted}", where)


def _numbers(array: np.ndarray, *, merge: bool = True) -> str:
    """The numbers as text; with `merge` one number where all are the same."""
    if np.size(array) == 1 or (merge and (array == np.ravel(array)[0]).all()):
        return f"{float(np.ravel(array)[0]):g}"
    return np.array2string(np.asarray(array), threshold=12, edgeitems=3, separator=", ").replace("\n", "")


def broken(message: str, where: object, *, do: str = AGAIN) -> UserError:
    return UserError(message, where=where, do=do)


def is_pickle(path: Path) -> bool:
    if not PICKLES.isdisjoint((path.suffix, "".join(path.suffixes[-2:]))):
        return True
    try:
        with path.open("rb") as file:
            return begins_as_pickle(file.read(2))
    except OSError as error:
        do = "fetch it again, or get the right to read it"
        raise broken(f"this file is missing or cannot be read ({error})", path, do=do) from error


def begins_as_pickle(first: bytes) -> bool:
    """Whether these two bytes begin a pickle. Before protocol 2 they are text, and no whole file of arrays."""
    return first[:1] == b"\x80" and first[1:2] < b"\x10"


def as_pickle(message: str, where: object) -> UserError:
    return broken(message, where, do=CONVERT)


def check_names(kind: str, wanted: Sequence[str], there: Sequence[str], where: object) -> None:
    missing = [name for name in wanted if name not in there]
    do = AGAIN
    if "states_encoded" in missing:
        do = "set `states: states`, or encode the images first"
    elif "states" in there and "observations" in missing:
        do = "set `layout: episodes`: this is one episode of a folder of episodes"
    if missing:
        raise broken(f"there is no {kind} {', '.join(missing)} (found: {', '.join(there) or 'none'})", where, do=do)


def estimates_at_the_limit(rows: Rows, limit: int) -> int:
    """How many episodes of `limit` steps end with a reward that is no whole number, where all other rewards are whole.

    The released source agent adds its estimate of what would follow to the reward at a time limit, and stores the sum.
    """
    whole_N = rows.reward == np.floor(rows.reward)
    if not whole_N[~rows.done].all():
        return 0
    return int((rows.done & (rows.timestep == limit - 1) & ~whole_N).sum())


def kept_episodes(
    length_M: np.ndarray, return_M: np.ndarray, keep: Keep, draw: Callable[[], np.random.Generator]
) -> np.ndarray:
    """The episodes that are kept, int64 [K], ascending; `draw` makes the generator of the random share.

    As upstream: the number kept is rounded down, of equal returns the later one is kept, and the random share is drawn
    without replacement with probability proportional to length.
    """
    kept_K = np.arange(len(length_M))
    if keep.top_p < 1:
        by_return_K = np.argsort(return_M, kind="stable")
        kept_K = np.sort(by_return_K[len(kept_K) - _share(len(kept_K), keep.top_p) :])
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
