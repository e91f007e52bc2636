"""Playing all tasks at once while writing down their histories, and how observations become network inputs.

`HistoryRecorder` is for the sources that play all tasks at once (`ppo`, `recurrent_ppo`, `source_policies`): one world holds one
instance per task, so that each task's history is one agent's life in time order. The rest serves the others, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from gymnasium.spaces import Box, Discrete

from recollect.artifacts.checkpoints import joined, part
from recollect.environments import faults
from recollect.environments.base import Task, World
from recollect.settings.errors import UserError
from recollect.settings.seeding import generator, seed_of

MakeWorld = Callable[[Sequence[Task], np.ndarray], World]
LARGEST_TABLE = 4096


class Progress:
    """What a source uses of `recollect.artifacts.progress.Progress`; this one shows nothing."""

    def update(self, done: int, **metrics: float) -> None:
        pass


class Run(Protocol):
    folder: Path  # of its results

    def resume(self) -> Any: ...
    def begin_afresh(self) -> None: ...
    def due(self, step: int, every: int) -> bool: ...
    def save(self, step: int, arrays: dict[str, Any], state: dict[str, Any]) -> None: ...
    def progress(self, total: int, description: str, unit: str = "steps") -> AbstractContextManager[Progress]: ...


def tracked(
    run: Run | None, total: int, description: str, unit: str = "steps each"
) -> AbstractContextManager[Progress]:
    """The run's progress display, or one that shows nothing where there is no run."""
    return nullcontext(Progress()) if run is None else run.progress(total, description, unit)


def world_seeds(seed: int, tasks: Sequence[Task]) -> np.ndarray:
    """One uint64 seed per task [E], independent of which other tasks are played."""
    return np.array([seed_of("source-world", seed, task.split, task.index) for task in tasks], dtype=np.uint64)


def task_generators(purpose: str, seed: int, tasks: Sequence[Task], rollout: int = 0) -> list[np.random.Generator]:
    """One generator per task for one purpose in one rollout, independent of which other tasks are played."""
    return [generator(purpose, seed, task.split, task.index, rollout) for task in tasks]


def in_order(tasks: Sequence[Task]) -> list[Task]:
    """The tasks by index. Raises UserError: they are not of one split, each once (histories know them by their index)."""
    if len({task.index for task in tasks}) != len(tasks) or len({task.split for task in tasks}) != 1:
        raise UserError(
            "The tasks of a source must be of one split, each of them once.",
            where=", ".join(f"{task.split}/{task.name}" for task in tasks[:10]) or "no tasks at all",
            do="take them from tasks(split, ...), without repeats.",
        )
    return sorted(tasks, key=lambda task: task.index)


class HistoryRecorder:
    """A world of E tasks that writes down what happens in it.

    Args:
        transitions: steps per task that there is room for.
        continuous: whether the source can play continuous actions (of one axis, bounded by [-1, 1]), too.

    Raises:
        UserError: the world's actions or observations are of a kind that no source plays.

    Attributes:
        actions, action_shape: number of discrete actions and (), or 0 and (A,).
        observation: [E, D], what the agents see now.
        observations, action, reward, done: [T, E, ...] of which the first `length` rows are written.
        truncated, final_observation: [E, ...], of the newest step: which episodes it cut short, and what it led to
            before any episode began anew. No part of `arrays()`.
    """

    def __init__(
        self, make_world: MakeWorld, tasks: Sequence[Task], transitions: int, seed: int, *, continuous: bool = False
    ) -> None:
        in_order(tasks)
        self.tasks = list(tasks)
        self.world = make_world(self.tasks, world_seeds(seed, self.tasks))
        actions = self.world.single_action_space
        if not (isinstance(actions, Discrete) and int(actions.start) == 0) and not (continuous and is_played(actions)):
            plays = "discrete actions 0, 1, ..." + (" and vectors in [-1, 1]" if continuous else "")
            raise UserError(
                f"This source of histories plays {plays}; the world has {actions}.",
                where=type(self.world).__name__,
                do="use published histories, or `sac` or `source_policies`, which play vectors in [-1, 1].",
            )
        self.actions = int(actions.n) if isinstance(actions, Discrete) else 0
        self.action_shape = tuple(actions.shape or ())
        observations = self.world.single_observation_space
        if not isinstance(observations, Box) or len(observations.shape) != 1:
            raise UserError(
                f"This source of histories needs vectors as observations, the world has {observations}.",
                where=type(self.world).__name__,
                do="use `ppo_images` where they are images and actions are discrete, or published histories.",
            )
        self.observation, _ = self.world.reset()
        count = len(self.tasks)
        dtype = compact_dtype(observations)
        self.length = 0
        self.observations = np.zeros((transitions, count, *observations.shape), dtype)
        acts = action_dtype(self.actions)
        self.action = np.zeros((transitions, count, *self.action_shape), acts)
        self.reward = np.zeros((transitions, count), np.float32)
        self.done = np.zeros((transitions, count), bool)
        self.truncated, self.final_observation = np.zeros(count, bool), self.observation
        self._return_E = np.zeros(count)
        self._last_return_E = np.full(count, np.nan)

    def step(self, action_E: np.ndarray) -> None:
        """Play one action per task; episodes that end begin anew at once."""
        t = self.length
        self.observations[t], self.action[t] = self.observation, action_E
        self.observation, reward_E, terminated_E, truncated_E, _ = self.world.step(action_E)
        faults.check_step(self.world, self.observation, reward_E)
        self.truncated, self.final_observation = truncated_E, self.observation
        self.reward[t] = reward_E
        self._return_E += reward_E
        done_E = terminated_E | truncated_E
        if done_E.any():
            self.done[t] = done_E
            self.observation, _ = self.world.reset(options={"reset_mask": done_E})
            np.copyto(self._last_return_E, self._return_E, where=done_E)
            self._return_E[done_E] = 0
        self.length = t + 1

    def last_return(self) -> float:
        """Mean over the tasks of the return of their newest complete episode (0 before the first)."""
        return mean_of_known(self._last_return_E)

    def histories(self) -> dict[str, np.ndarray]:
        """The arrays of `recollect.common.histories`: tasks one after the other, ascending by index."""
        order = np.argsort([task.index for task in self.tasks])
        count, length = len(self.tasks), self.length

        def by_task(array_TE: np.ndarray) -> np.ndarray:
            return np.ascontiguousarray(np.swapaxes(array_TE[:length], 0, 1)[order]).reshape(-1, *array_TE.shape[2:])

        done_ET = by_task(self.done).reshape(count, length)
        episode_ET = np.cumsum(done_ET, axis=1, dtype=np.int32) - done_ET
        return {
            "observation": by_task(self.observations),
            "action": by_task(self.action),
            "reward": by_task(self.reward),
            "done": done_ET.reshape(-1),
            "task": np.repeat(np.array([self.tasks[e].index for e in order], np.int32), length),
            "episode": episode_ET.reshape(-1).astype(np.int32),
        }

    def arrays(self) -> dict[str, np.ndarray]:
        """All that a bit-exact continuation needs: the world's state and the record so far."""
        recorded = {
            "observations": self.observations[: self.length],
            "action": self.action[: self.length],
            "reward": self.reward[: self.length],
            "done": self.done[: self.length],
            "observation": self.observation,
            "return": self._return_E,
            "last_return": self._last_return_E,
            "tasks": np.array([task.index for task in self.tasks]),
        }
        copies = {name: array.copy() for name, array in recorded.items()}
        return joined(record=copies, world=self.world.get_state())

    def load(self, arrays: dict[str, np.ndarray]) -> None:
        """Continue from `arrays()`. Raises UserError: they are of other tasks, or longer than this record."""
        found = part(arrays, "record")
        mine = [task.index for task in self.tasks]
        if not found or found["tasks"].tolist() != mine or len(found["action"]) > len(self.action):
            raise UserError(
                "The checkpoint is of other tasks or of longer histories.",
                where="checkpoint of the source agents",
                do="delete the checkpoint folder of this run and start it again.",
            )
        self.length = len(found["action"])
        for name in ("observations", "action", "reward", "done"):
            getattr(self, name)[: self.length] = found[name]
        self.observation = found["observation"].astype(self.observation.dtype)
        self._return_E, self._last_return_E = found["return"].copy(), found["last_return"].copy()
        self.world.set_state(part(arrays, "world"))


def mean_of_known(return_E: np.ndarray) -> float:
    """The mean of returns [E] of which some are not known yet (NaN); 0 before the first."""
    known = return_E[~np.isnan(return_E)]
    return float(known.mean()) if known.size else 0.0


def is_played(space: Any) -> bool:
    """Whether actions are vectors in [-1, 1], which is all that sources play of continuous ones."""
    return (
        isinstance(space, Box) and len(space.shape) == 1 and bool((space.low == -1).all() and (space.high == 1).all())
    )


def action_dtype(actions: int) -> np.dtype[Any]:
    """What histories store actions as: the smallest type for so many choices, float32 where there are none."""
    if not actions:
        return np.dtype(np.float32)
    return np.dtype(np.int8 if actions <= 127 else np.int16)


def compact_dtype(space: Box) -> np.dtype[Any]:
    """The smallest signed integer type that holds an integer space; float32 for real numbers."""
    if not np.issubdtype(space.dtype, np.integer):
        return np.dtype(np.float32)
    return np.min_scalar_type(min(int(space.low.min()), -1 - int(space.high.max())))


class Inputs:
    """How observations become network inputs.

    Args:
        space: of one observation, [D].
        encoding: "number" (divided by `scale`), or "one_hot" per dimension (integer observations only).
        scale: divides numbers.

    Attributes:
        features: width of an input.
        size: number of possible observations if they can be listed (integers, at most 4096 of them), else 0.
        table: [size, features], the inputs of all possible observations.
    """

    def __init__(self, space: Box, encoding: Literal["number", "one_hot"], scale: float) -> None:
        self.encoding, self.scale = encoding, np.float32(scale)
        integer = bool(np.issubdtype(space.dtype, np.integer))
        if encoding == "one_hot" and not integer:
            raise UserError(
                "One-hot inputs need integer observations.",
                where=f"observation space {space}",
                do="set observation_encoding: number.",
            )
        dimensions = int(space.shape[0])
        self.low_D = np.zeros(dimensions, np.int64)
        values_D = np.zeros(dimensions, np.int64)
        if integer:
            self.low_D = space.low.astype(np.int64)
            values_D = space.high.astype(np.int64) - self.low_D + 1
        product = float(np.prod(values_D, dtype=np.float64))
        self.size = int(product) if integer and product <= LARGEST_TABLE else 0
        self.offsets_D = np.concatenate([[0], np.cumsum(values_D)[:-1]])
        self.features = int(values_D.sum()) if encoding == "one_hot" else dimensions
        self.strides_D = np.array([int(np.prod(values_D[d + 1 :])) for d in range(dimensions)], np.int64)
        cells = np.zeros((0, dimensions), int)
        if self.size:
            cells = np.indices(tuple(values_D.tolist())).reshape(dimensions, -1).T
        self.table = self.encode(cells + self.low_D)

    def row(self, observation: np.ndarray) -> np.ndarray:
        """Which row of the table an observation is: [..., D] -> int64 [...]."""
        return (observation - self.low_D) @ self.strides_D

    def encode(self, observation: np.ndarray) -> np.ndarray:
        """Inputs of observations: [..., D] -> float32 [..., features]."""
        if self.encoding == "number":
            return observation.astype(np.float32) / self.scale
        index = observation.astype(np.int64) - self.low_D + self.offsets_D
        encoded = np.zeros((*observation.shape[:-1], self.features), np.float32)
        np.put_along_axis(encoded, index, np.float32(1), axis=-1)
        return encoded
