"""Windows of experience: what a sequence model of this package reads, as tensors.

Shapes: B batch, T timesteps, D entries of an observation, A numbers of an action.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Experience:
    """Windows of experience, left padded. Every field has leading shape [B, T].

    observation: [B, T, D] numbers; return_to_go, reward: float; action: integers, or floats [B, T, A], `no_action` where
    there is none; timestep: step within the episode; mask: True where real.
    """

    observation: Tensor
    return_to_go: Tensor
    action: Tensor
    reward: Tensor
    timestep: Tensor
    mask: Tensor

    def map(self, change: Callable[[Tensor], Tensor]) -> Experience:
        return Experience(**{name: change(getattr(self, name)) for name in self.__dataclass_fields__})

    def select(self, rows: Any) -> Experience:
        return self.map(lambda field: field[rows])

    def put(self, rows: Tensor, windows: Experience) -> None:
        """Write windows in the place of those of some rows."""
        for name in self.__dataclass_fields__:
            getattr(self, name)[rows] = getattr(windows, name)

    def last(self, steps: int) -> Experience:
        return self.map(lambda field: field[:, -steps:])

    def left_padded(self, steps: int, no_action: float) -> Experience:
        """The windows with padding in front, so that they have at least so many steps."""
        rows, present = self.mask.shape
        if present >= steps:
            return self

        def padded(field: Tensor, nothing: float) -> Tensor:
            front = field.new_full((rows, steps - present, *field.shape[2:]), nothing)
            return torch.cat([front, field], 1)

        windows = {name: padded(getattr(self, name), 0) for name in self.__dataclass_fields__ if name != "action"}
        return Experience(**windows, action=padded(self.action, no_action))

    def joined(self, later: Experience) -> Experience:
        """These windows and later ones as one, with all padding in front."""
        both = {name: torch.cat([getattr(self, name), getattr(later, name)], 1) for name in self.__dataclass_fields__}
        order_BT = both["mask"].to(torch.int8).argsort(dim=1, stable=True)
        rows_B1 = torch.arange(len(order_BT), device=order_BT.device)[:, None]
        return Experience(**both).map(lambda field: field[rows_B1, order_BT])


def numbers_learned(window: Experience) -> Tensor:
    """How many numbers an action loss is the mean of: real steps, or of continuous actions the entries that count."""
    if not window.action.is_floating_point():
        return window.mask.sum()
    return (window.mask[..., None] & ~window.action.isnan()).sum()
