"""Means over the real steps of padded windows."""

from __future__ import annotations

from torch import Tensor


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Mean over what the mask keeps, 0 where it keeps nothing; the mask is broadcast to the shape of `x`."""
    weight = mask.to(x.dtype)
    return (x * weight).sum() / weight.expand_as(x).sum().clamp(min=1.0)
