"""What the online methods act with: a network over the history, and the batched policy that feeds it step by step.

Token k is (a_k, r_k, o_k): the action taken at o_{k-1}, its reward and what it led to. The first token of an episode and of
every training window has no action and reward 0 (Memory-RL section 2.2 of our specification).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from recollect.common.batched_policy import BatchedPolicy
from recollect.common.distinct_histories import DistinctHistories
from recollect.common.sequence_models import SequenceModel
from recollect.common.weights import arrays_of, load_policy_arrays
from recollect.memory_rl.acting_graph import ActingGraph
from recollect.memory_rl.heads import Head
from recollect.memory_rl.replay import Batch
from recollect.memory_rl.sequence import HistoryEncoder
from recollect.settings.seeding import seed_of


class HistoryNetwork(nn.Module):
    """Encoder of the history and a head: one output per action (or more, where they are continuous): [B, T, A]."""

    def __init__(self, encoder: HistoryEncoder, head: Head) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head

    def forward(
        self,
        action_BT: Tensor,
        reward_BT: Tensor,
        observation_BTD: Tensor,
        histories: DistinctHistories | None = None,
    ) -> Tensor:
        """`histories`: of these tokens, where they share some (`HistoryEncoder.distinct`)."""
        if histories is None:
            return self.head(self.encoder(action_BT, reward_BT, observation_BTD))
        return histories.spread(self.head(self.encoder.read(histories, action_BT, reward_BT, observation_BTD)))

    def greedy(self, outputs_BA: Tensor) -> Tensor:
        """The best action of each row: int64 [B], or float [B, A] in [-1, 1] where actions are continuous."""
        size = self.encoder.embedder.action_size
        return outputs_BA[..., :size].tanh() if size else outputs_BA.argmax(-1)


def reseed_dropout(module: nn.Module, seed: int) -> None:
    random = [part for part in module.modules() if isinstance(part, SequenceModel) and part.random]
    for i, model in enumerate(random):
        model.reseed_dropout(seed_of("dropout of another encoder", i, seed) if i else seed)


def tokens(batch: Batch, network: HistoryNetwork) -> tuple[Tensor, Tensor, Tensor]:
    """A batch of n transitions as n + 1 tokens (a_k, r_k, o_k); the first has no action and reward 0."""
    none_B = network.encoder.embedder.no_action(len(batch.action_BT), batch.action_BT.device)
    action_BT = torch.cat([none_B[:, None], batch.action_BT], 1)
    return action_BT, nn.functional.pad(batch.reward_BT, (1, 0)), batch.observation_BTD


class HistoryPolicy(BatchedPolicy):
    """Greedy batched policy: remembers the history of each row's episode and takes the best action.

    Args:
        graphed: a step is a CUDA graph where it can be: for a policy that plays many episodes of as many rows.
    """

    acting = (*BatchedPolicy.acting, "_state", "_previous")

    def __init__(self, network: HistoryNetwork, device: torch.device | str = "cpu", *, graphed: bool = False) -> None:
        self.network, self.device, self.graphed = network, torch.device(device), graphed
        self._state: Any = None
        self._rows = -1
        self._outputs = torch.zeros(0)
        self._graph: ActingGraph | None = None

    def begin(self, rows: int) -> None:
        if rows != self._rows:
            self._state = self.network.encoder.sequence.initial_state(rows, self.device)
            self._rows = rows
            self._graph = ActingGraph(self.network, self.device) if self.graphed else None
        self._previous = self.network.encoder.embedder.no_action(rows, "cpu")  # actions are kept where worlds are
        self.forget(np.ones(rows, bool))

    def forget(self, mask_B: np.ndarray) -> None:
        self._state = self.network.encoder.sequence.reset(self._state, mask_B)
        none = self.network.encoder.embedder.no_action(self._rows, "cpu")
        mask = torch.as_tensor(mask_B).view(-1, *[1] * (none.ndim - 1))
        self._previous = torch.where(mask, none, self._previous)

    @torch.no_grad()
    def outputs(self, observation_BD: np.ndarray, reward_B: np.ndarray, done_B: np.ndarray) -> Tensor:
        """Outputs [B, A] after one more token per row. A row that is done starts a new history."""
        ended_B, begun_B = self.next_step(done_B)
        if ended_B.any():
            self.forget(ended_B)
        reward = torch.as_tensor(np.where(begun_B, 0.0, reward_B).astype(np.float32))
        observation = torch.as_tensor(observation_BD).flatten(1)
        if self._graph is not None and self._graph.fits(self._state):
            token = self._previous, reward, observation
            self._outputs, self._state = self._graph.step(token, self._state)
            return self._outputs
        token = self._previous.to(self.device), reward.to(self.device), observation.to(self.device)
        h_BH, self._state = self.network.encoder.step(*token, self._state)
        self._outputs = self.network.head(h_BH)
        return self._outputs

    def took(self, action_B: np.ndarray) -> None:
        """Tell the policy which actions were taken, where they are not its own."""
        self._previous = torch.as_tensor(action_B)

    def act(self, observation_BD: np.ndarray, reward_B: np.ndarray, done_B: np.ndarray) -> np.ndarray:
        if self.network.training:  # setting it walks all modules, at every step
            self.network.eval()
        self._previous = self.network.greedy(self.outputs(observation_BD, reward_B, done_B)).cpu()
        return self._previous.numpy()

    def traced(self, rows_N: np.ndarray) -> dict[str, np.ndarray]:
        rows = torch.as_tensor(rows_N, device=self.device)
        return {"outputs": self._outputs[rows].float().cpu().numpy()}

    def maps(self, rows_N: np.ndarray) -> dict[str, np.ndarray]:
        rows = torch.as_tensor(rows_N, device=self.device)
        weights_NLC = self.network.encoder.sequence.attention(self._state, rows)
        if weights_NLC is None:
            return {}
        return {"history_attention": weights_NLC.half().cpu().numpy()}

    def arrays(self) -> dict[str, np.ndarray]:
        return arrays_of(self.network)


def policy_from(network: HistoryNetwork, arrays: Mapping[str, np.ndarray], device: torch.device | str) -> HistoryPolicy:
    load_policy_arrays(network, arrays)
    return HistoryPolicy(network.to(device).eval(), device)
