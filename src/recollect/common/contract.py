"""What a method is, and what it is given.

A method is one module of its paper's folder with

- ``Hyperparameters``: a pydantic model, every field documented;
- ``train(settings, inputs, run) -> Policy``: learns, resuming from ``run``'s newest checkpoint;
- ``load_policy(settings, arrays, inputs) -> Policy``: a policy from the arrays of ``policy.safetensors``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from gymnasium.spaces import Box

from recollect.artifacts.inputs import Inputs as Inputs  # what every method is given
from recollect.common.image_encoders.registry import ImageEncoder
from recollect.environments import parallel, registry
from recollect.environments.base import Task, World
from recollect.settings.errors import UserError
from recollect.settings.schema import EnvironmentSettings, ImageSettings


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


@runtime_checkable
class Briefed(Protocol):
    """What a policy may want besides: to know which tasks its rows play. Told once, after `start`.

    A task's data may hold ``actions``, how many of the continuous actions are its own, and ``target_return``.
    """

    def brief(self, tasks: Sequence[Task]) -> None:
        """One task per row."""


@runtime_checkable
class Traced(Protocol):
    """What a policy may offer besides, for `recollect inspect`: a look at the step that it has just acted in.

    Both are called between two calls of `act`, change nothing, and take the rows that are asked for.
    """

    def traced(self, rows_N: np.ndarray) -> dict[str, np.ndarray]:
        """Small facts, [N, ...] each: the same names, shapes and types at every step. NaN or -1: there is none.

        ``return_to_go`` is what the policy aims at; ``outputs`` [N, A] what its network says of the actions. Of K retrieved
        windows: ``retrieved_episode`` (of the row's own), ``retrieved_first``, ``retrieved_end`` (its steps, end exclusive),
        ``retrieved_similarity``, ``retrieved_score``, ``retrieved_total_return``, each [N, K].
        """

    def maps(self, rows_N: np.ndarray) -> dict[str, np.ndarray]:
        """Larger arrays, [N, ...] each, which may be slow to compute and are asked for at some steps only.

        ``attention`` [N, L, W, P]: how much the token that predicts the action reads the P tokens of each of the W
        steps of the retrieved windows (one window behind the other, each left padded), in each of L layers.
        ``history_attention`` [N, L, C]: how much it reads of the C last steps of its own episode (left padded; the last is
        the present one). ``inputs`` [N, K, D]: what the newest observation became, in the space of a language model.
        """


@runtime_checkable
class Worded(Protocol):
    """What a policy may offer besides, where its facts have ``tokens`` [N, K]: the words that they are.

    ``token_scores`` [N, K] says how like the observation each is; ``token_entropy`` [N] is there where the observation is a
    mixture of all words, of which the K heaviest are named, with their weights.
    """

    def words(self, tokens: Sequence[int]) -> list[str]:
        """The word of each token."""


@dataclass(frozen=True)
class Facts:
    """What a sequence model must know of an environment.

    observation_size: entries of an observation; observation_values: number of values of each entry, empty where the
    observation is not made of small whole numbers from 0 on; actions: number of discrete actions, 0 where they are
    continuous; horizon: longest episode; observation_bounds: (low, high) of each entry, empty where one is unbounded;
    action_size: how many numbers a continuous action is, else 0; own_actions: of each task that histories are made of, how
    many of them are its own (the first ones); image_shape: of observations that are images (bytes with three axes) and that
    no image encoder has turned into vectors, else empty.
    """

    observation_size: int
    observation_values: tuple[int, ...]
    actions: int
    horizon: int
    action_size: int = 0
    own_actions: tuple[int, ...] = ()
    observation_bounds: tuple[tuple[float, float], ...] = ()
    image_shape: tuple[int, ...] = ()


def facts_of(environment: EnvironmentSettings) -> Facts:
    """The facts of an environment as methods meet it, from its world."""
    tasks = registry.tasks(environment.world, environment.options, "train")
    world = registry.make_world(environment.world, environment.options, tasks[:1], np.zeros(1, np.uint64))
    space, high = world.single_observation_space, getattr(world.single_observation_space, "high", None)
    size = int(np.prod(space.shape or (1,)))
    values: tuple[int, ...] = ()
    bounds: tuple[tuple[float, float], ...] = ()
    if environment.images is not None:
        size = environment.images.width
    elif high is not None and np.issubdtype(space.dtype, np.integer) and not np.any(getattr(space, "low", 0)):
        values = tuple(int(v) + 1 for v in np.ravel(high))
    elif isinstance(space, Box) and space.is_bounded():
        bounds = tuple(
            (float(low), float(high)) for low, high in zip(space.low.ravel(), space.high.ravel(), strict=True)
        )
    acts = world.single_action_space
    action_size = int(np.prod(acts.shape or ())) if isinstance(acts, Box) else 0
    return Facts(
        observation_size=size,
        observation_values=values,
        actions=int(getattr(acts, "n", 0)),
        horizon=world.horizon,
        action_size=action_size,
        observation_bounds=bounds,
        own_actions=own_actions(environment, environment.source.split if environment.source else "train", action_size),
        image_shape=tuple(space.shape or ()) if environment.images is None and is_image(space) else (),
    )


def own_actions(environment: EnvironmentSettings, split: str, action_size: int) -> tuple[int, ...]:
    """Of each task of a split, how many numbers of a continuous action are its own, the first ones; empty for discrete actions."""
    if not action_size:
        return ()
    tasks = registry.tasks(environment.world, environment.options, split)
    return tuple(int(task.data.get("actions", action_size)) for task in tasks)


def need_discrete(facts: Facts, method: str) -> None:
    if not facts.actions:
        raise UserError(
            f"{method} chooses among a number of actions, and this world's are continuous",
            where="method",
            do="use a method for continuous actions (sac, td3), or another environment",
        )


def is_image(space: Any) -> bool:
    """Whether observations are images: bytes with three axes."""
    return space.dtype == np.uint8 and len(space.shape or ()) == 3


class EncodedWorld:
    """A world of images as methods meet it: vectors in their place. Has what evaluation needs of a world."""

    def __init__(self, world: World, images: ImageSettings, device: Any) -> None:
        self.world, self.num_envs, self.horizon = world, world.num_envs, world.horizon
        self.encode = ImageEncoder(images, world.single_observation_space.shape or (), device=device)
        self.single_observation_space = Box(-np.inf, np.inf, (images.width,), np.float32)
        self.single_action_space = world.single_action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        observation, info = self.world.reset(seed=seed, options=options)
        return self.encode(observation), info

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        observation, reward_B, terminated_B, truncated_B, info = self.world.step(actions)
        return self.encode(observation), reward_B, terminated_B, truncated_B, info

    def get_state(self) -> dict[str, np.ndarray]:
        return self.world.get_state()

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        self.world.set_state(state)


def world_as_met(
    environment: EnvironmentSettings, tasks: list[Task], seeds: np.ndarray, policy: Policy | None = None
) -> World | EncodedWorld:
    """The world of an environment as methods meet it, with images encoded on the policy's device."""
    world = parallel.make_world(environment.world, environment.options, tasks, seeds)
    if environment.images is None:
        return world
    return EncodedWorld(world, environment.images, getattr(policy, "device", "cpu"))
