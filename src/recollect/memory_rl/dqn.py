"""Double DQN on histories (Memory-RL, Ni et al. 2023, section 2.3 of our specification): the agent of the T-Mazes.

- Target y_k = r_k + (1 - d_k) * discount * Qbar(h_k, argmax_a Q(h_k, a)); Qbar is a Polyak copy of the whole network.
  Loss: masked mean of (Q(h_{k-1}, a_k) - y_k)^2, no factor 1/2, no Huber, no gradient clipping. Adam.
- Epsilon-greedy, linear from 1 to 1/T over the first tenth of the training episodes' steps; (1 - 1/T)^T -> 1/e keeps a
  constant chance of a greedy episode. Counted per exploratory selection, so actors in a batch share one schedule.
- Upstream runs three passes per update (online without gradient on n + 1 tokens, target, online with gradient on n).
  The first and the last agree where nothing is dropped out, and are then one pass (`merged_passes`).
- Dropout stays on while acting and in targets as upstream has it (switches in `off_policy`).
- `ff` is a working memoryless agent; upstream's Markov configuration does not run.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from recollect.common.contract import Facts, Inputs, facts_of, need_discrete
from recollect.common.masked_mean import Mean, masked_mean
from recollect.memory_rl import ensemble
from recollect.memory_rl.heads import Q_HEAD_RANGE
from recollect.memory_rl.history_policy import HistoryNetwork, HistoryPolicy, policy_from, tokens
from recollect.memory_rl.hyperparameters import OffPolicyHyperparameters
from recollect.memory_rl.learner import Learner, Turn
from recollect.memory_rl.networks import make_history_network
from recollect.memory_rl.off_policy import train_learner, trainer_of
from recollect.memory_rl.replay import Batch
from recollect.settings.schema import Settings

ACTIONS = "discrete"


class Hyperparameters(OffPolicyHyperparameters):
    epsilon_start: float = Field(1.0, ge=0, le=1, description="Exploration at the first selection. Paper: 1.")
    epsilon_end: float | None = Field(None, ge=0, le=1, description="Exploration at the end; null: 1/T, the paper's.")
    exploration_fraction: float = Field(
        0.1, gt=0, description="Share of the training episodes' steps over which it falls. Paper: 0.1."
    )
    merged_passes: Literal["when_exact", "always", "never"] = Field(
        "when_exact",
        description="One online pass instead of two. `when_exact`: where there is no dropout (recurrent models, ff, "
        "gpt with dropout 0). `always` with dropout: the next action is chosen under the same dropout mask that the "
        "gradient sees, not under one of its own.",
    )

    @property
    def merges(self) -> bool:
        random = self.sequence.kind == "gpt" and self.sequence.dropout > 0
        return self.merged_passes == "always" or (self.merged_passes == "when_exact" and not random)


def make_network(hp: Hyperparameters, facts: Facts, *, seed: int) -> HistoryNetwork:
    need_discrete(facts, "dqn")
    return make_history_network(hp, facts, facts.actions, last_range=Q_HEAD_RANGE, draws="q head weights", seed=seed)


def epsilon(hp: Hyperparameters, horizon: int, count: Any) -> Any:
    """The share of random actions after so many selections: a number, or an array [B]."""
    end = 1.0 / horizon if hp.epsilon_end is None else hp.epsilon_end
    steps = hp.exploration_fraction * hp.train_episodes * horizon
    passed = min(count, steps) if isinstance(count, int) else np.minimum(np.asarray(count, np.float64), steps)
    return hp.epsilon_start + (end - hp.epsilon_start) * passed / steps


def loss_of(
    online: HistoryNetwork, target: HistoryNetwork, batch: Batch, hp: Hyperparameters, mean: Mean = masked_mean
) -> tuple[Tensor, dict[str, Tensor]]:
    """The masked double-DQN loss and metrics; scalars, as `mean` gives them."""
    action_BT, reward_BT, observation_BTD = tokens(batch, online)
    histories = online.encoder.distinct(action_BT, reward_BT, observation_BTD)
    n = batch.action_BT.shape[1]
    with torch.no_grad():
        target.train(hp.dropout_in_targets)
        target_BTA = target(action_BT, reward_BT, observation_BTD, histories)[:, 1:]
    if hp.merges:
        q_BTA = online(action_BT, reward_BT, observation_BTD, histories)
        best_BT = q_BTA.detach()[:, 1:].argmax(-1)
        q_BTA = q_BTA[:, :n]
    else:
        with torch.no_grad():
            online.train(hp.dropout_in_targets)
            best_BT = online(action_BT, reward_BT, observation_BTD)[:, 1:].argmax(-1)
            online.train()
        q_BTA = online(action_BT[:, :n], reward_BT[:, :n], observation_BTD[:, :n])
    next_BT = target_BTA.gather(-1, best_BT[..., None])[..., 0]
    y_BT = batch.reward_BT + (1.0 - batch.terminal_BT) * hp.discount * next_BT
    chosen_BT = q_BTA.gather(-1, batch.action_BT[..., None])[..., 0]
    loss = mean((chosen_BT - y_BT) ** 2, batch.mask_BT)
    return loss, {"critic_loss": loss.detach(), "q": mean(chosen_BT.detach(), batch.mask_BT)}


class DQN(Learner):
    network: HistoryNetwork
    target: HistoryNetwork

    def __init__(self, hp: Hyperparameters, facts: Facts, *, seed: int, device: torch.device | str) -> None:
        self.hp, self.horizon = hp, facts.horizon
        network, target = (make_network(hp, facts, seed=seed) for _ in range(2))
        super().__init__(hp, network, network, target, seed=seed, device=device)

    def loss(self, batch: Batch, noise: tuple[Tensor, ...], turn: Turn) -> tuple[Tensor, dict[str, Tensor]]:
        return loss_of(self.network, self.target, batch, self.hp, self.mean)

    def explore(self, outputs_BA: Tensor, count_B: np.ndarray, draws: np.random.Generator) -> np.ndarray:
        """Epsilon-greedy actions; with probability epsilon any of all actions."""
        greedy_B = outputs_BA.argmax(-1).cpu().numpy()
        anything_B = draws.integers(outputs_BA.shape[1], size=len(greedy_B))
        return np.where(draws.random(len(greedy_B)) < epsilon(self.hp, self.horizon, count_B), anything_B, greedy_B)

    def explore_one(self, outputs_A: np.ndarray, count: int, draws: np.random.Generator) -> int:
        anything = int(draws.integers(len(outputs_A)))
        explores = draws.random() < epsilon(self.hp, self.horizon, count)
        return anything if explores else int(outputs_A.argmax())

    def drawn_before(self, steps: int, count: int, draws: np.random.Generator) -> np.ndarray:
        """Actions that are taken in the place of the greedy ones; -1: the greedy one."""
        actions, taken = self.network.encoder.embedder.actions, []
        for t in range(steps):
            anything = int(draws.integers(actions))
            taken.append(anything if draws.random() < epsilon(self.hp, self.horizon, count + t) else -1)
        return np.array(taken, np.int64)

    def explored(self, outputs_BA: Tensor, drawn_B: Tensor) -> Tensor:
        return torch.where(drawn_B < 0, outputs_BA.argmax(-1), drawn_B)


make_trainer = partial(trainer_of, DQN)
train = partial(train_learner, DQN)
train_together = partial(ensemble.train_together, DQN)


def load_policy(settings: Settings, arrays: Mapping[str, Any], inputs: Inputs) -> HistoryPolicy:
    hp: Hyperparameters = settings.method.hyperparameters
    return policy_from(make_network(hp, facts_of(settings.environment), seed=0), arrays, inputs.device)
