"""RandomMaze: the published generator and rules in plain Python beside ours; sizes, rewards and the horizon."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st

from recollect.environments import counter_rng, random_maze, registry
from recollect.environments.base import World
from recollect.environments.maze_runner import distances
from recollect.settings.errors import UserError

NORTH, SOUTH, WEST, EAST = range(4)
STEPS = {NORTH: (-1, 0), SOUTH: (1, 0), WEST: (0, -1), EAST: (0, 1)}


def make(count: int, mode: AutoresetMode = AutoresetMode.DISABLED, first: int = 0, **options: Any) -> World:
    listed = registry.tasks("random_maze", options, "train") * count
    return registry.make_world("random_maze", options, listed, np.arange(first, first + count), mode)


def boards(world: World) -> np.ndarray:
    """The cells of all instances with their margin, uint8 [B, width, width]."""
    board_BC = world.get_state()["board"]
    side = int(np.sqrt(board_BC.shape[1]))
    return board_BC.reshape(len(board_BC), side, side)


def sides(world: World) -> np.ndarray:
    """Of every instance's maze: the goal is its inner lower right corner."""
    goal_B3 = np.argwhere(boards(world) == random_maze.GOAL)
    assert (goal_B3[:, 0] == np.arange(world.num_envs)).all() and (goal_B3[:, 1] == goal_B3[:, 2]).all()
    side_B: np.ndarray = goal_B3[:, 1] - 4 + 2
    return side_B


# -------------------------------------------------------------------------------------------------------- the generator


def plain_maze(seed: int, side: int) -> np.ndarray:
    """The published generator (specification 2.3), every number of it drawn; number n of a wall has its own place."""
    complexity, density = int(0.75 * 5 * (2 * side)), int(0.75 * (side // 2) ** 2)
    counters = np.arange(density * (complexity + 2), dtype=np.uint64)
    numbers = iter((counter_rng.draw(np.full(counters.size, seed, np.uint64), counters) >> np.uint64(32)).tolist())

    def randint(low: int, high: int) -> int:
        return low + (next(numbers) * (high + 1 - low) >> 32)

    grid = np.zeros((side, side), dtype=int)
    grid[0, :] = grid[-1, :] = 1
    grid[:, 0] = grid[:, -1] = 1
    for _ in range(density):
        x, y = randint(0, side // 2) * 2, randint(0, side // 2) * 2
        grid[y, x] = 1
        for _ in range(complexity):
            neighbours = []
            if x > 1:
                neighbours.append((y, x - 2))
            if x < side - 2:
                neighbours.append((y, x + 2))
            if y > 1:
                neighbours.append((y - 2, x))
            if y < side - 2:
                neighbours.append((y + 2, x))
            y_, x_ = neighbours[randint(0, len(neighbours) - 1)]
            if grid[y_, x_] == 0:
                grid[y_, x_] = 1
                grid[y_ + (y - y_) // 2, x_ + (x - x_) // 2] = 1
                x, y = x_, y_
    return grid


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31 - 1), st.sampled_from(range(5, 27, 2)))
def test_a_maze_is_that_of_the_published_generator_with_the_same_numbers(seed: int, side: int) -> None:
    assert (random_maze.maze(seed, side) == plain_maze(seed, side)).all()


def test_walls_that_grow_for_longer_than_their_first_numbers_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_maze, "AHEAD", 1)
    for seed in range(8):
        assert (random_maze.maze(seed, 15) == plain_maze(seed, 15)).all()


@pytest.mark.slow
def test_sizes_start_cells_and_goals_are_drawn_as_published() -> None:
    world = make(4200)
    world.reset()
    side_B = sides(world)
    counts = {side: int((side_B == side).sum()) for side in range(5, 27, 2)}
    assert sum(counts.values()) == 4200  # nothing else
    # A side is one of 21 numbers; 5 stays 5, all others become odd in pairs: 200 and 400, within five deviations.
    assert abs(counts.pop(5) - 200) < 70 and all(abs(count - 400) < 97 for count in counts.values())
    position = world.get_state()["position"]
    for board, side, cell in list(zip(boards(world), side_B, position, strict=True))[:400]:
        inside = board[4 : 4 + side, 4 : 4 + side]
        outside = board.copy()
        outside[4 : 4 + side, 4 : 4 + side] = random_maze.WALL
        assert (outside == random_maze.WALL).all()
        wall = inside == random_maze.WALL
        # All free cells hang together, so the goal can be reached from everywhere.
        reached = distances(wall, (side - 2, side - 2)) >= 0
        assert (reached == ~wall).all()
        row, column = divmod(int(cell), board.shape[0])
        assert reached[row - 4, column - 4]
    # In mazes of 5 x 5 the start is any free cell, the goal too.
    small = side_B == 5
    free = [board[4:9, 4:9] != random_maze.WALL for board in boards(world)[small]]
    starts = [divmod(int(cell), boards(world).shape[1]) for cell in position[small]]
    on_goal = np.mean([start == (7, 7) for start in starts])
    assert on_goal == pytest.approx(np.mean([1 / cells.sum() for cells in free]), abs=0.1) and on_goal > 0


def test_every_episode_of_an_instance_has_a_new_maze() -> None:
    world = make(8, smallest=15, largest=15)
    seen = set()
    for _ in range(4):
        world.reset()
        seen |= {board.tobytes() for board in boards(world)}
    assert len(seen) == 32


# ------------------------------------------------------------------------------------------------------------- its rules


class PlainMaze:
    """One maze, one agent, plain Python."""

    COLORS = ((224, 224, 224), (160, 160, 160))

    def __init__(self, board: np.ndarray, cell: int, horizon: int) -> None:
        self.walls, self.horizon, self.t = board == random_maze.WALL, horizon, 0
        self.goal = tuple(np.argwhere(board == random_maze.GOAL)[0].tolist())
        self.row, self.column = divmod(cell, len(board))

    def step(self, action: int) -> tuple[float, bool, bool]:
        row, column = self.row + STEPS[action][0], self.column + STEPS[action][1]
        self.t += 1
        if self.walls[row, column]:
            reward, over = -1.0, False
        else:
            self.row, self.column = row, column
            over = (row, column) == self.goal
            reward = 1.0 if over else -0.01
        return float(np.float32(reward)), over, self.t == self.horizon and not over

    def observe(self) -> list[Any]:
        image = np.zeros((9, 9, 3), dtype=np.uint8)
        for y in range(9):
            for x in range(9):
                cell = (self.row + y - 4, self.column + x - 4)
                image[y, x] = (51, 255, 51) if cell == self.goal else self.COLORS[int(self.walls[cell])]
        if (self.row, self.column) != self.goal:
            image[4, 4] = (51, 153, 255)
        return image.transpose(2, 0, 1).tolist()  # type: ignore[no-any-return]


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 5), st.integers(0, 2**32), st.integers(3, 60), st.sampled_from([(5, 7), (5, 25), (9, 9)]))
def test_batch_equals_plain_mazes_under_random_actions_and_reset_masks(
    count: int, seed: int, horizon: int, sizes: tuple[int, int]
) -> None:
    world = make(count, first=seed, horizon=horizon, smallest=sizes[0], largest=sizes[1])
    rng, plain, done = np.random.default_rng(seed), [None] * count, np.ones(count, dtype=bool)
    for _ in range(70):
        mask = done | (rng.random(count) < 0.05)
        observations, _ = world.reset(options={"reset_mask": mask})
        for i in np.flatnonzero(mask):
            plain[i] = PlainMaze(boards(world)[i], int(world.get_state()["position"][i]), horizon)  # type: ignore[call-overload]
        assert observations.dtype == np.uint8 and observations.shape == (count, 3, 9, 9)
        assert observations.tolist() == [one.observe() for one in plain]  # type: ignore[attr-defined]
        actions = rng.integers(0, 4, count)
        observations, rewards, terminated, truncated, info = world.step(actions)
        expected = [one.step(int(action)) for one, action in zip(plain, actions, strict=True)]  # type: ignore[attr-defined]
        assert [(r, a, b) for r, a, b in zip(rewards.tolist(), terminated, truncated, strict=True)] == expected
        assert observations.tolist() == [one.observe() for one in plain]  # type: ignore[attr-defined]
        done = terminated | truncated
        assert ("success" in info) == done.any() and (not done.any() or (info["success"] == terminated).all())


@pytest.mark.slow
def test_the_shortest_way_reaches_the_goal_of_every_maze() -> None:
    world = make(300, horizon=400)
    world.reset()
    board, position, side = boards(world), world.get_state()["position"], sides(world)
    width, steps, expected, returns = board.shape[1], [], [], np.zeros(300)
    for b in range(300):
        left = distances(board[b] == random_maze.WALL, (int(side[b]) + 2,) * 2)
        at, actions = divmod(int(position[b]), width), []
        if left[at] == 0:  # on the goal: it pays when it is stepped on again
            action = next(a for a, (y, x) in STEPS.items() if left[at[0] + y, at[1] + x] == 1)
            at, actions = (at[0] + STEPS[action][0], at[1] + STEPS[action][1]), [action]
        while left[at] > 0:
            action = next(a for a, (y, x) in STEPS.items() if left[at[0] + y, at[1] + x] == left[at] - 1)
            at, actions = (at[0] + STEPS[action][0], at[1] + STEPS[action][1]), [*actions, action]
        steps.append(actions)
        expected.append(1 - 0.01 * (len(actions) - 1))
    done = np.zeros(300, dtype=bool)
    for t in range(max(map(len, steps))):
        _, rewards, terminated, truncated, _ = world.step(np.array([s[t] if t < len(s) else NORTH for s in steps]))
        returns += np.where(done, 0, rewards)
        assert not truncated.any()
        assert [t + 1 == len(s) for s in steps] == (terminated & ~done).tolist()
        done |= terminated
        if terminated.any():
            world.reset(options={"reset_mask": terminated})
    np.testing.assert_allclose(returns, expected, atol=1e-5)


def test_the_horizon_is_100_and_cuts() -> None:
    world = make(64, AutoresetMode.SAME_STEP, smallest=25)
    world.reset()
    for t in range(1, 101):
        _, rewards, terminated, truncated, _ = world.step(np.full(64, NORTH))  # never reached: the goal lies south
        assert not terminated.any() and truncated.tolist() == [t == 100] * 64
        assert set(np.round(rewards, 2).tolist()) <= {-1.0, np.float32(-0.01).round(2).item()}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"smallest": 9, "largest": 7}, "smallest 9 exceeds largest 7"),
        ({"smallest": 3}, "greater than or equal to 5"),
        ({"largets": 9}, "did you mean 'largest'"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        registry.tasks("random_maze", options, "train")
