"""Worlds of continuous control whose physics a package simulates: one simulator per instance (see `replayed.py`)."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from gymnasium.spaces import Box
from pydantic import Field

from recollect.environments.base import Outcome, Task, WorldOptions, check_split
from recollect.environments.replayed import Player, ReplayedWorld
from recollect.settings.errors import UserError, nearest

FIXED_WORD = 1  # begins every episode where initial states are fixed
# Of each task the last three: return of a random policy, mean return of the published data, highest return in it.
Returns = Mapping[str, tuple[float, ...]]


class SimulatedOptions(WorldOptions):
    """initial_states: `random`: objects, goals and joints are drawn anew in each episode; `fixed`: always the same ones.
    goal: `hidden`: what an observation says of the goal is zero; `shown`.
    only: names of the tasks that are kept, of either split; None keeps all.
    """

    initial_states: Literal["random", "fixed"] = "random"
    goal: Literal["hidden", "shown"] = "hidden"
    only: list[str] | None = Field(default=None, min_length=1)

    def tasks(self, split: str, world: str, train: Returns, held_out: Returns) -> list[Task]:
        """The tasks of a split that are kept, numbered from 0."""
        check_split(split, world)
        known = [*train, *held_out]
        for name in self.only or known:
            if name not in known:
                where = f"options of the world {world}: only"
                raise UserError(f"there is no task '{name}'", where=where, do=nearest(name, known))
        kept: list[Task] = []
        for name, (*actions, random, mean, best) in (train if split == "train" else held_out).items():
            if self.only is None or name in self.only:
                own = {"actions": actions[0]} if actions else {}  # how many numbers, where tasks differ in that
                data = {**own, "target_return": best, "normalisation": {"data_normalised": (random, mean)}}
                kept.append(Task(len(kept), name, split, data))
        return kept


def needed(module: str, world: str, *, family: str = "control") -> Any:
    """A module of a package that only the environment `family` has; a UserError says where it is not installed."""
    handlers = list(logging.root.handlers)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise not_installed((error.name or module).partition(".")[0], world, family) from error
    finally:
        logging.root.handlers[:] = handlers  # dm_control adds one: all that Snakemake says would be said twice


def not_installed(package: str, world: str, family: str) -> UserError:
    """The error of a world whose package is missing, which the environment `family` has."""
    return UserError(
        f"the world '{world}' needs the package '{package}', which is not installed",
        where=f"environment.world: {world}",
        do=f"run `make setup FAMILY={family}` (or `pip install -e '.[{family}]'` in the clone, in an environment of your own), "
        "or run the workflow with `--sdm conda`",
    )


class SimulatedWorld(ReplayedWorld):
    """A world's `_setup` is `horizon` and a call of `_simulate`.

    A simulator is a player whose `step` says whether its task is solved now, and whose `look` gives the observation [D]
    with the goal in it. Solving a task ends no episode.
    Observations: float32 [B, D]. Actions: float32 [B, A] in [-1, 1]; a task that has fewer dimensions ignores the last.
    Where episodes end, ``info["success"]`` (bool [B]) says which of them ever solved their task, if the world knows.
    """

    slow = True
    knows_success = False
    options: SimulatedOptions

    def _simulate(
        self, simulators: Sequence[Player], *, observation_size: int, action_size: int, goal_entries: Sequence[int]
    ) -> None:
        """Take the simulators, one per task. Published data that show a hidden goal (`goal_entries`) are refused."""
        self._hidden = list(goal_entries) if self.options.goal == "hidden" else []
        bound_D = np.full(observation_size, np.inf, np.float32)
        bound_D[self._hidden] = 0
        self.single_observation_space = Box(-bound_D, bound_D, dtype=np.float32)
        self.single_action_space = Box(-1.0, 1.0, (action_size,), np.float32)
        self._solved_B = self._keep_zeros("solved", bool)
        self._play(simulators)

    def _begin(self, index_N: np.ndarray) -> None:
        super()._begin(index_N)
        self._solved_B[index_N] = False

    def _words(self, index_N: np.ndarray) -> np.ndarray:
        if self.options.initial_states == "fixed":
            return np.full(index_N.size, FIXED_WORD)
        return super()._words(index_N)

    def _advance(self, actions_B: np.ndarray, last_B: np.ndarray | None) -> Outcome:
        rewards_B, solved_B = super()._advance(actions_B, last_B)
        self._solved_B |= solved_B
        if self.knows_success:
            self._success_B = self._solved_B
        return rewards_B, None

    def _observe(self) -> np.ndarray:
        observation_BD = super()._observe().astype(np.float32)
        observation_BD[:, self._hidden] = 0
        return observation_BD
