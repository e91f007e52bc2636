"""Means over the real steps of padded windows."""

from __future__ import annotations

from collections.abc import Callable

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
