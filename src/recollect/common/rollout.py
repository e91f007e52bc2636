"""The one rollout loop: every instance of a world plays one whole episode, all of them in one batch.

Data collection of the online methods and episodic evaluation both use it. Worlds and policies are known by their
interface only (a gymnasium vector environment without autoreset, and a function that maps a step to actions).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    begun = {} if saved is None else saved[1].take()
    if saved is not None and begun:
        load_play(world, saved[0], begun)
        now = _Standing.of(part(begun, "own"))
    else:
        now = _Standing.first(world)
    begun.clear()

    def state() -> dict[str, Any]:
        assert saved is not None
        return joined(own=now.arrays()) | play_arrays(world, saved[0])

    keeps = observations.shape[1] > 0
    if keeps:
        observations[:, 0] = now.observation
    while now.t < world.horizon and now.live.any():
        if saved is not None:
            saved[1].offer(state)
        action = act(now.observation, now.reward, now.done, now.t, now.live)
        before, live = now.observation, now.live
        now.observation, now.reward, terminated, truncated, info = world.step(action)
        faults.check_step(world, now.observation, now.reward)
        now.done = np.asarray(terminated | truncated)
        if watch is not None:
            watch(before, action, now.reward, now.done, live)
        if keeps:
            observations[live, now.t + 1] = now.observation[live]
        now.count(action, terminated, info.get("success"))
        if now.done.any() and now.live.any():
            now.observation, _ = world.reset(options={"reset_mask": now.done})
    longest = int(now.lengths.max())
    return Episodes(
        observations[:, : longest + 1],
        now.actions[:, :longest],
        now.rewards[:, :longest],
        now.terminals[:, :longest],
        now.lengths,
        now.successes,
    )


@dataclass
class _Standing:
    """How far all instances are: what a scoring saves besides the world's state and the policy's.

    Attributes:
        actions, rewards, terminals, lengths, successes: see `Episodes`; as long as the longest episode can be.
        live: bool [B], whose episode is not over.
        observation, reward, done: [B, D], [B] and [B], what the last step gave.
        t: the step that comes, from 0.
    """

    actions: np.ndarray
    rewards: np.ndarray
    terminals: np.ndarray
    lengths: np.ndarray
    successes: np.ndarray
    live: np.ndarray
    observation: np.ndarray
    reward: np.ndarray
    done: np.ndarray
    t: int

    @classmethod
    def first(cls, world: VectorWorld) -> _Standing:
        """Before the first step: every instance is reset."""
        batch, horizon = world.num_envs, world.horizon
        return cls(
            actions=np.zeros(0),  # of what kind they are says the first
            rewards=np.zeros((batch, horizon), np.float32),
            terminals=np.zeros((batch, horizon), np.uint8),
            lengths=np.zeros(batch, np.int64),
            successes=np.full(batch, np.nan),
            live=np.ones(batch, bool),
            observation=world.reset(options={"reset_mask": np.ones(batch, bool)})[0],
            reward=np.zeros(batch, np.float32),
            done=np.zeros(batch, bool),
            t=0,
        )

    def arrays(self) -> dict[str, np.ndarray]:
        return vars(self) | {"t": np.array(self.t)}

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray]) -> _Standing:
        """From what `arrays` gave."""
        others = dict(arrays)
        t = int(others.pop("t"))
        return cls(**others, t=t)

    def count(self, action: np.ndarray, terminated: np.ndarray, success: Any) -> None:
        """Write down the step that was made. `success`: [B], or None where the world has no such thing."""
        live, t = self.live, self.t
        if t == 0:
            kind = np.float32 if action.dtype.kind == "f" else np.int64
            self.actions = np.zeros((*self.rewards.shape, *action.shape[1:]), kind)
        self.actions[live, t], self.rewards[live, t] = action[live], self.reward[live]
        self.terminals[live, t] = terminated[live]
        self.lengths[live] += 1
        ended = live & self.done
        if success is not None and ended.any():
            self.successes[ended] = np.asarray(success, np.float64)[ended]
        self.live = live & ~ended
        self.t += 1
