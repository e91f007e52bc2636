"""A scene shows a world as it is: agents stand where it says, rewards are paid on its marks, and walls are not entered."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from recollect.environments import registry

WORLDS: list[tuple[str, dict[str, Any]]] = [
    ("dark_room", {"width": 5, "height": 4}),
    ("key_door", {"width": 5, "height": 4}),
    ("maze_runner", {"size": 9, "horizon": 60, "most_goals": 2}),
    ("meta_key_door", {"size": 4, "rollout_steps": None, "listed_tasks": 6}),
]


@pytest.mark.parametrize(("name", "options"), WORLDS)
def test_agents_stand_where_the_scene_says_and_are_paid_on_its_marks(name: str, options: dict[str, Any]) -> None:
    tasks = registry.tasks(name, options, "eval")
    scenes = [registry.scene(name, options, task) for task in tasks]
    world = registry.make_world(name, options, tasks, np.arange(len(tasks), dtype=np.uint64))
    draws, paid = np.random.default_rng(0), 0
    observation, _ = world.reset()
    for _ in range(150):
        action = draws.integers(5, size=len(tasks))
        after, reward, terminated, truncated, _ = world.step(action)
        for b, scene in enumerate(scenes):
            assert scene is not None and len(scene.actions) == world.single_action_space.n
            before_2, cell_2 = (scene.cells_of(seen[b : b + 1])[0] for seen in (observation, after))
            assert 0 <= cell_2[0] < scene.height and 0 <= cell_2[1] < scene.width
            assert tuple(cell_2.tolist()) not in scene.walls
            way = {"north": (-1, 0), "south": (1, 0), "west": (0, -1), "east": (0, 1), "stay": (0, 0)}
            assert (cell_2 - before_2).tolist() in ([0, 0], list(way[scene.actions[action[b]]]))
            if reward[b] > 0:
                paid += 1
                assert cell_2.tolist() in [[mark.row, mark.column] for mark in scene.marks]
        observation = after
        if (terminated | truncated).any():
            observation, _ = world.reset(options={"reset_mask": terminated | truncated})
    assert paid > 0


@pytest.mark.parametrize(("name", "options"), WORLDS)
def test_a_scene_is_plain_data(name: str, options: dict[str, Any]) -> None:
    scene = registry.scene(name, options, registry.tasks(name, options, "eval")[0])
    assert scene is not None
    described = scene.described()
    assert json.loads(json.dumps(described)) == described
    assert described["marks"][0][0] in {"goal", "goal 1", "key"}


@pytest.mark.parametrize("variant", ["passive", "active"])
def test_in_a_t_maze_the_scene_follows_the_actions_through_the_corridor_to_the_goal_that_pays(variant: str) -> None:
    options = {"variant": variant, "length": 4}
    tasks = registry.tasks("tmaze", options, "eval") * 200
    scene = registry.scene("tmaze", options, tasks[0])
    world: Any = registry.make_world("tmaze", options, tasks, np.arange(200, dtype=np.uint64))
    draws, paid = np.random.default_rng(0), 0
    world.reset()
    stood, taken = [], []
    for _ in range(world.horizon):
        stood.append(np.stack([1 - world._y_B, world._x_B], 1))
        taken.append(draws.choice(4, p=[0.6, 0.15, 0.1, 0.15], size=200))
        _, reward, *_ = world.step(taken[-1])
    stood_BT2, action_BT = np.stack(stood, 1), np.stack(taken, 1)
    assert scene is not None
    episode_N = np.repeat(np.arange(200), world.horizon)
    cells_N2 = scene.cells_along(np.zeros((len(episode_N), 2)), action_BT.ravel(), episode_N)
    np.testing.assert_array_equal(cells_N2, stood_BT2.reshape(-1, 2))
    assert not set(map(tuple, cells_N2.tolist())) & set(scene.walls)
    goals = [(mark.row, mark.column) for mark in scene.marks if mark.name == "goal"]
    for b in np.flatnonzero(reward > 0):
        paid += 1
        assert (1 - int(world._y_B[b]), int(world._x_B[b])) in goals
    assert paid > 0 and json.loads(json.dumps(scene.described())) == scene.described()


def test_a_world_need_not_have_a_scene() -> None:
    assert registry.scene("visual_match", {}, registry.tasks("visual_match", {}, "eval")[0]) is None
