"""Trajectories that no actor of a run played, drawn beside its own buffer or in its place: other runs' and other people's.

`path` is one of these:

- the buffer of a run of AMAGO in an environment with the same observations and actions (a folder with `fifo` or
  `protected`), read where it stands. A run that `recollect run` or Snakemake has finished no longer has one;
- a file .npz or .safetensors of episodes, or a folder of such, with the names that D4RL and Minari use. Per step, T rows:
  `actions`, `rewards`, `terminals` or `terminations`, and maybe `timeouts` or `truncations`, and `next_observations`.
  `observations` has T rows, or T + 1 where the file is one episode. Actions are the world's: whole numbers, or in [-1, 1].

Episodes of a file follow one another and end at either flag. Where the observation behind an episode's last step is not
there, that step is left out; one that ended by itself needs none, and repeats the last.

Source: AMAGO's newer released code, `MixtureOfDatasets` and example 14 (specification 2.5). That example takes the first
observation of the next episode for the one behind the last step. Shares do not grow over epochs here.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

from recollect.amago.hyperparameters import MixSettings
from recollect.amago.trajectory_files import UNLIMITED, Trajectory, TrajectoryFiles, Weights
from recollect.artifacts.damaged import DAMAGED
from recollect.artifacts.safetensors_format import map_arrays, read_header
from recollect.environments.base import World
from recollect.settings.errors import UserError

NAMES = {  # ours -> theirs, and whether there must be one
    "observation": (("observations",), True),
    "action": (("actions",), True),
    "reward": (("rewards",), True),
    "terminal": (("terminals", "terminations"), True),
    "cut": (("timeouts", "truncations"), False),
    "next": (("next_observations",), False),
}
WHERE = "hyperparameters: mix.path"


def opened(mix: MixSettings, scratch: Path, world: World, *, weights: Weights = "trajectory") -> TrajectoryFiles:
    """What can be drawn from `mix.path`; episodes are written to the folder `scratch` as trajectories first.

    Args:
        weights: see `TrajectoryFiles`.

    Raises:
        UserError: there is nothing, a file lacks something, or its observations or actions are not the world's.
    """
    path = Path(mix.path).expanduser()
    if any((path / part).is_dir() for part in ("fifo", "protected")):
        found = TrajectoryFiles(path, UNLIMITED, weights=weights)
    else:
        shutil.rmtree(scratch, ignore_errors=True)
        found = TrajectoryFiles(scratch, UNLIMITED, weights=weights)
        files = [path] if path.is_file() else sorted([*path.glob("*.npz"), *path.glob("*.safetensors")])
        for file in files:
            if episodes := list(_episodes(file, world)):
                found.add(episodes)
    if not len(found):
        do = (
            "name a file or folder of episodes (.npz, .safetensors), or the folder `buffer` of a run; "
            "one that `recollect run` or Snakemake finished has none"
        )
        raise UserError(f"there are no trajectories in {path}", where=WHERE, do=do)
    for name, space in (
        ("observation", world.single_observation_space),
        ("previous_action", world.single_action_space),
    ):
        column = found.columns.get(name)
        if column is None or column.shape[1:] != space.shape or (name == "observation" and column.dtype != space.dtype):
            there = "none" if column is None else f"{column.dtype} {column.shape[1:]}"
            what = f"{name}s of the world are {space.dtype} {space.shape}, those in {path} are {there}"
            raise UserError(what, where=WHERE, do="take trajectories of the same world")
    return found


def _episodes(path: Path, world: World) -> Iterator[Trajectory]:
    given = _arrays(path)
    columns: dict[str, np.ndarray] = {}
    for name, (theirs, needed) in NAMES.items():
        there = [other for other in theirs if other in given]
        if there:
            columns[name] = np.asarray(given[there[0]])
        elif needed:
            do = f"store an array `{theirs[0]}`; there are {', '.join(sorted(given)) or 'none'}"
            raise UserError(f"episodes lack '{theirs[0]}'", where=path, do=do)
    T = len(columns["reward"])
    for name in columns.keys() & {"reward", "terminal", "cut"}:
        columns[name] = np.ravel(columns[name])
    observation = columns["observation"]
    if len(observation) == T + 1:
        columns |= {"observation": observation[:-1], "next": observation[1:]}
    rows = {name: len(column) for name, column in columns.items()}
    if not T:
        raise UserError("episodes have no steps", where=path, do="remove the file, or store steps in it")
    if set(rows.values()) != {T}:
        raise UserError(f"columns of episodes have {rows} rows", where=path, do="store one row per step in each")
    ends_T = columns["terminal"].astype(bool) | columns.get("cut", np.zeros(T)).astype(bool)
    if len(observation) == T + 1 and ends_T[:-1].any():
        what = "several episodes, but one more observation than steps"
        raise UserError(what, where=path, do="store one episode per file, or `next_observations`")
    acts, action = world.single_action_space, columns["action"]
    if isinstance(acts, Discrete) and not (action.min() >= 0 and action.max() < acts.n):
        what = f"actions of the world are 0 to {acts.n - 1}, those of episodes {action.min()} to {action.max()}"
        raise UserError(what, where=path, do="take episodes of the same world")
    first = 0
    for last in [*np.flatnonzero(ends_T[:-1]).tolist(), T - 1]:
        part = {name: column[first : last + 1] for name, column in columns.items()}
        trajectory = _trajectory(part, world)
        if len(trajectory["time"]) > 1:
            yield trajectory
        first = last + 1


def _trajectory(part: Mapping[str, np.ndarray], world: World) -> Trajectory:
    """An episode of T steps as T + 1 rows (see `trajectory_files`); T where what is behind the last step is not known."""
    observation_TD, ended = part["observation"], bool(part["terminal"][-1])
    behind_TD = part.get("next", observation_TD if ended else observation_TD[:0])
    seen_TD = np.concatenate([observation_TD, behind_TD[-1:]])
    steps = len(seen_TD) - 1
    space: Any = world.single_action_space
    continuous = isinstance(space, Box)
    action = part["action"][:steps].astype(np.float32 if continuous else np.int16)
    action = action.reshape(steps, *space.shape) if action.size == steps * int(np.prod(space.shape)) else action
    none = np.full((1, *action.shape[1:]), -2 if continuous else -1, action.dtype)
    done_T = np.zeros(steps + 1, bool)
    done_T[-1] = ended
    return {
        "observation": seen_TD.astype(world.single_observation_space.dtype),
        "previous_action": np.concatenate([none, np.clip(action, -1, 1) if continuous else action]),
        "reward": np.concatenate([np.zeros(1), part["reward"][:steps]]).astype(np.float32),
        "done": done_T,
        "time": np.arange(steps + 1, dtype=np.int32),
    }


def _arrays(path: Path) -> dict[str, np.ndarray]:
    if path.suffix == ".safetensors":
        return map_arrays(path, read_header(path))
    wanted = [theirs for names, _ in NAMES.values() for theirs in names]
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files if name in wanted}
    except DAMAGED as error:
        raise UserError(f"not a file of plain arrays: {error}", where=path, do="store it with numpy.savez") from error
