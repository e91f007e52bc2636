"""Output heads: perceptrons on top of a sequence model.

Source: Memory-RL (Ni et al. 2023) and its code: hidden weights uniform in +-1/sqrt(k) where k is the layer's OUTPUT
width (a quirk, called "fan in" there; `fan="input"` is the textbook rule), hidden biases 0.1, the last layer uniform in
+-3e-3 for Q heads and +-1e-3 for policy heads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from recollect.common.cpu.kernels import Linear

Q_HEAD_RANGE = 3e-3
POLICY_HEAD_RANGE = 1e-3


class Head(nn.Module):
    """Linear-ReLU-...-Linear: [..., D] -> [..., outputs].

    Args:
        last_range: the last layer's weights and biases are uniform in +-last_range.
        fan: which width scales the hidden weights; "output" is upstream's.
    """

    def __init__(
        self,
        input_width: int,
        outputs: int,
        hidden: Sequence[int] = (256, 256),
        *,
        last_range: float = Q_HEAD_RANGE,
        fan: Literal["output", "input"] = "output",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        widths = [input_width, *hidden]
        self.hidden = nn.ModuleList(Linear(a, b) for a, b in pairwise(widths))
        self.last = Linear(widths[-1], outputs)
        with torch.no_grad():
            for layer in self.hidden:
                assert isinstance(layer, Linear)
                bound = 1.0 / math.sqrt(layer.out_features if fan == "output" else layer.in_features)
                layer.weight.uniform_(-bound, bound, generator=generator)
                layer.bias.fill_(0.1)
            self.last.weight.uniform_(-last_range, last_range, generator=generator)
            self.last.bias.uniform_(-last_range, last_range, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.hidden:
            x = functional.relu(layer(x))
        return self.last(x)
