"""InputNorm: features brought to mean 0 and deviation 1 by running statistics, and these statistics, which PopArt has too.

Source: AMAGO (arXiv 2310.09971), specification 1.2. A running mean has the step beta / (1 - (1 - beta)^t), and t is 2 at the
first batch: the released code counts what stands there at first as a batch, so that PopArt's squares of 100 wear off as 100/t.
In PopArt's own paper (arXiv 1809.04474) the first batch replaces it: `begin(whole=True)`. Values are clipped to +-1e4;
features that hardly vary are only centred.

Difference: statistics are of the raw features. The seed code fed them the features that it had just normalised, which
normalises in part only (`order="upstream"`).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from recollect.amago.share import ALONE, Share


class RunningMoments(nn.Module):
    """Running means of numbers [B, T, width] and of their squares. `beta`: the step that they end with."""

    mean: Tensor
    square: Tensor
    samples: Tensor
    share: Share = ALONE

    def __init__(self, width: int, *, beta: float, square: float) -> None:
        super().__init__()
        self.beta = beta
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("square", torch.full((width,), square))
        self.register_buffer("samples", torch.ones((), dtype=torch.float64))  # what stands here is the first

    def begin(self, *, whole: bool) -> None:
        """Before the first batch: whether it is to replace what stands here, or to count one half."""
        self.samples.fill_(0.0 if whole else 1.0)

    @torch.no_grad()
    def update(self, x_BTD: Tensor, mask_BT: Tensor) -> None:
        """Take the real time steps of a batch, of all devices, into the statistics; nothing where there is none."""
        weight_BT1 = mask_BT[..., None].to(x_BTD.dtype)
        count, sum_D, sum_of_squares_D = self.share.sums(
            weight_BT1.sum(), (x_BTD * weight_BT1).sum((0, 1)), (x_BTD.square() * weight_BT1).sum((0, 1))
        )
        is_any = count > 0  # stays on the device: to ask for it is to wait
        self.samples += is_any
        step = (self.beta / (1.0 - (1.0 - self.beta) ** self.samples)).float()
        step = torch.where(is_any, step, torch.zeros_like(step))
        self.mean.lerp_(sum_D / count.clamp(min=1.0), step)
        self.square.lerp_(sum_of_squares_D / count.clamp(min=1.0), step)


class InputNorm(RunningMoments):
    """Normalises the last axis. `order`: "fixed" (statistics of raw features) or "upstream"."""

    def __init__(self, width: int, *, beta: float = 1e-4, order: Literal["fixed", "upstream"] = "fixed") -> None:
        super().__init__(width, beta=beta, square=1.0)
        self.order = order

    @property
    def deviation(self) -> Tensor:
        return (self.square - self.mean**2 + 1e-5).clamp(min=0).sqrt().nan_to_num(1.0).clamp(1e-3, 1e6)

    @torch.no_grad()
    def normalised(self, x: Tensor) -> Tensor:
        deviation = self.deviation
        centred = x - self.mean
        return torch.where(deviation > 0.01, (centred / deviation).clamp(-1e4, 1e4), centred)

    def forward(self, x_BTD: Tensor, mask_BT: Tensor | None = None) -> Tensor:
        """Normalise; in training mode with a mask of real time steps, also take them into the statistics."""
        if not self.training or mask_BT is None:
            return self.normalised(x_BTD)
        if self.order == "upstream":
            x_BTD = self.normalised(x_BTD)
            self.update(x_BTD, mask_BT)
            return x_BTD
        self.update(x_BTD, mask_BT)
        return self.normalised(x_BTD)
