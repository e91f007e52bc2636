"""Writes trajectories in the formats that RA-DT's authors published (specification 2.2 and 2.3), for tests."""

from __future__ import annotations

import importlib.util
import itertools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from recollect.environments import registry
from recollect.environments.base import Task
from recollect.sources import source_policies

Life = dict[str, np.ndarray]  # observation, action, reward, done of one task, in time order
NAMES = {"observation": "observations", "action": "actions", "reward": "rewards", "done": "dones"}
# Axes of length one behind the time axis, for observation, action, reward and done: as rows, and as a replay buffer.
LAYOUTS = {
    "rows": (0, 0, 0, 0),
    "buffer": (1, 2, 1, 1),
    "buffer, flat rewards": (1, 1, 0, 0),
    "rows of one action": (0, 1, 0, 0),
}
DTYPES: dict[str, tuple[Any, Any, Any, Any]] = {
    "as the environment": (np.uint8, np.int64, np.float32, bool),
    "as a replay buffer": (np.int64, np.int64, np.float32, np.float32),
    "all floats": (np.float64, np.float32, np.float64, np.float64),
    "all integers": (np.int16, np.int8, np.int64, np.int8),
}


def played(world: str, options: Mapping[str, Any], split: str = "train", **chosen: Any) -> tuple[list[Task], dict]:
    """The tasks of a split and the histories of a source that does not learn (an expert where there is one)."""
    tasks = registry.tasks(world, options, split)
    policy = "noise_annealed" if world in source_policies.EXPERTS else "random"
    hyperparameters = source_policies.Hyperparameters(
        **{"policy": policy, "transitions": 200, "last_noise": 0.2, **chosen}
    )
    return tasks, source_policies.generate(world, options, tasks, hyperparameters, seed=3)


def lives(histories: Mapping[str, np.ndarray]) -> dict[int, Life]:
    """Histories by task."""
    tasks = np.unique(histories["task"]).tolist()
    return {t: {name: histories[name][histories["task"] == t] for name in NAMES} for t in tasks}


def complete(histories: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Histories without the unfinished last episode of each task."""
    left_N = np.concatenate([np.cumsum(life["done"][::-1])[::-1] > 0 for life in lives(histories).values()])
    return {name: column[left_N] for name, column in histories.items()}


def published(life: Life, layout: str = "rows", dtypes: str = "as the environment") -> dict[str, np.ndarray]:
    """The arrays of one task's file, in one of the layouts that are possible."""
    found = {}
    for name, extra, dtype in zip(NAMES, LAYOUTS[layout], DTYPES[dtypes], strict=True):
        array = life[name]
        kept = np.issubdtype(array.dtype, np.floating) and name == "observation"  # real numbers stay real numbers
        found[NAMES[name]] = array.astype(np.float32 if kept else dtype).reshape(
            len(array), *(1,) * extra, *array.shape[1:]
        )
    following = np.concatenate([found["observations"][1:], found["observations"][:1]])
    return {"observations": found["observations"], "next_observations": following, **found}


def write_npz(folder: Path, names: Iterable[str], tasks: Iterable[Life], *, compress: bool = True, **form: str) -> Path:
    """One npz per task."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, life in zip(names, tasks, strict=True):
        (np.savez_compressed if compress else np.savez)(folder / f"{name}.npz", **published(life, **form))
    return folder


def episodes_of(life: Life) -> list[Life]:
    """The episodes of a life; the last one may have no end."""
    ends = [0, *(np.flatnonzero(life["done"]) + 1).tolist()]
    ends += [] if ends[-1] == len(life["done"]) else [len(life["done"])]
    return [{name: life[name][a:b] for name in NAMES} for a, b in itertools.pairwise(ends)]


def write_episodes(
    folder: Path,
    life: Life,
    *,
    kind: str = "hdf5",
    names: Iterable[str] | None = None,
    one_done: bool = False,
    side_files: bool = True,
    **more: np.ndarray,
) -> Path:
    """A folder with a file per episode and its side files, as the released converter writes them.

    Args:
        names: of the episodes, in time order; default: their numbers.
        one_done: `dones` is one number for the whole episode.
        more: other datasets of every episode.
    """
    folder.mkdir(parents=True, exist_ok=True)
    side: dict[str, dict[str, float]] = {name: {} for name in ("lengths", "returns", "trjids", "seeds")}
    episodes = episodes_of(life)
    for number, (name, episode) in enumerate(zip(names or map(str, range(len(episodes))), episodes, strict=True)):
        arrays = {
            "states": episode["observation"],
            "actions": episode["action"].astype(np.int64),
            "rewards": episode["reward"],
            "dones": np.array(bool(episode["done"][-1])) if one_done else episode["done"],
            "returns_to_go": np.full(len(episode["reward"]), 999.0, np.float32),  # wrong, and never to be believed
            **more,
        }
        if kind == "npz":
            np.savez(folder / f"{name}.npz", **arrays)
        else:
            write_hdf5(folder / f"{name}.hdf5", arrays)
        values = (float(len(episode["reward"])), float(episode["reward"].sum()), number, 7)
        for key, value in zip(side, values, strict=True):
            side[key][name] = value
    if side_files:
        for key, values_of in side.items():
            (folder / f"episode_{key}.json").write_text(json.dumps(values_of))
        (folder / "stats.json").write_text("{}")
    return folder


# ------------------------------------------------------------------------------------------------------------- hdf5

HAS_H5PY = importlib.util.find_spec("h5py") is not None


def write_hdf5(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """An hdf5 file as the released converter writes it; without h5py, a file that `stand_in_for_h5py` reads."""
    if not HAS_H5PY:
        with path.open("wb") as file:
            np.savez(file, **arrays)
        return
    import h5py

    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            compression = {} if array.ndim == 0 else {"compression": "gzip", "compression_opts": 1}
            file.create_dataset(name, data=array, **compression)


def stand_in_for_h5py() -> ModuleType:
    """What the reader uses of h5py, over npz files: for machines without it, so that its part is tested there too."""

    class File(dict):
        def __init__(self, path: Path, mode: str) -> None:
            assert mode == "r"
            try:
                with np.load(path, allow_pickle=False) as archive:
                    super().__init__({name: archive[name] for name in archive.files})
            except Exception as error:
                raise OSError(f"Unable to open file ({error})") from error

        def __enter__(self) -> File:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    module = ModuleType("h5py")
    module.File = File  # type: ignore[attr-defined]
    return module
