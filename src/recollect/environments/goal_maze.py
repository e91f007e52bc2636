"""MazeRunner with goals that are told: a new maze and k goals in every rollout, to be reached in order (AMAGO, spec 4.4).

Mazes, goals and moves are those of :mod:`recollect.environments.maze_runner`, which come from AMAGO. What is different: a
maze is drawn anew for each rollout, from the seeds of the split, and the observation ends with the goal sequence:
K slots of (row, column), padded in front (:mod:`recollect.environments.goal_sequences`), so that hindsight can put other goals
there. What each step achieved is the cell that it ended on: `info["achieved"]`, [B, 1, 2], at every step.

What differs from upstream, and why:

- Mazes of the two splits are apart: even seeds below 2^31 for train, odd ones for eval (upstream: any, unseeded).
- A goal is reached by a step that ends on it, so one under one's feet needs a step that stays (as upstream).
- The end at the horizon is `truncated` (older upstream: `done` as well; newer: `terminated`): see `limit_terminates`.
- `timer` appends step / horizon, as newer upstream; the older one has the time beside the observation.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from pydantic import Field

from recollect.environments import maze_runner
from recollect.environments.base import BaseWorld, Outcome, Task
from recollect.environments.goal_sequences import GoalPart, Shown
from recollect.environments.maze_runner import MOVES_A2, maze, tables

GYMNASIUM_IDS: dict[str, dict] = {"recollect/GoalMazeRunner-v0": {}}
SEEN = 6  # entries of an observation that are MazeRunner's own


class Options(maze_runner.MazeOptions):
    """hide_future: only the current goal and those completed are shown (`hide_full_plan`).
    goals_shown: as they are `after` the step that led to an observation, or `before` it, as by AMAGO's seed code: there a goal
        that a step completed is seen as completed one step later.
    timer: append step / horizon to what MazeRunner shows, in front of the goals.
    limit_terminates: the end at the horizon is `terminated`, so that nothing is bootstrapped past it.
    randomize_actions: the five actions are shuffled for each rollout.
    mazes: how many different mazes are drawn from; 0: ever new ones.
    """

    hide_future: bool = False
    goals_shown: Shown = "after"
    timer: bool = False
    limit_terminates: bool = False
    randomize_actions: bool = False
    mazes: int = Field(default=0, ge=0, le=2**30)


def tasks(split: str, **options: Any) -> list[Task]:
    """One task: the maze is drawn anew for every rollout."""
    runner = Options.parse(options, "goal_maze", split)
    return [Task(0, f"any_{runner.side}x{runner.side}", split)]


@lru_cache(maxsize=256)
def made(seed: int, options: Options) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of a maze: where actions lead [cells, A], what is seen [cells, 6], goals [K, 2] (NaN behind the last)."""
    goals_K2 = np.full((options.most_goals, 2), np.nan, np.float32)
    cells = maze_runner.goals(seed, options)
    goals_K2[: len(cells)] = cells
    return (*tables(maze(seed, options.side)), goals_K2)


class GoalMaze(BaseWorld):
    """Observations: float32 [B, 6 (+ 1) + 2 K]: row, column and free cells to the west, north, east and south, over the
    side; (the timer;) then K goals as (row, column) in cells. Actions: 0 west, 1 north, 2 east, 3 south, 4 stay.
    Where episodes end, ``info["success"]`` says which reached the last goal.
    """

    options: Options
    options_model = Options

    def _setup(self) -> None:
        runner = self.options
        self.horizon_terminates = runner.limit_terminates  # type: ignore[misc]
        self.horizon = runner.horizon
        # What the maze shows (and the timer), and behind it the goals.
        K, side = runner.most_goals, runner.side
        own = SEEN + runner.timer
        size = own + 2 * K
        self.goal_part = GoalPart(
            slice(own, size), K, 2, hide_future=runner.hide_future, before=runner.goals_shown == "before"
        )
        low_D = np.zeros(size, np.float32)
        low_D[own:] = -3
        high_D = np.ones(size, np.float32)
        high_D[own:] = side
        self.single_observation_space = Box(low_D, high_D, dtype=np.float32)
        self.single_action_space = Discrete(len(MOVES_A2))

        B = self.num_envs
        start = runner.start[0] * side + runner.start[1]
        self._odd_B = np.array([task.split == "eval" for task in self.tasks])
        self._maze_B = self._keep_zeros("maze", np.int64)
        self._cell_B = self._keep("cell", np.full(B, start, np.int64))
        self._reached_B = self._keep_zeros("reached", np.int64)
        self._before_B = self._keep_zeros("reached_before", np.int64)  # the last step
        self._action_BA = self._keep("actions", np.tile(np.arange(5), (B, 1)))
        # Of each instance's maze; made again from its number by set_state.
        self._next_BCA = np.zeros((B, side**2, len(MOVES_A2)), np.int32)
        self._seen_BC6 = np.zeros((B, side**2, SEEN), np.float32)
        self._goals_BK2 = np.full((B, K, 2), np.nan, np.float32)

    def goals(self) -> np.ndarray:
        """The goal sequences of the instances, float32 [B, K, 2], NaN behind the last."""
        return self._goals_BK2.copy()

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        super().set_state(state)
        self._load(self._row_B)

    def _begin(self, index_N: np.ndarray) -> None:
        runner = self.options
        drawn_N = self._draw_integers(index_N, runner.mazes or 2**30)
        self._maze_B[index_N] = 2 * drawn_N + self._odd_B[index_N]
        self._cell_B[index_N] = runner.start[0] * runner.side + runner.start[1]
        self._reached_B[index_N] = self._before_B[index_N] = 0
        if runner.randomize_actions:
            self._shuffle_rows(self._action_BA, index_N)
        self._load(index_N)

    def _load(self, index_N: np.ndarray) -> None:
        for b in index_N.tolist():
            self._next_BCA[b], self._seen_BC6[b], self._goals_BK2[b] = made(int(self._maze_B[b]), self.options)
        self._count_B = (~np.isnan(self._goals_BK2[..., 0])).sum(1)

    def _advance(self, actions_B: np.ndarray, last_B: np.ndarray | None) -> Outcome:
        move_B = self._action_BA[self._row_B, actions_B]
        self._cell_B[:] = self._next_BCA[self._row_B, self._cell_B, move_B]
        at_B2 = np.stack(np.divmod(self._cell_B, self.options.side), -1)
        wanted_B2 = self._goals_BK2[self._row_B, self._reached_B]
        hit_B = (at_B2 == wanted_B2).all(1)
        self._before_B[:] = self._reached_B
        self._reached_B += hit_B
        self._achieved_BMG = at_B2[:, None].astype(np.float32)
        self._success_B = self._reached_B == self._count_B
        return hit_B.astype(np.float32), self._success_B

    def _observe(self) -> np.ndarray:
        parts = [self._seen_BC6[self._row_B, self._cell_B]]
        if self.options.timer:
            parts.append((self._timestep_B / self.horizon)[:, None])
        reached_B = self._before_B if self.goal_part.before else self._reached_B
        parts.append(self.goal_part.show(self._goals_BK2, reached_B))
        return np.concatenate(parts, 1, dtype=np.float32)

    def picture(self, b: int) -> dict[str, Any]:
        side, reached = self.options.side, int(self._reached_B[b])
        told_K2 = self._goals_BK2[b]
        goals = [(f"goal {i}", *cell) for i, cell in enumerate(told_K2[~np.isnan(told_K2[:, 0])].tolist(), 1)]
        return {
            "cells": (side, side),
            "agent": divmod(int(self._cell_B[b]), side),
            "marks": goals[reached:],
            "faint": goals[:reached],
            "walls": maze(int(self._maze_B[b]), side),
        }


World = GoalMaze
