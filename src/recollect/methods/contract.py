"""What a method is, and what it is given.

A method is one module of this folder with

- ``Hyperparameters``: a pydantic model, every field documented;
- ``train(settings, inputs, run) -> Policy``: learns, resuming from ``run``'s newest checkpoint;
- ``load_policy(settings, arrays, inputs) -> Policy``: a policy from the arrays of ``policy.safetensors``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from recollect.environments import registry
from recollect.settings.errors import UserError
from recollect.settings.schema import EnvironmentSettings


@dataclass(frozen=True)
class Inputs:
    """Paths of what earlier stages made; None where a method does not use it. ``device`` is cpu or cuda."""

    histories: Path | None = None
    embeddings: Path | None = None
    index: Path | None = None
    rows: Path | None = None
    embedder_policy: Path | None = None
    language_model: Path | None = None
    device: str = "cpu"

    def need(self, name: str) -> Path:
        """The path of an input that this method cannot do without."""
        path: Path | None = getattr(self, name)
        if path is None:
            raise UserError(f"the method needs the input '{name}'", where=f"--{name}", do="pass its path")
        return path


class Policy(Protocol):
    """Acts on a batch of rows at once; row b never depends on the other rows."""

    def start(self, seeds_B: np.ndarray, horizon: int, episodes: int) -> None:
        """Begin B rows with nothing remembered.

        Args:
            seeds_B: uint64 [B]; what a row draws depends on its own seed only.
            horizon: longest episode, steps.
            episodes: how many episodes in a row will be played (room for memory).
        """

    def reset(self, mask_B: np.ndarray) -> None:
        """Forget everything in the rows of the mask: another task begins."""

    def act(self, observation_BD: np.ndarray, reward_B: np.ndarray, done_B: np.ndarray) -> np.ndarray:
        """Actions [B].

        Args:
            observation_BD: what the rows see now.
            reward_B, done_B: outcome of the previous step; where done, the observation begins a new episode of the same
                task. Zeros at the first call.
        """

    def arrays(self) -> dict[str, np.ndarray]:
        """Everything that `load_policy` needs."""


@dataclass(frozen=True)
class Facts:
    """What a sequence model must know of an environment.

    observation_size: entries of an observation; observation_values: number of values of each entry, empty where the
    observation is not made of small whole numbers; actions: number of discrete actions; horizon: longest episode.
    """

    observation_size: int
    observation_values: tuple[int, ...]
    actions: int
    horizon: int


def facts_of(environment: EnvironmentSettings) -> Facts:
    """The facts of an environment, from its world."""
    tasks = registry.tasks(environment.world, environment.options, "train")
    world = registry.make_world(environment.world, environment.options, tasks[:1], np.zeros(1, np.uint64))
    space, high = world.single_observation_space, getattr(world.single_observation_space, "high", None)
    values: tuple[int, ...] = ()
    if high is not None and np.issubdtype(space.dtype, np.integer):
        values = tuple(int(v) + 1 for v in np.ravel(high))
    return Facts(
        observation_size=int(np.prod(space.shape or (1,))),
        observation_values=values,
        actions=int(getattr(world.single_action_space, "n", 0)),
        horizon=world.horizon,
    )
