"""The complete episodes of one task, in time order, from a file or folder of either published layout.

- `npz`: one file with `observations, actions, rewards, dones` along time, and `next_observations`, which is not used.
- `episodes`: a folder with one .hdf5 or .npz per episode, as RA-DT's Procgen data. Beside them stand JSON files that map an
  episode's name to its place, length and return. Other returns there are only reported: upstream's are sums in another
  precision and may be of scaled rewards. Every file is opened twice, rewards and ends first; one episode is in memory.

Only plain numbers are ever read: pickles, objects and damaged files are refused before anything of them is used. What the
headers of a file claim is checked before its numbers are read: a small file can unpack to more than there is memory.

Source: RA-DT (arXiv 2410.07071), released converter; specification 2.3.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import TypeAdapter

from recollect.artifacts.damaged import DAMAGED
from recollect.sources.columns import Rows
from recollect.sources.published import (
    Form,
    as_pickle,
    begins_as_pickle,
    broken,
    check_names,
    flat,
    flat_columns,
    is_pickle,
    rows_of,
)

log = logging.getLogger(__name__)
NAMES = ("observations", "actions", "rewards", "dones")
UNUSED = "next_observations"
SUFFIXES = (".hdf5", ".h5", ".npz")
HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
States = Literal["states", "states_encoded"]
Arrays = dict[str, np.ndarray]


def read_arrays(path: Path, names: Sequence[str], check: Callable[[Arrays], object]) -> Arrays:
    """Arrays of numbers from an hdf5 or npz file, in the order of `names`.

    `check` is first given stand-ins, which have the shapes and types that the file claims, and take no memory.
    """
    kind = "hdf5" if path.suffix in (".hdf5", ".h5") else "npz"
    arrays: dict[str, np.ndarray] = {}
    try:
        if is_pickle(path):
            raise as_pickle("this is a pickle", path)
        # An npz file is opened without `np.load`, which would take other kinds of files, too.
        opened = _h5py(path).File(path, "r") if kind == "hdf5" else np.lib.npyio.NpzFile(str(path))  # type: ignore
        with opened as file:
            check_names("dataset" if kind == "hdf5" else "array", names, list(file), path)
            claimed = _dataset if kind == "hdf5" else _member
            check({name: claimed(file, name, path) for name in names})
            for name in names:
                arrays[name] = np.asarray(file[name][()])
            if UNUSED in file and kind == "npz" and np.ndim(arrays["rewards"]):
                shape, _, _ = _header(file, UNUSED, path)
                rows, expected = shape[0] if shape else 0, len(arrays["rewards"])
                if rows != expected:
                    raise broken(f"{UNUSED} has {rows} rows, rewards has {expected}", path)
    except DAMAGED as error:
        what = f"this is no whole {kind} file: missing, damaged, cut short or another kind"
        first_line = str(error).partition("\n")[0]
        raise broken(f"{what} ({type(error).__name__}: {first_line})", path) from error
    return arrays


def _h5py(path: Path) -> Any:
    try:
        import h5py
    except ImportError:
        message = "reading hdf5 needs the package h5py, which is not installed"
        do = "`.venv/bin/uv pip install --python .venv/bin/python h5py` in the clone, or convert the episodes to npz"
        raise broken(message, path, do=do) from None
    return h5py


def _dataset(file: Any, name: str, path: Path) -> np.ndarray:
    if not hasattr(file[name], "dtype"):
        raise ValueError(f"{name} is a group")
    return np.broadcast_to(np.zeros((), file[name].dtype), file[name].shape)


def _member(file: np.lib.npyio.NpzFile, name: str, path: Path) -> np.ndarray:
    shape, dtype, surplus = _header(file, name, path)
    if dtype.hasobject:
        raise as_pickle("this npz holds pickled objects, not arrays of numbers", path)
    if surplus:
        raise ValueError(f"{name} claims the shape {shape}, for which its size is wrong by {surplus} bytes")
    return np.broadcast_to(np.zeros((), dtype), shape)


def _header(file: np.lib.npyio.NpzFile, name: str, path: Path) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Shape and type that an array of an npz claims, and how many bytes of it they leave over. Only its header is read."""
    assert file.zip is not None
    member = name if name in file.zip.namelist() else f"{name}.npy"
    with file.zip.open(member) as content:
        if begins_as_pickle(content.read(2)):
            raise as_pickle(f"{name} in this npz is a pickle, not an array of numbers", path)
        content.seek(0)
        shape, _, dtype = HEADERS[np.lib.format.read_magic(content)](content)
        begin = content.tell()
    return shape, dtype, file.zip.getinfo(member).file_size - begin - math.prod(shape) * dtype.itemsize


class NpzRecording:
    """The complete episodes of one npz file.

    Attributes:
        length_M, return_M: int64 and float64 [M], of each episode.
        left_out: rows of a last episode that has no end.
    """

    def __init__(self, path: Path, form: Form) -> None:
        self.where = path
        arrays = read_arrays(path, NAMES, partial(flat_columns, form=form, where=path))
        rows = rows_of(arrays, form, path)
        ends = np.flatnonzero(rows.done)
        if not ends.size:
            message = f"there is no complete episode in {len(rows)} transitions (`dones` is never 1)"
            raise broken(message, path, do="use files that say where their episodes end")
        self.rows = rows.take(slice(0, int(ends[-1]) + 1))
        self.left_out = len(rows) - len(self.rows)
        self.length_M = np.diff(ends, prepend=-1)
        self.return_M = np.diff(np.cumsum(self.rows.reward, dtype=np.float64)[ends], prepend=0.0)

    def read(self, episodes_K: np.ndarray) -> Iterator[Rows]:
        """The rows of some episodes (ascending), in portions that hold whole episodes: here all at once."""
        chosen_M = np.zeros(len(self.length_M), bool)
        chosen_M[episodes_K] = True
        yield self.rows if chosen_M.all() else self.rows.take(np.repeat(chosen_M, self.length_M))


class EpisodeRecording:
    """The complete episodes of one folder, else as `NpzRecording`."""

    def __init__(self, folder: Path, form: Form, states: States = "states") -> None:
        self.where, self.form, self.states = folder, form, states
        self.paths = self._in_order()
        lengths, returns = [], []
        self.left_out = 0
        for path in self.paths:
            reward_T, ended = self._outcome(path)
            if ended:
                # The last reward may be one that is not paid; see `Form.unpaid_at`.
                paid = len(reward_T) - (len(reward_T) == form.unpaid_at)
                lengths.append(len(reward_T))
                returns.append(float(np.sum(reward_T[:paid], dtype=np.float64)))
            elif path is self.paths[-1]:
                self.left_out = len(reward_T)
            else:
                raise broken("the episode has no end, and is not the last one of its folder", path)
        if not lengths:
            raise broken("there is no complete episode", folder)
        self.length_M, self.return_M = np.array(lengths), np.array(returns)
        self._compare()

    def read(self, episodes_K: np.ndarray) -> Iterator[Rows]:
        for episode in episodes_K:
            path = self.paths[episode]
            fits = partial(flat_columns, form=self.form, where=path)
            rows = rows_of(self._arrays(path, fits, self.states, "actions", "rewards", "dones"), self.form, path)
            if len(rows) != self.length_M[episode]:
                raise broken("the file has changed while it was read", path)
            yield rows

    def _arrays(self, path: Path, check: Callable[[Arrays], object], *names: str) -> Arrays:
        """Arrays of one file; where `dones` is one number, it is that of the last step."""

        def spread(arrays: Arrays) -> Arrays:
            if arrays["dones"].size != 1:
                return arrays
            last = arrays["dones"].reshape(-1)
            done_T = np.zeros(arrays["rewards"].size, last.dtype)
            done_T[-1:] = last
            return {**arrays, "dones": done_T}

        return spread(read_arrays(path, names, lambda claimed: check(spread(claimed))))

    def _outcome(self, path: Path) -> tuple[np.ndarray, bool]:
        """Rewards [T] of an episode, and whether it has an end."""

        def flat_ones(arrays: Arrays) -> list[np.ndarray]:
            reward_T, done_T = (flat(name, array, (), path) for name, array in arrays.items())
            if not reward_T.size:
                raise broken("the episode has no steps", path)
            if done_T.size != reward_T.size:
                raise broken(f"dones has {done_T.size} rows, rewards has {reward_T.size}", path)
            return [reward_T, done_T]

        reward_T, done_T = flat_ones(self._arrays(path, flat_ones, "rewards", "dones"))
        if done_T[:-1].any():
            step = np.flatnonzero(done_T)[0]
            raise broken(f"an episode ends at step {step} of {done_T.size}: there is more than one in this file", path)
        return reward_T, bool(done_T[-1])

    def _in_order(self) -> list[Path]:
        episodes = []
        for path in sorted(path for path in self.where.iterdir() if not path.is_dir()):
            if is_pickle(path):
                raise as_pickle("this is a pickle", path)
            if path.suffix in SUFFIXES:
                episodes.append(path)
        if not episodes:
            raise broken("there are no episodes (.hdf5 or .npz) in this folder", self.where)
        (name, count), *_ = Counter(path.stem for path in episodes).most_common(1)
        if count > 1:
            raise broken(f"the episode {name} is there twice, as different kinds of file", self.where)
        place = self._side_file("trjids", episodes)
        if len(set(place.values())) < len(place):
            raise broken("two episodes have the same number in episode_trjids.json", self.where)
        if not place:
            place = {path.stem: int(path.stem) for path in episodes if path.stem.isdecimal()}
        for path in episodes:
            if path.stem not in place:
                message = f"the order of the episodes is not known: '{path.stem}' is no number"
                do = "add episode_trjids.json, which maps names to numbers in time order"
                raise broken(message, self.where, do=do)
        return sorted(episodes, key=lambda path: place[path.stem])

    def _side_file(self, name: str, episodes: Sequence[Path] = ()) -> Mapping[str, float]:
        """A side file: name of an episode -> number; empty where there is none. It must name just these episodes, if any."""
        path = self.where / f"episode_{name}.json"
        if not path.is_file():
            return {}
        try:
            content = TypeAdapter(dict[str, float]).validate_json(path.read_bytes(), strict=True)
        except ValueError as error:
            raise broken(
                "this is no JSON file that can be read: it must map names of episodes to numbers", path
            ) from error
        others = sorted(content.keys() ^ {episode.stem for episode in episodes})
        if episodes and others:
            kind = "no file for" if others[0] in content else "not in it:"
            message = f"{path.name} does not fit to the files: {kind} {others[0]} ({len(others)} differ)"
            raise broken(message, self.where)
        return content

    def _compare(self) -> None:
        """Lengths in the side files must be those of the files; returns are only compared."""
        lengths = self._side_file("lengths", self.paths)
        returns = self._side_file("returns")
        others = 0
        for path, length, paid in zip(self.paths, self.length_M, self.return_M, strict=False):
            if lengths.get(path.stem, length) != length:
                raise broken(f"{length} steps, but episode_lengths.json says {lengths[path.stem]:g}", path)
            said = returns.get(path.stem, np.nan if returns else paid)
            others += not np.isclose(said, paid, rtol=1e-3, atol=1e-3)
        if others:
            message = "%s: %d of %d returns are not those of episode_returns.json; the rewards are believed"
            log.warning(message, self.where, others, len(self.return_M))
