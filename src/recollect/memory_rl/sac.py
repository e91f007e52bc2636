"""SAC on histories, for continuous actions (Memory-RL, Ni et al. 2023, section 2.5 of our specification).

- The policy is a Gaussian put through tanh; its log standard deviation is kept in [-20, 2].
- Target y_k = r_k + (1 - d_k) * discount * (min_i Qbar_i(hbar_k, a') - alpha log pi(a'|h_k)), a' drawn from the online
  actor; critics and their encoder are Polyak copies. Critic loss, freezing and loop: as in `td3`.
- Actor: masked mean of alpha log pi(a|h) - min_i Q_i(h, a), with a drawn through the noise.
- alpha starts at `alpha` and is learned to the entropy `target_entropy` (minus the number of action dimensions).
- alpha moves in the same Adam step as everything else: the released code moves it after that, from the same entropy.
- Ours: with dropout, the target's next actions come from the pass that the losses read; released: from one of its own.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

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

LOG_STD_LOW, LOG_STD_HIGH = -20.0, 2.0

ACTIONS = "continuous"


class Hyperparameters(continuous.ContinuousHyperparameters):
    alpha: float = Field(0.1, gt=0, description="First temperature. Paper: 0.1.")
    target_entropy: float | None = Field(
        None,
        description="Entropy to which the temperature is learned; null, the paper's: minus the action's dimensions.",
    )


def make_actor_critic(hp: Hyperparameters, facts: Facts, *, seed: int) -> history.ActorCritic:
    continuous.need_continuous(facts, "sac")
    model = history.ActorCritic(hp, facts, 2 * facts.action_size, seed=seed, log_alpha=math.log(hp.alpha))
    return continuous.initialised(model, hp, seed=seed)


def drawn(outputs_BTA: Tensor, noise_BTA: Tensor) -> tuple[Tensor, Tensor]:
    """Actions [B, T, A] of a tanh-Gaussian (means, then log standard deviations) and their log density [B, T]."""
    mean, log_std = outputs_BTA.chunk(2, -1)
    log_std = log_std.clamp(LOG_STD_LOW, LOG_STD_HIGH)
    raw = mean + log_std.exp() * noise_BTA
    log_normal = -0.5 * noise_BTA**2 - log_std - 0.5 * math.log(2 * math.pi)
    log_slope = 2.0 * (math.log(2.0) - raw - functional.softplus(-2.0 * raw))  # log(1 - tanh^2), never of 0
    return raw.tanh(), (log_normal - log_slope).sum(-1)


def losses_of(
    online: history.ActorCritic,
    target: history.ActorCritic,
    batch: Batch,
    hp: Hyperparameters,
    next_noise_BTA: Tensor,
    noise_BTA: Tensor,
    *,
    mean: Mean = masked_mean,
    turn: Turn = (),
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """The critics' loss, the actor's and temperature's (scalars, as `mean` gives them), and metrics.

    Args:
        next_noise_BTA: standard normal numbers [B, n + 1, A], of the actions that targets read.
        noise_BTA: and [B, n, A] of those in the actor's loss.
        turn: see `ActorCriticLearner.losses`.
    """
    parts = tokens(batch, online.actor)
    mask_BT = batch.mask_BT
    n, action_size = batch.action_BT.shape[1:]
    assert online.log_alpha is not None
    alpha = online.log_alpha.detach().exp()
    h_BTH = online.actor.encoder(*parts)
    outputs_BTA = online.actor.head(h_BTH.detach() if hp.freezes_encoder else h_BTH)
    y_BT = batch.reward_BT  # stands in where only the actor learns, and nothing reads the critics' loss
    if turn != history.ACTOR:
        with torch.no_grad():
            target.train(hp.dropout_in_targets)
            next_BTA, next_log_BT = drawn(outputs_BTA, next_noise_BTA)
            next_q_BT = torch.minimum(*target.q(target.critic_states(parts), next_BTA))
            value_BT = next_q_BT - history.of_rows(alpha, next_log_BT) * next_log_BT
            y_BT = batch.reward_BT + (1.0 - batch.terminal_BT) * hp.discount * value_BT[:, 1:]

    # The last token leads to no transition: only targets read it.
    present_BTA = outputs_BTA[:, :n]
    critic_BTH = h_BTH[:, :n] if hp.shared_encoder else online.critic_states(history.first_tokens(parts, n))
    q1_BT, q2_BT = online.q(critic_BTH, batch.action_BT)
    critic_loss, metrics = history.critic_losses(q1_BT, q2_BT, y_BT, mask_BT, mean)

    action_BTA, log_pi_BT = drawn(present_BTA, noise_BTA)
    least_BT = continuous.least_q(online, critic_BTH, action_BTA, hp)
    actor_loss = mean(history.of_rows(alpha, log_pi_BT) * log_pi_BT - least_BT, mask_BT)
    entropy = -mean(log_pi_BT.detach(), mask_BT)
    goal = -float(action_size) if hp.target_entropy is None else hp.target_entropy
    temperature_loss = online.log_alpha.exp() * (entropy - goal)
    metrics |= {"actor_loss": actor_loss.detach(), "entropy": entropy, "alpha": alpha}
    return critic_loss, actor_loss + temperature_loss, metrics


class SAC(history.ActorCriticLearner):
    make = staticmethod(make_actor_critic)

    @property
    def reads_target_actor(self) -> bool:
        return bool(self.hp.shared_encoder)

    def noise(self, windows: int, n: int, counter: int) -> tuple[Tensor, ...]:
        draws = torch.Generator().manual_seed(seed_of("actions in losses", self.seed, counter))
        size = self.network.encoder.embedder.action_size
        return continuous.normal((windows, n + 1, size), draws), continuous.normal((windows, n, size), draws)

    def losses(self, batch: Batch, noise: tuple[Tensor, ...], turn: Turn) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        return losses_of(self.online, self.target, batch, self.hp, *noise, mean=self.mean, turn=turn)

    def explore(self, outputs_BA: Tensor, count_B: np.ndarray, draws: np.random.Generator) -> np.ndarray:
        noise_BA = draws.standard_normal((len(outputs_BA), outputs_BA.shape[-1] // 2), np.float32)
        return drawn(outputs_BA, torch.as_tensor(noise_BA, device=outputs_BA.device))[0].cpu().numpy()


make_trainer = partial(trainer_of, SAC)
train = partial(train_learner, SAC)
train_together = partial(ensemble.train_together, SAC)
load_policy = partial(history.load_actor, outputs_per_action=2)
