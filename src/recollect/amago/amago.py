"""AMAGO (Grigsby, Fan, Zhu 2024, arXiv 2310.09971): off-policy actor-critic over whole rollouts, for many discounts at once.

With states s of one sequence model, discounts g, critics Q and policies pi (specification 1.8; PopArt scales left out):

    y      = r + g (1 - done) min over 2 random critics of Q_target(s', pi_target(s'))       mean where there is no pg
    critic = mean (Q(s, a) - y)^2                                    its gradient trains the encoders
    pg     = - min over all critics of Q(s, pi(s))                   Q and the state it reads are constants
    fbc    = - [mean Q(s, a) - mean Q(s, pi(s)) > threshold] log pi(a | s)
    loss   = online_coefficient pg + offline_coefficient fbc + critic_weight critic

One AdamW on everything; then the targets (of the heads only) follow. What differs from the released code, and why:

- Critics are read as constants in pg; upstream keeps a third copy of them, whose gradients (in newer versions) also
  count in the clipped norm. Discrete critics read the state only, so one pass gives Q(s, a) and Q(s, pi(s)).
- The last real step of a short window has no action and is not in the actor's loss (`actor_mask: upstream`: it is).
- Targets follow after the optimiser's step (`targets_first: true`: before it, as newer versions do).
- InputNorm, exploration and the mixture policy have switches of their own. Losses of validation data are not computed, so
  that they cannot move PopArt's statistics.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from recollect.amago import agent, speed, terms, training
from recollect.amago.agent import critic_options, distribution_of, policy_of
from recollect.amago.ensembles import ActionCritics, DiscreteCritics
from recollect.amago.hyperparameters import AmagoHyperparameters
from recollect.amago.network import Network, Window, WorldShape
from recollect.amago.policy_distributions import ClippedSoftmax, Distribution
from recollect.amago.terms import Draws, Heads


class Hyperparameters(AmagoHyperparameters):
    """Of AMAGO; see `AmagoHyperparameters`."""


def make_network(hp: AmagoHyperparameters, shape: WorldShape, *, seed: int) -> Network:
    critics: nn.Module
    options = critic_options(hp, seed)
    width, size = hp.sequence.width, shape.steps.actions
    if shape.steps.kind == "discrete":
        critics = DiscreteCritics(width, len(hp.discounts), size, **options)
    else:
        critics = ActionCritics(width, hp.discounts, size, feature=hp.discount_feature, **options)
    return Network(hp, shape, critics, distribution_of(hp, shape).parameters, seed=seed)


def loss_of(
    network: Network,
    target: Heads,
    window: Window,
    draws: Draws,
    hp: AmagoHyperparameters,
    policy: Distribution,
    *,
    further: bool = False,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss (scalar) and metrics (`further`: all of them); PopArt's statistics move."""
    popart, critics = network.popart, network.critics
    s_BTE, next_BTE = terms.read(network, window)
    raw_BTGP = network.actor(s_BTE)
    log_pi_BTG = terms.log_prob_of_taken(window, raw_BTGP, policy)
    if hp.fake_filter and not hp.online_coefficient:
        return terms.cloning_loss(window, log_pi_BTG, hp)

    with torch.no_grad():
        next_raw_BTGP = (target.actor if hp.use_target_actor else network.actor)(next_BTE)
        next_CBTG = popart(q_of_policy(target.critics, next_BTE, next_raw_BTGP, policy, draws, hp.target_draws))
    y_BTG = terms.targets(network, window, next_CBTG, draws, hp)

    if policy.kind == "discrete":
        assert isinstance(policy, ClippedSoftmax)
        q_CBTGA = critics(s_BTE)
        one_hot_BTA = nn.functional.one_hot(window.action, policy.size) * window.real_BT1.float()  # padding: zeros
        taken_BTA = policy.clipped(one_hot_BTA) if hp.soft_buffer_action else one_hot_BTA
        q_CBTG = (q_CBTGA * taken_BTA[..., None, :]).sum(-1)
        q_pi_CBTG = (q_CBTGA.detach() * policy.probabilities(raw_BTGP)).sum(-1)
    else:
        q_CBTG = critics(s_BTE, window.action[..., None, :].float())
        q_pi_CBTG = q_of_policy(critics, s_BTE.detach(), raw_BTGP, policy, draws, hp.value_draws)
    critic_loss = window.mean((popart.normalised(q_CBTG) - popart.normalise(y_BTG)) ** 2)

    weight_BTG = terms.cloning_weight(hp, (q_CBTG.mean(0) - q_pi_CBTG.mean(0)).detach())
    gained_CBTG = popart.normalised(q_pi_CBTG) if hp.online_coefficient else None
    actor_loss = terms.actor_loss(hp, window, weight_BTG, log_pi_BTG, gained_CBTG)

    losses = {"actor_loss": actor_loss, "critic_loss": critic_loss}
    metrics = terms.metrics_of(
        network,
        window,
        policy,
        raw_BTGP=raw_BTGP,
        log_pi_BTG=log_pi_BTG,
        weight_BTG=weight_BTG,
        q_CBTG=popart(q_CBTG.detach()),
        y_BTG=y_BTG,
        losses=losses,
        draws=draws,
        further=further,
    )
    return actor_loss + hp.critic_weight * critic_loss, metrics


def q_of_policy(
    critics: nn.Module, s_BTE: Tensor, raw_BTGP: Tensor, policy: Distribution, draws: Draws, count: int = 1
) -> Tensor:
    """Values [C, B, T, G] of what a policy does; the critics are constants.

    Args:
        count: draws over which the mean is taken where actions are not discrete; else it is exact.
    """
    if isinstance(critics, DiscreteCritics):
        action = policy.reparameterised(raw_BTGP, draws.actions)
        return (critics(s_BTE, frozen=True) * action).sum(-1)
    own_KBTGA = torch.stack([policy.reparameterised(raw_BTGP, draws.actions) for _ in range(count)])
    q_CBTG: Tensor = critics(s_BTE, own_KBTGA, frozen=True).mean(1)
    return q_CBTG


class Agent(agent.Agent):
    make = staticmethod(make_network)
    loss = staticmethod(loss_of)
    graphed = True


train = partial(training.train, Agent)
updates_per_second = partial(speed.updates_per_second, Agent)
load_policy = partial(policy_of, Agent)
