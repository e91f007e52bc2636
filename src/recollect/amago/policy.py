"""What AMAGO acts with: a batch of rows, each with its own memory, one forward pass per step (specification 3).

Episodes of a task that follow one another share the memory and the count of steps, and are told apart by the flag "an
episode begins" (in the `seed` layout). It is set where a row is reset, after `done` (the in-context protocol), and where
a world that begins new episodes within a rollout says so (`WorldShape.episode_clock`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from recollect.amago.memory import RecentSteps
from recollect.amago.network import Network
from recollect.amago.policy_distributions import Distribution
from recollect.artifacts.checkpoints import part
from recollect.common.draws import ACTION_STREAM, uniform


class AmagoPolicy:
    """Batched policy; the policy of the last discount acts.

    Args:
        network: encoders and actor.
        distribution: of its outputs.
        hp: `sample_actions`, `slow_inference` and `context` are read.
        device: where the network is.
    """

    def __init__(self, network: Network, distribution: Distribution, hp: Any, device: torch.device) -> None:
        self.network, self.distribution, self.hp, self.device = network, distribution, hp, device
        self._state: Any = None  # of the trajectory encoder
        self._recent: RecentSteps | None = None  # or, where it is slow, what it encodes anew
        self._batch = -1

    def start(self, seeds_B: np.ndarray, horizon: int = 0, episodes: int = 1) -> None:
        """Begin B rows with nothing remembered. Memory holds as many steps as the network was trained with."""
        batch = len(seeds_B)
        if batch != self._batch:
            if self.hp.slow_inference:
                self._recent = RecentSteps(self.network, batch, self.hp.context_of(self.network.shape.steps.horizon))
            else:
                self._state = self.network.trajectory_encoder.initial_state(batch, self.device)
            self._batch = batch
        self._seeds_B = np.asarray(seeds_B, np.uint64)
        self._drawn_B = np.zeros(batch, np.uint64)
        self._time_B = np.zeros(batch, np.int64)
        self._fresh_B = np.zeros(batch, bool)
        self._previous = self._none(batch)
        self.reset(np.ones(batch, bool))

    def _none(self, batch: int) -> np.ndarray:
        steps = self.network.shape.steps
        if steps.kind == "discrete":
            return np.full(batch, -1, np.int64)
        none = -2.0 if steps.kind == "continuous" else -1
        return np.full((batch, steps.actions), none, np.float32 if steps.kind == "continuous" else np.int64)

    def reset(self, mask_B: np.ndarray) -> None:
        """Forget everything in the rows of the mask."""
        mask_B = np.asarray(mask_B, bool)
        if mask_B.any():
            if self._recent is not None:
                self._recent.reset(mask_B)
            else:
                self._state = self.network.trajectory_encoder.reset(self._state, mask_B)
            self._previous = np.where(mask_B.reshape(-1, *[1] * (self._previous.ndim - 1)), self._none(self._batch),
                                      self._previous)  # fmt: skip
            self._time_B = np.where(mask_B, 0, self._time_B)
            self._fresh_B = self._fresh_B | mask_B

    @torch.no_grad()
    def outputs(self, observation_BD: np.ndarray, reward_B: np.ndarray, done_B: np.ndarray) -> Tensor:
        """The actor's raw outputs [B, P] after one more time step per row."""
        network, fresh_B = self.network, self._fresh_B
        if network.training:
            network.eval()
        reward = torch.as_tensor(np.where(fresh_B, 0.0, reward_B).astype(np.float32), device=self.device)
        time = torch.as_tensor(self._time_B, device=self.device)
        begins = torch.as_tensor(fresh_B | np.asarray(done_B, bool), device=self.device)
        steps = network.steps(observation_BD, torch.as_tensor(self._previous, device=self.device), reward, time, begins)
        if self._recent is not None:
            state_BE = self._recent.state(steps)
        else:
            x_BD = network.timestep_encoder(steps)
            state_BE, self._state = network.trajectory_encoder.step(x_BD, self._state)
        self._fresh_B = np.zeros_like(fresh_B)
        self._time_B = self._time_B + 1
        raw: Tensor = network.actor(state_BE)[:, -1]
        return raw

    def chosen(self, raw_BP: Tensor, uniform_BU: np.ndarray | None) -> np.ndarray:
        """Actions: drawn with uniform numbers, or (None) the likeliest."""
        if uniform_BU is None:
            return self.distribution.mode(raw_BP).cpu().numpy()
        return self.distribution.drawn(raw_BP, torch.as_tensor(uniform_BU, device=raw_BP.device)).cpu().numpy()

    def took(self, action_B: np.ndarray) -> None:
        """Tell the policy which actions were taken."""
        self._previous = np.asarray(action_B).astype(self._previous.dtype)

    def act(self, observation_BD: np.ndarray, reward_B: np.ndarray, done_B: np.ndarray) -> np.ndarray:
        """Actions [B]; reward and done are those of the step that led to the observation."""
        drawn = None
        raw_BP = self.outputs(observation_BD, reward_B, done_B)
        if self.hp.sample_actions:
            numbers = self.distribution.uniforms
            each = [
                uniform(self._seeds_B, self._drawn_B * np.uint64(numbers) + np.uint64(n), ACTION_STREAM)
                for n in range(numbers)
            ]
            drawn = np.stack(each, 1)
            self._drawn_B = self._drawn_B + np.uint64(1)
        action_B = self.chosen(raw_BP, drawn)
        self.took(action_B)
        return action_B

    def arrays(self) -> dict[str, np.ndarray]:
        """What the policy file holds."""
        return self.network.policy_arrays()

    def state_arrays(self) -> dict[str, np.ndarray]:
        """What the rows remember, for a checkpoint."""
        own = {"seeds": self._seeds_B, "drawn": self._drawn_B, "time": self._time_B, "fresh": self._fresh_B}
        encoder = self.network.trajectory_encoder
        memory = encoder.state_arrays(self._state) if self._recent is None else self._recent.arrays()
        return {**own, "previous": self._previous, **{f"memory/{name}": value for name, value in memory.items()}}

    def load_state(self, arrays: dict[str, np.ndarray]) -> None:
        """Put back what `state_arrays` gave."""
        self.start(np.array(arrays["seeds"]))
        self._drawn_B, self._time_B = np.array(arrays["drawn"]), np.array(arrays["time"])
        self._fresh_B, self._previous = np.array(arrays["fresh"]), np.array(arrays["previous"])
        memory = part(arrays, "memory")
        if self._recent is not None:
            self._recent.load(memory, self.device)
        else:
            self._state = self.network.trajectory_encoder.state_from(memory, self.device)
