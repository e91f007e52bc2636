"""Rules of worlds, each held by a small game of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from recollect.environments import key_door, maze_runner, meta_world_kshot, registry
from recollect.environments.base import Task
from recollect.settings.errors import UserError


def make(name: str, count: int, **options: Any) -> Any:
    tasks = registry.tasks(name, options, "train")
    return registry.make_world(
        name, options, [tasks[b % len(tasks)] for b in range(count)], np.arange(count, dtype=np.uint64)
    )


def test_the_optimal_return_is_said_only_where_the_walk_that_keeps_pace_is_best() -> None:
    assert make("tmaze", 2, length=5, goal_reward=3.0).optimal_return().tolist() == [3.0, 3.0]
    for options in (
        {"late_penalty": 0.5},
        {"distract_reward": 0.1},
        {"horizon": 9},
    ):
        with pytest.raises(UserError, match="optimal return"):
            make("tmaze", 1, length=5, **options).optimal_return()


def test_the_releases_one_exception_is_of_the_published_doors_only() -> None:
    assert key_door.tasks("eval")[1].data["key"] == (3, 1)
    assert key_door.tasks("eval", goal_seed=7)[1].data["key"] == (8, 4)  # the published list, as it was drawn


def test_a_goal_under_ones_feet_takes_a_step_of_the_optimal_walk_too() -> None:
    task = Task(0, "tunnel", "train", {"seed": 0, "goals": ((13, 7), (12, 7))})
    for horizon, reached in ((1, 1), (2, 2)):
        world = maze_runner.World([task], seeds=np.zeros(1), horizon=horizon)
        assert world.optimal_return().tolist() == [reached]


def test_the_largest_side_is_drawn_and_an_agent_may_start_on_the_goal() -> None:
    world = make("random_maze", 400, smallest=5, largest=6)
    world.reset()
    state = world.get_state()
    board = state["board"]
    goal = (board == 2).argmax(1)
    row = goal // int(np.sqrt(board.shape[1])) - 4 + 2
    assert np.bincount(row, minlength=8)[[5, 7]] == pytest.approx(200, abs=50)
    assert (state["position"] == goal).mean() > 0.02


def test_one_of_the_published_winds_is_drawn_anew_for_each_episode() -> None:
    world, winds = make("wind", 100, winds=4), []
    for _ in range(12):
        world.reset()
        winds.append(world.get_state()["wind"][:, 0])
    assert all(len(set(row.tolist())) > 1 for row in np.stack(winds, 1))


def test_a_lake_that_hides_how_many_attempts_are_over_shows_0_and_else_the_same() -> None:
    shown, hidden = (make("frozen_lake_meta", 20, size=2, attempts=3, show_attempt=show) for show in (True, False))
    for world in (shown, hidden):
        world.reset()
    for _ in range(3):
        _, other = (world.step(np.ones(20, np.int64))[0] for world in (shown, hidden))
        two, another = (world.step(np.full(20, 3))[0] for world in (shown, hidden))
        assert not other[:, 3].any() and not another[:, 3].any()
        np.testing.assert_array_equal(two[:, :3], another[:, :3])
        if two[:, 3].any():
            return
    raise AssertionError("no attempt ended")


def test_what_has_cracked_throws_a_recovering_agent_back_as_a_hole_does() -> None:
    world = make("frozen_lake_meta", 400, size=4, hard=True, recover=True)
    world.reset()
    world.step(np.ones(400, np.int64))
    before = world.get_state()
    at_neighbour = before["position"].sum(1) == 1  # of the corner; the way back: -x, or -y where moves are swapped
    back = np.where(before["position"][:, 0] == 1, 2, 4)
    reward = world.step(back)[1]
    after = world.get_state()
    cracked = before["lake_now"][:, 0, 0] & at_neighbour
    assert cracked.sum() > 20
    np.testing.assert_array_equal(after["position"][cracked], before["position"][cracked])
    assert (reward[cracked] == np.float32(-0.1)).all()
    whole = at_neighbour & ~cracked
    assert not after["position"][whole].any() and not reward[whole].any()


def test_the_tries_of_the_most_packages_are_within_the_space() -> None:
    world = make("package_delivery", 40)
    assert world.observation_space.contains(world.reset()[0])
    assert world.single_observation_space.high[:3].tolist() == [30, 12, 1]


def test_without_tries_left_the_drop_that_works_leads_back_too() -> None:
    world = make("package_delivery", 40)
    world.reset()
    world.step(np.zeros(40, np.int64))
    state = world.get_state()
    state["tries"][:] = tries = np.arange(40) % 2
    world.set_state(state)
    _, _, _, _, info = world.step(state["drop"])
    on_road = state["turns"][:, 1] == 0
    after, achieved = world.get_state(), info["achieved"][:, 0, 0]
    assert len(set(tries[on_road])) == 2 and not after["tries"][on_road].any()
    assert (after["position"] == tries)[on_road].all() and (np.isnan(achieved) == (tries == 0))[on_road].all()


def test_wind_pays_within_three_hundredths_of_the_goal() -> None:
    world = make("wind", 3)
    world.reset()
    state = world.get_state()
    state["position"][:], state["wind"][:] = [(0, 0.971), (0, 0.969), (0.022, 1.022)], 0
    world.set_state(state)
    assert world.step(np.zeros((3, 2), np.float32))[1].tolist() == [1, 0, 0]


def test_a_rollout_has_parts_to_score_only_where_it_is_whole_episodes() -> None:
    parts = [make("meta_key_door", 1, rollout_steps=steps).parts for steps in (500, 50, 120)]
    assert parts == [10, 1, 0]


def test_a_batch_of_both_splits_draws_each_from_its_own_mazes() -> None:
    listed = [registry.tasks("goal_maze", {"size": 7}, split)[0] for split in ("train", "eval")]
    world = registry.make_world("goal_maze", {"size": 7}, listed * 8, np.arange(16, dtype=np.uint64))
    world.reset()
    assert (world.get_state()["maze"] % 2).tolist() == [0, 1] * 8


def test_the_split_of_each_task_has_the_positions_that_are_held_out() -> None:
    held_out, each, train = (
        {task.data["first"] for task in meta_world_kshot.tasks(split, benchmark="ml10")}
        for split in ("eval", "each", "train")
    )
    assert each == held_out == {51} and train == {1}


def test_in_the_active_game_every_start_is_drawn() -> None:
    options = {"variant": "active"}
    tasks = registry.tasks("visual_match", options, "train") * 500
    world = registry.make_world("visual_match", options, tasks, np.arange(500, dtype=np.uint64))
    world.reset()
    counts = np.unique(world.get_state()["position"], return_counts=True)[1]
    assert len(counts) == 10 and counts.min() > 25


def test_seeds_beyond_half_of_the_range_are_kept_to_the_last_bit() -> None:
    seeds = [2**63 + 1, 2**63 + 2, 5]
    listed = registry.tasks("dark_room", {}, "train")[:3]
    world = registry.make_world("dark_room", {}, listed, seeds)  # type: ignore[arg-type]
    assert world.get_state()["seeds"].tolist() == seeds
