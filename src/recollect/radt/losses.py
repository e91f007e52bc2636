"""How wrong predicted actions are, over the real steps of padded windows.

Each loss is written twice. On CPUs the real steps are gathered first, and nothing is computed of the others. On other
devices how many are real is not known to the host, and to ask would stop it: there padding counts with weight zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from recollect.common.masked_mean import masked_mean
from recollect.radt import actions
from recollect.radt.decision_transformer import bins_of
from recollect.radt.experience import Experience
from recollect.settings.schema import ReturnSettings

IGNORED = -100  # a target that cross-entropy leaves out


def loss_of_steps(predicted_NA: Tensor, action_N: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Mean loss of N steps, and how right they are.

    Args:
        predicted_NA: logits [N, A] of discrete actions, or what `ContinuousHead` gives.
        action_N: integers [N], or floats [N, A] with NaN in dimensions that do not count.
    """
    if action_N.is_floating_point():
        # Dimensions that a task lacks are left out; from here on N counts single numbers.
        counts_NA = ~action_N.isnan()
        predicted_NA = predicted_NA[counts_NA]
        action_N = action_N[counts_NA]
        if predicted_NA.dim() == 1:
            error_N = predicted_NA.detach() - action_N
            return F.mse_loss(predicted_NA, action_N), {"action_error": error_N.abs().mean()}
        action_N = actions.tokens_of(action_N, predicted_NA.shape[-1])
    loss = F.cross_entropy(predicted_NA, action_N)
    return loss, {name: right_N.float().mean() for name, right_N in _right(predicted_NA, action_N).items()}


def loss_of_masked_steps(predicted_NA: Tensor, action_N: Tensor, real_N: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """`loss_of_steps` of the steps where the mask is True, without asking a device which these are."""
    if action_N.is_floating_point():
        counts_NA = real_N[:, None] & ~action_N.isnan()
        action_N = torch.where(counts_NA, action_N, 0.0)
        if predicted_NA.dim() == 2:
            error_NA = predicted_NA - action_N
            return masked_mean(error_NA.square(), counts_NA), {
                "action_error": masked_mean(error_NA.detach().abs(), counts_NA)
            }
        action_N = actions.tokens_of(action_N, predicted_NA.shape[-1]).flatten()
        predicted_NA, real_N = predicted_NA.flatten(0, 1), counts_NA.flatten()
    loss = cross_entropy_where(real_N, predicted_NA, action_N)
    return loss, {
        name: masked_mean(right_N.float(), real_N) for name, right_N in _right(predicted_NA, action_N).items()
    }


def _right(logits_NA: Tensor, action_N: Tensor) -> dict[str, Tensor]:
    """Whether each action is the likeliest, and whether it is among the best five, where there are more than five."""
    logits_NA = logits_NA.detach()
    right = {"action_accuracy": logits_NA.argmax(-1) == action_N}
    if logits_NA.shape[-1] > 5:
        best_N5 = logits_NA.topk(5, -1).indices
        right["action_accuracy_top5"] = (best_N5 == action_N[:, None]).any(-1)
    return right


def cross_entropy_where(real: Tensor, logits: Tensor, target: Tensor) -> Tensor:
    """Mean cross-entropy of logits [..., A] to targets [...] where the mask is True."""
    wanted = torch.where(real, target, IGNORED)
    return F.cross_entropy(logits.flatten(0, -2), wanted.flatten(), ignore_index=IGNORED)


def gathers(window: Experience) -> bool:
    """Whether real steps are gathered; see the module."""
    return window.mask.device.type == "cpu"


def action_loss(logits_BTA: Tensor, window: Experience) -> tuple[Tensor, dict[str, Tensor]]:
    """Mean loss of the actions over all real timesteps of the windows; see `loss_of_steps`."""
    logits_NA = logits_BTA.flatten(0, 1)
    action_N = window.action.flatten(0, 1)
    real_N = window.mask.flatten()
    if not gathers(window):
        return loss_of_masked_steps(logits_NA.float(), action_N, real_N)
    place_N = real_N.nonzero(as_tuple=True)[0]
    return loss_of_steps(logits_NA[place_N].float(), action_N[place_N])


def return_loss(logits_BTR: Tensor, bin_BT: Tensor, window: Experience) -> Tensor:
    """Mean cross-entropy of return-to-go bins over all real timesteps of the windows."""
    if not gathers(window):
        return cross_entropy_where(window.mask, logits_BTR.float(), bin_BT)
    return F.cross_entropy(logits_BTR[window.mask].float(), bin_BT[window.mask])


@dataclass(frozen=True)
class Batch:
    window: Experience
    context: Experience
    has_context_B: Tensor
    notes: dict[str, float] = field(default_factory=dict)  # of what was retrieved, to be logged


def radt_loss(
    model: Callable[..., Any], batch: Batch, weight: float, returns: ReturnSettings
) -> tuple[Tensor, dict[str, Tensor]]:
    """Action cross-entropy and, where the network predicts it, return-to-go cross-entropy at the state token."""
    logits_BTA, return_logits_BTR = model(batch.window, batch.context, batch.has_context_B)
    loss, metrics = action_loss(logits_BTA, batch.window)
    if return_logits_BTR is not None and weight:
        bin_BT = bins_of(batch.window.return_to_go, returns.low, returns.high, returns.bins)
        of_returns = return_loss(return_logits_BTR, bin_BT, batch.window)
        loss = loss + weight * of_returns
        metrics["return_loss"] = of_returns.detach()
    metrics["with_context"] = batch.has_context_B.float().mean()
    return loss, metrics
