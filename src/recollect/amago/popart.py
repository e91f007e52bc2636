"""PopArt per discount: targets are normalised, and predictions do not jump when the statistics do.

Source: van Hasselt et al. 2016; AMAGO (arXiv 2310.09971), specification 1.7. Statistics of temporal-difference targets,
one row per discount. `weight` and `bias` are an affine layer behind the critic's output: a prediction is
``weight q + bias`` in normalised units and ``deviation (weight q + bias) + mean`` in those of returns.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recollect.amago.input_norm import RunningMoments


class PopArt(RunningMoments):
    """All of it is buffers: nothing is learned by gradient."""

    weight: Tensor
    bias: Tensor

    def __init__(self, discounts: int, *, beta: float = 5e-4, enabled: bool = True) -> None:
        super().__init__(discounts, beta=beta, square=100.0)
        self.enabled = enabled
        self.register_buffer("weight", torch.ones(discounts))
        self.register_buffer("bias", torch.zeros(discounts))

    @property
    def deviation(self) -> Tensor:
        return (self.square - self.mean**2).clamp(min=0).sqrt().clamp(1e-4, 1e6)

    @torch.no_grad()
    def update(self, target_BTG: Tensor, mask_BT: Tensor) -> None:
        """Take the real targets of a batch into the statistics, and keep all predictions where they are."""
        if not self.enabled or self._learns_nothing(mask_BT):
            return
        mean_G = self.mean.clone()
        deviation_G = self.deviation
        super().update(target_BTG, mask_BT)
        new_G = self.deviation
        self.weight.mul_(deviation_G / new_G)
        self.bias.copy_((deviation_G * self.bias + mean_G - self.mean) / new_G)

    def _learns_nothing(self, mask_BT: Tensor) -> bool:
        """Whether nothing is real. To ask a GPU is to wait for it, and other devices wait for what this one adds: then False."""
        return self.share.alone and mask_BT.device.type == "cpu" and not mask_BT.any()

    def normalise(self, target_G: Tensor) -> Tensor:
        """Returns [..., G] in normalised units."""
        return (target_G - self.mean) / self.deviation if self.enabled else target_G

    def normalised(self, q_G: Tensor) -> Tensor:
        """A critic's outputs [..., G] as predictions in normalised units."""
        return self.weight * q_G + self.bias if self.enabled else q_G

    def forward(self, q_G: Tensor) -> Tensor:
        """A critic's outputs [..., G] as predictions of returns."""
        return self.deviation * self.normalised(q_G) + self.mean if self.enabled else q_G
