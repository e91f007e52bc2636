"""Tiny worlds that only tests know: `signal` shows images, `aim` and `stumble` take continuous actions. All need memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from recollect.environments import registry
from recollect.environments.base import Task, World, WorldOptions


class SignalOptions(WorldOptions):
    last: bool = False
    height: int = 5
    width: int = 4


class Signal(World):
    """The first image is red or blue, the others are black; naming the color at the last step pays 1."""

    horizon_terminates: ClassVar[bool] = True

    options_model = SignalOptions

    def _setup(self) -> None:
        last, height, width = self.options.last, self.options.height, self.options.width
        self.channels_last, self.shape = last, (height, width)
        self.horizon = 3
        self.single_observation_space = Box(0, 255, (height, width, 3) if last else (3, height, width), np.uint8)
        self.single_action_space = Discrete(2)
        self._blue_B = self._keep("blue", np.zeros(self.num_envs, np.int64))

    def _begin(self, index_N: np.ndarray) -> None:
        self._blue_B[index_N] = self._draw_integers(index_N, 2)

    def _advance(self, actions_B: np.ndarray, last_B: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
        right_B = actions_B == self._blue_B
        return np.where(np.zeros(self.num_envs, bool) if last_B is None else last_B, right_B, 0).astype(
            np.float32
        ), None

    def _observe(self) -> np.ndarray:
        images = np.zeros((self.num_envs, 3, *self.shape), np.uint8)
        images[np.arange(self.num_envs), 2 * self._blue_B] = 255 * (self._timestep_B == 0)[:, None, None]
        return np.moveaxis(images, 1, 3).copy() if self.channels_last else images


class Aim(World):
    """The first observation is a number in [-1, 1], the others 0; each action pays 1 minus its distance to the number."""

    def _setup(self) -> None:
        self.horizon = 4
        self.single_observation_space = Box(-1, 1, (2,), np.float32)
        self.single_action_space = Box(-1, 1, (2,), np.float32)
        self._goal_B = self._keep("goal", np.zeros(self.num_envs, np.float32))

    def _begin(self, index_N: np.ndarray) -> None:
        self._goal_B[index_N] = self._draw_integers(index_N, 2) - 0.5

    def _advance(self, actions_B: np.ndarray, last_B: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
        return (1 - np.abs(actions_B - self._goal_B[:, None]).mean(1)).astype(np.float32), None

    def _observe(self) -> np.ndarray:
        first_B = self._timestep_B == 0
        return np.stack([self._goal_B * first_B, first_B], 1).astype(np.float32)

    def _check_actions(self, actions: np.ndarray) -> np.ndarray:
        assert actions.shape == (self.num_envs, 2) and actions.dtype == np.float32 and np.abs(actions).max() <= 1
        return actions


class Stumble(Aim):
    """`Aim` with episodes that end after one to four steps, by chance."""

    def _setup(self) -> None:
        super()._setup()
        self._steps_B = self._keep("steps", np.zeros(self.num_envs, np.int64))

    def _begin(self, index_N: np.ndarray) -> None:
        super()._begin(index_N)
        self._steps_B[index_N] = 1 + self._draw_integers(index_N, 4)

    def _advance(self, actions_B: np.ndarray, last_B: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
        return super()._advance(actions_B, last_B)[0], self._timestep_B >= self._steps_B


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the registry know them."""
    known = registry._module
    fakes: dict[str, Any] = {
        name: SimpleNamespace(World=world, tasks=lambda split, **options: [Task(0, "only", split)])
        for name, world in (("signal", Signal), ("aim", Aim), ("stumble", Stumble))
    }
    monkeypatch.setattr(registry, "_module", lambda name: fakes.get(name) or known(name))
