"""One folder per task with one file per episode, as RA-DT's Procgen data: `<trj_id>.hdf5` or `<trj_id>.npz`.

Each file has `states, actions, rewards, dones` (`dones` may be one number for the whole episode), perhaps
`returns_to_go`, and perhaps `states_encoded`, which upstream's image encoder adds. Beside them stand JSON files that
map an episode's name to its place, length, return and level.

- Order: `episode_trjids.json` where it is there, else the numbers that the files are named by.
- Nothing is believed that can be computed: returns-to-go are not read, lengths and returns are taken from the rewards.
  `episode_lengths.json` then tells of truncated or missing files; of other returns in `episode_returns.json` only a
  word is said, because upstream's are sums in another precision and may be of scaled rewards.
- Every file is opened twice: rewards and ends first, all of it when its turn comes. One episode is in memory at a time.

Source: RA-DT (arXiv 2410.07071), released converter; specification 2.3.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from recollect.settings.errors import UserError
from recollect.sources.columns import Rows
from recollect.sources.published import CONVERT, PICKLES, Form, broken, rows_of
from recollect.sources.published_npz import read_npz

log = logging.getLogger(__name__)
SUFFIXES = (".hdf5", ".h5", ".npz")
States = Literal["states", "states_encoded"]


def read_hdf5(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Datasets of numbers from an hdf5 file.

    Raises:
        UserError: h5py is not installed, or the file is missing, truncated or lacks a dataset.
    """
    try:
        import h5py
    except ImportError:
        raise UserError(
            "reading hdf5 needs the package h5py, which is not installed",
            where=path,
            do="install it (`pip install h5py`, or the project's extra `hdf5`), or convert the episodes to npz",
        ) from None
    try:
        with h5py.File(path, "r") as file:
            missing = [name for name in names if name not in file]
            if missing:
                raise _missing(path, missing, list(file))
            return {name: np.asarray(file[name][()]) for name in names}
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, MemoryError) as error:
        said = (str(error).splitlines() or [""])[0]
        raise broken(f"this is no whole hdf5 file ({type(error).__name__}: {said})", path) from error


def _missing(path: Path, missing: Sequence[str], there: Sequence[str]) -> UserError:
    what = f"there is no dataset {', '.join(missing)} (found: {', '.join(there) or 'none'})"
    if "states_encoded" in missing:
        return UserError(what, where=path, do="set `states: states`, or encode the images first")
    return broken(what, path)


class EpisodeRecording:
    """The episodes of one folder; see `recollect.sources.published.Recording`.

    Args:
        folder: of one task.
        form: of its rows.
        states: the dataset that is read as observation.

    Raises:
        UserError: the folder has no episodes or a pickle among them, two files of one name, an episode without end
            that is not the last, or side files that do not fit.
    """

    def __init__(self, folder: Path, form: Form, states: States = "states") -> None:
        self.where, self.form, self.states = folder, form, states
        self.paths = self._ordered()
        lengths, returns = [], []
        self.left_out = 0
        for place, path in enumerate(self.paths):
            reward, done = self._outcome(path)
            if not done[-1]:
                if place != len(self.paths) - 1:
                    raise broken("the episode has no end, and is not the last one of its folder", path)
                self.left_out = len(reward)
                continue
            lengths.append(len(reward))
            paid = len(reward) - (len(reward) == form.unpaid_at)
            returns.append(float(np.sum(reward[:paid], dtype=np.float64)))
        if not lengths:
            raise broken("there is no complete episode", folder)
        self.length_M, self.return_M = np.array(lengths), np.array(returns)
        self._compare()

    def read(self, episodes_K: np.ndarray) -> Iterator[Rows]:
        """The chosen episodes, one by one."""
        for episode in episodes_K:
            path = self.paths[episode]
            arrays = self._arrays(path, (self.states, "actions", "rewards", "dones"))
            arrays["dones"] = _per_step(arrays["dones"], arrays["rewards"].size)
            rows = rows_of(arrays, self.form, path)
            if len(rows) != self.length_M[episode]:
                raise broken("the file has changed while it was read", path)
            yield rows

    def _arrays(self, path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
        return read_npz(path, names) if path.suffix == ".npz" else read_hdf5(path, names)

    def _outcome(self, path: Path) -> tuple[np.ndarray, np.ndarray]:
        """Rewards [T] and ends bool [T] of an episode."""
        arrays = self._arrays(path, ("rewards", "dones"))
        reward, done = arrays["rewards"].reshape(-1), arrays["dones"].reshape(-1)
        if reward.dtype.kind not in "biuf" or done.dtype.kind not in "biuf":
            raise broken(f"rewards and dones hold {reward.dtype} and {done.dtype}, not numbers", path)
        if not reward.size:
            raise broken("the episode has no steps", path)
        done = _per_step(done, reward.size)
        if done.size != reward.size:
            raise broken(f"dones has {done.size} rows, rewards has {reward.size}", path)
        if done[:-1].any():
            step = int(np.flatnonzero(done)[0])
            raise broken(f"an episode ends at step {step} of {done.size}: there is more than one in this file", path)
        return reward, done.astype(bool)

    # ------------------------------------------------------------------------------------------------------ the folder

    def _ordered(self) -> list[Path]:
        """The episode files in the order in which they were played."""
        files = sorted(path for path in self.where.iterdir() if path.is_file())
        for path in files:
            if path.suffix in PICKLES:
                raise UserError("this is a pickle", where=path, do=CONVERT)
        episodes = [path for path in files if path.suffix in SUFFIXES]
        if not episodes:
            raise broken("there are no episodes (.hdf5 or .npz) in this folder", self.where)
        stems = [path.stem for path in episodes]
        twice = sorted({stem for stem in stems if stems.count(stem) > 1}) if len(set(stems)) < len(stems) else []
        if twice:
            raise broken(f"the episode {twice[0]} is there twice, as different kinds of file", self.where)
        place = self._side_file("episode_trjids")
        if place is None:
            unnamed = [stem for stem in stems if not stem.isdecimal()]
            if unnamed:
                raise UserError(
                    f"the order of the episodes is not known: '{unnamed[0]}' is no number",
                    where=self.where,
                    do="add episode_trjids.json, which maps names to numbers in time order",
                )
            return sorted(episodes, key=lambda path: int(path.stem))
        self._same_episodes("episode_trjids", place, stems)
        if len(set(place.values())) < len(place):
            raise broken("two episodes have the same number in episode_trjids.json", self.where)
        return sorted(episodes, key=lambda path: place[path.stem])

    def _side_file(self, name: str) -> dict[str, float] | None:
        """A side file: name of an episode -> number; None where there is none."""
        path = self.where / f"{name}.json"
        if not path.is_file():
            return None
        try:
            content: Any = json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:
            raise broken(f"this is no JSON file ({error})", path) from error
        if not isinstance(content, dict) or not all(isinstance(value, int | float) for value in content.values()):
            raise broken("the file must map names of episodes to numbers", path)
        return content

    def _same_episodes(self, name: str, side: dict[str, float], stems: Sequence[str]) -> None:
        for missing, what in ((side.keys() - set(stems), "no file for"), (set(stems) - side.keys(), "not in it:")):
            if missing:
                first = ", ".join(sorted(missing)[:5])
                more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
                raise broken(f"{name}.json does not fit to the files: {what} {first}{more}", self.where)

    def _compare(self) -> None:
        """Hold the side files against what was found."""
        stems = [path.stem for path in self.paths]
        lengths = self._side_file("episode_lengths")
        if lengths is not None:
            self._same_episodes("episode_lengths", lengths, stems)
            for path, length in zip(self.paths, self.length_M, strict=False):
                if lengths[path.stem] != length:
                    raise broken(f"{length} steps, but episode_lengths.json says {lengths[path.stem]:g}", path)
        returns = self._side_file("episode_returns")
        if returns is not None:
            said_M = np.array([returns.get(stem, np.nan) for stem in stems[: len(self.return_M)]])
            other = int((~np.isclose(said_M, self.return_M, rtol=1e-3, atol=1e-3)).sum())
            if other:
                log.warning(
                    "%s: %d of %d returns are not those of episode_returns.json; the rewards are believed",
                    self.where,
                    other,
                    len(self.return_M),
                )


def _per_step(done: np.ndarray, steps: int) -> np.ndarray:
    """`dones` [T] of an episode, also where the file says it once for all of it."""
    if done.size != 1:
        return done
    result = np.zeros(steps, done.dtype)
    result[-1] = done.reshape(-1)[0]
    return result
