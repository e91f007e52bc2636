"""The gradient of PPO's loss at the outputs of an ensemble, written out by hand.

The tests hold it against autograd.
"""

from __future__ import annotations

import numpy as np
import torch


def output_gradients(
    out_NAR: torch.Tensor,
    row_EB: torch.Tensor | None,
    action_EB: torch.Tensor,
    old_log_EB: torch.Tensor,
    advantage_EB: torch.Tensor,
    return_EB: torch.Tensor,
    *,
    clip: float,
    value_coefficient: float,
    entropy: float,
) -> torch.Tensor:
    """Gradients of every task's loss at the outputs of its two networks, [N, A, R].

    Args:
        out_NAR: networks 2e and 2e + 1 are actor and critic of task e; a critic's value is its first output.
        row_EB: which of the R rows each transition is; None if they are the rows, in order.
        action_EB, old_log_EB, advantage_EB, return_EB: of the transitions, from the rollout.
        clip, value_coefficient, entropy: of the loss.
    """
    rows, batch = out_NAR.shape[2], action_EB.shape[1]
    log_EAR = log_softmax(out_NAR[0::2])
    probability_EAR = exp(log_EAR)
    value_ER = out_NAR[1::2, 0]
    own_row_EB = torch.arange(rows) if row_EB is None else row_EB
    cell_EB = action_EB * rows + own_row_EB
    log_EB = log_EAR.flatten(1).gather(1, cell_EB)
    value_EB = value_ER if row_EB is None else value_ER.gather(1, row_EB)

    # The surrogate: d/d(log π) of -min(r·A, clip(r)·A) is -r·A, or 0 where the clip is the smaller.
    std_E1, mean_E1 = torch.std_mean(advantage_EB, dim=1, keepdim=True)
    advantage_EB = (advantage_EB - mean_E1) / (std_E1 + 1e-8)
    ratio_EB = exp(log_EB - old_log_EB)
    surrogate_EB = ratio_EB * advantage_EB
    kept_EB = surrogate_EB <= ratio_EB.clamp(1 - clip, 1 + clip) * advantage_EB
    d_log_EB = surrogate_EB.mul_(kept_EB).mul_(-1.0 / batch)
    d_value_EB = (value_EB - return_EB).mul_(2 * value_coefficient / batch)

    # Where transitions share a row, their gradients are added up, and its entropy counts as often as it was visited.
    d_log_EAR = torch.zeros_like(log_EAR)
    d_log_EAR.flatten(1).scatter_add_(1, cell_EB, d_log_EB)
    visits_E1R: torch.Tensor | float = 1.0
    d_value_ER = d_value_EB
    if row_EB is not None:
        visits_E1R = torch.zeros_like(value_ER).scatter_add_(1, row_EB, torch.ones_like(old_log_EB))[:, None]
        d_value_ER = torch.zeros_like(value_ER).scatter_add_(1, row_EB, d_value_EB)

    # Through the softmax: a logit's own gradient, less its probability's share of all gradients of its row.
    entropy_E1R = -(probability_EAR * log_EAR).sum(1, keepdim=True)
    entropy_pull_EAR = (log_EAR + entropy_E1R) * (visits_E1R * (entropy / batch))
    d_out_NAR = torch.zeros_like(out_NAR)
    d_out_NAR[0::2] = d_log_EAR + probability_EAR * (entropy_pull_EAR - d_log_EAR.sum(1, keepdim=True))
    d_out_NAR[1::2, 0] = d_value_ER
    return d_out_NAR


def exp(x: torch.Tensor) -> torch.Tensor:
    """By numpy, whose float32 exp is many times faster than torch's."""
    return torch.from_numpy(np.exp(x.numpy()))


def log_softmax(logits_EAR: torch.Tensor) -> torch.Tensor:
    """Log-probabilities of the actions (axis 1)."""
    shifted_EAR = logits_EAR - logits_EAR.amax(1, keepdim=True)
    total_E1R = exp(shifted_EAR).sum(1, keepdim=True)
    return shifted_EAR.sub_(torch.from_numpy(np.log(total_E1R.numpy())))
