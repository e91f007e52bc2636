"""What AMAGO acts with: a batch of rows, each with its own memory, one forward pass per step (specification 3).

Episodes of a task that follow one another share the memory and the count of steps, and are told apart by the flag "an
episode begins" (in the `seed` layout). It is set where a row is reset, after `done` (the in-context protocol), and where
a world that begins new episodes within a rollout says so (`WorldShape.episode_clock`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recollect.amago.acting_graph import ActingGraph
from recollect.amago.hyperparameters import AmagoHyperparameters
from recollect.amago.memory import RecentSteps
from recollect.amago.network import Network
from recollect.amago.policy_distributions import Distribution
from recollect.amago.timestep_encoders import Steps
from recollect.amago.trajectory_encoders import TransformerEncoder
from recollect.artifacts.checkpoints import joined, part
from recollect.common.batched_policy import BatchedPolicy


class AmagoPolicy(BatchedPolicy):
    """Batched policy, as `BatchedPolicy` has it; the policy of the last discount acts."""

    def __init__(
        self, network: Network, distribution: Distribution, hp: AmagoHyperparameters, device: torch.device
    ) -> None:
        self.network, self.distribution, self.hp, self.device = network, distribution, hp, device
        self._state: Any = None  # of the trajectory encoder
        self._steps: Steps | None = None  # the newest, of all rows, and what the actor said of them
        self._raw_BP = torch.zeros(0)
        self._recent: RecentSteps | None = None  # or, where it is slow, what it encodes anew
        self._graph: ActingGraph | None = None  # where acting is one, it steps with the state above
        self._rows = -1

    def begin(self, rows: int) -> None:
        """See `BatchedPolicy`. Memory holds as many steps as the network was trained with; one of as many rows is used again."""
        if rows != self._rows:
            if self.hp.slow_inference:
                self._recent = RecentSteps(self.network, rows, self.hp.context_of(self.network.shape.steps.horizon))
            else:
                self._remember(self.network.trajectory_encoder.initial_state(rows, self.device))
            self._rows = rows
        self._time_B = np.zeros(rows, np.int64)
        self._previous = self._no_action()
        self.forget(np.ones(rows, bool))

    def _remember(self, state: Any) -> None:
        self._state = state
        is_ours = type(self.network.trajectory_encoder) is TransformerEncoder and self.network.inputs.own() is None
        if self.device.type == "cuda" and self.hp.cuda_graphs and is_ours:
            self._graph = ActingGraph(self.network, state, self.device)

    def _no_action(self) -> np.ndarray:
        steps = self.network.shape.steps
        if steps.kind == "discrete":
            return np.full(self._rows, -1, np.int64)
        if steps.kind == "binary":
            return np.full((self._rows, steps.actions), -1, np.int64)
        return np.full((self._rows, steps.actions), -2.0, np.float32)

    def forget(self, mask_B: np.ndarray) -> None:
        if self._recent is not None:
            self._recent.reset(mask_B)
        else:
            self._state = self.network.trajectory_encoder.reset(self._state, mask_B)
        mask = mask_B.reshape(-1, *[1] * (self._previous.ndim - 1))
        self._previous = np.where(mask, self._no_action(), self._previous)
        self._time_B = np.where(mask_B, 0, self._time_B)

    @torch.no_grad()
    def outputs(self, observation_BD: np.ndarray, reward_B: np.ndarray, done_B: np.ndarray) -> Tensor:
        """The actor's raw outputs [B, P] after one more time step per row."""
        network, fresh_B = self.network, self.fresh_B
        _, begun_B = self.next_step(done_B)
        if network.training:
            network.eval()
        # A graph is given all at once, from the CPU.
        device = self.device if self._graph is None else torch.device("cpu")
        reward = torch.as_tensor(np.where(fresh_B, 0.0, reward_B).astype(np.float32), device=device)
        time = torch.as_tensor(self._time_B, device=device)
        begins = torch.as_tensor(begun_B, device=device)
        previous = torch.as_tensor(self._previous, device=device)
        steps = network.steps(observation_BD, previous, reward, time, begins)
        self._steps = steps
        self._time_B = self._time_B + 1
        if self._graph is not None:
            self._raw_BP = self._graph(steps)
            return self._raw_BP
        if self._recent is not None:
            state_BE = self._recent.state(steps)
        else:
            x_BD = network.timestep_encoder(steps)
            state_BE, self._state = network.trajectory_encoder.step(x_BD, self._state)
        self._raw_BP = network.actor(state_BE)[:, -1]
        return self._raw_BP

    def chosen(self, raw_BP: Tensor, uniform_BU: np.ndarray | None) -> np.ndarray:
        """Actions: drawn with uniform numbers, or (None) the likeliest."""
        if uniform_BU is None:
            return self.distribution.mode(raw_BP).cpu().numpy()
        return self.distribution.drawn(raw_BP, torch.as_tensor(uniform_BU, device=raw_BP.device)).cpu().numpy()

    def took(self, action_B: np.ndarray) -> None:
        self._previous = np.asarray(action_B).astype(self._previous.dtype)

    def act(self, observation_BD: np.ndarray, reward_B: np.ndarray, done_B: np.ndarray) -> np.ndarray:
        raw_BP = self.outputs(observation_BD, reward_B, done_B)
        chances_BU = self.action_chances(self.distribution.uniforms) if self.hp.sample_actions else None
        action_B = self.chosen(raw_BP, chances_BU)
        self.took(action_B)
        return action_B

    def traced(self, rows_N: np.ndarray) -> dict[str, np.ndarray]:
        return {"outputs": self._raw_BP[torch.as_tensor(rows_N, device=self._raw_BP.device)].float().cpu().numpy()}

    @torch.no_grad()
    def maps(self, rows_N: np.ndarray) -> dict[str, np.ndarray]:
        """See `Traced`; of a ring of keys and values, and of our Transformer alone."""
        encoder = self.network.trajectory_encoder
        if type(encoder) is not TransformerEncoder or self._recent is not None or self._steps is None:
            return {}
        rows = torch.as_tensor(rows_N, device=self.device)
        x_ND = self.network.timestep_encoder(self._steps.rows(rows))
        return {"history_attention": encoder.reads(x_ND, self._state, rows).half().cpu().numpy()}

    def arrays(self) -> dict[str, np.ndarray]:
        return self.network.policy_arrays()

    def state_arrays(self) -> dict[str, np.ndarray]:
        encoder = self.network.trajectory_encoder
        memory = encoder.state_arrays(self._state) if self._recent is None else self._recent.arrays()
        return joined(memory=memory) | {
            "seeds": self.seeds_B,
            "drawn": self.draws_B,
            "time": self._time_B,
            "fresh": self.fresh_B,
            "previous": self._previous,
        }

    def load_state(self, arrays: Mapping[str, np.ndarray], device: Any = None) -> None:
        self.start(np.array(arrays["seeds"]))
        self.draws_B, self._time_B = np.array(arrays["drawn"]), np.array(arrays["time"])
        self.fresh_B, self._previous = np.array(arrays["fresh"]), np.array(arrays["previous"])
        memory = part(arrays, "memory")
        if self._recent is not None:
            self._recent.load(memory, self.device)
        else:
            self._remember(self.network.trajectory_encoder.state_from(memory, self.device))
