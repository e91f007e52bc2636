"""What the losses of AMAGO's two agents share: draws, targets, the actor's loss, and what is logged of all that.

Source: AMAGO (arXiv 2310.09971), specification 1.8. Axes: C critics, K drawn ones, B windows, T transitions, G discounts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from recollect.amago.network import Network, Window
from recollect.amago.policy_distributions import ClippedSoftmax, Distribution
from recollect.settings.seeding import seed_of

if TYPE_CHECKING:
    from recollect.amago.amago import AgentHyperparameters

SMALLEST_WEIGHT, LARGEST_WEIGHT = 1e-7, 10.0  # of filters other than the binary one


class Heads(nn.Module):
    """The target copies of actor and critics."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.actor, self.critics = network.actor, network.critics


@dataclass(frozen=True)
class Draws:
    """What a loss draws, a function of the seed and the update's number."""

    index_KBTG: Tensor
    actions: torch.Generator

    @classmethod
    def of(cls, hp: AgentHyperparameters, seed: int, counter: int, batch: int, steps: int, device: Any) -> Draws:
        """Critics for the targets of [B, T, G], and a generator for actions."""
        generator = torch.Generator().manual_seed(seed_of("draws in the loss", seed, counter))
        shape = (hp.critics_in_target, batch, steps, len(hp.discounts))
        return cls(torch.randint(hp.critics, shape, generator=generator).to(device), generator)


def masked_mean(x: Tensor, mask_BT: Tensor) -> Tensor:
    """Mean over real steps and all of the last axis; x is [B, T, G] or [C, B, T, G]."""
    weight = mask_BT[..., None].to(x.dtype)
    return (x * weight).sum() / (weight.expand_as(x).sum()).clamp(min=1.0)


def log_prob_of_taken(window: Window, raw_BTGP: Tensor, policy: Distribution) -> Tensor:
    """Log probabilities [B, T, G] of the buffer's actions under the policy of each discount."""
    action = window.action[..., None] if policy.kind == "discrete" else window.action[..., None, :]
    return policy.log_prob(raw_BTGP, action.expand(*raw_BTGP.shape[:3], *action.shape[3:]))


def value_of_drawn(q_CBTG: Tensor, index_KBTG: Tensor, hp: AgentHyperparameters) -> Tensor:
    """The least of the drawn critics per step and discount; their mean where no policy gradient is learned."""
    drawn_KBTG = q_CBTG.gather(0, index_KBTG)
    return drawn_KBTG.amin(0) if hp.online_coefficient else drawn_KBTG.mean(0)


@torch.no_grad()
def targets(
    network: Network,
    target: Heads,
    window: Window,
    next_BTE: Tensor,
    draws: Draws,
    hp: AgentHyperparameters,
    values: Callable[[Tensor], Tensor],
) -> Tensor:
    """What critics should say [B, T, G]; PopArt's statistics move.

    Args:
        next_BTE: states after each transition.
        values: returns [C, B, T, G] that the target critics expect there of a policy's raw outputs.
    """
    raw_BTGP = (target.actor if hp.use_target_actor else network.actor)(next_BTE)
    value_BTG = value_of_drawn(values(raw_BTGP), draws.index_KBTG, hp)
    discount_G = torch.tensor(hp.discounts, device=value_BTG.device)
    y_BTG = window.reward_BT[..., None] + discount_G * (1.0 - window.done_BT[..., None]) * value_BTG
    network.popart.update(y_BTG, window.mask_BL[:, 1:])
    return y_BTG


def clones_only(hp: AgentHyperparameters) -> bool:
    """Whether everything is cloned and there are no critics."""
    return hp.fake_filter and not hp.online_coefficient


def cloning_loss(
    hp: AgentHyperparameters, window: Window, log_pi_BTG: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:  # fmt: skip
    """The loss and its metrics where everything is cloned."""
    loss = -hp.offline_coefficient * masked_mean(log_pi_BTG, window.mask_BL[:, 1:])
    return loss, {"actor_loss": loss.detach()}


def cloning_weight(hp: AgentHyperparameters, advantage: Tensor) -> Tensor:
    """How much an action of the buffer is cloned."""
    if hp.fake_filter:
        return torch.ones_like(advantage)
    if hp.filter == "binary":
        return (advantage > hp.filter_threshold).to(advantage.dtype)
    if hp.filter == "exp":
        return (hp.filter_beta * advantage).exp().clamp(SMALLEST_WEIGHT, LARGEST_WEIGHT)
    ramp = nn.functional.leaky_relu(hp.filter_beta * advantage, 0.05) + 0.01
    return ramp.clamp(SMALLEST_WEIGHT, LARGEST_WEIGHT)


def actor_loss(
    hp: AgentHyperparameters, window: Window, weight_BTG: Tensor, log_pi_BTG: Tensor, q_pi_CBTG: Tensor | None
) -> Tensor:
    """The actor's loss: filtered cloning and, with values of what the policy does (normalised), the policy gradient."""
    actor_BTG = hp.offline_coefficient * (-weight_BTG * log_pi_BTG.clamp(-1e3, 1e3))
    if q_pi_CBTG is not None:
        actor_BTG = actor_BTG - hp.online_coefficient * q_pi_CBTG.amin(0)
    return masked_mean(actor_BTG, window.mask_BL[:, 1:] if hp.actor_mask == "fixed" else window.mask_BL[:, :-1])


# ---- for the log; all of the discount that acts


@torch.no_grad()
def metrics_of(
    network: Network, window: Window, actor: Tensor, critic: Tensor, weight_BTG: Tensor, q_CBTG: Tensor, y_BTG: Tensor,
    log_pi_BTG: Tensor,
) -> dict[str, Tensor]:  # fmt: skip
    """What is averaged over the updates of an epoch; `q_CBTG`: of the buffer's actions, as returns."""
    real_BT = window.mask_BL[:, 1:]
    return {
        "actor_loss": actor.detach(), "critic_loss": critic.detach(), "cloned": masked_mean(weight_BTG, real_BT),
        "q": masked_mean(q_CBTG.mean(0)[..., -1:], real_BT), "target": masked_mean(y_BTG[..., -1:], real_BT),
        "log_prob": masked_mean(log_pi_BTG[..., -1:], real_BT), "popart_deviation": network.popart.deviation[-1],
    }  # fmt: skip


@torch.no_grad()
def further_metrics(
    network: Network, window: Window, policy: Distribution, raw_BTGP: Tensor, q_CBTG: Tensor, y_BTG: Tensor
) -> dict[str, Tensor]:
    """What is looked at once an epoch."""
    real_BT = window.mask_BL[:, 1:]
    y_N = y_BTG[..., -1][real_BT]
    return {
        "entropy": masked_mean(entropy(policy, raw_BTGP[:, :, -1:]), real_BT),
        "q_deviation": masked_mean(q_CBTG[..., -1:].std(0, correction=0), real_BT),
        "target_least": y_N.min(), "target_most": y_N.max(), "popart_mean": network.popart.mean[-1].clone(),
    }  # fmt: skip


def entropy(policy: Distribution, raw: Tensor) -> Tensor:
    """Entropies [...] in nats; where actions are not discrete, of one draw each, and of bits the mean over bits."""
    if isinstance(policy, ClippedSoftmax):
        p = policy.probabilities(raw)
        return -(p * p.log()).sum(-1)
    uniform = torch.rand((*raw.shape[:-1], policy.uniforms), generator=torch.Generator().manual_seed(0))
    return -policy.log_prob(raw, policy.drawn(raw, uniform.to(raw.device)))
