"""Actions as a sequence model meets them: one of a few (integers), or several numbers in [-1, 1] at once (floats).

"No action" (padding, or the one of now) is the index behind the last action, or NaN. NaN also stands in dimensions that a
task does not have where tasks of several sizes share one shape (DMControl). It is zero on the way in, as released, and left
out of the loss. The released squared error counts such a dimension, with target 0; only its cross-entropy leaves it out.

Continuous actions are predicted in one of two ways:

- regression (default, as released for Meta-World and DMControl): tanh and squared error.
- tokens: the range is cut into bins, one softmax per dimension, cross-entropy. Released as an option with 64 bins, whose
  dimensions are predicted one after the other and decoded to a bin's lower edge; here all at once, and to its middle.

Source: RA-DT (arXiv 2410.07071), specification 3.1.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

LOW, HIGH = -1.0, 1.0
NONE = math.nan


def where(real: Tensor, action: Tensor, none: float) -> Tensor:
    """The actions, and "none" where `real` is False; actions may have a last dimension that `real` lacks."""
    lacking = (1,) * (action.dim() - real.dim())
    return torch.where(real.reshape(real.shape + lacking), action, none)


class ContinuousEmbedding(nn.Linear):
    """Actions [..., A] -> [..., D]; where there is no action at all: zero, as the table of discrete actions has it.

    Args:
        padding_read: no action is embedded as an action of zeros instead, as in released padding, which AD and DT read.
    """

    def __init__(self, size: int, width: int, *, padding_read: bool = False) -> None:
        super().__init__(size, width)
        self.padding_read = padding_read

    def forward(self, action: Tensor) -> Tensor:
        known = ~action.isnan()
        embedded = super().forward(torch.where(known, action, 0.0))
        return embedded if self.padding_read else embedded * known.any(-1, keepdim=True)


class ContinuousHead(nn.Linear):
    """Hidden states [..., D] -> actions [..., A] (regression), or the logits of their bins [..., A, bins]."""

    def __init__(self, width: int, size: int, bins: int | None) -> None:
        super().__init__(width, size * (bins or 1))
        self.size, self.bins = size, bins

    def forward(self, hidden: Tensor) -> Tensor:
        out = super().forward(hidden)
        if self.bins is None:
            return out.tanh()
        return out.unflatten(-1, (self.size, self.bins))


def tokens_of(action: Tensor, bins: int) -> Tensor:
    """Min-max tokeniser: the bin of each number in [-1, 1], int64."""
    width = (HIGH - LOW) / bins
    return ((action - LOW) / width).floor().clamp(0, bins - 1).long()


def middles(bins: int) -> Tensor:
    """What each bin is decoded to, float32 [bins]."""
    width = (HIGH - LOW) / bins
    return LOW + (torch.arange(bins) + 0.5) * width
