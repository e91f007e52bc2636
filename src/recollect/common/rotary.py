"""Rotary positions (RoPE): queries and keys turned by the angles of their positions (Su et al. 2021, arXiv 2104.09864)."""

from __future__ import annotations

import torch
from torch import Tensor


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Vectors [..., E] turned by angles whose cosines and sines are [..., E / 2]: number i is paired with i + E / 2."""
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
