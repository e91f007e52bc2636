"""SAC-Discrete on histories (Memory-RL, Ni et al. 2023, section 2.4 of our specification): the agent of the room games.

- Target y_k = r_k + (1 - d_k) * discount * sum_a pi(a|h_k) (min_i Qbar_i(h_k, a) - alpha log pi(a|h_k)), where log pi is
  that of max(pi, 1e-8). With a shared encoder only the Q heads have Polyak targets, and they read the online encoder's
  h, computed once (`target_encoder` reads a Polyak copy instead). With separate encoders Qbar is a copy of the whole critic.
- Critic: masked mean squares of both heads, halved where the encoder is shared. Actor: masked mean of
  sum_a pi(a|h) (alpha log pi(a|h) - min_i Q_i(h, a)). One Adam on the sum, no clipping.
- `freeze_critic`: Q is a constant in the actor's loss. Without it the gradient also goes through the Q heads and h.
- alpha is fixed, or learned to an entropy of `target_entropy` * ln(actions); learned, it starts at 1, as released.
- Acting: a draw from pi while collecting, the likeliest action in evaluation.
- alpha moves in the same Adam step as everything else: the released code moves it after that, from the same entropy.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from recollect.common.contract import Facts, need_discrete
from recollect.common.draws import categorical_from_weights
from recollect.common.masked_mean import Mean, masked_mean
from recollect.memory_rl import ensemble
from recollect.memory_rl.history_actor_critic import (
    ACTOR,
    ActorCritic,
    ActorCriticHyperparameters,
    ActorCriticLearner,
    critic_losses,
    first_tokens,
    load_actor,
    of_rows,
)
from recollect.memory_rl.history_policy import tokens
from recollect.memory_rl.learner import Turn
from recollect.memory_rl.off_policy import train_learner, trainer_of
from recollect.memory_rl.replay import Batch

ACTIONS = "discrete"
SMALLEST_PROBABILITY = 1e-8


class Hyperparameters(ActorCriticHyperparameters):
    alpha: float = Field(0.1, ge=0, description="Temperature where it is not learned; more explores more. Paper: 0.1.")
    target_entropy: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Learn the temperature (from 1) until the policy's entropy is this share of that of uniform actions. "
        "Null, the paper's: `alpha` stays.",
    )
    target_encoder: bool = Field(
        False, description="With a shared encoder: targets read a Polyak copy of it. Paper: no, they read it itself."
    )


def make_actor_critic(hp: Hyperparameters, facts: Facts, *, seed: int) -> ActorCritic:
    need_discrete(facts, "sacd")
    return ActorCritic(hp, facts, facts.actions, seed=seed, log_alpha=None if hp.target_entropy is None else 0.0)


def losses_of(
    online: ActorCritic,
    target: ActorCritic,
    batch: Batch,
    hp: Hyperparameters,
    mean: Mean = masked_mean,
    turn: Turn = (),
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """The critics' loss, the actor's and temperature's (scalars, as `mean` gives them), and metrics.

    Args:
        turn: see `ActorCriticLearner.losses`.
    """
    parts = tokens(batch, online.actor)
    mask_BT = batch.mask_BT
    n = batch.action_BT.shape[1]
    h_BTH = online.actor.encoder(*parts)
    pi_BTA = online.actor.head(h_BTH).softmax(-1)
    log_pi_BTA = pi_BTA.clamp(min=SMALLEST_PROBABILITY).log()
    alpha = (
        torch.full((), hp.alpha, device=pi_BTA.device) if online.log_alpha is None else online.log_alpha.detach().exp()
    )
    y_BT = batch.reward_BT  # stands in where only the actor learns, and nothing reads the critics' loss
    if turn != ACTOR:
        with torch.no_grad():
            target.train(hp.dropout_in_targets)
            own_target = hp.target_encoder or not hp.shared_encoder
            target_BTH = target.critic_states(parts) if own_target else h_BTH
            q_BTA = torch.minimum(*target.q(target_BTH))
            value_BT = (pi_BTA * (q_BTA - of_rows(alpha, pi_BTA) * log_pi_BTA)).sum(-1)[:, 1:]
            y_BT = batch.reward_BT + (1.0 - batch.terminal_BT) * hp.discount * value_BT

    critic_BTH = h_BTH[:, :n] if hp.shared_encoder else online.critic_states(first_tokens(parts, n))
    q1_BTA, q2_BTA = online.q(critic_BTH)
    taken_BT1 = batch.action_BT[..., None]
    q1_BT = q1_BTA.gather(-1, taken_BT1)[..., 0]
    q2_BT = q2_BTA.gather(-1, taken_BT1)[..., 0]
    critic_loss, metrics = critic_losses(q1_BT, q2_BT, y_BT, mask_BT, mean)

    least_BTA = torch.minimum(q1_BTA, q2_BTA)
    if hp.freeze_critic or not hp.shared_encoder:
        least_BTA = least_BTA.detach()
    pi_BTA = pi_BTA[:, :n]
    log_pi_BTA = log_pi_BTA[:, :n]
    actor_cost_BTA = of_rows(alpha, pi_BTA) * log_pi_BTA - least_BTA
    actor_loss = mean((pi_BTA * actor_cost_BTA).sum(-1), mask_BT)
    entropy = -mean((pi_BTA * log_pi_BTA).sum(-1).detach(), mask_BT)

    critic_weight = 0.5 if hp.shared_encoder else 1.0
    metrics |= {"actor_loss": actor_loss.detach(), "entropy": entropy, "alpha": alpha}
    if online.log_alpha is not None and hp.target_entropy is not None:
        goal = hp.target_entropy * math.log(pi_BTA.shape[-1])
        actor_loss = actor_loss - online.log_alpha.exp() * (goal - entropy)
    return critic_weight * critic_loss, actor_loss, metrics


class SACD(ActorCriticLearner):
    make = staticmethod(make_actor_critic)

    @property
    def reads_target_actor(self) -> bool:
        return bool(self.hp.shared_encoder and self.hp.target_encoder)

    def losses(self, batch: Batch, noise: tuple[Tensor, ...], turn: Turn) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        return losses_of(self.online, self.target, batch, self.hp, self.mean, turn)

    def explore(self, outputs_BA: Tensor, count_B: np.ndarray, draws: np.random.Generator) -> np.ndarray:
        chance_B = torch.as_tensor(draws.random(len(outputs_BA)), device=outputs_BA.device)
        return categorical_from_weights(outputs_BA.double().softmax(-1), chance_B).cpu().numpy()

    def explore_one(self, outputs_A: np.ndarray, count: int, draws: np.random.Generator) -> int:
        weights_A = np.exp(outputs_A.astype(np.float64) - outputs_A.max())
        return int(categorical_from_weights(weights_A, np.array(draws.random())))

    def drawn_before(self, steps: int, count: int, draws: np.random.Generator) -> np.ndarray:
        """By which numbers in [0, 1) actions are drawn."""
        return draws.random(steps)

    def explored(self, outputs_BA: Tensor, drawn_B: Tensor) -> Tensor:
        whole_BA = outputs_BA.double()
        return categorical_from_weights((whole_BA - whole_BA.amax(-1, keepdim=True)).exp(), drawn_B)


make_trainer = partial(trainer_of, SACD)
train = partial(train_learner, SACD)
train_together = partial(ensemble.train_together, SACD)
load_policy = load_actor
