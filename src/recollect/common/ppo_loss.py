"""What PPO says of a policy (Schulman et al. 2017), for every kind of PPO that leaves its gradients to autograd."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class PolicyTerms(NamedTuple):
    """Terms of the loss of M moments.

    Attributes:
        surrogate: mean of the clipped surrogate, which is to grow.
        negative_entropy: mean of the policy's negative entropy.
        log_M, ratio_M: log-probabilities of the actions, and how many times as likely they are as when they were taken.
    """

    surrogate: Tensor
    negative_entropy: Tensor
    log_M: Tensor
    ratio_M: Tensor


def policy_terms(log_MA: Tensor, action_M: Tensor, old_log_M: Tensor, advantage_M: Tensor, clip: float) -> PolicyTerms:
    """The terms of PPO's loss that are about the policy; `log_MA`: of all actions, by the policy now."""
    log_M = log_MA.gather(1, action_M[:, None])[:, 0]
    ratio_M = torch.exp(log_M - old_log_M)
    clipped_M = ratio_M.clamp(1 - clip, 1 + clip)
    surrogate = torch.min(advantage_M * ratio_M, advantage_M * clipped_M).mean()
    negative_entropy = (log_MA.exp() * log_MA).sum(1).mean()
    return PolicyTerms(surrogate, negative_entropy, log_M, ratio_M)


def standardised(advantage_M: Tensor) -> Tensor:
    return (advantage_M - advantage_M.mean()) / (advantage_M.std() + 1e-8)
