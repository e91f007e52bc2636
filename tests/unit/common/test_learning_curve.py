"""The worlds of a run that acts while it learns: whose tasks they play, and with which numbers."""

from __future__ import annotations

from itertools import cycle, islice

import numpy as np

from recollect.common.learning_curve import make_worlds
from recollect.environments.registry import tasks
from recollect.settings.schema import EnvironmentSettings

ROOM = EnvironmentSettings(name="room", world="dark_room", options={"width": 4, "height": 3})
MAZE = EnvironmentSettings(name="maze", world="tmaze", options={"variant": "passive", "length": 4})


def test_each_world_plays_the_tasks_of_its_split_in_turn() -> None:
    for split in ("eval", "train"):
        training, judged = make_worlds(ROOM, 0, 30, 20, split)
        for world, of in ((training, "train"), (judged, split)):
            assert list(world.tasks) == list(islice(cycle(tasks("dark_room", ROOM.options, of)), world.num_envs))
    assert len({task.name for task in make_worlds(ROOM, 0, 1, 20)[1].tasks}) > 1


def test_training_its_curve_and_other_seeds_see_episodes_of_their_own() -> None:
    def seen(seed: int) -> list[bytes]:
        worlds = make_worlds(MAZE, seed, 64, 64)
        return [world.reset(options={"reset_mask": np.ones(64, bool)})[0].tobytes() for world in worlds]

    assert seen(0) == seen(0) and len({*seen(0), *seen(1)}) == 4
