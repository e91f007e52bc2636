"""One folder per task with one file per episode, as RA-DT's Procgen data: `<trj_id>.hdf5` or `<trj_id>.npz`.

Beside the episodes stand JSON files that map an episode's name to its place, length and return. What can be computed is
taken from the rewards. Other returns in `episode_returns.json` are only reported: upstream's are sums in another
precision and may be of scaled rewards. Every file is opened twice, rewards and ends first; one episode is in memory.

Source: RA-DT (arXiv 2410.07071), released converter; specification 2.3.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from recollect.sources.columns import Rows
from recollect.sources.published import CONVERT, PICKLES, Form, broken, check_names, flat, rows_of
from recollect.sources.published_npz import read_npz

log = logging.getLogger(__name__)
SUFFIXES = (".hdf5", ".h5", ".npz")
States = Literal["states", "states_encoded"]


def read_hdf5(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Datasets of numbers from an hdf5 file."""
    try:
        import h5py
    except ImportError:
        message = "reading hdf5 needs the package h5py, which is not installed"
        do = "install it (`pip install h5py`, or the project's extra `hdf5`), or convert the episodes to npz"
        raise broken(message, path, do=do) from None
    try:
        with h5py.File(path, "r") as file:
            check_names("dataset", names, list(file), path)
            return {name: np.asarray(file[name][()]) for name in names}
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, MemoryError) as error:
        first_line = str(error).partition("\n")[0]
        raise broken(f"this is no whole hdf5 file ({type(error).__name__}: {first_line})", path) from error


class EpisodeRecording:
    """The complete episodes of one folder; attributes as those of `NpzRecording`. What does not fit is a UserError."""

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
        self._compare_lengths()
        self._compare_returns()

    def read(self, episodes_K: np.ndarray) -> Iterator[Rows]:
        for episode in episodes_K:
            path = self.paths[episode]
            rows = rows_of(self._arrays(path, self.states, "actions", "rewards", "dones"), self.form, path)
            if len(rows) != self.length_M[episode]:
                raise broken("the file has changed while it was read", path)
            yield rows

    def _arrays(self, path: Path, *names: str) -> dict[str, np.ndarray]:
        """Arrays of one file; where `dones` is one number, it is that of the last step."""
        arrays = read_npz(path, names) if path.suffix == ".npz" else read_hdf5(path, names)
        if arrays["dones"].size == 1:
            last = arrays["dones"].reshape(-1)
            arrays["dones"] = np.zeros(arrays["rewards"].size, last.dtype)
            arrays["dones"][-1:] = last
        return arrays

    def _outcome(self, path: Path) -> tuple[np.ndarray, bool]:
        """Rewards [T] of an episode, and whether it has an end."""
        arrays = self._arrays(path, "rewards", "dones")
        reward_T, done_T = (flat(name, array, (), path) for name, array in arrays.items())
        if not reward_T.size:
            raise broken("the episode has no steps", path)
        if done_T.size != reward_T.size:
            raise broken(f"dones has {done_T.size} rows, rewards has {reward_T.size}", path)
        if done_T[:-1].any():
            step = np.flatnonzero(done_T)[0]
            raise broken(f"an episode ends at step {step} of {done_T.size}: there is more than one in this file", path)
        return reward_T, bool(done_T[-1])

    def _in_order(self) -> list[Path]:
        """The episode files in the order in which they were played."""
        files = sorted(path for path in self.where.iterdir() if path.is_file())
        for path in files:
            if path.suffix in PICKLES:
                raise broken("this is a pickle", path, do=CONVERT)
        episodes = [path for path in files if path.suffix in SUFFIXES]
        if not episodes:
            raise broken("there are no episodes (.hdf5 or .npz) in this folder", self.where)
        (name, count), *_ = Counter(path.stem for path in episodes).most_common(1)
        if count > 1:
            raise broken(f"the episode {name} is there twice, as different kinds of file", self.where)
        place = self._side_file("episode_trjids", episodes)
        if place is not None:
            if len(set(place.values())) < len(place):
                raise broken("two episodes have the same number in episode_trjids.json", self.where)
            return sorted(episodes, key=lambda path: place[path.stem])
        for path in episodes:
            if not path.stem.isdecimal():
                message = f"the order of the episodes is not known: '{path.stem}' is no number"
                do = "add episode_trjids.json, which maps names to numbers in time order"
                raise broken(message, self.where, do=do)
        return sorted(episodes, key=lambda path: int(path.stem))

    def _side_file(self, name: str, episodes: Sequence[Path] | None = None) -> Mapping[str, float] | None:
        """A side file: name of an episode -> number; None where there is none. It must name just these episodes, if any."""
        path = self.where / f"{name}.json"
        if not path.is_file():
            return None
        try:
            content: Any = json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:
            raise broken(f"this is no JSON file ({error})", path) from error
        if not isinstance(content, dict) or not all(isinstance(value, int | float) for value in content.values()):
            raise broken("the file must map names of episodes to numbers", path)
        if episodes is not None:
            others = sorted(content.keys() ^ {episode.stem for episode in episodes})
            if others:
                kind = "no file for" if others[0] in content else "not in it:"
                message = f"{path.name} does not fit to the files: {kind} {others[0]} ({len(others)} differ)"
                raise broken(message, self.where)
        return content

    def _compare_lengths(self) -> None:
        lengths = self._side_file("episode_lengths", self.paths) or {}
        for path, length in zip(self.paths, self.length_M, strict=False):
            if lengths.get(path.stem, length) != length:
                raise broken(f"{length} steps, but episode_lengths.json says {lengths[path.stem]:g}", path)

    def _compare_returns(self) -> None:
        returns = self._side_file("episode_returns")
        if returns is not None:
            said_M = [returns.get(path.stem, np.nan) for path in self.paths[: len(self.return_M)]]
            others = int((~np.isclose(said_M, self.return_M, rtol=1e-3, atol=1e-3)).sum())
            if others:
                message = "%s: %d of %d returns are not those of episode_returns.json; the rewards are believed"
                log.warning(message, self.where, others, len(self.return_M))
