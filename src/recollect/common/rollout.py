"""The one rollout loop: every instance of a world plays one whole episode, all of them in one batch.

Data collection of the online methods and episodic evaluation both use it. Worlds and policies are known by their
interface only (a gymnasium vector environment without autoreset, and a function that maps a step to actions).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from recollect.artifacts.checkpoints import joined, part
from recollect.artifacts.scoring import Part
from recollect.common.acting_state import load_play, play_arrays, says_its_state
from recollect.environments import faults


class VectorWorld(Protocol):
    """What the loop needs of a world; `recollect.environments.base.World` has it."""

    num_envs: int
    horizon: int
    single_observation_space: Any

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]: ...

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]: ...

    def get_state(self) -> dict[str, np.ndarray]: ...

    def set_state(self, state: Any) -> None: ...


Act = Callable[[np.ndarray, np.ndarray, np.ndarray, int, np.ndarray], np.ndarray]
"""(observation [B, D], reward of the last step [B], done [B], step t, live [B]) -> action [B]."""

Watch = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray], None]
"""Told of each step: (observation before it, action, reward, done, live before it)."""


@dataclass(frozen=True)
class Episodes:
    """B whole episodes, padded on the right to the longest.

    Attributes:
        observation_BTD: [B, T + 1, D]; row l of an episode of length l is its final observation.
        action_BT: int64 [B, T], or float32 [B, T, A] where actions are continuous.
        reward_BT: float32 [B, T], 0 after the end.
        terminal_BT: uint8 [B, T], 1 where the episode terminated (not where it was truncated).
        length_B: int64 [B].
        success_B: float64 [B], from `info["success"]` at the last step; NaN where the world has no such thing.
    """

    observation_BTD: np.ndarray
    action_BT: np.ndarray
    reward_BT: np.ndarray
    terminal_BT: np.ndarray
    length_B: np.ndarray
    success_B: np.ndarray

    @property
    def return_B(self) -> np.ndarray:
        return self.reward_BT.sum(axis=1, dtype=np.float64)

    def first(self, count: int) -> Episodes:
        return Episodes(*(getattr(self, name)[:count] for name in self.__dataclass_fields__))


def play_episodes(world: VectorWorld, act: Act) -> Episodes:
    """Reset every instance and play until each has ended once.

    Instances that end before others are reset and go on, so that the world stays legal, but nothing of that is kept.
    """
    space = world.single_observation_space
    observations = np.zeros((world.num_envs, world.horizon + 1, *space.shape), space.dtype)
    return _play(world, act, None, observations)


def score_episodes(world: VectorWorld, policy: Any, kept: Part, watch: Watch | None = None) -> Episodes:
    """`play_episodes` with a policy that was started, for its scores alone: observations are not kept, [B, 0].

    Args:
        kept: the part of a scoring that this is; one that was killed goes on where it was saved, with the same result.
    """

    def act(observation: np.ndarray, reward: np.ndarray, done: np.ndarray, t: int, live: np.ndarray) -> np.ndarray:
        action: np.ndarray = policy.act(observation, reward, done)
        return action

    saved = (policy, kept) if says_its_state(policy) else None
    return _play(world, act, watch, np.zeros((world.num_envs, 0)), saved)


def _play(
    world: VectorWorld, act: Act, watch: Watch | None, observations: np.ndarray, saved: tuple[Any, Part] | None = None
) -> Episodes:
    """See `play_episodes`.

    Args:
        observations: zeros [B, T + 1, D] that are written, or [B, 0]: they are not kept.
        saved: the policy that acts, and where its play is saved.
    """
    batch, horizon = world.num_envs, world.horizon
    rewards = np.zeros((batch, horizon), np.float32)
    terminals = np.zeros((batch, horizon), np.uint8)
    lengths = np.zeros(batch, np.int64)
    successes = np.full(batch, np.nan)
    live = np.ones(batch, bool)
    actions = np.zeros(0)
    reward, done = np.zeros(batch, np.float32), np.zeros(batch, bool)
    keeps = observations.shape[1] > 0
    first = 0

    def state() -> dict[str, Any]:
        of_all = {"actions": actions, "rewards": rewards, "terminals": terminals, "lengths": lengths}
        now = {"live": live, "observation": observation, "reward": reward, "done": done, "t": np.array(t)}
        own = {**of_all, "successes": successes, **now}
        assert saved is not None
        return joined(own=own) | play_arrays(world, saved[0])

    begun = {} if saved is None else saved[1].take()
    if saved is not None and begun:
        load_play(world, saved[0], begun)
        own = part(begun, "own")
        actions, rewards, terminals, lengths = (own[n] for n in ("actions", "rewards", "terminals", "lengths"))
        successes, live, observation = own["successes"], own["live"], own["observation"]
        reward, done, first = own["reward"], own["done"], int(own["t"])
    else:
        observation, _ = world.reset(options={"reset_mask": np.ones(batch, bool)})
        if keeps:
            observations[:, 0] = observation
    begun.clear()
    for t in range(first, horizon):
        if saved is not None:
            saved[1].offer(state)
        action = act(observation, reward, done, t, live)
        if t == 0:
            kind = np.float32 if action.dtype.kind == "f" else np.int64
            actions = np.zeros((batch, horizon, *action.shape[1:]), kind)
        before = observation
        observation, reward, terminated, truncated, info = world.step(action)
        faults.check_step(world, observation, reward)
        done = np.asarray(terminated | truncated)
        if watch is not None:
            watch(before, action, reward, done, live)
        actions[live, t], rewards[live, t] = action[live], reward[live]
        if keeps:
            observations[live, t + 1] = observation[live]
        terminals[live, t] = terminated[live]
        lengths[live] += 1
        ended = live & done
        if ended.any():
            if "success" in info:
                successes[ended] = np.asarray(info["success"], np.float64)[ended]
            live = live & ~ended
            if not live.any():
                break
        if done.any():
            observation, _ = world.reset(options={"reset_mask": done})
    longest = int(lengths.max())
    return Episodes(
        observations[:, : longest + 1],
        actions[:, :longest],
        rewards[:, :longest],
        terminals[:, :longest],
        lengths,
        successes,
    )
