"""Recorded facts of RA-DT's released grid-world tasks: the lists themselves and the best returns they allow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from recollect.environments import registry

UPSTREAM: dict[str, Any] = {"final_step_reward": "zero"}


def listed(world: str, width: int, height: int, split: str, key: str) -> list[tuple[int, int]]:
    return [task.data[key] for task in registry.tasks(world, {"width": width, "height": height}, split)]


def best(world: str, width: int, height: int, split: str, **options: Any) -> np.ndarray:
    options = {"width": width, "height": height, **options}
    tasks = registry.tasks(world, options, split)
    return registry.make_world(world, options, tasks, np.arange(len(tasks))).optimal_return()


@pytest.mark.parametrize("world", ["dark_room", "key_door"])
@pytest.mark.parametrize(("width", "height"), [(10, 10), (20, 20), (40, 20)])
def test_there_are_80_train_and_20_eval_tasks_with_disjoint_goals(world: str, width: int, height: int) -> None:
    key = "goal" if world == "dark_room" else "door"
    train, held_out = (listed(world, width, height, split, key) for split in ("train", "eval"))
    assert (len(train), len(held_out)) == (80, 20)
    assert len(set(train + held_out)) == 100
    assert [task.index for task in registry.tasks(world, {}, "eval")] == list(range(20))


def test_first_goals_are_the_released_ones() -> None:
    assert listed("dark_room", 10, 10, "train", "goal")[:4] == [(2, 0), (0, 2), (1, 5), (2, 2)]
    assert listed("dark_room", 10, 10, "eval", "goal")[:4] == [(9, 0), (8, 4), (3, 4), (6, 5)]
    assert listed("dark_room", 20, 20, "train", "goal")[0] == (2, 15)
    assert listed("dark_room", 20, 20, "eval", "goal")[0] == (16, 12)
    assert listed("dark_room", 40, 20, "train", "goal")[0] == (29, 6)
    assert listed("dark_room", 40, 20, "eval", "goal")[0] == (14, 13)


def test_first_keys_are_the_released_ones_with_the_one_exception() -> None:
    assert listed("key_door", 10, 10, "train", "key")[:4] == [(8, 3), (5, 3), (7, 0), (4, 5)]
    assert listed("key_door", 10, 10, "eval", "key")[1] == (3, 1)
    assert listed("key_door", 10, 10, "eval", "door")[1] == (8, 4)


@pytest.mark.parametrize(("width", "height"), [(10, 10), (20, 20), (40, 20)])
def test_doors_are_the_goals(width: int, height: int) -> None:
    for split in ("train", "eval"):
        assert listed("key_door", width, height, split, "door") == listed("dark_room", width, height, split, "goal")


def test_goal_at_the_start_and_key_on_the_door_stand_where_recorded() -> None:
    for width, height, count in ((10, 10, 1), (20, 20, 1), (40, 20, 0)):
        assert listed("dark_room", width, height, "train", "goal").count((0, 0)) == count
        assert (0, 0) not in listed("dark_room", width, height, "eval", "goal")
    keys, doors = (listed("key_door", 40, 20, "train", key) for key in ("key", "door"))
    assert [key for key, door in zip(keys, doors, strict=True) if key == door] == [(19, 18)]


@pytest.mark.parametrize(
    ("width", "height", "train_distance", "eval_distance"),
    [(10, 10, 8.76, 9.95), (20, 20, 18.33, 22.75), (40, 20, 29.74, 26.8)],
)
def test_mean_distances_of_the_goals(width: int, height: int, train_distance: float, eval_distance: float) -> None:
    for split, expected in (("train", train_distance), ("eval", eval_distance)):
        assert np.mean(np.sum(listed("dark_room", width, height, split, "goal"), axis=1)) == pytest.approx(
            expected, abs=0.005
        )


@pytest.mark.parametrize(
    ("width", "height", "dark_room", "per_episode"),
    [(10, 10, 90.05, 86.05), (20, 20, 377.25, 367.25), (40, 20, 773.2, 744.9)],
)
def test_mean_best_return_of_the_eval_tasks(width: int, height: int, dark_room: float, per_episode: float) -> None:
    assert best("dark_room", width, height, "eval", **UPSTREAM).mean() == pytest.approx(dark_room)
    sticky = best("key_door", width, height, "eval", key_reset="sticky", **UPSTREAM)
    assert sticky.mean() == pytest.approx(dark_room)
    assert best("key_door", width, height, "eval", **UPSTREAM).mean() == pytest.approx(per_episode)
    # Paid at the last step too, every task is worth one more.
    assert (best("key_door", width, height, "eval") - best("key_door", width, height, "eval", **UPSTREAM) == 1).all()


@pytest.mark.parametrize(("width", "height", "horizon"), [(10, 10, 100), (20, 20, 400), (40, 20, 800)])
def test_horizon_is_the_number_of_cells(width: int, height: int, horizon: int) -> None:
    options = {"width": width, "height": height}
    for world in ("dark_room", "key_door"):
        tasks = registry.tasks(world, options, "eval")
        made = registry.make_world(world, options, tasks, np.arange(20))
        made.reset()
        ends = [made.step(np.full(20, 4))[3] for _ in range(horizon)]
        assert not np.any(ends[:-1])
        assert ends[-1].all()
        assert made.horizon == horizon
