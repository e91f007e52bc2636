"""MazeRunner: find one to three goals of an unseen maze, in order (RA-DT, arXiv 2410.07071, section 4.2; from AMAGO).

The agent sees where it is and how far it can walk in the four directions; neither the goals nor the maze beyond the walls
in sight are shown. Standing on the goal that is next pays 1; the last goal ends the episode (``terminated``), else the
horizon does (``truncated``). A maze and its goals are a function of one seed, bit for bit those of the release.

- Upstream's list of training environments leaves out seed 41, of which there are data: ``leave_out_seed_41`` does so too.
- The released configuration ends the episode at the last goal (``reward_on_last_goal: False``); its other mode, which
  pays at every step on the last goal, is not built.
- Five actions, as in the code (the paper's text says four). Observations are bounded by [0, 1] (upstream: unbounded).
- A maze becomes tables of where each action leads and of what is seen in each cell: a step is two look-ups.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from pydantic import Field, model_validator

from recollect.environments.base import BaseWorld, Outcome, Task, WorldOptions
from recollect.environments.lazy_tasks import LazyTasks
from recollect.environments.scene import Mark, Scene

GYMNASIUM_IDS: dict[str, dict] = {
    "recollect/MazeRunner-v0": {},
    "recollect/MazeRunner30-v0": {"size": 30, "horizon": 1000},
}
# Actions 0..4: west, north, east, south, stay, as changes of (row, column).
ACTIONS = ("west", "north", "east", "south", "stay")
MOVES_A2 = ((0, -1), (-1, 0), (0, 1), (1, 0), (0, 0))
# Training mazes are seeds 0 to 121 without those on which the published source agent stayed below a return of 0.25.
TOO_HARD = {2, 5, 10, 13, 15, 21, 24, 27, 29, 31, 36, 39, 52, 53, 57, 59, 78, 94, 105, 107, 114, 115}
TRAIN_SEEDS = tuple(seed for seed in range(122) if seed not in TOO_HARD)
EVAL_SEEDS = tuple(range(300, 320))
AMOUNT = 0.75  # of walls, and of their length


class MazeOptions(WorldOptions):
    """size: cells along a side, the border included; an even number is rounded up, as upstream (30 gives 31).
    horizon: steps of an episode at most. Published: 400 for 15 x 15 (AMAGO: 1000 for 30 x 30).
    fewest_goals, most_goals: how many goals a maze has.
    """

    size: int = Field(default=15, ge=6, le=255)
    horizon: int = Field(default=400, ge=1)
    fewest_goals: int = Field(default=1, ge=1)
    most_goals: int = Field(default=3, ge=1, le=9)

    @model_validator(mode="after")
    def _goals_in_order(self) -> MazeOptions:
        if self.fewest_goals > self.most_goals:
            raise ValueError(f"fewest_goals {self.fewest_goals} exceeds most_goals {self.most_goals}")
        return self

    @property
    def side(self) -> int:
        """Cells along a side, an odd number."""
        return self.size // 2 * 2 + 1

    @property
    def start(self) -> tuple[int, int]:
        """Where episodes begin, (row, column): the end of the tunnel at the bottom."""
        return self.side - 2, self.side // 2


class Options(MazeOptions):
    """more_train_mazes: train tasks beyond the published ones, seeds 1000 and up (none published): with few mazes a model
        can learn them by heart.
    leave_out_seed_41: train tasks are upstream's 99 environments instead of the 100 that its data come from.
    """

    more_train_mazes: int = Field(default=0, ge=0, le=100_000)
    leave_out_seed_41: bool = False


def legacy_words(seed: int) -> Iterator[int]:
    """The 32-bit words of numpy's legacy generator ``RandomState(seed)``, whose stream is frozen; drawn in blocks."""
    rng = np.random.RandomState(seed)
    while True:
        yield from rng.randint(0, 2**32, size=8192, dtype=np.uint32).tolist()


def below(bound: int, words: Iterator[int]) -> int:
    """What ``randint(0, bound)`` makes of the next words, for a bound of 2 or more; six times as fast as asking it."""
    mask = (1 << (bound - 1).bit_length()) - 1
    while (word := next(words) & mask) >= bound:
        pass
    return word


@lru_cache
def posts_near(side: int) -> dict[int, list[tuple[int, int]]]:
    """Of each even cell, the even cells next to it (left, right, up, down) and the cells on the way, by number."""
    ways: dict[int, list[tuple[int, int]]] = {}
    for y in range(0, side, 2):
        for x in range(0, side, 2):
            steps = []
            if x > 1:
                steps.append(-1)
            if x < side - 2:
                steps.append(1)
            if y > 1:
                steps.append(-side)
            if y < side - 2:
                steps.append(side)
            at = y * side + x
            ways[at] = [(at + 2 * step, at + step) for step in steps]
    return ways


@lru_cache(maxsize=1024)
def maze(seed: int, side: int) -> np.ndarray:
    """The walls of a maze, bool [side, side] (not to be written): the released generator on numpy's legacy generator.

    Wall by wall: a random even cell, from which the wall grows by random steps of two cells over free ground. Then the
    bottom is cleared, and a tunnel for the start is walled in.
    """
    words = legacy_words(seed)
    border = np.zeros((side, side), dtype=bool)
    border[[0, -1], :] = border[:, [0, -1]] = True
    cells, near = bytearray(border.tobytes()), posts_near(side)  # plain bytes: thousands of single cells are touched
    posts, growth = side // 2 + 1, int(AMOUNT * 10 * side)
    for _ in range(int(AMOUNT * (side // 2) ** 2)):
        x = below(posts, words) * 2
        y = below(posts, words) * 2
        at = y * side + x
        cells[at] = True
        for _ in range(growth):
            around = near[at]
            to, between = around[below(len(around), words)]
            if not cells[to]:
                cells[to] = cells[between] = True
                at = to
    wall = np.frombuffer(bytes(cells), dtype=bool).reshape(side, side).copy()
    wall[side - 5 : side - 1, 1 : side - 1] = False
    wall[side - 4 : side - 1, [side // 2 - 1, side // 2 + 1]] = True
    wall.setflags(write=False)
    return wall


def goals(seed: int, options: MazeOptions) -> list[tuple[int, int]]:
    """The goals (row, column) of a maze in the order in which they must be visited, as released."""
    rng = np.random.RandomState(seed)
    count = rng.randint(options.fewest_goals, options.most_goals + 1)
    free = [cell for cell in np.argwhere(~maze(seed, options.side)).tolist() if tuple(cell) != options.start]
    return [tuple(free[i]) for i in rng.choice(len(free), size=count, replace=False)]


def distances(wall: np.ndarray, start: tuple[int, int]) -> np.ndarray:
    """Steps from a cell to every other, int32 [side, side]; -1 where there is no way."""
    found = np.full(wall.shape, -1, dtype=np.int32)
    edge = np.zeros(wall.shape, dtype=bool)
    edge[start] = True
    steps = 0
    while edge.any():
        found[edge] = steps
        spread = np.zeros_like(edge)  # the border is wall, so nothing is rolled around it
        for axis in (0, 1):
            spread |= np.roll(edge, 1, axis) | np.roll(edge, -1, axis)
        edge = spread & ~wall & (found < 0)
        steps += 1
    return found


def tasks(split: str, **options: Any) -> Sequence[Task]:
    """100 train and 20 eval tasks: ``data["seed"]`` (as published) makes the maze, ``data["goals"]`` are in order."""
    runner = Options.parse(options, "maze_runner", split)
    more = range(1000, 1000 + runner.more_train_mazes)
    seeds = EVAL_SEEDS if split == "eval" else (*TRAIN_SEEDS, *more)
    kept = [seed for seed in seeds if not (runner.leave_out_seed_41 and seed == 41)]

    def task(i: int) -> Task:
        return Task(i, f"maze_{kept[i]}", split, {"seed": kept[i], "goals": tuple(goals(kept[i], runner))})

    return LazyTasks(len(kept), task)


def scene(task: Task, **options: Any) -> Scene:
    """The maze from above; several goals are numbered in their order."""
    side = Options.parse(options, "maze_runner").side
    cells = task.data["goals"]
    marks = []
    for number, (row, column) in enumerate(cells, start=1):
        name = "goal" if len(cells) == 1 else f"goal {number}"
        marks.append(Mark(name, row, column))
    walls = tuple((row, column) for row, column in np.argwhere(maze(task.data["seed"], side)).tolist())

    def cells_of(seen_ND: np.ndarray) -> np.ndarray:
        return np.rint(seen_ND[:, :2] * side).astype(np.int64)

    return Scene(side, side, tuple(marks), ACTIONS, cells_of, walls)


class MazeRunner(BaseWorld):
    """Observations: float32 [B, 6], over the side: row, column, and the number of free cells before the next wall to the
    west, north, east and south. Actions: 0 west, 1 north, 2 east, 3 south, 4 stay; a wall leaves the agent where it is.
    Where episodes end, ``info["success"]`` (bool [B]) says which of them reached the last goal.
    """

    options: Options
    options_model = Options

    def _setup(self) -> None:
        runner = self.options
        self.horizon = runner.horizon
        self.single_observation_space = Box(0.0, 1.0, (6,), np.float32)
        self.single_action_space = Discrete(len(MOVES_A2))
        side = runner.side
        self._start = runner.start[0] * side + runner.start[1]
        goals_of_task = [self._goals(task) for task in self.tasks]

        # The tables of all mazes stand below each other; `_maze_B` is the row of cell 0 of an instance's maze.
        seeds = sorted({int(task.data["seed"]) for task in self.tasks})
        next_MCA, seen_MC6 = [], []
        for seed in seeds:
            next_CA, seen_C6 = tables(maze(seed, side))
            next_MCA.append(next_CA)
            seen_MC6.append(seen_C6)
        self._next_CA = np.concatenate(next_MCA)
        self._seen_C6 = np.concatenate(seen_MC6)
        self._maze_B = np.array([seeds.index(task.data["seed"]) for task in self.tasks]) * side**2

        # The goals of all instances in one row, each instance's ended by a -1, which is no cell.
        self._count_B = np.array([len(goals) for goals in goals_of_task], dtype=np.int32)
        most = int(self._count_B.max())
        goal_BG = np.full((self.num_envs, most + 1), -1, dtype=np.int32)
        for b, goals in enumerate(goals_of_task):
            goal_BG[b, : len(goals)] = [row * side + column for row, column in goals]
        self._goal_N = goal_BG.reshape(-1)
        self._first_goal_B = self._row_B * (most + 1)

        self._cell_B = self._keep("cell", np.full(self.num_envs, self._start, dtype=np.int32))
        self._reached_B = self._keep_zeros("reached", np.int32)

    def _goals(self, task: Task) -> tuple[tuple[int, int], ...]:
        """The goals of a task, each on a free cell of its maze."""
        side = self.options.side
        cells = tuple(task.data.get("goals", ()))
        known = bool(cells) and "seed" in task.data
        inside = all(0 <= row < side and 0 <= column < side for row, column in cells)
        if not known or not inside or any(maze(task.data["seed"], side)[cell] for cell in cells):
            self._refuse_task(task, f"has no goals on free cells of a maze of {side} x {side}")
        return cells

    def _begin(self, index_N: np.ndarray) -> None:
        self._cell_B[index_N] = self._start
        self._reached_B[index_N] = 0

    def _advance(self, actions_B: np.ndarray, last_B: np.ndarray | None) -> Outcome:
        self._cell_B[:] = self._next_CA.take((self._maze_B + self._cell_B) * len(MOVES_A2) + actions_B)
        hit_B = self._cell_B == self._goal_N.take(self._first_goal_B + self._reached_B)
        self._reached_B += hit_B
        self._success_B = self._reached_B == self._count_B
        return hit_B.astype(np.float32), self._success_B

    def _observe(self) -> np.ndarray:
        return self._seen_C6.take(self._maze_B + self._cell_B, axis=0)

    def picture(self, b: int) -> dict[str, Any]:
        task, side, reached = self.tasks[b], self.options.side, int(self._reached_B[b])
        goals = [(f"goal {i}", *cell) for i, cell in enumerate(self._goals(task), 1)]
        return {
            "cells": (side, side),
            "agent": divmod(int(self._cell_B[b]), side),
            "marks": goals[reached:],
            "faint": goals[:reached],
            "walls": maze(task.data["seed"], side),
        }

    def shortest_ways(self) -> np.ndarray:
        """Actions on a shortest way to each goal, bool [B, G, cells, A]; on it: to stay, without a way: all."""
        side = self.options.side
        goals = int(self._count_B.max())
        ways_BGCA = np.ones((self.num_envs, goals, side**2, len(MOVES_A2)), dtype=bool)
        for b, task in enumerate(self.tasks):
            first = self._maze_B[b]
            next_CA = self._next_CA[first : first + side**2]
            wall = maze(task.data["seed"], side)
            for g, goal in enumerate(self._goals(task)):
                steps_C = distances(wall, goal).ravel()
                known_C = steps_C >= 0
                one_less_C = np.maximum(steps_C - 1, 0)
                nearer_CA = steps_C[next_CA] == one_less_C[:, None]
                ways_BGCA[b, g, known_C] = nearer_CA[known_C]
        return ways_BGCA

    def optimal_return(self) -> np.ndarray:
        """Goals that the shortest way through them reaches before the horizon; in published mazes all."""
        best = []
        for task in self.tasks:
            wall = maze(task.data["seed"], self.options.side)
            at = self.options.start
            steps = 0
            reached = 0
            for goal in self._goals(task):
                leg = int(distances(wall, at)[goal])
                # A goal under one's feet is reached by a step that stays there.
                steps += max(leg, 1)
                at = goal
                if leg < 0 or steps > self.horizon:
                    break
                reached += 1
            best.append(reached)
        return np.array(best, dtype=np.float64)


def tables(wall: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of each cell: where each action leads, int32 [cells, A], and what is seen there, float32 [cells, 6]."""
    side = len(wall)
    row_YX, column_YX = np.indices(wall.shape)
    cell_YX = row_YX * side + column_YX
    next_YXA = np.empty((*wall.shape, len(MOVES_A2)), dtype=np.int32)
    free_YX4 = np.zeros((*wall.shape, 4), dtype=np.int64)
    for action, (down, right) in enumerate(MOVES_A2):
        to_row_YX = np.clip(row_YX + down, 0, side - 1)
        to_column_YX = np.clip(column_YX + right, 0, side - 1)
        blocked_YX = wall[to_row_YX, to_column_YX]
        next_YXA[..., action] = np.where(blocked_YX, cell_YX, to_row_YX * side + to_column_YX)
        if action == 4:
            continue  # to stay is no direction
        # A cell sees one more free cell than its neighbour does, until there is a wall.
        for _ in range(side):
            beyond_YX = free_YX4[to_row_YX, to_column_YX, action]
            free_YX4[..., action] = np.where(blocked_YX, 0, 1 + beyond_YX)
    place_YX2 = np.stack([row_YX, column_YX], -1)
    seen_YX6 = np.concatenate([place_YX2, free_YX4], axis=-1) / side
    return next_YXA.reshape(side**2, -1), seen_YX6.reshape(side**2, 6).astype(np.float32)


World = MazeRunner
