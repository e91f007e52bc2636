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

from recollect.common.replay import Batch
from recollect.common.sequence_models import SequenceModel
from recollect.memory_rl.heads import Head
from recollect.memory_rl.sequence import HistoryEncoder
from recollect.settings.errors import UserError
from recollect.settings.seeding import seed_of


class HistoryNetwork(nn.Module):
    """Encoder of the history and a head: one output per action (or more, where they are continuous): [B, T, A]."""

    def __init__(self, encoder: HistoryEncoder, head: Head) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head

    def forward(self, action_BT: Tensor, reward_BT: Tensor, observation_BTD: Tensor) -> Tensor:
        """Outputs at every token."""
        return self.head(self.encoder(action_BT, reward_BT, observation_BTD))

    def greedy(self, outputs_BA: Tensor) -> Tensor:
        """The best action of each row: int64 [B], or float [B, A] in [-1, 1] where actions are continuous."""
        size = self.encoder.embedder.action_size
        return outputs_BA[..., :size].tanh() if size else outputs_BA.argmax(-1)


def reseed_dropout(module: nn.Module, seed: int) -> None:
    """Restart the dropout streams of all sequence models in a module."""
    random = [part for part in module.modules() if isinstance(part, SequenceModel) and part.random]
    for i, model in enumerate(random):
        model.reseed_dropout(seed_of("dropout of another encoder", i, seed) if i else seed)


def tokens(batch: Batch, network: HistoryNetwork) -> tuple[Tensor, Tensor, Tensor]:
    """A batch of n transitions as n + 1 tokens (a_k, r_k, o_k); the first has no action and reward 0."""
    none_B = network.encoder.embedder.no_action(len(batch.action_BT), batch.action_BT.device)
    action_BT = torch.cat([none_B[:, None], batch.action_BT], 1)
    return action_BT, nn.functional.pad(batch.reward_BT, (1, 0)), batch.observation_BTD


class HistoryPolicy:
    """Greedy batched policy: remembers the history of each row and takes the best action."""

    def __init__(self, network: HistoryNetwork, device: torch.device | str = "cpu") -> None:
        self.network, self.device = network, torch.device(device)
        self._state: Any = None
        self._outputs = torch.zeros(0)
        self._previous_B = torch.zeros(0, dtype=torch.int64)
        self._fresh_B = np.zeros(0, bool)

    def start(self, seeds_B: np.ndarray, horizon: int = 0, episodes: int = 1) -> None:
        """Begin B rows at the start of an episode. Nothing is drawn, and memory ends with the episode."""
        batch = len(seeds_B)
        if len(self._previous_B) != batch or self._state is None:
            self._state = self.network.encoder.sequence.initial_state(batch, self.device)
        self._previous_B = self.network.encoder.embedder.no_action(batch, self.device)
        self._fresh_B = np.ones(batch, bool)
        self._state = self.network.encoder.sequence.reset(self._state, self._fresh_B)

    def reset(self, mask_B: np.ndarray) -> None:
        """Forget the history of the rows where the mask is True."""
        mask_B = np.asarray(mask_B, bool)
        if mask_B.any():
            self._state = self.network.encoder.sequence.reset(self._state, mask_B)
            none_B = self.network.encoder.embedder.no_action(len(mask_B), self.device)
            fresh_B = torch.as_tensor(mask_B, device=self.device).view(-1, *[1] * (none_B.ndim - 1))
            self._previous_B = torch.where(fresh_B, none_B, self._previous_B)
            self._fresh_B = self._fresh_B | mask_B

    @torch.no_grad()
    def outputs(self, observation_BD: np.ndarray, reward_B: np.ndarray, done_B: np.ndarray) -> Tensor:
        """Outputs [B, A] after one more token per row. A row that is done starts a new history."""
        self.reset(np.asarray(done_B, bool) & ~self._fresh_B)
        reward = torch.as_tensor(np.where(self._fresh_B, 0.0, reward_B).astype(np.float32)).to(self.device)
        observation = torch.as_tensor(observation_BD).to(self.device).flatten(1)
        h_BH, self._state = self.network.encoder.step(self._previous_B, reward, observation, self._state)
        self._fresh_B = np.zeros_like(self._fresh_B)
        self._outputs = self.network.head(h_BH)
        return self._outputs

    def took(self, action_B: np.ndarray) -> None:
        """Tell the policy which actions were taken, where they are not its own."""
        self._previous_B = torch.as_tensor(action_B).to(self.device)

    def act(self, observation_BD: np.ndarray, reward_B: np.ndarray, done_B: np.ndarray) -> np.ndarray:
        """Greedy actions [B]; reward and done are those of the step that led to the observation."""
        self.network.eval()
        self._previous_B = self.network.greedy(self.outputs(observation_BD, reward_B, done_B))
        return self._previous_B.cpu().numpy()

    def traced(self, rows_N: np.ndarray) -> dict[str, np.ndarray]:
        """What the network said of each row; see `contract.Traced.traced`."""
        return {"outputs": self._outputs[torch.as_tensor(rows_N, device=self.device)].float().cpu().numpy()}

    def maps(self, rows_N: np.ndarray) -> dict[str, np.ndarray]:
        """What each row reads of its history; see `contract.Traced.maps`."""
        rows = torch.as_tensor(rows_N, device=self.device)
        weights_NLC = self.network.encoder.sequence.attention(self._state, rows)
        return {} if weights_NLC is None else {"history_attention": weights_NLC.half().cpu().numpy()}

    def arrays(self) -> dict[str, np.ndarray]:
        """The parameters by name, for the policy file."""
        return {name: value.detach().cpu().numpy() for name, value in self.network.state_dict().items()}


def policy_from(network: HistoryNetwork, arrays: Mapping[str, Any], device: torch.device | str) -> HistoryPolicy:
    """A policy with the parameters of a policy file.

    Raises:
        UserError: the arrays do not fit the network that the settings describe.
    """
    own = network.state_dict()
    wrong = [
        f"{name}: {tuple(arrays[name].shape) if name in arrays else 'missing'}, expected {tuple(value.shape)}"
        for name, value in own.items()
        if name not in arrays or tuple(arrays[name].shape) != tuple(value.shape)
    ]
    wrong += [f"{name}: not expected" for name in arrays if name not in own]
    if wrong:
        raise UserError(
            f"the policy does not fit these settings ({'; '.join(wrong[:3])})",
            where="policy arrays",
            do="use the settings and the environment it was trained with, or train it again",
        )
    network.load_state_dict({name: torch.as_tensor(np.array(arrays[name])) for name in own})
    return HistoryPolicy(network.to(device).eval(), device)
