"""Stands in for the package `dm_control` where it is not installed: tasks with its names and shapes, and toy physics.

Every action that comes closer to the goal, a number in [-1, 1] that is drawn at the start of an episode, pays more.
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

ACTIONS = {"cartpole": 1, "finger": 2, "reacher": 2, "walker": 6}


class Environment:
    """Of one task; counts its resets in a way that nothing may depend on."""

    def __init__(self, domain: str, task: str) -> None:
        self.size, self.name = ACTIONS[domain], f"{domain}-{task}"
        self.task = SimpleNamespace(_random=np.random.RandomState(0))
        self.resets = 0

    def reset(self) -> Any:
        self.resets += 1
        self.goal, self.at = self.task._random.uniform(-1, 1), np.zeros(self.size)
        return self.seen(None)

    def step(self, action: np.ndarray) -> Any:
        assert action.shape == (self.size,) and action.dtype == np.float64
        self.at = 0.5 * self.at + action
        return self.seen(float(1 - np.abs(action - self.goal).mean() / 2))

    def seen(self, reward: float | None) -> Any:
        observation = {"position": self.at.copy(), "to_target": np.full(2, self.goal), "height": np.float64(3.0)}
        return SimpleNamespace(observation=observation, reward=reward)


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `import dm_control.suite` find the fake."""
    package, suite = ModuleType("dm_control"), ModuleType("dm_control.suite")
    suite.load = Environment  # type: ignore[attr-defined]
    package.suite = suite  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "dm_control", package)
    monkeypatch.setitem(sys.modules, "dm_control.suite", suite)
