"""What changes in a policy while it acts: taken apart and put back, bit for bit and in memory of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recollect.common.acting_state import Acting


@dataclass(frozen=True)
class Read:
    """What a policy read last."""

    score: float
    keys: Tensor | None


class Memory(Acting):
    acting = ("rows",)

    def __init__(self, rows: int) -> None:
        self.rows = rows


class Remembering(Acting):
    acting = ("step", "images", "read", "both", "memory", "last")

    def __init__(self) -> None:
        """As it is when it is started."""
        self.step, self.images = 0, np.zeros((2, 3, 4), np.float32)
        self.read, self.both = Read(0.0, None), {"a": torch.zeros(2), "b": (False, np.zeros(1))}
        self.memory, self.last = Memory(0), torch.zeros(1)

    def play(self) -> None:
        self.step, self.images = 7, np.moveaxis(np.arange(24, dtype=np.float32).reshape(2, 4, 3), 1, 2)
        self.read = Read(0.1, torch.arange(6.0).view(2, 3).mT.bfloat16())
        self.both = {"a": torch.tensor([np.nan, -0.0]), "b": (True, np.array([1e-300]))}
        self.memory.rows, self.last = 5, None  # type: ignore[assignment]


def told(policy: Remembering) -> list[Any]:
    keys, (flag, small) = policy.read.keys, policy.both["b"]
    assert keys is not None
    images = (policy.images.tolist(), policy.images.strides, policy.images.dtype)
    numbers = (policy.step, policy.read.score, policy.memory.rows, flag, small.tolist(), policy.last)
    return [*numbers, *images, keys.float().tolist(), keys.stride(), keys.dtype, str(policy.both["a"].tolist())]


def test_what_changes_comes_back_as_it_was_and_is_nobody_elses() -> None:
    policy, again = Remembering(), Remembering()
    policy.play()
    again.load_state(policy.state_arrays())
    assert told(again) == told(policy) and isinstance(again.step, int) and again.both["b"][0] is True
    expected = told(policy)
    policy.images[:] = 0
    policy.both["a"][:] = 0  # type: ignore[index]
    assert policy.read.keys is not None
    policy.read.keys.zero_()
    assert told(again) == expected
