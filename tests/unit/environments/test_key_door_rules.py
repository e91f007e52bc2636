"""The corner cases of Dark Key-Door, played by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from recollect.environments import key_door
from recollect.environments.base import Task
from recollect.stages.provenance import remarks

NORTH, EAST, SOUTH, WEST, STAY = range(5)


def play(plan: list[int], key: tuple[int, int], door: tuple[int, int], episodes: int = 1, **options: Any) -> list[list]:
    """Rewards of one instance that follows the plan in each episode."""
    options = {"width": 3, "height": 3, "horizon": len(plan), "start_when_goal_is_start": "fixed"} | options
    world = key_door.World([Task(0, "t", "train", {"key": key, "door": door})], seeds=np.zeros(1), **options)
    rewards = []
    for _ in range(episodes):
        world.reset()
        rewards.append([float(world.step(np.array([action]))[1][0]) for action in plan])
    return rewards


def test_key_pays_once_and_the_door_pays_every_step_after_it() -> None:
    assert play([EAST, STAY, WEST, EAST, EAST, STAY], (1, 0), (2, 0)) == [[1, 0, 0, 0, 1, 1]]


def test_door_without_the_key_pays_nothing() -> None:
    assert play([SOUTH, STAY, STAY], (1, 0), (0, 1)) == [[0, 0, 0]]


def test_key_at_the_start_is_taken_at_step_one_even_when_walking_away() -> None:
    assert play([EAST, WEST, EAST, STAY], (0, 0), (1, 0)) == [[1, 0, 1, 1]]
    assert play([STAY, STAY], (0, 0), (1, 0)) == [[1, 0]]


def test_key_on_the_door_pays_first_as_key_then_as_door() -> None:
    assert play([EAST, STAY, WEST, EAST], (1, 0), (1, 0)) == [[1, 1, 0, 1]]


def test_per_episode_key_is_needed_anew_in_every_episode() -> None:
    assert play([EAST, EAST, STAY], (1, 0), (2, 0), episodes=3) == [[1, 1, 1]] * 3


def test_sticky_key_stays_in_hand_and_pays_never_again() -> None:
    assert play([EAST, EAST, STAY], (1, 0), (2, 0), episodes=3, key_reset="sticky") == [[1, 1, 1], [0, 1, 1], [0, 1, 1]]


def test_nothing_is_paid_at_the_last_step_with_final_step_reward_zero() -> None:
    assert play([EAST, EAST, STAY], (1, 0), (2, 0), final_step_reward="zero") == [[1, 1, 0]]


def test_a_key_first_reached_at_an_unpaid_last_step_does_not_stick() -> None:
    sticky: dict[str, Any] = {"episodes": 2, "key_reset": "sticky"}
    assert play([STAY, EAST], (1, 0), (0, 0), final_step_reward="zero", **sticky) == [[0, 0], [0, 0]]
    assert play([STAY, EAST], (1, 0), (0, 0), final_step_reward="normal", **sticky) == [[0, 1], [1, 0]]


def test_a_caption_says_that_a_world_remembers_the_key_where_it_does() -> None:
    assert "the world remembers" in remarks("paper", ["key_door_10x10", "dark_room_10x10"])[0]
    assert remarks("hour", ["key_door_10x10"]) == ["In Key-Door each episode needs the key anew."]
    assert remarks("paper", ["dark_room_10x10"]) == []
