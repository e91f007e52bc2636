"""Values as distributions over bins: two-hot and HL-Gauss labels, and the way back to a number.

Source: AMAGO-2 (arXiv 2411.11188), specification 1.9. Bins are points between two returns, evenly spaced in symlog
space, symlog(x) = sign(x) ln(|x| + 1), or as they are. A value is symexp of the mean bin (not the mean of symexp).
The paper's formula prints the two weights of a two-hot label the other way round; this is the standard form, as its code.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor


def symlog(x: Tensor) -> Tensor:
    return x.sign() * x.abs().log1p()


def symexp(x: Tensor) -> Tensor:
    return x.sign() * x.abs().expm1()


class ValueBins:
    """Labels and values.

    Args:
        low, high: smallest and largest return (as multiplied by `reward_multiplier`).
        labels: `two_hot` (on the two neighbouring bins) or `hl_gauss` (a Gaussian of 0.75 bin widths).
    """

    def __init__(
        self,
        low: float = -1e5,
        high: float = 1e5,
        count: int = 128,
        *,
        space: Literal["symlog", "linear"] = "symlog",
        labels: Literal["two_hot", "hl_gauss"] = "two_hot",
    ) -> None:
        self.count, self.symlog, self.labels = count, space == "symlog", labels
        ends = torch.tensor([low, high], dtype=torch.float64)
        self.low, self.high = (symlog(ends) if self.symlog else ends).tolist()
        self.step = (self.high - self.low) / (count - 1)
        self._edges: dict[torch.device, Tensor] = {}
        self._points: dict[torch.device, Tensor] = {}

    # On a device once and for all: CUDA graphs read them there.

    def edges(self, device: torch.device) -> Tensor:
        """Where bins end, float32 [bins + 1]."""
        if device not in self._edges:
            half = self.step / 2
            self._edges[device] = torch.linspace(self.low - half, self.high + half, self.count + 1).to(device)
        return self._edges[device]

    def points(self, device: torch.device) -> Tensor:
        """The bins, float32 [bins], rounded last."""
        if device not in self._points:
            self._points[device] = (
                torch.linspace(self.low, self.high, self.count, dtype=torch.float64).float().to(device)
            )
        return self._points[device]

    def label(self, value: Tensor) -> Tensor:
        """Probabilities [..., bins] for returns [...]; those outside count as the nearest end."""
        x = (symlog(value) if self.symlog else value).clamp(self.low, self.high)
        return self._hl_gauss(x) if self.labels == "hl_gauss" else self._two_hot(x)

    def _hl_gauss(self, x: Tensor) -> Tensor:
        """What a Gaussian around each number has between the edges of each bin."""
        edges = self.edges(x.device)
        width = 0.75 * self.step * math.sqrt(2.0)
        below = 0.5 * (1.0 + torch.erf((edges - x[..., None]) / width))
        return below.diff(dim=-1) / (below[..., -1:] - below[..., :1])

    def _two_hot(self, x: Tensor) -> Tensor:
        place = (x - self.low) / self.step
        lower = place.floor().clamp(max=self.count - 2)
        upper_weight = (place - lower)[..., None]
        out = torch.zeros(*x.shape, self.count, device=x.device)
        index = lower.long()[..., None]
        return out.scatter(-1, index, 1.0 - upper_weight).scatter(-1, index + 1, upper_weight)

    def value(self, logits: Tensor) -> Tensor:
        """Returns [...] of logits [..., bins]."""
        mean = (logits.softmax(-1) * self.points(logits.device)).sum(-1)
        return symexp(mean) if self.symlog else mean
