"""What the losses of AMAGO's two agents share: draws, targets, the actor's loss, and what is logged.

Source: AMAGO (arXiv 2310.09971), specification 1.8. Axes: C critics, K drawn ones, B windows, L steps (T = L − 1 transitions),
G discounts, E width of a state, A actions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from recollect.amago.hyperparameters import AgentHyperparameters
from recollect.amago.network import Network, Window
from recollect.amago.policy_distributions import ClippedSoftmax, Distribution
from recollect.amago.share import ALONE, Numbers, Share, uniform
from recollect.common.transfer import sent
from recollect.settings.seeding import seed_of

# Of filters other than the binary one (released code, head: agent.py, `exp_filter` and `leaky_relu_filter`).
SMALLEST_WEIGHT, LARGEST_RAMP = 1e-7, 10.0
EXP_BETA, LEAKY_BETA = 1.0, 2.0
HINGE, LEAK, AT_ZERO = 0.01, 0.05, 0.01  # of the ramp: advantage where it bends, slope below, weight of advantage 0
FURTHER = (
    "entropy",
    "q_deviation",
    "target_least",
    "target_most",
    "popart_mean",
)  # metrics that are looked at once an epoch; besides, a value for each discount
VALUE = "q_discount_"


class Heads(nn.Module):
    """Actor and critics: what targets are copies of."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.actor, self.critics = network.actor, network.critics


@dataclass(frozen=True)
class Draws:
    """What a loss draws, a function of the seed and the update's number."""

    index_KBTG: Tensor
    actions: Numbers

    @classmethod
    def of(
        cls,
        hp: AgentHyperparameters,
        seed: int,
        counter: int,
        batch: int,
        steps: int,
        device: Any,
        share: Share = ALONE,
    ) -> Draws:
        """Critics for the targets of [B, T, G], and numbers for actions. With several devices, of this one's rows."""
        numbers = share.draws(seed_of("draws in the loss", seed, counter))
        generator = numbers if isinstance(numbers, torch.Generator) else numbers.whole
        shape = (hp.critics_in_target, batch if share.alone else share.batch, steps, len(hp.discounts))
        index_KBTG = torch.randint(hp.critics, shape, generator=generator)
        index_KBTG = index_KBTG if share.alone else index_KBTG[:, share.rows]
        return cls(sent(index_KBTG, device), numbers)


def read(network: Network, window: Window) -> tuple[Tensor, Tensor]:
    """States [B, T, E] that actions were chosen in, and those that they led to (constants)."""
    s_BLE = network.states(window)
    return s_BLE[:, :-1], s_BLE[:, 1:].detach()


def cloning_loss(window: Window, log_pi_BTG: Tensor, hp: AgentHyperparameters) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss and metrics where everything is cloned, and nothing needs critics."""
    loss = actor_loss(hp, window, torch.ones_like(log_pi_BTG), log_pi_BTG, None)
    return loss, window.share.totals({"actor_loss": loss.detach()})


def log_prob_of_taken(window: Window, raw_BTGP: Tensor, policy: Distribution) -> Tensor:
    """Log probabilities [B, T, G] of the buffer's actions under the policy of each discount."""
    action = window.action[..., None] if policy.kind == "discrete" else window.action[..., None, :]
    return policy.log_prob(raw_BTGP, action.expand(*raw_BTGP.shape[:3], *action.shape[3:]))


def value_of_drawn(q_CBTG: Tensor, index_KBTG: Tensor, hp: AgentHyperparameters) -> Tensor:
    """The least of the drawn critics per step and discount; their mean where no policy gradient is learned."""
    drawn_KBTG = q_CBTG.gather(0, index_KBTG)
    return drawn_KBTG.amin(0) if hp.online_coefficient else drawn_KBTG.mean(0)


@torch.no_grad()
def targets(network: Network, window: Window, next_CBTG: Tensor, draws: Draws, hp: AgentHyperparameters) -> Tensor:
    """What critics should say [B, T, G]; PopArt's statistics move. `next_CBTG`: returns that the target critics expect."""
    value_BTG = value_of_drawn(next_CBTG, draws.index_KBTG, hp)
    y_BTG = window.reward_BT[..., None] + network.discount_G * (1.0 - window.done_BT[..., None]) * value_BTG
    network.popart.update(y_BTG, window.mask_BL[:, 1:])
    return y_BTG


def cloning_weight(hp: AgentHyperparameters, advantage: Tensor) -> Tensor:
    """How much each action is cloned, of its advantage (any shape). The ramp has the binary weight on top, as released."""
    if hp.fake_filter:
        return torch.ones_like(advantage)
    passes = (advantage > hp.filter_threshold).to(advantage.dtype)
    if hp.filter == "binary":
        return passes
    if hp.filter == "exp":
        beta = EXP_BETA if hp.filter_beta is None else hp.filter_beta
        return (beta * advantage).exp().clamp(min=SMALLEST_WEIGHT)
    beta = LEAKY_BETA if hp.filter_beta is None else hp.filter_beta
    ramp = nn.functional.leaky_relu((advantage - HINGE) / beta, LEAK) + AT_ZERO + LEAK * HINGE / beta
    return ramp.clamp(SMALLEST_WEIGHT, LARGEST_RAMP) + passes


def actor_loss(
    hp: AgentHyperparameters, window: Window, weight_BTG: Tensor, log_pi_BTG: Tensor, q_pi_CBTG: Tensor | None
) -> Tensor:
    """The actor's loss: filtered cloning and, with values of what the policy does (normalised), the policy gradient."""
    actor_BTG = hp.offline_coefficient * (-weight_BTG * log_pi_BTG.clamp(-1e3, 1e3))
    if q_pi_CBTG is not None:
        actor_BTG = actor_BTG - hp.online_coefficient * q_pi_CBTG.amin(0)
    return window.mean(actor_BTG, last_steps=hp.actor_mask == "upstream")


def metrics_of(
    network: Network,
    window: Window,
    policy: Distribution,
    raw_BTGP: Tensor,
    log_pi_BTG: Tensor,
    weight_BTG: Tensor,
    q_CBTG: Tensor,
    y_BTG: Tensor,
    losses: dict[str, Tensor],
    draws: Draws,
    *,
    further: bool,
) -> dict[str, Tensor]:
    """For the log: the losses over all discounts, the rest of the one that acts, the last. `q_CBTG`: returns."""
    metrics = {
        **{name: loss.detach() for name, loss in losses.items()},
        "cloned": window.mean(weight_BTG),
        "q": window.mean(q_CBTG.mean(0)[..., -1:]),
        "target": window.mean(y_BTG[..., -1:]),
        "log_prob": window.mean(log_pi_BTG[..., -1:].detach()),
    }
    metrics = window.share.totals(metrics) | {"popart_deviation": network.popart.deviation[-1]}
    return metrics | further_metrics(network, window, policy, raw_BTGP, q_CBTG, y_BTG, draws) if further else metrics


@torch.no_grad()
def further_metrics(
    network: Network,
    window: Window,
    policy: Distribution,
    raw_BTGP: Tensor,
    q_CBTG: Tensor,
    y_BTG: Tensor,
    draws: Draws,
) -> dict[str, Tensor]:
    """What is looked at once an epoch: `of_epoch`."""
    share, y_BT1, q_BTG = window.share, y_BTG[..., -1:], q_CBTG.mean(0)
    beyond = torch.full_like(y_BT1, torch.inf)  # in the place of padding: how much of it there is, nobody need ask
    least, most = (torch.where(window.real_BT1, y, beyond).flatten() for y in (y_BT1, -y_BT1))
    means = {
        "entropy": window.mean(entropy(policy, raw_BTGP[:, :, -1:], draws.actions)),
        "q_deviation": window.mean(q_CBTG[..., -1:].std(0, correction=0)),
        **{f"{VALUE}{discount:g}": window.mean(q_BTG[..., g, None]) for g, discount in enumerate(network.discounts)},
    }
    return share.totals(means) | {
        "target_least": share.least(least),
        "target_most": -share.least(most),
        "popart_mean": network.popart.mean[-1].clone(),
    }


def of_epoch(metric: str) -> bool:
    """Whether a metric is looked at once an epoch alone."""
    return metric in FURTHER or metric.startswith(VALUE)


def entropy(policy: Distribution, raw: Tensor, draws: Numbers) -> Tensor:
    """Entropies [...] in nats; where actions are not discrete, of one draw each, and of bits the mean over bits."""
    if isinstance(policy, ClippedSoftmax):
        p = policy.probabilities(raw)
        return -(p * p.log()).sum(-1)
    numbers = uniform(draws, (*raw.shape[:-1], policy.uniforms))
    action = policy.drawn(raw, sent(numbers, raw.device))
    return -policy.log_prob(raw, action)
