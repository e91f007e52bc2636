"""Files such as others publish: one npz per task of a small room, right ones and ways to spoil them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from recollect.environments import registry
from recollect.sources import source_policies

OPTIONS = {"width": 5, "height": 4, "final_step_reward": "zero"}  # the room of the environment `attack_published`
COLUMNS = {"observation": "observations", "action": "actions", "reward": "rewards", "done": "dones"}


def write(folder: Path) -> None:
    """The files of all train tasks, with histories of an agent that walks at random."""
    folder.mkdir(parents=True)
    tasks = registry.tasks("dark_room", OPTIONS, "train")
    hyperparameters = source_policies.Hyperparameters(policy="random", transitions=100)
    histories = source_policies.generate("dark_room", OPTIONS, tasks, hyperparameters, seed=3)
    for task in tasks:
        x, y = task.data["goal"]
        of_task = histories["task"] == task.index
        arrays = {theirs: histories[ours][of_task] for ours, theirs in COLUMNS.items()}
        np.savez(folder / f"[0,0]_[{x},{y}].npz", **arrays)


def victim(folder: Path) -> Path:
    """The file that is spoilt: not the first that is read."""
    return sorted(folder.glob("*.npz"))[5]


def arrays_of(path: Path) -> dict[str, Any]:
    with np.load(path) as archive:
        return {name: archive[name] for name in archive.files}
