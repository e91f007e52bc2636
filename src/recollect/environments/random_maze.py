"""RandomMaze: find the lower right corner of a maze that is new in every episode, seeing 9 x 9 cells (HELM, ICML 2022).

Every episode draws a side of 5 to 25 cells (made odd), a maze and a free cell to start from. A step into the goal pays 1
and ends the episode, one into a wall -1 (the agent stays), any other -0.01; after 100 steps the episode is cut.

- Upstream (RandomMaze-v0, on the package mazelab) draws from numpy's global generator: the run's seed determines it, that of
  an environment nothing. Ours draws from the instance's own stream. The distribution of episodes is the same.
- As upstream, an agent may start on the goal, which pays nothing until it is stepped on; and the goal is drawn over it.

Source: specification 2.3 of HELM.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from pydantic import Field, model_validator

from recollect.environments import counter_rng
from recollect.environments.base import BaseWorld, Outcome, Task, WorldOptions
from recollect.environments.maze_runner import posts_near

GYMNASIUM_IDS: dict[str, dict] = {"recollect/RandomMaze-v0": {}}
VIEW, MARGIN = 9, 4  # cells along a side of an image; walls around a maze, so that images have something to show there
FREE, WALL, GOAL, AGENT = range(4)
SHARE = 0.75  # of walls, and of their length
COLOR_3K = np.array([(224, 224, 224), (160, 160, 160), (51, 255, 51), (51, 153, 255)], dtype=np.uint8).T.copy()
AHEAD = 20  # steps of a wall's growth whose numbers are drawn at once; few walls grow for longer
ACTION_NAMES = ("north", "south", "west", "east")


class Options(WorldOptions):
    """Options of RandomMaze; even sides of a maze become the next odd one."""

    smallest: int = Field(default=5, ge=5)
    largest: int = Field(default=25, le=255)
    horizon: int = Field(default=100, ge=1)

    @model_validator(mode="after")
    def _sizes(self) -> Options:
        if self.smallest > self.largest:
            raise ValueError(f"smallest {self.smallest} exceeds largest {self.largest}")
        return self


def maze(seed: int, side: int) -> np.ndarray:
    """The walls of a maze of a seed, bool [side, side]; `side` is odd.

    Walls begin at random even cells and grow by steps of two cells to a random neighbour, if it is free; else they stay,
    and try again. Number n of wall i is number ``i * (2 + growth) + n`` of the seed's stream: its column, its row, its
    steps. So a wall that can never grow again needs no more numbers, and hardly any of the thousands is drawn.
    """
    border = np.ones((side, side), dtype=bool)
    border[1:-1, 1:-1] = False
    cells = bytearray(border.tobytes())  # plain bytes: thousands of single cells are touched
    near = posts_near(side)
    posts = side // 2 + 1
    growth = int(SHARE * 10 * side)
    ahead = min(AHEAD, growth)
    first_W = np.arange(int(SHARE * (side // 2) ** 2)) * (2 + growth)
    for first, words in zip(first_W, _words(seed, first_W, 2 + ahead).tolist(), strict=True):
        x = 2 * (words[0] * posts >> 32)
        y = 2 * (words[1] * posts >> 32)
        at = y * side + x
        cells[at] = True
        for n in range(2, 2 + growth):
            if n == 2 + ahead:
                words = _words(seed, np.array([first]), 2 + growth)[0].tolist()
            around = near[at]
            to, between = around[words[n] * len(around) >> 32]
            if not cells[to]:
                cells[to] = cells[between] = True
                at = to
            elif all(cells[neighbour] for neighbour, _ in around):
                break  # it can never grow again
    return np.frombuffer(bytes(cells), dtype=bool).reshape(side, side)


def _words(seed: int, first_W: np.ndarray, count: int) -> np.ndarray:
    """Numbers of 32 bits of a seed's stream: ``count`` from each of ``first_W`` on, uint64 [W, count]."""
    counter_N = (first_W[:, None] + np.arange(count)).ravel().astype(np.uint64)
    drawn_N = counter_rng.draw(np.full(counter_N.size, seed, dtype=np.uint64), counter_N)
    return (drawn_N >> np.uint64(32)).reshape(-1, count)


def tasks(split: str, **options: Any) -> list[Task]:
    """One task, in both splits: everything is drawn anew in every episode."""
    Options.parse(options, "random_maze", split)
    return [Task(0, "random_maze", split)]


class RandomMaze(BaseWorld):
    """Observations: uint8 [B, 3, 9, 9], one pixel per cell, the agent in the middle; walls hide nothing. Actions: 0 north,
    1 south, 2 west, 3 east. Where episodes end, ``info["success"]`` (bool [B]) says which of them reached the goal.
    """

    options: Options
    options_model = Options

    def _setup(self) -> None:
        rules = self.options
        self.horizon = rules.horizon
        self.single_observation_space = Box(0, 255, (3, VIEW, VIEW), np.uint8)
        self.single_action_space = Discrete(len(ACTION_NAMES))
        width = _odd(rules.largest) + 2 * MARGIN
        cells = width**2
        first_inside = MARGIN * (width + 1)
        self._width = width
        self._board_BC = self._keep("board", np.full((self.num_envs, cells), WALL, dtype=np.uint8))
        self._position_B = self._keep("position", np.full(self.num_envs, first_inside, dtype=np.int32))
        # All boards in one row: cell c of instance b is number origin[b] + c. (A view: the state is written in place.)
        self._cells = self._board_BC.reshape(-1)
        self._origin_B = self._row_B * cells
        # Moves, and the cells that are seen, as changes of the cell's number.
        self._moves_A = np.array([-width, width, -1, 1], dtype=np.int32)
        reach = np.arange(-MARGIN, MARGIN + 1)
        self._window_K = (reach[:, None] * width + reach).ravel()

    def _begin(self, index_N: np.ndarray) -> None:
        rules = self.options
        sides = rules.largest - rules.smallest + 1
        side_N = _odd(rules.smallest + self._draw_integers(index_N, sides))
        seed_N = self._draw_integers(index_N, 2**31)
        free_cells = []
        for b, side, seed in zip(index_N.tolist(), side_N.tolist(), seed_N.tolist(), strict=True):
            self._board_BC[b] = WALL
            board = self._board_BC[b].reshape(self._width, self._width)
            inside = board[MARGIN : MARGIN + side, MARGIN : MARGIN + side]
            inside[:] = maze(seed, side)
            free_cells.append(np.flatnonzero(self._board_BC[b] == FREE))
            inside[-2, -2] = GOAL
        count_N = np.array([len(free) for free in free_cells])
        chosen_N = self._draw_integers(index_N, count_N)
        for b, free, chosen in zip(index_N, free_cells, chosen_N, strict=True):
            self._position_B[b] = free[chosen]

    def _advance(self, actions_B: np.ndarray, last_B: np.ndarray | None) -> Outcome:
        target_B = self._position_B + self._moves_A.take(actions_B)
        there_B = self._cells.take(self._origin_B + target_B)
        blocked_B = there_B == WALL
        np.copyto(self._position_B, target_B, where=~blocked_B)
        rewards_B = np.where(blocked_B, np.float32(-1), np.float32(-0.01))
        reached_B = there_B == GOAL
        rewards_B[reached_B] = 1
        self._success_B = reached_B
        return rewards_B, reached_B

    def _observe(self) -> np.ndarray:
        seen_BK = self._cells.take((self._origin_B + self._position_B)[:, None] + self._window_K)
        middle_B = seen_BK[:, len(self._window_K) // 2]
        np.copyto(middle_B, AGENT, where=middle_B != GOAL, casting="unsafe")
        images_B3K = np.stack([color_K.take(seen_BK) for color_K in COLOR_3K], axis=1)
        return images_B3K.reshape(self.num_envs, 3, VIEW, VIEW)

    def picture(self, b: int) -> dict[str, Any]:
        board_YX = self._board_BC[b].reshape(self._width, -1)[MARGIN:-MARGIN, MARGIN:-MARGIN]
        row, column = divmod(int(self._position_B[b]), self._width)
        colors = COLOR_3K[:, board_YX].transpose(1, 2, 0)
        return {"cells": board_YX.shape, "agent": (row - MARGIN, column - MARGIN), "colors": colors}


def _odd(side: Any) -> Any:
    return side // 2 * 2 + 1


World = RandomMaze
