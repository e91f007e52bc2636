"""Worlds whose physics a package simulates: one simulator per instance, stepped one after the other.

An episode is a function of its task, one random word and the actions, so the state of a world is the word and the actions
of the present episode: `set_state` plays them again, to the bit, and needs to know nothing of a simulator's inside.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from gymnasium.spaces import Box
from pydantic import Field

from recollect.environments.base import Task, WorldOptions
from recollect.environments.base import World as BaseWorld
from recollect.settings.errors import UserError, nearest

FIXED_WORD = 1  # begins every episode where initial states are fixed


class Simulator(Protocol):
    """One simulated task. The same word and actions must give the same episode, whatever was played before."""

    def begin(self, word: int) -> np.ndarray:
        """Start an episode whose random draws follow from the word; the first observation [D], goal included."""

    def step(self, action_A: np.ndarray) -> tuple[np.ndarray, float, bool]:
        """Observation [D], goal included, reward, and whether the task is solved now."""


class SimulatedOptions(WorldOptions):
    """Options of every simulated world.

    Args:
        initial_states: `random`: objects, goals and joints are drawn anew in each episode; `fixed`: always the same ones.
        goal: `hidden`: what an observation says of the goal is zero; `shown`.
        only: names of the tasks that are kept, of either split; None keeps all.
    """

    initial_states: Literal["random", "fixed"] = "random"
    goal: Literal["hidden", "shown"] = "hidden"
    only: list[str] | None = Field(default=None, min_length=1)

    def kept(self, tasks: list[Task], known: Sequence[str], world: str) -> list[Task]:
        """The tasks of a split that are kept, numbered from 0; `known`: names of both splits."""
        for name in self.only or ():
            if name not in known:
                where = f"options of the world {world}: only"
                raise UserError(f"there is no task '{name}'", where=where, do=nearest(name, known))
        kept = [task for task in tasks if self.only is None or task.name in self.only]
        return [Task(i, task.name, task.split, task.data) for i, task in enumerate(kept)]


def needed(module: str, world: str, *, family: str = "control") -> Any:
    """A module of a package that only the environment `family` has; a UserError says where it is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise UserError(
            f"the world '{world}' needs the package '{(error.name or module).partition('.')[0]}', which is not installed",
            where=f"environment.world: {world}",
            do=f"run `make setup FAMILY={family}` (or `pip install 'recollect[{family}]'` in an environment of your own), "
            "or run the workflow with `--sdm conda`",
        ) from error


class SimulatedWorld(BaseWorld):
    """Simulators in a batch; see :class:`recollect.environments.base.World` for the arguments.

    Observations: float32 [B, D]. Actions: float32 [B, A] in [-1, 1]; a task that has fewer dimensions ignores the last.
    Where episodes end, ``info["success"]`` (bool [B]) says which of them ever solved their task, if the world knows.

    A world's `_setup` is `horizon` and a call of `_simulate`.
    """

    knows_success: ClassVar[bool] = False

    options: SimulatedOptions

    def _simulate(
        self, simulators: Sequence[Simulator], *, observation_size: int, action_size: int, goal_entries: Sequence[int]
    ) -> None:
        """Take the simulators, one per task. Published data that show a hidden goal (`goal_entries`) are refused."""
        self._hidden = list(goal_entries) if self.options.goal == "hidden" else []
        bound_D = np.full(observation_size, np.inf, np.float32)
        bound_D[self._hidden] = 0
        self.single_observation_space = Box(-bound_D, bound_D, dtype=np.float32)
        self.single_action_space = Box(-1.0, 1.0, (action_size,), np.float32)
        self.simulators = list(simulators)
        self._word_B = self._keep_zeros("word", np.int64)
        self._action_BTA = self._keep_zeros("actions", np.float32, self.horizon, action_size)
        self._observation_BD = self._keep_zeros("observation", np.float32, observation_size)
        self._solved_B = self._keep_zeros("solved", bool)

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        observations_BD, rewards_B, terminated_B, truncated_B, info = super().step(actions)
        if self.knows_success and truncated_B.any():
            info["success"] = self._succeeded_B
        return observations_BD, rewards_B, terminated_B, truncated_B, info

    def set_state(self, state: Any) -> None:
        """Continue where `get_state` was called: the present episodes are played again."""
        super().set_state(state)
        for b in np.flatnonzero(~self._ended_B):
            self.simulators[b].begin(int(self._word_B[b]))
            for action_A in self._action_BTA[b, : self._timestep_B[b]]:
                self.simulators[b].step(action_A)

    def _begin(self, index_N: np.ndarray) -> None:
        random = self.options.initial_states == "random"
        self._word_B[index_N] = self._draw_integers(index_N, 2**31) if random else FIXED_WORD
        self._solved_B[index_N] = False
        for b in index_N:
            self._observation_BD[b] = self.simulators[b].begin(int(self._word_B[b]))
        self._observation_BD[:, self._hidden] = 0

    def _advance(self, actions_BA: np.ndarray, last_B: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
        rewards_B = np.zeros(self.num_envs, np.float32)
        for b, simulator in enumerate(self.simulators):
            self._action_BTA[b, self._timestep_B[b] - 1] = actions_BA[b]
            self._observation_BD[b], rewards_B[b], solved = simulator.step(actions_BA[b])
            self._solved_B[b] |= solved
        self._observation_BD[:, self._hidden] = 0
        self._succeeded_B = self._solved_B.copy()  # a reset within the step does not touch it
        return rewards_B, None

    def _observe(self) -> np.ndarray:
        return self._observation_BD.copy()
