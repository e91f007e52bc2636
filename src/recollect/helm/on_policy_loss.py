"""PPO's loss in a minibatch of a rollout, and what is logged of it; specification 5."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from recollect.common.masked_mean import ALL, Kept
from recollect.common.ppo_loss import Number, ppo_loss


def loss_of(
    log_MA: Tensor,
    value_M: Tensor,
    batch: Mapping[str, Tensor],
    *,
    clip: Number,
    entropy: Number,
    value_coefficient: float,
    clip_value: float | None = None,
    kept: Kept = ALL,
) -> tuple[Tensor, dict[str, Tensor]]:
    """PPO's loss of a minibatch of M moments, and metrics (without gradient).

    `batch` has ``action``, ``log`` (of that action when it was taken), ``value`` (then), ``advantage`` (as the policy's loss
    takes it) and ``return``, [M] each; `log_MA` and `value_M` are of the network as it is. The rest: see `ppo_loss`.
    """
    terms = ppo_loss(
        log_MA,
        value_M,
        batch["action"],
        batch["log"],
        batch["advantage"],
        batch["return"],
        clip=clip,
        value_coefficient=value_coefficient,
        entropy=entropy,
        old_value_M=batch["value"],
        clip_value=clip_value,
        kept=kept,
    )
    with torch.no_grad():
        unexplained = kept.variance(batch["return"] - value_M)
        spread = kept.variance(batch["return"]).clamp(min=1e-12)
        metrics = {
            "loss": terms.loss.detach(),
            "policy_gradient_loss": -terms.surrogate.detach(),
            "value_loss": terms.value_loss.detach(),
            "entropy_loss": terms.negative_entropy.detach(),
            "approx_kl": kept.mean(batch["log"] - terms.log_M),
            "clip_fraction": kept.mean(((terms.ratio_M - 1).abs() > clip).float()),
            "explained_variance": 1 - unexplained / spread,
        }
    return terms.loss, metrics
