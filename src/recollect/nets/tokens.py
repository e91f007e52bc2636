"""Tokenisers: continuous numbers to bins and back (RA-DT, section 3.1 of our specification)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import overload

import numpy as np
import torch
from torch import Tensor

from recollect.settings.errors import UserError


@dataclass(frozen=True)
class MinMaxTokens:
    """``vocabulary`` bins of equal width between ``low`` and ``high``; what lies outside goes to the end bins.

    token = clamp(floor((x - low) / w), 0, V - 1) with w = (high - low) / V. RA-DT's return-to-go in Dark-Room 10x10:
    low 0, high 100, V 100.
    """

    low: float
    high: float
    vocabulary: int

    def __post_init__(self) -> None:
        good = math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high and self.vocabulary >= 1
        if not good:
            raise UserError(
                f"no bins fit between {self.low} and {self.high} ({self.vocabulary} asked for)",
                where="MinMaxTokens",
                do="give finite bounds with low < high, and at least one bin",
            )

    @property
    def bin_width(self) -> float:
        """w, in units of x."""
        return (self.high - self.low) / self.vocabulary

    @property
    def _shift(self) -> float:
        # An edge like 0.7 is not a float32; a value that is a rounding below its edge belongs to the bin above.
        return 2.0**-23 * max(abs(self.low), abs(self.high)) - self.low

    @overload
    def encode(self, x: Tensor) -> Tensor: ...
    @overload
    def encode(self, x: np.ndarray) -> np.ndarray: ...
    def encode(self, x: Tensor | np.ndarray) -> Tensor | np.ndarray:
        """Bins (int64) of values of any shape and number type."""
        if isinstance(x, Tensor):
            scaled = (x.double() + self._shift) / self.bin_width
            return scaled.floor().clamp_(0, self.vocabulary - 1).long()
        scaled_array = (np.asarray(x, dtype=np.float64) + self._shift) / self.bin_width
        return np.clip(np.floor(scaled_array), 0, self.vocabulary - 1).astype(np.int64)

    @overload
    def decode(self, token: Tensor) -> Tensor: ...
    @overload
    def decode(self, token: np.ndarray) -> np.ndarray: ...
    def decode(self, token: Tensor | np.ndarray) -> Tensor | np.ndarray:
        """Lower edges of bins: token * w + low (float32)."""
        if isinstance(token, Tensor):
            return (token.double() * self.bin_width + self.low).to(torch.float32)
        return (np.asarray(token, dtype=np.float64) * self.bin_width + self.low).astype(np.float32)
