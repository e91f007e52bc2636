"""Finds worlds by name, makes them, and registers them with gymnasium.

A world is one file with ``World`` and ``tasks(split, **options)``; its name is the file's name. The catalogue finds it
here, in `mine/` or in a plug-in. A world that `gymnasium.make` is to know says so itself, with ids and their options:
``GYMNASIUM_IDS = {"recollect/DarkRoom-v0": {}}``.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from recollect.environments import base
from recollect.environments.scene import Scene
from recollect.settings.catalogue import declaration, known, load
from recollect.settings.errors import UserError, shown


def world_names() -> list[str]:
    """The names of all worlds, sorted (nothing is imported)."""
    return sorted(known("world"))


def world_class(name: str) -> type[base.World]:
    """The class of a world. Raises UserError: an unknown name, or a world whose package is not installed."""
    world: type[base.World] = _module(name).World
    return world


def tasks(name: str, options: Mapping[str, Any], split: str) -> Sequence[base.Task]:
    """The tasks of a split. Raises UserError: there is no such split or option, or the options leave nothing of the split."""
    if "split" in options:
        do = "remove it; `evaluation: splits` and `source: split` of the environment say which tasks are played"
        raise UserError("unknown option 'split'", where=f"options of the world {name}", do=do)
    listing = _module(name).tasks
    try:
        inspect.signature(listing).bind(split, **options)
    except TypeError as error:
        where = f"{shown(Path(inspect.getfile(listing)))}: tasks"
        do = "let it take the split and the options: `def tasks(split, **options)`"
        raise UserError(f"`tasks` cannot be called: {error}", where=where, do=do) from error
    listed: Sequence[base.Task] = listing(split, **options)
    if not listed:
        said = ", ".join(f"{key}: {value}" for key, value in options.items()) or "none"
        do = "choose other options or another split; options may keep tasks of one split only"
        raise UserError(f"the split '{split}' has no task, with the options {said}", where=f"world {name}", do=do)
    return listed


def make_world(
    name: str,
    options: Mapping[str, Any],
    tasks: Sequence[base.Task],
    seeds: np.ndarray,
    autoreset_mode: AutoresetMode = AutoresetMode.DISABLED,
) -> base.World:
    """A world whose instance i plays ``tasks[i]`` with ``seeds[i]`` (uint64 [B])."""
    return world_class(name)(tasks, seeds=seeds, autoreset_mode=autoreset_mode, **options)


def world_file(name: str) -> Path:
    """The file of a world. Raises UserError: an unknown name, or a world whose package is not installed."""
    return Path(inspect.getfile(_module(name)))


def scene(name: str, options: Mapping[str, Any], task: base.Task) -> Scene | None:
    """What a world looks like from above in a task; None where its file does not say."""
    draw: Any = getattr(_module(name), "scene", None)
    seen: Scene | None = None if draw is None else draw(task, **options)
    return seen


def action_names(name: str, options: Mapping[str, Any]) -> tuple[str, ...]:
    """What a world's discrete actions are called, in their order; empty where its file does not say.

    It says so by ``ACTION_NAMES`` or, where they depend on the options, by a function ``action_names(**options)``.
    """
    module = _module(name)
    of_options: Any = getattr(module, "action_names", None)
    return tuple(of_options(**options) if of_options else getattr(module, "ACTION_NAMES", ()))


def gymnasium_ids() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every id that a world declares, with the world's name and options (nothing is imported)."""
    for name in world_names():
        for gymnasium_id, options in (declaration("world", name, "GYMNASIUM_IDS") or {}).items():
            yield gymnasium_id, name, options


def register() -> None:
    """Make ``gymnasium.make`` and ``gymnasium.make_vec`` know the worlds (done by importing the package)."""
    try:
        ids = list(gymnasium_ids())
    except UserError:
        return  # a file of the user's cannot be read; it is reported where a world is asked for
    for gymnasium_id, world, options in ids:
        if gymnasium_id not in gymnasium.registry:
            gymnasium.register(
                gymnasium_id,
                entry_point="recollect.environments.single:SingleWorld",
                vector_entry_point="recollect.environments.single:vector_world",
                order_enforce=False,  # a world says so itself; and it can be drawn before its first reset
                kwargs={"world": world, **options},
            )


def _module(name: str) -> ModuleType:
    return load("world", name, where="environment.world")
