"""Package Delivery: a road with forks, and packages to drop at told places in order (AMAGO, specification 4.10).

The road is a ring of `length` cells; the agent starts at 0. At a fork only the right one of left and right goes on, the
other leads back to 0. Two to four packages must be dropped at destinations off the forks, in ascending order. One of
the four drop actions works, another one in each episode; the others lead back to 0, as does dropping at 0 or with
nothing left. There are three tries per package. Forks, turns, destinations and the action are drawn for each episode.

The observation is (position, tries left, at a fork), then the goal sequence: K slots of one number
(:mod:`recollect.environments.goal_sequences`). Where a drop worked, its position is what the step achieved: `info["achieved"]`.

What differs from upstream: forks are n // 10 to n // 5 in number as in its code (the paper: U(2, 6)); the end at the horizon is
`truncated`; where the last destination is reached, `terminated`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from pydantic import Field, model_validator

from recollect.environments.base import BaseWorld, Outcome, Task, WorldOptions
from recollect.environments.goal_sequences import GoalPart, Shown

FORWARD, LEFT, RIGHT, FIRST_DROP, WAIT = 0, 1, 2, 3, 7
TRIES = 3  # per package


class Options(WorldOptions):
    """hide_future: only the current destination and those done are shown.
    goals_shown: as they are `after` the step that led to an observation, or `before` it, as by AMAGO's seed code: there a goal
        that a step completed is seen as completed one step later.
    """

    length: int = Field(default=30, ge=10)
    fewest_packages: int = Field(default=2, ge=1)
    most_packages: int = Field(default=4, ge=1)
    horizon: int = Field(default=180, ge=1)
    hide_future: bool = False
    goals_shown: Shown = "after"

    @model_validator(mode="after")
    def _packages_fit(self) -> Options:
        if not self.fewest_packages <= self.most_packages < self.length - self.length // 5:
            raise ValueError(f"{self.fewest_packages} to {self.most_packages} packages on a road of {self.length}")
        return self


def tasks(split: str, **options: Any) -> list[Task]:
    """One task: the road is drawn anew for every episode."""
    Options.parse(options, "package_delivery", split)
    return [Task(0, "any_road", split)]


class PackageDelivery(BaseWorld):
    """Observations: float32 [B, 3 + K]. Actions: 0 forward, 1 left, 2 right, 3 to 6 drop, 7 wait.
    Where episodes end, ``info["success"]`` says which delivered everything.
    """

    options: Options
    options_model = Options

    def _setup(self) -> None:
        chosen = self.options
        K, length = chosen.most_packages, chosen.length
        self.goal_part = GoalPart(
            slice(3, 3 + K), K, 1, hide_future=chosen.hide_future, before=chosen.goals_shown == "before"
        )
        low_D = np.array([0, 0, 0, *[-3] * K], np.float32)
        high_D = np.array([length, TRIES * K, 1, *[length] * K], np.float32)
        self.horizon = chosen.horizon
        self.single_observation_space = Box(low_D, high_D, dtype=np.float32)
        self.single_action_space = Discrete(8)
        self._turn_BX = self._keep_zeros("turns", np.int8, length)  # 0: no fork; else the action that goes on
        self._destination_BK = self._keep_zeros("destinations", np.int64, K)  # 0 behind the last
        self._drop_B = self._keep_zeros("drop", np.int64)
        self._at_B = self._keep_zeros("position", np.int64)
        self._tries_B = self._keep_zeros("tries", np.int64)
        self._reached_B = self._keep_zeros("reached", np.int64)
        self._before_B = self._keep_zeros("reached_before", np.int64)  # the last step

    def goals(self) -> np.ndarray:
        """The destinations of the instances, float32 [B, K, 1], NaN behind the last."""
        return np.where(self._destination_BK > 0, self._destination_BK, np.nan)[..., None].astype(np.float32)

    def _begin(self, index_N: np.ndarray) -> None:
        chosen = self.options
        length = chosen.length
        most_forks = length // 5
        fewest_forks = most_forks // 2
        more_packages = chosen.most_packages - chosen.fewest_packages
        forks_N = fewest_forks + self._draw_integers(index_N, most_forks - fewest_forks + 1)
        packages_N = chosen.fewest_packages + self._draw_integers(index_N, more_packages + 1)

        # The cells behind the start in random order: first the forks, then the destinations.
        order_BX = np.tile(np.arange(1, length), (self.num_envs, 1))
        self._shuffle_rows(order_BX, index_N)
        order_NX = order_BX[index_N]
        self._turn_BX[index_N] = 0
        for place in range(most_forks):
            turn_N = LEFT + self._draw_integers(index_N, 2)
            self._turn_BX[index_N, order_NX[:, place]] = np.where(place < forks_N, turn_N, 0)
        place_X = np.arange(length - 1)
        end_N = forks_N + packages_N
        chosen_NX = (place_X >= forks_N[:, None]) & (place_X < end_N[:, None])
        found_NX = np.sort(np.where(chosen_NX, order_NX, length), axis=1)[:, : chosen.most_packages]
        self._destination_BK[index_N] = np.where(found_NX == length, 0, found_NX)

        self._drop_B[index_N] = FIRST_DROP + self._draw_integers(index_N, 4)
        self._tries_B[index_N] = TRIES * packages_N
        self._at_B[index_N] = 0
        self._reached_B[index_N] = self._before_B[index_N] = 0

    def _advance(self, actions_B: np.ndarray, last_B: np.ndarray | None) -> Outcome:
        at_B = self._at_B
        turn_B = self._turn_BX[self._row_B, at_B]
        fork_B = turn_B > 0
        turns_B = (actions_B == LEFT) | (actions_B == RIGHT)
        # A drop works with this episode's action, while there are packages, anywhere but at the start.
        drops_B = (actions_B >= FIRST_DROP) & (actions_B < WAIT) & ~fork_B
        works_B = drops_B & (actions_B == self._drop_B)
        works_B &= (self._tries_B > 0) & (at_B > 0)
        wanted_B = self._destination_BK[self._row_B, self._reached_B]
        hit_B = works_B & (wanted_B == at_B)
        # A wrong turn or a drop that does not work leads back to the start.
        onward_B = np.where(fork_B, actions_B == turn_B, actions_B == FORWARD)
        back_B = (fork_B & turns_B & ~onward_B) | (drops_B & ~works_B)
        self._achieved_BMG = np.where(works_B, at_B, np.nan)[:, None, None].astype(np.float32)
        self._tries_B -= works_B
        self._before_B[:] = self._reached_B
        self._reached_B += hit_B
        self._at_B[:] = np.where(back_B, 0, (at_B + onward_B) % self.options.length)
        packages_B = (self._destination_BK > 0).sum(1)
        self._success_B = self._reached_B == packages_B
        return hit_B.astype(np.float32), self._success_B

    def _observe(self) -> np.ndarray:
        fork_B = self._turn_BX[self._row_B, self._at_B] > 0
        own_B3 = np.stack([self._at_B, self._tries_B, fork_B], axis=1)
        reached_B = self._before_B if self.goal_part.before else self._reached_B
        goals_BK = self.goal_part.show(self.goals(), reached_B)
        return np.concatenate([own_B3, goals_BK], 1, dtype=np.float32)

    def picture(self, b: int) -> dict[str, Any]:
        """The road in lines of ten cells."""
        reached, places = int(self._reached_B[b]), self._destination_BK[b]
        goals = [(f"goal {i}", *divmod(place, 10)) for i, place in enumerate(places[places > 0].tolist(), 1)]
        forks = [("fork", *divmod(place, 10)) for place in np.flatnonzero(self._turn_BX[b]).tolist()]
        rows, rest = divmod(self.options.length, 10)
        walls = np.arange(10 * (rows + (rest > 0))).reshape(-1, 10) >= self.options.length
        return {
            "cells": walls.shape,
            "agent": divmod(int(self._at_B[b]), 10),
            "marks": forks + goals[reached:],
            "faint": goals[:reached],
            "walls": walls,
        }


World = PackageDelivery
