"""AMAGO-2's multi-task agent (Grigsby et al. 2024, arXiv 2411.11188): updates that do not depend on the scale of returns.

As `amago`, except (specification 1.9):

- Critics read (state, discount, action), one-hot where actions are discrete, and give a distribution over bins of values;
  their loss is the cross-entropy with a two-hot (or HL-Gauss) label of the target.
- The actor clones actions whose advantage over V is positive, V being the mean over draws of its own actions:
  online_coefficient 0, offline_coefficient 1. Targets are then means of the drawn critics, not the least.
- With bins PopArt is used by the optional online term only, and logged. That term, too, is a mean over `value_draws`
  actions, and draws discrete ones with straight-through Gumbel-softmax.

`critic_loss: regression` and the coefficients give the paper's mixed variants: Dep/Dep is `amago`, Ind/Ind the default here.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from recollect.amago import agent, speed, terms, training
from recollect.amago.agent import critic_options, distribution_of, policy_of
from recollect.amago.ensembles import ActionCritics
from recollect.amago.hyperparameters import AmagoHyperparameters
from recollect.amago.network import Network, Window, WorldShape
from recollect.amago.policy_distributions import Distribution
from recollect.amago.share import Numbers, uniform
from recollect.amago.terms import Draws, Heads
from recollect.amago.value_bins import ValueBins
from recollect.common.transfer import sent

TEMPERATURE = 0.5  # of Gumbel-softmax


class Hyperparameters(AmagoHyperparameters):
    """Of the multi-task agent; see also `AmagoHyperparameters`. Defaults are AMAGO-2's."""

    online_coefficient: float = Field(0.0, ge=0, description="Of the policy gradient. Paper: 0.")
    offline_coefficient: float = Field(1.0, ge=0, description="Of filtered behaviour cloning. Paper: 1.")
    discount_feature: Literal["seed", "head"] = Field("head", description="What critics read for a discount.")
    filter_threshold: float = Field(0.0, description="Advantage above which an action is cloned. Paper: 0.")
    critic_loss: Literal["bins", "regression"] = Field(
        "bins", description="`regression`: the paper's dependent critic."
    )
    bins: int = Field(128, ge=2, description="Of values. Paper: 32 to 128.")
    returns: tuple[float, float] = Field((-1e5, 1e5), description="Of the first and last bin, with multiplied rewards.")
    bin_space: Literal["symlog", "linear"] = Field("symlog", description="Where bins are evenly spaced. Paper: symlog.")
    labels: Literal["two_hot", "hl_gauss"] = Field("two_hot", description="Paper: two_hot.")
    value_draws: int = Field(3, ge=1, description="Actions drawn for V in the advantage. Upstream: 3.")

    @model_validator(mode="after")
    def _only_hard_actions(self) -> Hyperparameters:
        if self.soft_buffer_action:
            raise ValueError("soft_buffer_action: these critics read drawn actions; set it to false, or use amago")
        return self

    @model_validator(mode="after")
    def _bins_in_order(self) -> Hyperparameters:
        low, high = self.returns
        if not low < high:
            raise ValueError(f"the first of `returns`, {low:g}, must be below the last, {high:g}")
        return self

    @property
    def value_bins(self) -> ValueBins:
        return ValueBins(*self.returns, self.bins, space=self.bin_space, labels=self.labels)


class BinnedNetwork(Network):
    """A network with the bins of its critics' values."""

    bins: ValueBins


def make_network(hp: Hyperparameters, shape: WorldShape, *, seed: int) -> BinnedNetwork:
    critics = ActionCritics(
        hp.sequence.width,
        hp.discounts,
        shape.steps.actions,
        feature=hp.discount_feature,
        bins=hp.bins if hp.critic_loss == "bins" else None,
        **critic_options(hp, seed),
    )
    network = BinnedNetwork(hp, shape, critics, distribution_of(hp, shape).parameters, seed=seed)
    network.bins = hp.value_bins
    return network


def seen(action: Tensor, policy: Distribution) -> Tensor:
    """Actions as critics read them, float [..., A]."""
    if policy.kind == "discrete":
        return nn.functional.one_hot(action.long(), policy.size).float()
    return action.float()


@torch.no_grad()
def drawn_actions(raw_BTGP: Tensor, count: int, policy: Distribution, draws: Numbers) -> Tensor:
    """Draws of a policy as critics read them, [K, B, T, G, A]."""
    draws_K = [seen(drawn_B, policy) for drawn_B in policy.several(raw_BTGP, count, draws)]
    return torch.stack(draws_K)


def differentiable(raw_BTGP: Tensor, policy: Distribution, draws: Numbers) -> Tensor:
    """A draw [B, T, G, A] through which gradients pass."""
    if policy.kind != "discrete":
        return policy.reparameterised(raw_BTGP, draws)
    numbers = sent(uniform(draws, raw_BTGP.shape), raw_BTGP.device).clamp(1e-10, 1 - 1e-7)
    gumbel = -(-numbers.log()).log()
    log_pi = policy.reparameterised(raw_BTGP, draws).log()
    soft = ((log_pi + gumbel) / TEMPERATURE).softmax(-1)
    hard = nn.functional.one_hot(soft.argmax(-1), policy.size).to(soft.dtype)
    return hard + soft - soft.detach()


def loss_of(
    network: BinnedNetwork,
    target: Heads,
    window: Window,
    draws: Draws,
    hp: Hyperparameters,
    policy: Distribution,
    *,
    further: bool = False,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss (scalar) and metrics (`further`: all of them); PopArt's statistics move."""
    popart, critics, bins = network.popart, network.critics, network.bins
    binned = hp.critic_loss == "bins"

    def value(out: Tensor) -> Tensor:
        return bins.value(out) if binned else popart(out)

    s_BTE, next_BTE = terms.read(network, window)
    raw_BTGP = network.actor(s_BTE)
    log_pi_BTG = terms.log_prob_of_taken(window, raw_BTGP, policy)
    if hp.fake_filter and not hp.online_coefficient:
        return terms.cloning_loss(window, log_pi_BTG, hp)

    with torch.no_grad():
        next_raw_BTGP = (target.actor if hp.use_target_actor else network.actor)(next_BTE)
        next_KBTGA = drawn_actions(next_raw_BTGP, hp.target_draws, policy, draws.actions)
        next_CBTG = value(target.critics(next_BTE, next_KBTGA)).mean(1)
    y_BTG = terms.targets(network, window, next_CBTG, draws, hp)

    out = critics(s_BTE, seen(window.action, policy)[..., None, :])
    if binned:
        critic_loss = window.mean(-(bins.label(y_BTG) * out.log_softmax(-1)).sum(-1))
    else:
        critic_loss = window.mean((popart.normalised(out) - popart.normalise(y_BTG)) ** 2)

    with torch.no_grad():
        own_KBTGA = drawn_actions(raw_BTGP, hp.value_draws, policy, draws.actions)
        v_BTG = value(critics(s_BTE, own_KBTGA)).mean((0, 1))
        q_CBTG = value(out)
    weight_BTG = terms.cloning_weight(hp, q_CBTG.mean(0) - v_BTG)
    gained_CBTG = None
    if hp.online_coefficient:
        own = [differentiable(raw_BTGP, policy, draws.actions) for _ in range(hp.value_draws)]
        gained_CBTG = popart.normalise(value(critics(s_BTE.detach(), torch.stack(own), frozen=True)).mean(1))
    actor_loss = terms.actor_loss(hp, window, weight_BTG, log_pi_BTG, gained_CBTG)

    losses = {"actor_loss": actor_loss, "critic_loss": critic_loss}
    metrics = terms.metrics_of(
        network,
        window,
        policy,
        raw_BTGP=raw_BTGP,
        log_pi_BTG=log_pi_BTG,
        weight_BTG=weight_BTG,
        q_CBTG=q_CBTG,
        y_BTG=y_BTG,
        losses=losses,
        draws=draws,
        further=further,
    )
    return actor_loss + hp.critic_weight * critic_loss, metrics


class Agent(agent.Agent):
    make = staticmethod(make_network)
    loss = staticmethod(loss_of)
    graphed = True


train = partial(training.train, Agent)
updates_per_second = partial(speed.updates_per_second, Agent)
load_policy = partial(policy_of, Agent)
