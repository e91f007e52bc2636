"""Meta frozen lake: k attempts to cross a lake whose holes are not shown (AMAGO, specification 4.11; its first example).

A lake of N x N has a way from (0, 0) to the goal in the other corner; every other cell is a hole with chance 0.2. Reaching
the goal pays 1 and ends the attempt; a hole ends it (or, in recover mode, costs 0.1 and leaves the agent where it was);
so does its limit of steps. The next attempt begins within the same step, on the same lake. The agent sees (x, y) over
N, whether an attempt begins, and how many are over, of k.

`hard`: in half of the rollouts the moves +x and +y are swapped; with chance 1/4 each seen coordinate is off by -1, 0 or 1;
with chance 1/3 the cell that a move leaves becomes a hole for the rest of the attempt; attempts may last twice as long.

What differs from upstream: the observation that begins an attempt already counts the one that is over (so does AMAGO's seed
code; the newer one counts it from the step after). In `hard` the seed code compares (x, y) with (next y, next y), so it also breaks
the cell of one who stays where x and y differ; the newer one does not. The limit of an attempt and `slip` are the newer one's: the
seed code has none. Lakes are those of gymnasium's generator in distribution, not in random numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from pydantic import Field

from recollect.environments.base import BaseWorld, Outcome, Task, WorldOptions

GYMNASIUM_IDS: dict[str, dict] = {"recollect/MetaFrozenLake-v0": {}}
MOVES_A2 = np.array([(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)], np.int64)  # stay, +x, -x, +y, -y
RECOVERY = -0.1


class Options(WorldOptions):
    """size: N.
    attempts: k.
    attempt_steps: of an attempt at most; null: N * N (hard: twice that), over 1 - slip.
    hard, recover: see the head of the file.
    slip: chance that a move does not happen.
    show_attempt: how many attempts are over is shown; else 0.
    """

    size: int = Field(default=5, ge=2, le=100)
    attempts: int = Field(default=10, ge=1)
    attempt_steps: int | None = Field(default=None, ge=1)
    hard: bool = False
    recover: bool = False
    slip: float = Field(default=0.0, ge=0, lt=1)
    show_attempt: bool = True

    @property
    def longest(self) -> int:
        return self.attempt_steps or int(self.size**2 * (2 if self.hard else 1) / (1 - self.slip))


def tasks(split: str, **options: Any) -> list[Task]:
    """One task: the lake is drawn anew for every rollout."""
    lake = Options.parse(options, "frozen_lake_meta", split)
    return [Task(0, f"any_{lake.size}x{lake.size}", split)]


class FrozenLakeMeta(BaseWorld):
    """Observations: float32 [B, 4]: x, y over N, whether an attempt begins, attempts over k. Actions: 0 stay, 1 +x, 2 -x,
    3 +y, 4 -y. Where rollouts end, ``info["success"]`` is the share of attempts that reached the goal.
    """

    horizon_terminates = True
    options: Options
    options_model = Options

    def _setup(self) -> None:
        lake = self.options
        self.horizon = lake.attempts * lake.longest
        self.single_observation_space = Box(0.0, 1.0, (4,), np.float32)
        self.single_action_space = Discrete(len(MOVES_A2))
        N = lake.size
        self._lake_BXY = self._keep_zeros("lake", bool, N, N)  # holes
        self._now_BXY = self._keep_zeros("lake_now", bool, N, N)  # of this attempt
        self._swapped_B = self._keep_zeros("swapped", bool)
        self._at_B2 = self._keep_zeros("position", np.int64, 2)
        self._seen_B2 = self._keep_zeros("seen", np.int64, 2)
        self._step_B = self._keep_zeros("attempt_step", np.int64)
        self._attempt_B = self._keep_zeros("attempt", np.int64)
        self._won_B = self._keep_zeros("won", np.int64)

    def _begin(self, index_N: np.ndarray) -> None:
        size, left_N = self.options.size, index_N
        while left_N.size:  # lakes that cannot be crossed are drawn again
            for x in range(size):
                for y in range(size):
                    self._lake_BXY[left_N, x, y] = self._draw_integers(left_N, 5) == 0
            self._lake_BXY[left_N, 0, 0] = self._lake_BXY[left_N, -1, -1] = False
            left_N = left_N[~crossable(self._lake_BXY[left_N])]
        if self.options.hard:
            self._swapped_B[index_N] = self._draw_integers(index_N, 2) == 0
        self._attempt_B[index_N] = self._won_B[index_N] = 0
        self._begin_attempt(index_N)
        self._look(index_N)

    def _begin_attempt(self, index_N: np.ndarray) -> None:
        self._now_BXY[index_N] = self._lake_BXY[index_N]
        self._at_B2[index_N] = 0
        self._step_B[index_N] = 0

    def _advance(self, actions_B: np.ndarray, last_B: np.ndarray | None) -> Outcome:
        lake, everyone = self.options, self._row_B
        if lake.slip:
            actions_B = np.where(self._chance(lake.slip), 0, actions_B)
        swap_B = self._swapped_B & ((actions_B == 1) | (actions_B == 3))
        moves_B2 = MOVES_A2[np.where(swap_B, 4 - actions_B, actions_B)]
        next_B2 = np.clip(self._at_B2 + moves_B2, 0, lake.size - 1)
        if lake.hard:
            cracks_B = self._chance(0.33) & (next_B2 != self._at_B2).any(1)
            self._now_BXY[everyone, self._at_B2[:, 0], self._at_B2[:, 1]] |= cracks_B
        goal_B = (next_B2 == lake.size - 1).all(1)
        hole_B = self._now_BXY[everyone, next_B2[:, 0], next_B2[:, 1]]
        if lake.recover:
            next_B2 = np.where(hole_B[:, None], self._at_B2, next_B2)
        self._at_B2[:] = next_B2
        self._step_B += 1
        self._won_B += goal_B
        over_B = goal_B | (hole_B & (not lake.recover)) | (self._step_B >= lake.longest)
        self._attempt_B += over_B
        if over_B.any():
            self._begin_attempt(np.flatnonzero(over_B))
        self._look(everyone)
        self._success_B = self._won_B / lake.attempts
        rewards_B = goal_B + (RECOVERY * hole_B if lake.recover else 0.0)
        return rewards_B.astype(np.float32), self._attempt_B >= lake.attempts

    def _chance(self, share: float) -> np.ndarray:
        return self._draw_integers(self._row_B, 2**31) < share * 2**31

    def _look(self, index_N: np.ndarray) -> None:
        self._seen_B2[index_N] = self._at_B2[index_N]
        if not self.options.hard:
            return
        # One look in four is off, by up to one cell along each axis.
        x_N = self._draw_integers(index_N, 3) - 1
        y_N = self._draw_integers(index_N, 3) - 1
        wrong_N = self._draw_integers(index_N, 4) == 0
        off_N2 = np.stack([x_N, y_N], -1) * wrong_N[:, None]
        self._seen_B2[index_N] = np.clip(self._at_B2[index_N] + off_N2, 0, self.options.size - 1)

    def _observe(self) -> np.ndarray:
        lake = self.options
        attempt_B = self._attempt_B / lake.attempts * lake.show_attempt
        parts = [self._seen_B2 / lake.size, (self._step_B == 0)[:, None], attempt_B[:, None]]
        return np.concatenate(parts, 1, dtype=np.float32)

    def picture(self, b: int) -> dict[str, Any]:
        size = self.options.size
        holes = [("hole", *cell) for cell in np.argwhere(self._now_BXY[b]).tolist()]
        goal = ("goal", size - 1, size - 1)
        return {"cells": (size, size), "agent": self._at_B2[b], "marks": [*holes, goal]}


def crossable(hole_NXY: np.ndarray) -> np.ndarray:
    """Of each lake, whether there is a way from the first to the last corner, bool [N]."""
    wet = np.zeros_like(hole_NXY)
    wet[:, 0, 0] = True
    while True:
        more = wet.copy()
        more[:, 1:] |= wet[:, :-1]
        more[:, :-1] |= wet[:, 1:]
        more[:, :, 1:] |= wet[:, :, :-1]
        more[:, :, :-1] |= wet[:, :, 1:]
        more &= ~hole_NXY
        if (more == wet).all():
            return np.asarray(wet[:, -1, -1])
        wet = more


World = FrozenLakeMeta
