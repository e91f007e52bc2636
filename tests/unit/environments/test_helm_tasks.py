"""The table of HELM's environments (specification, section 2): what is seen, how many actions, and after how many steps it ends."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from recollect.environments import registry
from recollect.environments.mini_world import SHAPE, TASKS
from recollect.settings.resolve import environment_settings

MINI_GRID = {
    "KeyCorridorS3R1": (270, 7),
    "MemoryS11": (605, 7),
    "RedBlueDoors-6x6": (720, 7),
    "DoorKey-5x5": (250, 7),
    "DoorKey-6x6": (360, 7),
    "Dynamic-Obstacles-5x5": (100, 3),
    "Dynamic-Obstacles-Random-5x5": (100, 3),
    "Unlock": (288, 7),
}
PROCGEN = {"caveflyer": 1000, "dodgeball": 1000, "heist": 1000, "jumper": 2000, "maze": 500, "miner": 1000}
TABLE = {
    **{f"mini_grid_{task}": ((3, 56, 56), actions, steps) for task, (steps, actions) in MINI_GRID.items()},
    **{f"procgen_memory_{game}": ((3, 64, 64), 15, steps) for game, steps in PROCGEN.items()},
    "random_maze": ((3, 9, 9), 4, 100),
    "continuous_recognition": ((3, 80, 80), 3, 2250),  # ours: looking left and right is all there is
}


@pytest.mark.parametrize("env", TABLE)
def test_an_environment_of_the_configuration_is_as_published(env: str) -> None:
    shape, actions, steps = TABLE[env]
    settings = environment_settings("paper", env)
    assert settings.evaluation.protocol == "episodic" and settings.name == env
    tasks = registry.tasks(settings.world, settings.options, "eval")
    assert len(tasks) == 1
    world = registry.make_world(settings.world, settings.options, tasks, np.zeros(1))
    assert isinstance(world.single_observation_space, Box) and isinstance(world.single_action_space, Discrete)
    assert (world.single_observation_space.shape, world.single_action_space.n, world.horizon) == (shape, actions, steps)
    assert world.single_observation_space.dtype == "uint8" and world.single_observation_space.high.max() == 255
    assert "{" not in settings.title and all(
        str(value) in settings.title for value in list(settings.options.values())[:1]
    )


@pytest.mark.parametrize(
    ("task", "steps", "actions"),
    [
        ("CollectHealth", 1000, 8),
        ("FourRooms", 250, 3),
        ("MazeS3Fast", 300, 3),
        ("PickupObjects", 400, 5),
        ("PutNext", 250, 8),
        ("Sign", 20, 4),
        ("TMaze", 280, 3),
        ("YMaze", 280, 3),
    ],
)
def test_the_tasks_of_mini_world_are_the_published_ones(task: str, steps: int, actions: int) -> None:
    """Without the package; with it, `test_mini_world.py` compares these numbers with the package's own."""
    settings = environment_settings("paper", f"mini_world_{task}")
    assert (settings.family, settings.options) == ("miniworld", {"task": task})
    assert [t.name for t in registry.tasks(settings.world, settings.options, "train")] == [task]
    assert (TASKS[task], SHAPE, len(TASKS)) == ((steps, actions), (3, 60, 80), 8)
