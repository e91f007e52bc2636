"""Polyak averaging: targets that follow what is trained."""

from __future__ import annotations

import torch
from torch import Tensor


@torch.no_grad()
def follow(targets: list[Tensor], followed: list[Tensor], polyak: float) -> None:
    """Move each target towards what it follows, in place, by the share `polyak` of their distance."""
    torch._foreach_lerp_(targets, followed, polyak)
