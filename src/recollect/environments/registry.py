"""Finds worlds by name, and registers them with gymnasium.

A world is one file of this folder with ``World`` and ``tasks(split, **options)``; its name is the file's name. A new
file is known at once, without a list to edit.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from recollect.environments.base import Task, World
from recollect.environments.scene import Scene
from recollect.settings.catalogue import known, module_of
from recollect.settings.errors import UserError

# gymnasium id -> (world, options)
GYMNASIUM_IDS: dict[str, tuple[str, dict[str, Any]]] = {
    "recollect/DarkRoom-v0": ("dark_room", {}),
    "recollect/DarkKeyDoor-v0": ("key_door", {}),
    "recollect/MazeRunner-v0": ("maze_runner", {}),
    "recollect/MazeRunner30-v0": ("maze_runner", {"size": 30, "horizon": 1000}),
    "recollect/TMazePassive-v0": ("tmaze", {"variant": "passive"}),
    "recollect/TMazeActive-v0": ("tmaze", {"variant": "active"}),
    "recollect/VisualMatch-v0": ("visual_match", {}),
    "recollect/VisualMatchActive-v0": ("visual_match", {"variant": "active"}),
    "recollect/KeyToDoor-v0": ("key_to_door", {}),
    "recollect/ContinuousRecognition-v0": ("continuous_recognition", {}),
    "recollect/MiniGrid-v0": ("mini_grid", {}),
    "recollect/RandomMaze-v0": ("random_maze", {}),
    "recollect/DarkKeyToDoor-v0": ("meta_key_door", {}),
    "recollect/GoalMazeRunner-v0": ("goal_maze", {}),
    "recollect/Alchemy-v0": ("alchemy", {}),
    "recollect/MetaFrozenLake-v0": ("frozen_lake_meta", {}),
    "recollect/Wind-v0": ("wind", {}),
}


def world_names() -> list[str]:
    """The names of all worlds, sorted (nothing is imported)."""
    return sorted(known("world"))


def world_class(name: str) -> type[World]:
    """The class of a world.

    Raises:
        UserError: an unknown name, or a world whose package is not installed.
    """
    found: type[World] = _module(name).World
    return found


def tasks(name: str, options: Mapping[str, Any], split: str) -> list[Task]:
    """The tasks of a world's split ("train" or "eval")."""
    listed: list[Task] = _module(name).tasks(split, **options)
    return listed


def make_world(
    name: str,
    options: Mapping[str, Any],
    tasks: Sequence[Task],
    seeds: np.ndarray,
    autoreset_mode: AutoresetMode = AutoresetMode.DISABLED,
) -> World:
    """A world whose instance i plays ``tasks[i]`` with ``seeds[i]`` (uint64 [B])."""
    make: Any = world_class(name)
    world: World = make(tasks, seeds=seeds, autoreset_mode=autoreset_mode, **options)
    return world


def scene(name: str, options: Mapping[str, Any], task: Task) -> Scene | None:
    """What a world looks like from above in a task; None where its file does not say."""
    draws: Any = getattr(_module(name), "scene", None)
    found: Scene | None = None if draws is None else draws(task, **options)
    return found


def action_names(name: str) -> tuple[str, ...]:
    """What a world's discrete actions are called, in their order; empty where its file has no ``ACTION_NAMES``."""
    return tuple(getattr(_module(name), "ACTION_NAMES", ()))


def register() -> None:
    """Make ``gymnasium.make`` and ``gymnasium.make_vec`` know our worlds (done by importing the package)."""
    for gymnasium_id, (world, options) in GYMNASIUM_IDS.items():
        if gymnasium_id not in gymnasium.registry:
            gymnasium.register(
                gymnasium_id,
                entry_point="recollect.environments.single:SingleWorld",
                vector_entry_point="recollect.environments.single:vector_world",
                kwargs={"world": world, **options},
            )


def _module(name: str) -> ModuleType:
    try:
        module = importlib.import_module(module_of("world", name, where="environment.world"))
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("recollect"):
            raise
        what = f"the world '{name}' needs the package '{error.name}', which is not installed"
        raise UserError(what, where="environment.world", do=f"install '{error.name}' (see envs/)") from error
    return module
