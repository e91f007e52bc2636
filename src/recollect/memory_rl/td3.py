"""TD3 on histories (Memory-RL, Ni et al. 2023, section 2.5 of our specification): the agent of the continuous tasks.

- Target y_k = r_k + (1 - d_k) * discount * min_i Qbar_i(hbar_k, a'), a' = clip(pibar(hbar_k) + clip(noise)); the target is
  a Polyak copy of everything, moved at every update (no delayed policy).
- Critic: masked mean of both squared errors. Actor: minus the masked mean of min_i Q_i(h, pi(h)). One Adam, no clipping.
- `freeze_critic` takes the gradient from the critics (and from h as they read it); `freeze_all` from the actor's h too,
  where the encoder is shared.
- Loop: `off_policy`, with budgets in environment steps as the released (JAX) one has (`budget: steps`).
- Ours: a GPT's attention drops out by a mask for each window and head; flax has one for a whole batch in each layer.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from recollect.common.contract import Facts
from recollect.common.masked_mean import Mean, masked_mean
from recollect.memory_rl import continuous_actor_critic as continuous
from recollect.memory_rl import ensemble
from recollect.memory_rl import history_actor_critic as history
from recollect.memory_rl.history_policy import tokens
from recollect.memory_rl.learner import Turn
from recollect.memory_rl.off_policy import train_learner, trainer_of
from recollect.memory_rl.replay import Batch
from recollect.settings.seeding import seed_of

ACTIONS = "continuous"


class Hyperparameters(continuous.ContinuousHyperparameters):
    exploration_noise: float = Field(0.1, ge=0, description="Added to actions while collecting. Paper: 0.1.")
    target_noise: float = Field(0.2, ge=0, description="Added to the target's actions. Paper: 0.2.")
    target_noise_clip: float = Field(0.5, ge=0, description="Largest such noise. Paper: 0.5.")


def make_actor_critic(hp: Hyperparameters, facts: Facts, *, seed: int) -> history.ActorCritic:
    continuous.need_continuous(facts, "td3")
    return continuous.initialised(history.ActorCritic(hp, facts, facts.action_size, seed=seed), hp, seed=seed)


@torch.no_grad()
def targets_of(
    target: history.ActorCritic,
    parts: tuple[Tensor, Tensor, Tensor],
    batch: Batch,
    hp: Hyperparameters,
    noise_BTA: Tensor,
) -> Tensor:
    """What the critics learn, y [B, T]; `parts` are the batch's tokens, and the noise is that of `losses_of`."""
    target.train(hp.dropout_in_targets)
    hbar_BTH = target.actor.encoder(*parts)
    action_BTA = target.actor.greedy(target.actor.head(hbar_BTH))
    noise_BTA = hp.target_noise * noise_BTA
    action_BTA += noise_BTA.clamp(-hp.target_noise_clip, hp.target_noise_clip)
    reads_BTH = hbar_BTH if hp.shared_encoder else target.critic_states(parts)
    value_BT = torch.minimum(*target.q(reads_BTH, action_BTA.clamp(-1.0, 1.0)))[:, 1:]
    return batch.reward_BT + (1.0 - batch.terminal_BT) * hp.discount * value_BT


def losses_of(
    online: history.ActorCritic,
    target: history.ActorCritic,
    batch: Batch,
    hp: Hyperparameters,
    noise_BTA: Tensor,
    *,
    mean: Mean = masked_mean,
    turn: Turn = (),
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """The critics' loss, the actor's (scalars, as `mean` gives them), and metrics.

    Args:
        noise_BTA: standard normal numbers [B, n + 1, A], of the target's actions.
        turn: see `ActorCriticLearner.losses`.
    """
    parts = tokens(batch, online.actor)
    present = history.first_tokens(parts, batch.action_BT.shape[1])
    y_BT = batch.reward_BT if turn == history.ACTOR else targets_of(target, parts, batch, hp, noise_BTA)
    h_BTH = online.actor.encoder(*present)
    critic_BTH = h_BTH if hp.shared_encoder else online.critic_states(present)
    q1_BT, q2_BT = online.q(critic_BTH, batch.action_BT)
    critic_loss, metrics = history.critic_losses(q1_BT, q2_BT, y_BT, batch.mask_BT, mean)
    chosen_BTA = online.actor.greedy(online.actor.head(h_BTH.detach() if hp.freezes_encoder else h_BTH))
    actor_loss = -mean(continuous.least_q(online, critic_BTH, chosen_BTA, hp), batch.mask_BT)
    return critic_loss, actor_loss, {**metrics, "actor_loss": actor_loss.detach()}


class TD3(history.ActorCriticLearner):
    make = staticmethod(make_actor_critic)

    def noise(self, windows: int, n: int, counter: int) -> tuple[Tensor, ...]:
        draws = torch.Generator().manual_seed(seed_of("target noise", self.seed, counter))
        return (continuous.normal((windows, n + 1, self.network.encoder.embedder.action_size), draws),)

    def losses(self, batch: Batch, noise: tuple[Tensor, ...], turn: Turn) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        return losses_of(self.online, self.target, batch, self.hp, *noise, mean=self.mean, turn=turn)

    def explore(self, outputs_BA: Tensor, count_B: np.ndarray, draws: np.random.Generator) -> np.ndarray:
        action_BA = self.network.greedy(outputs_BA).cpu().numpy()
        noise_BA = self.hp.exploration_noise * draws.standard_normal(action_BA.shape, np.float32)
        return np.clip(action_BA + noise_BA, -1.0, 1.0, dtype=np.float32)


make_trainer = partial(trainer_of, TD3)
train = partial(train_learner, TD3)
train_together = partial(ensemble.train_together, TD3)
load_policy = history.load_actor
