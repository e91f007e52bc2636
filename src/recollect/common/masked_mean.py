"""Means over the real steps of padded windows and minibatches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Mean = Callable[[Tensor, Tensor], Tensor]
"""(values, mask) -> their mean"""


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Mean over what the mask keeps, 0 where it keeps nothing; the mask is broadcast to the shape of `x`."""
    weight = mask.to(x.dtype)
    return (x * weight).sum() / weight.expand_as(x).sum().clamp(min=1.0)


def masked_means(x: Tensor, mask: Tensor, members: int) -> Tensor:
    """`masked_mean` of each of some members, whose equally many rows stand one behind the other: [members]."""
    weight = mask.to(x.dtype)
    total = (x * weight).reshape(members, -1).sum(1)
    return total / weight.expand_as(x).reshape(members, -1).sum(1).clamp(min=1.0)


@dataclass(frozen=True)
class Kept:
    """Statistics over M moments, or over those of them that a mask keeps.

    With a mask all shapes are those of the M moments, however many it keeps: so a CUDA graph can hold it. The numbers are those of
    the kept moments alone, to rounding.
    """

    there_M: Tensor | None = None
    """True where a moment counts; None: all do."""

    def mean(self, x_M: Tensor) -> Tensor:
        return x_M.mean() if self.there_M is None else masked_mean(x_M, self.there_M)

    def variance(self, x_M: Tensor) -> Tensor:
        """The mean squared distance from the mean."""
        return x_M.var(correction=0) if self.there_M is None else self.mean((x_M - self.mean(x_M)).square())

    def deviation(self, x_M: Tensor) -> Tensor:
        """Root of the sum of squared distances over one less than there are moments, as PyTorch has it; 0 of a single one."""
        if self.there_M is None:
            return x_M.std() if len(x_M) > 1 else x_M.new_zeros(())
        count = self.there_M.sum()
        return (self.variance(x_M) * count / (count - 1).clamp(min=1)).sqrt()

    def standardised(self, x_M: Tensor) -> Tensor:
        """With mean 0 and deviation 1; a single moment stays as it is."""
        if self.there_M is None and len(x_M) < 2:
            return x_M
        found_M = (x_M - self.mean(x_M)) / (self.deviation(x_M) + 1e-8)
        return found_M if self.there_M is None else torch.where(self.there_M.sum() > 1, found_M, x_M)


ALL = Kept()
