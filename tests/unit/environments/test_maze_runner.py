"""MazeRunner: the released mazes to the bit, one maze written out in plain Python, and walks that must succeed."""

from __future__ import annotations

import hashlib
import pickle
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st

from recollect.common.contract import facts_of
from recollect.environments import maze_runner
from recollect.environments.base import Task
from recollect.environments.maze_runner import Options, World, below, distances, goals, legacy_words, maze
from recollect.settings.schema import EnvironmentSettings

Cell = tuple[int, int]
WEST, NORTH, EAST, SOUTH, STAY = range(5)
STEPS = {WEST: (0, -1), NORTH: (-1, 0), EAST: (0, 1), SOUTH: (1, 0), STAY: (0, 0)}


def fingerprint(seed: int) -> str:
    return hashlib.sha256(maze(seed, 15).astype(np.uint8).tobytes()).hexdigest()


# --------------------------------------------------------------------------------------------- the released mazes


@pytest.mark.parametrize(
    ("seed", "digest"),
    [(0, "87132044fbe0ccb9"), (1, "eabe943cad0e9e55"), (300, "f9c28e236a2bded1")],
)
def test_mazes_are_the_released_ones_to_the_bit(seed: int, digest: str) -> None:
    """Recorded from the released code (RA-DT, specification 1.5)."""
    assert fingerprint(seed).startswith(digest)


def test_one_released_maze_written_out() -> None:
    """Seed 0, as the released code draws it: 108 walls."""
    assert int(maze(0, 15).sum()) == 108
    bottom = ["".join("#" if wall else "." for wall in row) for row in maze(0, 15)[10:]]
    assert bottom == ["#.............#", *["#.....#.#.....#"] * 3, "#" * 15]


@pytest.mark.parametrize(
    ("seed", "expected"),
    [
        (0, [(1, 11)]),
        (1, [(12, 2), (6, 13)]),
        (3, [(11, 1), (1, 7), (1, 8)]),
        (300, [(7, 3), (1, 8)]),
        (319, [(10, 2), (5, 4)]),
    ],
)
def test_goals_are_the_released_ones_in_their_order(seed: int, expected: list[Cell]) -> None:
    """Recorded from the released code (RA-DT, specification 1.5)."""
    assert goals(seed, Options()) == expected


def test_task_sets_are_the_released_ones() -> None:
    train, held_out = maze_runner.tasks("train"), maze_runner.tasks("eval")
    seeds = [task.data["seed"] for task in train]
    assert len(seeds) == 100 and seeds[:6] == [0, 1, 3, 4, 6, 7] and seeds[-3:] == [119, 120, 121] and 41 in seeds
    assert [task.data["seed"] for task in held_out] == list(range(300, 320))
    assert [task.index for task in held_out] == list(range(20))
    assert held_out[0] == Task(0, "maze_300", "eval", {"seed": 300, "goals": ((7, 3), (1, 8))})
    counts = [len(task.data["goals"]) for task in held_out]
    assert [counts.count(n) for n in (1, 2, 3)] == [6, 8, 6]


def test_more_training_mazes_stand_behind_the_published_ones_and_evaluation_keeps_its_own() -> None:
    seeds = [task.data["seed"] for task in maze_runner.tasks("train", more_train_mazes=3)]
    assert seeds[:100] == [task.data["seed"] for task in maze_runner.tasks("train")]
    assert seeds[100:] == [1000, 1001, 1002]
    assert maze_runner.tasks("eval", more_train_mazes=3) == maze_runner.tasks("eval")


def test_upstreams_99_environments_are_the_100_without_seed_41() -> None:
    whole, fewer = maze_runner.tasks("train"), maze_runner.tasks("train", leave_out_seed_41=True)
    assert [t.data for t in fewer] == [t.data for t in whole if t.data["seed"] != 41]
    assert [task.index for task in fewer] == list(range(99))
    assert maze_runner.tasks("eval", leave_out_seed_41=True) == maze_runner.tasks("eval")


def plain_maze(seed: int, size: int) -> np.ndarray:
    """The published generator, step by step, on `RandomState.randint` itself."""
    rng = np.random.RandomState(seed)
    n = size // 2 * 2 + 1
    grid = np.zeros((n, n), dtype=int)
    grid[0, :] = grid[n - 1, :] = grid[:, 0] = grid[:, n - 1] = 1
    for _ in range(int(0.75 * (n // 2) * (n // 2))):
        x = rng.randint(0, n // 2 + 1) * 2
        y = rng.randint(0, n // 2 + 1) * 2
        grid[y, x] = 1
        for _ in range(int(0.75 * 5 * (n + n))):
            near = []
            if x > 1:
                near.append((y, x - 2))
            if x < n - 2:
                near.append((y, x + 2))
            if y > 1:
                near.append((y - 2, x))
            if y < n - 2:
                near.append((y + 2, x))
            to_y, to_x = near[rng.randint(0, len(near))]
            if grid[to_y, to_x] == 0:
                grid[to_y, to_x] = 1
                grid[(to_y + y) // 2, (to_x + x) // 2] = 1
                y, x = to_y, to_x
    grid[n - 5 : n - 1, 1 : n - 1] = 0
    for column in (n // 2 - 1, n // 2 + 1):
        grid[n - 4 : n - 1, column] = 1
    return grid


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(6, 20))
def test_a_maze_of_any_size_is_that_of_the_plain_generator(seed: int, size: int) -> None:
    assert (maze(seed, size // 2 * 2 + 1) == plain_maze(seed, size)).all()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.lists(st.integers(2, 200), max_size=300))
def test_numbers_are_those_that_numpys_legacy_generator_gives(seed: int, bounds: list[int]) -> None:
    rng, words = np.random.RandomState(seed), legacy_words(seed)
    assert [below(bound, words) for bound in bounds] == [rng.randint(0, bound) for bound in bounds]


# ------------------------------------------------------------------------------------------------------- its rules


class PlainRunner:
    """One maze, one agent, plain Python."""

    def __init__(self, task: Task, size: int, horizon: int) -> None:
        self.walls, self.goals, self.horizon = plain_maze(task.data["seed"], size), task.data["goals"], horizon
        self.side = len(self.walls)

    def reset(self) -> None:
        self.row, self.column, self.t, self.reached = self.side - 2, self.side // 2, 0, 0

    def step(self, action: int) -> tuple[float, bool, bool]:
        down, right = STEPS[action]
        if not self.walls[self.row + down, self.column + right]:
            self.row, self.column = self.row + down, self.column + right
        self.t += 1
        hit = (self.row, self.column) == self.goals[self.reached]
        self.reached += hit
        over = self.reached == len(self.goals)
        return float(hit), over, self.t == self.horizon and not over

    def observe(self) -> list[float]:
        free = []
        for action in (WEST, NORTH, EAST, SOUTH):
            (down, right), count = STEPS[action], 0
            while not self.walls[self.row + down * (count + 1), self.column + right * (count + 1)]:
                count += 1
            free.append(count)
        return [np.float32(number / self.side).item() for number in (self.row, self.column, *free)]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_batch_equals_plain_mazes_under_random_actions_and_reset_masks(data: st.DataObject) -> None:
    size, horizon = data.draw(st.integers(6, 12)), data.draw(st.integers(1, 40))
    options: dict[str, Any] = {"size": size, "horizon": horizon}
    listed = maze_runner.tasks("train", **options) + maze_runner.tasks("eval", **options)
    # Repeated tasks, and several tasks of one maze.
    chosen = [listed[i] for i in data.draw(st.lists(st.integers(0, 119), min_size=1, max_size=6))]
    if data.draw(st.booleans()):
        chosen.append(
            Task(0, "other goal", "train", {"seed": chosen[0].data["seed"], "goals": ((size // 2 * 2 - 4, 1),)})
        )
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    world = World(chosen, seeds=np.zeros(len(chosen)), **options)
    plain = [PlainRunner(task, size, horizon) for task in chosen]
    done = np.ones(len(chosen), dtype=bool)
    for _ in range(80):
        mask = done | (rng.random(len(chosen)) < 0.05)
        for i in np.flatnonzero(mask):
            plain[i].reset()
        observations, _ = world.reset(options={"reset_mask": mask})
        assert observations.tolist() == [one.observe() for one in plain]
        actions = rng.integers(0, 5, len(chosen))
        observations, rewards, terminated, truncated, info = world.step(actions)
        expected = [one.step(int(action)) for one, action in zip(plain, actions, strict=True)]
        assert observations.dtype == np.float32 and rewards.dtype == np.float32
        assert observations.tolist() == [one.observe() for one in plain]
        assert [(r, a, b) for r, a, b in zip(rewards, terminated, truncated, strict=True)] == expected
        done = terminated | truncated
        assert ("success" in info) == done.any()
        if done.any():
            assert info["success"].tolist() == terminated.tolist()


def way(walls: np.ndarray, start: Cell, goal: Cell) -> list[int]:
    """The actions of a shortest way."""
    left, at, actions = distances(walls, goal), start, []
    while at != goal:
        action = next(a for a, (y, x) in STEPS.items() if left[at[0] + y, at[1] + x] == left[at] - 1)
        actions.append(action)
        at = (at[0] + STEPS[action][0], at[1] + STEPS[action][1])
    return actions


def whole_way(task: Task, options: Options) -> list[int]:
    """The actions of the shortest way through all goals of a task."""
    at, actions = options.start, []
    for goal in task.data["goals"]:
        actions += way(maze(task.data["seed"], options.side), at, goal)
        at = goal
    return actions


@pytest.mark.parametrize("split", ["train", "eval"])
def test_the_shortest_way_reaches_every_goal_of_every_task_and_ends_the_episode(split: str) -> None:
    listed = maze_runner.tasks(split)
    world = World(listed, seeds=np.zeros(len(listed)))
    ways = [whole_way(task, world.options) for task in listed]
    returns, ended_at = np.zeros(len(listed)), np.zeros(len(listed), dtype=int)
    world.reset()
    for t in range(max(map(len, ways))):
        actions = np.array([actions[t] if t < len(actions) else STAY for actions in ways])
        _, rewards, terminated, truncated, _ = world.step(actions)
        returns += np.where(ended_at == 0, rewards, 0)
        ended_at[terminated & (ended_at == 0)] = t + 1
        assert not truncated.any()
        world.reset(options={"reset_mask": terminated})
    assert ended_at.tolist() == [len(actions) for actions in ways]
    assert returns.tolist() == world.optimal_return().tolist() == [len(task.data["goals"]) for task in listed]
    assert ended_at.max() < 100  # far below the horizon of 400
    assert returns.mean() == pytest.approx({"train": 2.08, "eval": 2.0}[split])


def test_the_optimal_return_counts_the_goals_within_the_horizon() -> None:
    task = maze_runner.tasks("eval")[0]
    first = len(way(maze(300, 15), (13, 7), (7, 3)))
    second = len(whole_way(task, Options()))
    for horizon, expected in ((first - 1, 0), (first, 1), (second - 1, 1), (second, 2)):
        world = World([task], seeds=np.zeros(1), horizon=horizon)
        assert world.optimal_return().tolist() == [expected]
        world.reset()
        steps = [world.step(np.array([action])) for action in whole_way(task, Options())[:horizon]]
        assert sum(float(reward[0]) for _, reward, *_ in steps) == expected
        # A last goal at the last step is a success, not an end by the horizon.
        *_, terminated, truncated, info = steps[horizon - 1]
        assert (terminated.tolist(), truncated.tolist()) == ([expected == 2], [expected < 2])
        assert info["success"].tolist() == [expected == 2]


def test_a_later_goal_pays_nothing_before_the_earlier_ones() -> None:
    """The tunnel's end: two cells north of the start is the first goal, one cell north the second."""
    task = Task(0, "tunnel", "train", {"seed": 0, "goals": ((11, 7), (12, 7))})
    world = World([task], seeds=np.zeros(1))
    assert world.reset()[0].tolist() == [np.float32([13 / 15, 7 / 15, 0, 6 / 15, 0, 0]).tolist()]
    played = [world.step(np.array([action])) for action in (WEST, NORTH, NORTH, STAY, SOUTH)]
    assert [step[1].tolist() for step in played] == [[0], [0], [1], [0], [1]]
    assert [step[2].tolist() for step in played] == [[False]] * 4 + [[True]]
    world.reset()
    assert [world.step(np.array([action]))[1].tolist() for action in (NORTH, NORTH, SOUTH)] == [[0], [1], [1]]


def test_success_is_told_of_the_episode_that_ended_also_where_the_next_has_begun() -> None:
    task = Task(0, "tunnel", "train", {"seed": 0, "goals": ((12, 7),)})
    world = World([task] * 2, seeds=np.zeros(2), horizon=2, autoreset_mode=AutoresetMode.SAME_STEP)
    world.reset()
    observations, *_, info = world.step(np.array([NORTH, STAY]))
    assert info["success"].tolist() == [True, False] and info["_final_obs"].tolist() == [True, False]
    assert observations[0].tolist() == observations[1].tolist() != info["final_obs"][0].tolist()


def test_a_single_world_tells_success_as_one_value() -> None:
    env = gymnasium.make("recollect/MazeRunner-v0", split="eval", task=0)
    env.reset(seed=0)
    infos = [env.step(action)[2:] for action in whole_way(maze_runner.tasks("eval")[0], Options())]
    assert all(told == (False, False, {"success": False}) for told in infos[:-1])
    terminated, truncated, info = infos[-1]
    assert terminated and not truncated and info["success"].shape == () and bool(info["success"])


def test_only_mazes_that_are_asked_for_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand take seconds, and every job asks for the first to see the spaces."""
    made: list[int] = []
    monkeypatch.setattr(maze_runner, "goals", lambda seed, options: made.append(seed) or goals(seed, options))
    listed = maze_runner.tasks("train", more_train_mazes=900)
    assert len(listed) == 1000 and made == []
    environment = EnvironmentSettings(name="maze", world="maze_runner", options={"more_train_mazes": 900})
    assert facts_of(environment).observation_size == 6 and len(made) == 1
    assert (listed[-1].index, listed[-1].data["seed"], listed[998].index) == (999, 1899, 998)
    assert listed[-1] is listed[999] and made[1:] == [1899, 1898]
    assert [task.index for task in listed[3:9:3]] == [3, 6]
    with pytest.raises(IndexError):
        listed[1000]


def test_mazes_are_equal_to_a_list_of_them_also_in_another_process() -> None:
    listed = maze_runner.tasks("eval")
    sent = pickle.loads(pickle.dumps(listed))
    assert type(sent) is list and sent == list(listed) == [*listed]
    assert listed + listed == sent + listed == listed + sent == sent + sent
    assert listed == sent == maze_runner.tasks("eval") != maze_runner.tasks("train") and listed != 3
