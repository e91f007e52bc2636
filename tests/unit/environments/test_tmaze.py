"""The T-Maze equals a plain one written from the published rules, and scripted walks get their closed-form returns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recollect.environments import tmaze
from recollect.settings.errors import UserError

RIGHT, UP, LEFT, DOWN = range(4)


class PlainMaze:
    """One maze with plain cells; the side of the goal is told to it."""

    def __init__(self, length: int, back: int, distract_reward: float, carried: bool = False) -> None:
        self.length, self.back, self.distract_reward, self.carried = length, back, distract_reward, carried
        self.junction = back + length
        self.free = {(x, 0) for x in range(self.junction + 1)} | {(self.junction, 1), (self.junction, -1)}
        self.horizon = length + 2 * back + 1

    def reset(self, goal: int) -> list[float]:
        self.x, self.y, self.t, self.goal, self.seen = self.back, 0, 0, goal, False
        return self.observe()

    def observe(self) -> list[float]:
        if self.x == 0:
            first = not self.seen
            self.seen = True
            return [0.0, float(self.goal) if first else 0.0]
        return [1.0, float(self.y)] if self.x == self.junction else [0.0, 0.0]

    def step(self, action: int) -> tuple[list[float], float, bool]:
        dx, dy = [(1, 0), (0, 1), (-1, 0), (0, -1)][action]
        if self.carried and self.x < self.junction:
            dx, dy = 1, 0
        if (self.x + dx, self.y + dy) in self.free:
            self.x, self.y = self.x + dx, self.y + dy
        self.t += 1
        observation = self.observe()
        if self.t == self.horizon:
            return observation, float(self.y == self.goal), True
        reward = -1.0 / self.length if self.x < self.t - self.back else 0.0
        return observation, reward + (self.distract_reward if self.x == 0 else 0.0), False


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(["passive", "active", "carried"]),
    st.integers(1, 9),
    st.sampled_from([None, 0, 1, 3]),
    st.sampled_from([0.0, 0.25]),
    st.integers(1, 5),
    st.integers(0, 2**32),
)
def test_batch_equals_plain_mazes(
    variant: str, length: int, oracle_length: int | None, distract_reward: float, batch: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    options: dict[str, Any] = {"length": length, "oracle_length": oracle_length, "distract_reward": distract_reward}
    carried = variant == "carried"
    if carried:
        variant, options["oracle_length"], options["carried"] = "passive", 0, True
    tasks = tmaze.tasks("train", variant=variant, **options) * batch
    world = tmaze.World(tasks, seeds=rng.integers(0, 2**63, batch), variant=variant, **options)
    back = int(variant == "active") if options["oracle_length"] is None else options["oracle_length"]
    plain = [PlainMaze(length, back, distract_reward, carried) for _ in range(batch)]
    assert world.horizon == plain[0].horizon
    done = np.ones(batch, dtype=bool)
    shown = np.zeros((batch, 2), dtype=np.float32)
    for _ in range(3 * world.horizon):
        mask = done | (rng.random(batch) < 0.05)
        observations, _ = world.reset(options={"reset_mask": mask})
        goals = world.get_state()["goal"]
        for i in range(batch):
            expected = plain[i].reset(int(goals[i])) if mask[i] else shown[i].tolist()
            assert observations[i].tolist() == expected
        # Mostly rightwards, so that the junction is reached.
        actions = rng.choice(4, size=batch, p=[0.6, 0.15, 0.1, 0.15])
        shown, rewards, terminated, truncated, _ = world.step(actions)
        steps = [one.step(int(action)) for one, action in zip(plain, actions, strict=True)]
        assert shown.tolist() == [observation for observation, _, _ in steps]
        assert rewards == pytest.approx([reward for _, reward, _ in steps])
        assert terminated.tolist() == [ended for _, _, ended in steps]
        assert not truncated.any()
        done = terminated


def total(variant: str, length: int, walk: Any, batch: int = 400) -> np.ndarray:
    """Returns of a walk: a function (step, remembered side [B], generator) -> actions [B]."""
    options: dict[str, Any] = {"variant": variant, "length": length}
    world = tmaze.World(tmaze.tasks("train", **options) * batch, seeds=np.arange(batch), **options)
    rng = np.random.default_rng(0)
    observations, _ = world.reset()
    side, returns, done = observations[:, 1].copy(), np.zeros(batch), False
    step = 0
    while not done:
        observations, rewards, terminated, _, _ = world.step(walk(step, side, rng))
        side = np.where(observations[:, 0] == 0, side + observations[:, 1], side)
        returns += rewards
        step, done = step + 1, bool(terminated.all())
    assert step == {"passive": length + 1, "active": length + 3}[variant]
    return returns


@pytest.mark.parametrize("length", [1, 10, 50])
@pytest.mark.parametrize("variant", ["passive", "active"])
def test_scripted_walks_get_the_reference_returns(variant: str, length: int) -> None:
    last = length if variant == "passive" else length + 2

    def optimal(step: int, side: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        if variant == "active" and step == 0:
            return np.full(side.size, LEFT)
        return np.where(side > 0, UP, DOWN) if step == last else np.full(side.size, RIGHT)

    def guesser(step: int, side: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return rng.choice([UP, DOWN], side.size) if step == last else optimal(step, side, rng)

    def always_left(step: int, side: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return np.full(side.size, LEFT)

    assert total(variant, length, optimal).tolist() == [1.0] * 400
    assert total(variant, length, guesser).mean() == pytest.approx(0.5, abs=0.1)
    worst = -1.0 if variant == "passive" else -(length + 1) / length
    assert total(variant, length, always_left) == pytest.approx(worst, abs=1e-5)


@pytest.mark.parametrize(
    ("variant", "length", "expected"),
    [("passive", 10, -0.96), ("passive", 50, -0.99), ("active", 10, -0.97), ("active", 50, -0.995)],
)
def test_uniform_random_actions_get_the_recorded_mean_return(variant: str, length: int, expected: float) -> None:
    mean = total(variant, length, lambda step, side, rng: rng.integers(0, 4, side.size), batch=4000).mean()
    assert mean == pytest.approx(expected, abs=0.02)


def test_sides_are_even_and_drawn_anew_each_episode() -> None:
    world = tmaze.World(tmaze.tasks("eval") * 4000, seeds=np.arange(4000))
    first, second = world.reset()[0][:, 1], world.reset()[0][:, 1]
    assert set(first.tolist()) == {-1.0, 1.0}
    assert abs(first.mean()) < 0.08
    assert abs((first * second).mean()) < 0.08


def test_exposed_entries_follow_the_two_published_ones() -> None:
    world = tmaze.World(
        tmaze.tasks("train"), seeds=np.zeros(1), length=2, expose_goal=True, expose_position=True, expose_timestep=True
    )
    side = world.reset()[0][0, 1]
    seen = [world.step(np.array([action]))[0][0].tolist() for action in (RIGHT, RIGHT, UP)]
    third = pytest.approx(1 / 3)
    assert seen[0] == [0, 0, side, 0.5, 0, third]
    assert seen[1] == [1, 0, side, 1, 0, pytest.approx(2 / 3)]
    assert seen[2] == [1, 1, side, 1, 1, 1]
    assert world.single_observation_space.shape == (6,)


def test_the_exposed_side_is_hidden_until_the_sign_was_seen() -> None:
    options: dict[str, Any] = {"variant": "active", "length": 3, "expose_goal": True}
    world = tmaze.World(tmaze.tasks("train", **options) * 8, seeds=np.arange(8), **options)
    shown = [
        world.reset()[0][:, 2],
        *(world.step(np.full(8, action))[0][:, 2] for action in (RIGHT, LEFT, LEFT, RIGHT)),
    ]
    assert [abs(side).tolist() for side in shown] == [[0.0] * 8] * 3 + [[1.0] * 8] * 2
    assert shown[3].tolist() == shown[4].tolist() == world.get_state()["goal"].tolist()


def test_a_horizon_of_its_own_ends_the_episode_and_moves_the_payment() -> None:
    for horizon in (2, 9):
        world = tmaze.World(tmaze.tasks("train", length=3), seeds=np.zeros(1), length=3, horizon=horizon)
        side = world.reset()[0][0, 1]
        plan = ([RIGHT] * 3 + [UP if side > 0 else DOWN] + [LEFT] * 5)[:horizon]  # a wall is to the left of the goals
        steps = [world.step(np.array([action])) for action in plan]
        assert [bool(step[2][0]) for step in steps] == [False] * (horizon - 1) + [True]
        assert float(steps[-1][1][0]) == (1.0 if horizon == 9 else 0.0)


def test_whoever_is_carried_needs_the_turn_alone() -> None:
    options: dict[str, Any] = {"length": 6, "carried": True}
    world = tmaze.World(tmaze.tasks("train", **options) * 200, seeds=np.arange(200), **options)
    side = world.reset()[0][:, 1]
    draws = np.random.default_rng(0)
    for step in range(6):
        shown, reward, terminated, _, _ = world.step(draws.integers(0, 4, 200))
        assert not reward.any() and not terminated.any()
        assert shown.tolist() == [[float(step == 5), 0.0]] * 200  # the corridor looks as it does to one who walks
    reward, terminated = world.step(np.where(side > 0, UP, DOWN))[1:3]
    assert reward.tolist() == [1.0] * 200 and terminated.all()
    assert world.optimal_return().tolist() == [1.0] * 200
    scene = tmaze.scene(world.tasks[0], **options)
    assert scene.cells_of(np.array([LEFT, UP, LEFT, LEFT, DOWN, LEFT, UP])).tolist() == [[1, x] for x in range(7)]


def test_nobody_is_carried_to_a_sign() -> None:
    with pytest.raises(UserError, match="sign at the start"):
        tmaze.tasks("train", variant="active", carried=True)


def test_optimal_return_is_known_only_where_the_published_plan_is_the_best() -> None:
    tasks = tmaze.tasks("train", length=5)
    assert tmaze.World(tasks, seeds=np.zeros(1), length=5).optimal_return().tolist() == [1.0]
    with pytest.raises(UserError, match="optimal return"):
        tmaze.World(tasks, seeds=np.zeros(1), length=5, distract_reward=0.5).optimal_return()


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["passive", "active", "carried"]),
    st.integers(1, 5),
    st.sampled_from(["behind", "not_right"]),
    st.sampled_from([0.0, 0.1]),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_a_single_maze_is_a_row_of_a_batch_to_the_bit(
    variant: str, length: int, late: str, distract_reward: float, exposed: bool, seed: int
) -> None:
    carried = variant == "carried"
    options = {
        "variant": "passive" if carried else variant,
        "carried": carried,
        "length": length,
        "late": late,
        "distract_reward": distract_reward,
        "goal_reward": 0.7,
    }
    options |= dict.fromkeys(("expose_goal", "expose_position", "expose_timestep"), exposed)
    task = tmaze.tasks("train", **options)
    seeds = np.array([seed, seed + 1], np.uint64)
    one = tmaze.World(task, seeds=seeds[:1], **options)
    two = tmaze.World(task * 2, seeds=seeds, **options)
    draws = np.random.default_rng(seed)
    for _ in range(2):
        np.testing.assert_array_equal(one.reset()[0][0], two.reset()[0][0])
        ended = False
        while not ended:
            action = draws.integers(0, 4, 2)
            found, expected = one.step(action[:1]), two.step(action)
            for mine, theirs in zip(found[:4], expected[:4], strict=True):
                assert mine.dtype == theirs.dtype and mine.shape == (1, *theirs.shape[1:])
                np.testing.assert_array_equal(mine[0], theirs[0])
            assert found[4] == expected[4] == {}
            ended = bool(found[2][0])
            for name, array in two.get_state().items():
                np.testing.assert_array_equal(one.get_state()[name][0], array[0], err_msg=name)
        with pytest.raises(UserError, match="have ended"):
            one.step(action[:1])
    one.reset()
    with pytest.raises(UserError, match="actions must be"):
        one.step(np.array([4]))
