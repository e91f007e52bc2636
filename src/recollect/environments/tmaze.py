"""T-Maze: remember a sign seen early, and turn to its side at the end of a corridor (Memory-RL, arXiv 2307.03864).

Passive: the first observation shows the sign; memory length is the horizon, credit assignment length is 1. Active: the
sign hangs one cell behind the start and must be fetched first, so memory and credit assignment are about the horizon.
Staying behind the pace of the optimal walk costs 1/length per step; the right side at the last step pays 1.

- The horizon is length + 1 (passive) and length + 3 (active), and the late penalty -1/length, as in the released code.
  The paper's text has another active corridor length and penalty; the code made its figures.
- ``terminated`` is set at the horizon: as in the released code, nothing is bootstrapped past it.
- `late: not_right` is AMAGO's reward (specification 4.9 of AMAGO): a step other than "right" costs, wherever the agent is. The
  steps that the way back to the sign takes are free, as in its code (`TMazeAlt.reward_fn`).
- The side is drawn from the instance's own stream; upstream draws it from numpy's global generator.
- `carried: true` is ours, for small scales: in the corridor every action moves right, so that only the turn is learned.
- The ``expose_*`` options append entries to the observation, scaled to [-1, 1]; upstream puts some of them, unscaled, in
  the place of its entries. The released configs use none of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self

import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode
from pydantic import Field, model_validator

from recollect.environments.base import BaseWorld, Outcome, Task, WorldOptions
from recollect.environments.scene import Mark, Scene

GYMNASIUM_IDS: dict[str, dict] = {
    "recollect/TMazePassive-v0": {"variant": "passive"},
    "recollect/TMazeActive-v0": {"variant": "active"},
}
# Actions 0..3: right, up, left, down.
MOVE_X_A = np.array([1, 0, -1, 0], dtype=np.int32)
MOVE_Y_A = np.array([0, 1, 0, -1], dtype=np.int32)
_MOVE_X, _MOVE_Y = MOVE_X_A.tolist(), MOVE_Y_A.tolist()


class Options(WorldOptions):
    """variant: "passive" (the sign is at the start) or "active" (the sign is one cell behind it).
    length: cells from the start to the junction, the length knob of the paper's figures.
    oracle_length: cells from the start back to the sign; None: 0 for passive, 1 for active.
    goal_reward: paid at the last step on the side of the sign.
    horizon: steps of an episode; None: those of the optimal walk, length + 2 * oracle_length + 1.
    late_penalty: added at each earlier step at which the agent is behind the optimal walk; None: -1 / length.
    late: when a step is late: "behind" (the agent is behind the optimal walk) or "not_right" (the action is not right,
        after the first `oracle_length` steps).
    distract_reward: added at each step but the last at which the agent stands at the sign's cell.
    carried: in the corridor every action moves right, so that an episode asks for memory alone. Passive only. Agents should not
        be told their last action: as it does nothing there, it can hold the sign.
    expose_goal: append the side (-1 or +1) to every observation once the sign was seen; 0 before.
    expose_position: append x / junction and y.
    expose_timestep: append t / horizon.
    """

    variant: Literal["passive", "active"] = "passive"
    length: int = Field(default=10, ge=1, le=2**24)
    oracle_length: int | None = Field(default=None, ge=0, le=2**24)
    horizon: int | None = Field(default=None, ge=1)
    goal_reward: float = 1.0
    late_penalty: float | None = None
    late: Literal["behind", "not_right"] = "behind"
    distract_reward: float = 0.0
    carried: bool = False
    expose_goal: bool = False
    expose_position: bool = False
    expose_timestep: bool = False

    @model_validator(mode="after")
    def _nothing_to_fetch(self) -> Self:
        if self.carried and self.back:
            raise ValueError("carried: true needs a sign at the start (variant: passive), for nobody walks back to it")
        return self

    @property
    def back(self) -> int:
        """Cells from the start back to the sign."""
        return int(self.variant == "active") if self.oracle_length is None else self.oracle_length

    @property
    def penalty(self) -> float:
        return -1.0 / self.length if self.late_penalty is None else self.late_penalty


def tasks(split: str, **options: Any) -> list[Task]:
    """One task, in both splits: the side of the goal is drawn anew in every episode."""
    maze = Options.parse(options, "tmaze", split)
    return [Task(0, f"{maze.variant}_{maze.length}", split)]


def scene(task: Task, **options: Any) -> Scene:
    """The corridor in the middle row. Which of the two goals pays is drawn in each episode; where agents stand follows from
    their actions, because observations in the corridor are alike."""
    maze = Options.parse(options, "tmaze")
    junction = maze.back + maze.length
    marks = (Mark("sign", 1, 0), Mark("goal", 0, junction), Mark("goal", 2, junction))
    walls = tuple((row, column) for row in (0, 2) for column in range(junction))

    def cells_of(action_N: np.ndarray) -> np.ndarray:
        x, y = maze.back, 0
        cells = []
        for action in action_N.tolist():
            cells.append((1 - y, x))
            if maze.carried and x < junction:
                x += 1
                continue
            if y == 0:
                x = min(max(x + int(MOVE_X_A[action]), 0), junction)
            if x == junction and not MOVE_X_A[action]:
                y = min(max(y + int(MOVE_Y_A[action]), -1), 1)
        return np.array(cells, np.int64).reshape(-1, 2)

    return Scene(3, junction + 1, marks, ("right", "up", "left", "down"), cells_of, walls, by_actions=True)


class TMaze(BaseWorld):
    """Observations: float32 [B, 2 + exposed entries]. Entry 0 is 1 at the junction and on the goals, else 0. Entry 1 is
    the side of the goal the first time in an episode that the sign's cell is observed; it is y at the junction and on
    the goals, and else 0.
    Actions: 0 right, 1 up, 2 left, 3 down; walking into a wall leaves the agent where it is.
    """

    horizon_terminates = True
    options: Options
    options_model = Options

    def _setup(self) -> None:
        maze = self.options
        self._junction = maze.back + maze.length
        size = 2 + maze.expose_goal + 2 * maze.expose_position + maze.expose_timestep
        self.horizon = maze.horizon or maze.length + 2 * maze.back + 1
        self.single_observation_space = Box(-1.0, 1.0, (size,), np.float32)
        self.single_action_space = Discrete(4)
        self._penalty, self._back = np.float32(maze.penalty), maze.back
        self._is_alone = self.num_envs == 1 and self.autoreset_mode is AutoresetMode.DISABLED
        self._x_B = self._keep_zeros("x", np.int32)
        self._y_B = self._keep_zeros("y", np.int32)
        self._goal_B = self._keep("goal", np.ones(self.num_envs, dtype=np.int32))
        # The sign is shown once: where it was seen at an earlier step, and where it shows at this one.
        self._seen_B = self._keep_zeros("sign_seen", bool)
        self._showing_B = self._keep_zeros("sign_showing", bool)

    def _begin(self, index_N: np.ndarray) -> None:
        self._x_B[index_N] = self.options.back
        self._y_B[index_N] = 0
        self._goal_B[index_N] = 2 * self._draw_integers(index_N, 2) - 1
        self._seen_B[index_N] = self._showing_B[index_N] = self.options.back == 0

    def _advance(self, actions_B: np.ndarray, last_B: np.ndarray | None) -> Outcome:
        x_B, y_B, maze = self._x_B, self._y_B, self.options
        # In the corridor one moves along x, at the junction's column along y; everything else is wall.
        step_x_B = MOVE_X_A.take(actions_B) * (y_B == 0)
        if maze.carried:
            step_x_B[x_B < self._junction] = 1
        step_y_B = MOVE_Y_A.take(actions_B) * (x_B == self._junction)
        x_B += step_x_B
        y_B += step_y_B
        np.clip(x_B, 0, self._junction, out=x_B)
        np.clip(y_B, -1, 1, out=y_B)

        at_sign_B = x_B == 0
        np.greater(at_sign_B, self._seen_B, out=self._showing_B)
        self._seen_B |= at_sign_B

        clock_B = self._timestep_B
        late_B = x_B < clock_B - maze.back if maze.late == "behind" else (actions_B != 0) & (clock_B > maze.back)
        rewards_B = np.where(late_B, np.float32(maze.penalty), np.float32(0.0))
        if maze.distract_reward:
            rewards_B[at_sign_B] += np.float32(maze.distract_reward)
        if last_B is not None:
            rewards_B[last_B] = (y_B == self._goal_B)[last_B] * np.float32(maze.goal_reward)
        return rewards_B, None

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        if not self._is_alone or self._any_ended:
            return super().step(actions)
        action = -1
        if isinstance(actions, np.ndarray) and actions.shape == (1,) and actions.dtype.kind in "iu":
            action = actions.item()
        return self._step_one(action if 0 <= action < 4 else self._check_actions(actions).item())

    def _step_one(self, action: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """`step` of a single maze in plain numbers, to the bit: numpy's calls cost more than the walk."""
        maze, junction = self.options, self._junction
        x, y, t = self._x_B.item(), self._y_B.item(), self._timestep_B.item() + 1
        goal, seen = self._goal_B.item(), self._seen_B.item()
        in_corridor, at_junction = y == 0, x == junction
        if in_corridor:
            x = x + 1 if maze.carried and not at_junction else min(max(x + _MOVE_X[action], 0), junction)
        if at_junction:
            y = min(max(y + _MOVE_Y[action], -1), 1)
        at_sign = x == 0
        showing = at_sign and not seen
        seen = seen or at_sign
        self._x_B[0], self._y_B[0], self._timestep_B[0] = x, y, t
        self._seen_B[0], self._showing_B[0] = seen, showing
        self._steps_to_end -= 1

        last = t >= self.horizon
        if last:
            reward = np.float32(maze.goal_reward if y == goal else 0.0)
            self._ended_B[0] = self._any_ended = True
        else:
            late = x < t - self._back if maze.late == "behind" else action != 0 and t > self._back
            reward = self._penalty if late else np.float32(0.0)
            if maze.distract_reward and at_sign:
                reward = reward + np.float32(maze.distract_reward)
        seen_now = [float(x == junction), float(y + goal * showing)]
        if maze.expose_goal:
            seen_now.append(float(goal * seen))
        if maze.expose_position:
            seen_now += [x / junction, float(y)]
        if maze.expose_timestep:
            seen_now.append(t / self.horizon)
        observation = np.array([seen_now], np.float32)
        return observation, np.array([reward], np.float32), np.array([last]), np.zeros(1, bool), {}

    def _observe(self) -> np.ndarray:
        maze = self.options
        at_end_B = self._x_B == self._junction
        # y is 0 in the corridor, and the sign never hangs at the junction, so the second entry never holds both.
        parts = [at_end_B, self._y_B + self._goal_B * self._showing_B]
        if maze.expose_goal:
            parts.append(self._goal_B * self._seen_B)
        if maze.expose_position:
            parts.append(self._x_B / self._junction)
            parts.append(self._y_B)
        if maze.expose_timestep:
            parts.append(self._timestep_B / self.horizon)
        return np.stack(parts, axis=1, dtype=np.float32)

    def on_device(self, worlds: Sequence[BaseWorld], device: Any) -> Any:
        from recollect.environments.tmaze_on_device import TMazeOnDevice  # torch, which no walk on the host needs

        return TMazeOnDevice(worlds, np.stack([MOVE_X_A, MOVE_Y_A]), device)

    @property
    def _standing(self) -> tuple[np.ndarray, ...]:
        return self._x_B, self._y_B, self._goal_B, self._seen_B, self._showing_B

    def stands(self) -> np.ndarray:
        """int64 [5, B]: x, y, the goal's side, whether the sign was seen before, and whether it shows now."""
        return np.stack(self._standing).astype(np.int64)

    def has_ended(self, stands_5B: np.ndarray) -> None:
        """All episodes ended where others have played them to (`tmaze_on_device`); see `stands`."""
        for own, one in zip(self._standing, stands_5B, strict=True):
            own[:] = one
        self._timestep_B[:], self._ended_B[:] = self.horizon, True
        self._recount()

    def picture(self, b: int) -> dict[str, Any]:
        junction, side = self._junction, int(self._goal_B[b])
        walls = np.ones((3, junction + 1), dtype=bool)
        walls[1] = walls[:, junction] = False
        return {
            "cells": walls.shape,
            "agent": (1 - int(self._y_B[b]), int(self._x_B[b])),
            "marks": [("sign", 1, 0), ("goal", 1 - side, junction)],
            "faint": [("goal", 1 + side, junction)],
            "walls": walls,
        }

    def optimal_return(self) -> np.ndarray:
        """Of the walk that fetches the sign, keeps pace and turns to its side. Options may make another plan better."""
        maze = self.options
        if maze.distract_reward or maze.penalty > 0 or maze.goal_reward < 0 or maze.horizon is not None:
            return super().optimal_return()
        return np.full(self.num_envs, maze.goal_reward, dtype=np.float64)


World = TMaze
