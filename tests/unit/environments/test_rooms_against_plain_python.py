"""Dark-Room and Dark Key-Door in batches equal a plain one-instance room written from the published rules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recollect.environments import dark_room, key_door
from recollect.environments.base import Task


class PlainRoom:
    """One room, one agent, plain Python; the random start is told to it by the test."""

    def __init__(self, data: dict[str, Any], options: dict[str, Any]) -> None:
        self.width, self.height = options["width"], options["height"]
        self.horizon = options["horizon"] or self.width * self.height
        self.zero_at_the_end = options["final_step_reward"] == "zero"
        self.sticky = options.get("key_reset") == "sticky"
        self.key, self.goal = data.get("key"), data.get("door", data.get("goal"))
        self.holds_key = self.key is None

    def reset(self, start: tuple[int, int]) -> None:
        self.x, self.y = start
        self.t = 0
        if self.key is not None and not self.sticky:
            self.holds_key = False

    def step(self, action: int) -> tuple[float, bool]:
        began_on_key = self.t == 0 and (self.x, self.y) == self.key
        self.t += 1
        if action == 0 and self.y > 0:
            self.y -= 1
        elif action == 1 and self.x < self.width - 1:
            self.x += 1
        elif action == 2 and self.y < self.height - 1:
            self.y += 1
        elif action == 3 and self.x > 0:
            self.x -= 1
        done = self.t == self.horizon
        if done and self.zero_at_the_end:
            return 0.0, True
        if not self.holds_key:
            if began_on_key or (self.x, self.y) == self.key:
                self.holds_key = True
                return 1.0, done
            return 0.0, done
        return float((self.x, self.y) == self.goal), done


@st.composite
def rooms(draw: st.DrawFn) -> tuple[Any, dict[str, Any], list[Task], int]:
    width, height = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    options: dict[str, Any] = {
        "width": width,
        "height": height,
        "horizon": draw(st.one_of(st.none(), st.integers(1, 12))),
        "final_step_reward": draw(st.sampled_from(["zero", "normal"])),
        "start_when_goal_is_start": draw(st.sampled_from(["random", "fixed"])),
    }
    cells = st.tuples(st.integers(0, width - 1), st.integers(0, height - 1))
    seed = draw(st.integers(0, 2**32))
    if draw(st.booleans()):
        goals = draw(st.lists(cells, min_size=1, max_size=6))
        return dark_room, options, [Task(i, "t", "train", {"goal": goal}) for i, goal in enumerate(goals)], seed
    options["key_reset"] = draw(st.sampled_from(["per_episode", "sticky"]))
    pairs = draw(st.lists(st.tuples(cells, cells), min_size=1, max_size=6))
    made = [Task(i, "t", "train", {"key": key, "door": door}) for i, (key, door) in enumerate(pairs)]
    return key_door, options, made, seed


@settings(max_examples=150, deadline=None)
@given(rooms(), st.data())
def test_batch_equals_plain_rooms_under_random_actions_and_reset_masks(room: Any, data: st.DataObject) -> None:
    module, options, tasks, seed = room
    rng = np.random.default_rng(seed)
    world = module.World(tasks, seeds=rng.integers(0, 2**63, len(tasks)), **options)
    plain = [PlainRoom(task.data, options) for task in tasks]
    done = np.ones(len(tasks), dtype=bool)
    steps = data.draw(st.integers(1, 80))
    for _ in range(steps):
        mask = done | (rng.random(len(tasks)) < 0.1)
        before = world.get_state()["position"]
        observations, _ = world.reset(options={"reset_mask": mask})
        for i, one in enumerate(plain):
            row, column = observations[i].tolist()
            if not mask[i]:
                assert [row, column] == before[i].tolist()
                continue
            several = options["width"] * options["height"] > 1
            if one.goal == (0, 0) and options["start_when_goal_is_start"] == "random" and several:
                assert (row, column) != (0, 0)
                assert row < one.height
                assert column < one.width
            else:
                assert (row, column) == (0, 0)
            one.reset((column, row))
        actions = rng.integers(0, 5, len(tasks))
        observations, rewards, terminated, truncated, info = world.step(actions)
        expected = [one.step(int(action)) for one, action in zip(plain, actions, strict=True)]
        done = terminated | truncated
        assert observations.tolist() == [[one.y, one.x] for one in plain]
        assert rewards.tolist() == [reward for reward, _ in expected]
        assert done.tolist() == [ended for _, ended in expected]
        assert not terminated.any()
        assert info == {}
    assert rewards.dtype == np.float32
    assert observations.dtype == np.int16


@settings(max_examples=60, deadline=None)
@given(rooms())
def test_optimal_return_equals_exhaustive_search_in_small_rooms(room: Any) -> None:
    module, options, tasks, _ = room
    options = options | {"start_when_goal_is_start": "fixed", "horizon": min(options["horizon"] or 9, 9)}
    world = module.World(tasks, seeds=np.zeros(len(tasks)), **options)
    for task, claimed in zip(tasks, world.optimal_return(), strict=True):
        one = PlainRoom(task.data, options)
        sticky_key_in_hand = options.get("key_reset") == "sticky"

        # Best return over all plans, by a search over (cell, key in hand) layer by layer.
        layer = {(0, 0, one.key is None or sticky_key_in_hand): 0.0}
        for t in range(one.horizon):
            following: dict[tuple[int, int, bool], float] = {}
            for (x, y, holds), value in layer.items():
                for action in range(5):
                    one.x, one.y, one.t, one.holds_key = x, y, t, holds
                    reward, _ = one.step(action)
                    state = (one.x, one.y, one.holds_key)
                    following[state] = max(following.get(state, -1.0), value + reward)
            layer = following
        assert claimed == max(layer.values())


def test_optimal_return_of_a_random_start_is_the_mean_over_the_other_cells() -> None:
    task = Task(0, "t", "train", {"goal": (0, 0)})
    world = dark_room.World([task], seeds=np.zeros(1), width=2, height=2)
    # T = 4; the starts are 1, 1 and 2 steps away: 4, 4 and 3.
    assert world.optimal_return().tolist() == [pytest.approx(11 / 3)]


def test_random_start_reaches_every_cell_but_the_goal_about_equally() -> None:
    task = Task(0, "t", "train", {"goal": (0, 0)})
    world = dark_room.World([task] * 8000, seeds=np.arange(8000), width=3, height=3)
    observations, _ = world.reset()
    counts = np.bincount(observations[:, 0] * 3 + observations[:, 1], minlength=9)
    assert counts[0] == 0
    assert abs(counts[1:] - 1000).max() < 150
    again, _ = world.reset()
    assert (again != observations).any()
