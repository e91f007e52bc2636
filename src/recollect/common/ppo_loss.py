"""PPO's loss (Schulman et al. 2017, equation 9), for every kind of PPO that leaves its gradients to autograd."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from recollect.common.masked_mean import ALL, Kept

Number = TypeVar("Number", float, Tensor)
"""A number of the host, or a scalar on the device, which a CUDA graph reads anew in each replay."""


class PPOLoss(NamedTuple):
    """The loss of M moments and what it is made of; means are over moments.

    Attributes:
        loss: what is minimised.
        surrogate: mean of the clipped surrogate, which is to grow.
        value_loss: mean squared error of the values.
        negative_entropy: mean of the policy's negative entropy.
        log_M, ratio_M: log-probabilities of the actions, and how many times as likely they are as when they were taken.
    """

    loss: Tensor
    surrogate: Tensor
    value_loss: Tensor
    negative_entropy: Tensor
    log_M: Tensor
    ratio_M: Tensor


def ppo_loss(
    log_MA: Tensor,
    value_M: Tensor,
    action_M: Tensor,
    old_log_M: Tensor,
    advantage_M: Tensor,
    return_M: Tensor,
    *,
    clip: Number,
    value_coefficient: float,
    entropy: Number,
    old_value_M: Tensor | None = None,
    clip_value: float | None = None,
    kept: Kept = ALL,
) -> PPOLoss:
    """``-surrogate + entropy * negative entropy + value_coefficient * value loss`` of a minibatch.

    Args:
        log_MA: log-probabilities of all actions, by the policy now; `value_M`: values, by the critic now.
        action_M: what was taken; `old_log_M`, its log-probability then.
        advantage_M: as the policy's loss takes it, see `Kept.standardised`.
        return_M: what values are to be.
        clip: how far a ratio of probabilities may move from 1; `entropy`: the weight of the entropy bonus.
        old_value_M, clip_value: values then, and how far a value may move from them (None: anywhere, as in the paper).
        kept: which of the moments count.
    """
    log_M = log_MA.gather(1, action_M[:, None])[:, 0]
    ratio_M = torch.exp(log_M - old_log_M)
    clipped_M = ratio_M.clamp(1 - clip, 1 + clip)
    surrogate = kept.mean(torch.min(advantage_M * ratio_M, advantage_M * clipped_M))
    negative_entropy = kept.mean((log_MA.exp() * log_MA).sum(1))

    near_M = value_M
    if old_value_M is not None and clip_value is not None:
        near_M = old_value_M + (value_M - old_value_M).clamp(-clip_value, clip_value)
    value_loss = kept.mean(F.mse_loss(near_M, return_M, reduction="none"))

    loss = -surrogate + entropy * negative_entropy + value_coefficient * value_loss
    return PPOLoss(loss, surrogate, value_loss, negative_entropy, log_M, ratio_M)
