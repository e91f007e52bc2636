"""Wind: reach a point and stay there, in a constant wind that is never shown (AMAGO, specification 4.10).

The agent starts at (0, 0), and each step moves it by its action (at most 0.1 along each axis) and the wind. A step that
ends within 0.03 of (0, 1) pays 1. The wind is drawn for each episode, uniform in +-0.08 along each axis.

What differs from upstream: actions are in [-1, 1], a tenth of a step's move (upstream maps them so, too); `winds: n`
draws from the first n winds of its published list, which it makes with seed 1337; 0, the default, draws any. The end
at the horizon is `terminated`, as there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box
from pydantic import Field

from recollect.environments.base import BaseWorld, Outcome, Task, WorldOptions

GYMNASIUM_IDS: dict[str, dict] = {"recollect/Wind-v0": {}}
STRONGEST, FARTHEST = 0.08, 0.1  # of the wind and of an action, along each axis
GOAL_2 = np.array([0.0, 1.0], np.float32)


class Options(WorldOptions):
    """Options of Wind; `radius` is of what pays, `winds` how many of the published winds there are (0: any)."""

    horizon: int = Field(default=75, ge=1)
    radius: float = Field(default=0.03, gt=0)
    winds: int = Field(default=0, ge=0, le=2**20)


def tasks(split: str, **options: Any) -> list[Task]:
    """One task: the wind is drawn anew for every episode."""
    Options.parse(options, "wind", split)
    return [Task(0, "any_wind", split)]


class Wind(BaseWorld):
    """Observations: float32 [B, 2], where the agent is. Actions: float32 [B, 2] in [-1, 1]."""

    horizon_terminates = True
    options: Options
    options_model = Options

    def _setup(self) -> None:
        chosen = self.options
        reach = np.full(2, chosen.horizon * (STRONGEST + FARTHEST), np.float32)
        self.horizon = chosen.horizon
        self.single_observation_space = Box(-reach, reach, dtype=np.float32)
        self.single_action_space = Box(-1.0, 1.0, (2,), np.float32)
        published = np.random.RandomState(1337).uniform(-STRONGEST, STRONGEST, (max(1, chosen.winds), 2))
        self._winds_W2 = published.astype(np.float32)
        self._at_B2 = self._keep_zeros("position", np.float32, 2)
        self._wind_B2 = self._keep_zeros("wind", np.float32, 2)

    def _begin(self, index_N: np.ndarray) -> None:
        self._at_B2[index_N] = 0
        if self.options.winds:
            self._wind_B2[index_N] = self._winds_W2[self._draw_integers(index_N, self.options.winds)]
            return
        for axis in (0, 1):
            share_N = self._draw_integers(index_N, 2**31) / 2**31
            self._wind_B2[index_N, axis] = STRONGEST * (2 * share_N - 1)

    def _advance(self, actions_BA: np.ndarray, last_B: np.ndarray | None) -> Outcome:
        self._at_B2 += FARTHEST * actions_BA + self._wind_B2
        return (np.linalg.norm(self._at_B2 - GOAL_2, axis=1) <= self.options.radius).astype(np.float32), None

    def _observe(self) -> np.ndarray:
        return self._at_B2.copy()

    def picture(self, b: int) -> dict[str, Any]:
        """From -1.5 to 1.5 along x and from 2 down to -1 along y, in cells of 0.1. Who is blown out stands at the edge."""

        def place(point_2: np.ndarray) -> tuple[float, float]:
            x, y = point_2.tolist()
            return min(max(19.5 - 10 * y, -0.5), 29.5), min(max(10 * x + 14.5, -0.5), 29.5)

        marks = [("goal", *place(GOAL_2))]
        return {
            "cells": (30, 30),
            "agent": place(self._at_B2[b]),
            "marks": marks,
            "faint": [("start", *place(0 * GOAL_2))],
        }


World = Wind
