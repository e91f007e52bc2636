"""Dark-Room: find an unseen goal cell of an empty room and stay on it (RA-DT, arXiv 2410.07071, section 4.1; AD).

The agent sees its own (row, column) only, starts at the top left, and is paid 1 for every step after which it stands on
the goal. An episode lasts as many steps as the room has cells. What differs from upstream (MiniHack
``MiniHack-Room-Dark-Dense-*``), and why:

- ``final_step_reward: normal`` pays at the last step as at any other. Upstream checks its step limit before the reward,
  so nothing is paid there: ``zero`` gives that, to compare with published numbers (it costs a policy 1 at most).
- ``start_when_goal_is_start: random`` (the default, as upstream): where the goal is the start cell, each episode starts
  at a random other cell (NetHack places the player on plain floor, and the goal took the place of the stairs).
  ``fixed`` starts on the goal, which makes that task trivial: standing still is optimal.
- The room is plain arithmetic on numpy arrays; MiniHack is not needed. Observations are int16 (upstream: uint8).
- The end at the horizon is ``truncated``: nothing in the observation tells the agent that it is near.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
from gymnasium.spaces import Box, Discrete
from pydantic import Field

from recollect.environments.base import BaseWorld, Outcome, Task, WorldOptions
from recollect.environments.scene import Mark, Scene, rows_and_columns

GYMNASIUM_IDS: dict[str, dict] = {"recollect/DarkRoom-v0": {}}
# Actions 0..4: north, east, south, west, stay, as changes of (row, column).
ACTIONS = ("north", "east", "south", "west", "stay")
MOVES_A2 = np.array([(-1, 0), (0, 1), (1, 0), (0, -1), (0, 0)], dtype=np.int16)
GOAL_SEED = 43  # seed of the published goal lists (and of the doors of Key-Door)
LARGEST_GOAL_SEED = 2**32 - 1  # of numpy's legacy generator
TASK_COUNT = 100  # of which the last fifth is held out


class Options(WorldOptions):
    """width, height: of the room, in cells.
    horizon: steps of an episode; None: width * height, as published (100, 400, 800).
    final_step_reward: "normal", or "zero" as upstream.
    start_when_goal_is_start: "random" as upstream, or "fixed".
    goal_seed: of the permutation of cells that gives the tasks and their split; 43 is the published list, any other one
        gives other goals to train on and others that are held out.
    """

    width: int = Field(default=10, ge=1, le=4096)
    height: int = Field(default=10, ge=1, le=4096)
    horizon: int | None = Field(default=None, ge=1)
    final_step_reward: Literal["normal", "zero"] = "normal"
    start_when_goal_is_start: Literal["random", "fixed"] = "random"
    goal_seed: int = Field(default=GOAL_SEED, ge=0, le=LARGEST_GOAL_SEED)

    @property
    def steps(self) -> int:
        return self.width * self.height if self.horizon is None else self.horizon

    @property
    def paid_steps(self) -> int:
        """Steps of an episode that can pay."""
        return self.steps - (self.final_step_reward == "zero")


def published_cells(seed: int, width: int, height: int) -> list[tuple[int, int]]:
    """The first 100 cells (x, y), at most, of a shuffle; of seed 43 the goals of RA-DT's released tasks.

    Numpy's legacy ``RandomState(seed)`` permutes the cells, listed column by column.
    """
    order = np.random.RandomState(seed).permutation(width * height)[:TASK_COUNT]
    return [(int(cell) // height, int(cell) % height) for cell in order]


def split_range(split: str, count: int) -> range:
    """Which of ``count`` tasks a split holds: the first 80 % for "train" (80 of 100), the others for "eval"."""
    train = count * 4 // 5
    return range(train) if split == "train" else range(train, count)


def tasks(split: str, **options: Any) -> list[Task]:
    """The tasks of a split: ``data["goal"]`` is (x, y) = (column, row). 80 train and 20 eval; fewer in a small room."""
    room = Options.parse(options, "dark_room", split)
    goals = published_cells(room.goal_seed, room.width, room.height)
    numbers = split_range(split, len(goals))
    return [Task(i, f"goal_x{goals[n][0]}_y{goals[n][1]}", split, {"goal": goals[n]}) for i, n in enumerate(numbers)]


def scene(task: Task, **options: Any) -> Scene:
    room = Options.parse(options, "dark_room")
    x, y = task.data["goal"]
    return Scene(room.height, room.width, (Mark("goal", y, x),), ACTIONS, rows_and_columns)


def packed(cell_N2: np.ndarray) -> np.ndarray:
    """Pairs of int16 read as one int32 each, int32 [N], a view: one comparison tests a cell."""
    return cell_N2.view(np.int32)[:, 0]


class DarkRoom(BaseWorld):
    """Observations: int16 [B, 2], (row, column). Actions 0 north, 1 east, 2 south, 3 west, 4 stay; walking into the border
    leaves the agent where it is, and the step counts and pays as usual.
    """

    _goal_key: ClassVar[str] = "goal"  # the entry of a task's data that holds the cell which pays at every step

    options: Options
    options_model = Options

    def _setup(self) -> None:
        room = self.options
        self.horizon = room.steps
        high_2 = np.array([room.height - 1, room.width - 1], dtype=np.int16)
        self.single_observation_space = Box(np.zeros(2, np.int16), high_2, dtype=np.int16)
        self.single_action_space = Discrete(len(ACTIONS))
        self._high_B2 = np.tile(high_2, (self.num_envs, 1))

        # Positions and their packed views share memory, as do steps and theirs.
        self._position_B2 = self._keep_zeros("position", np.int16, 2)
        self._packed_B = packed(self._position_B2)
        self._step_B2 = np.empty_like(self._position_B2)
        self._packed_step_B = packed(self._step_B2)
        self._packed_moves_A = packed(MOVES_A2)
        self._goal_B2 = self._cells_B2(self._goal_key)
        self._packed_goal_B = packed(self._goal_B2)

        # Instances that start at a random cell.
        random = room.start_when_goal_is_start == "random" and room.width * room.height > 1
        self._wandering_B = (self._packed_goal_B == 0) & random

    def _cells_B2(self, key: str) -> np.ndarray:
        """The cells ``data[key]`` of the tasks as (row, column), int16 [B, 2]."""
        room = self.options
        cells = []
        for task in self.tasks:
            x, y = task.data.get(key, (-1, -1))
            if not (0 <= x < room.width and 0 <= y < room.height):
                self._refuse_task(task, f"has no {key} inside the room of {room.width} x {room.height}")
            cells.append((y, x))
        return np.array(cells, dtype=np.int16)

    def _begin(self, index_N: np.ndarray) -> None:
        self._position_B2[index_N] = 0
        wandering_M = index_N[self._wandering_B[index_N]]
        if wandering_M.size:
            # Any cell but the goal, which is cell 0.
            cell_M = 1 + self._draw_integers(wandering_M, self.options.width * self.options.height - 1)
            self._position_B2[wandering_M, 0] = cell_M // self.options.width
            self._position_B2[wandering_M, 1] = cell_M % self.options.width

    def _move(self, actions_B: np.ndarray) -> None:
        np.take(self._packed_moves_A, actions_B, out=self._packed_step_B, mode="clip")
        position_B2 = self._position_B2
        np.add(position_B2, self._step_B2, out=position_B2)
        np.maximum(position_B2, 0, out=position_B2)
        np.minimum(position_B2, self._high_B2, out=position_B2)

    def _advance(self, actions_B: np.ndarray, last_B: np.ndarray | None) -> Outcome:
        self._move(actions_B)
        rewards_B = (self._packed_B == self._packed_goal_B).astype(np.float32)
        if last_B is not None and self.options.final_step_reward == "zero":
            rewards_B[last_B] = 0.0
        return rewards_B, None

    def _observe(self) -> np.ndarray:
        return self._position_B2.copy()

    def picture(self, b: int) -> dict[str, Any]:
        goal = ("goal", *self._goal_B2[b].tolist())
        return {"cells": (self.options.height, self.options.width), "agent": self._position_B2[b], "marks": [goal]}

    def optimal_return(self) -> np.ndarray:
        """Best return of an episode of each instance, float64 [B]; where the start is random, the mean over the cells."""
        room = self.options
        best = []
        for b in range(self.num_envs):
            start_M = np.arange(1, room.width * room.height) if self._wandering_B[b] else np.zeros(1, np.int64)
            start_M2 = np.stack(np.divmod(start_M, room.width), axis=1)
            best.append(self._best_from(start_M2, b).mean())
        return np.array(best, dtype=np.float64)

    def _best_from(self, start_M2: np.ndarray, b: int) -> np.ndarray:
        """Best return from each start cell, [M]: a goal d >= 1 steps away pays from step d on."""
        distance_M = np.abs(start_M2 - self._goal_B2[b]).sum(axis=1)
        return np.maximum(0, self.options.paid_steps - np.maximum(distance_M, 1) + 1)


World = DarkRoom
