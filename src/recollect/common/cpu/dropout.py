"""Dropout from a stream of its own: nothing depends on torch's global generator, at a seventh of the cost.

On CPUs `F.dropout` spends 5 ns per element in `bernoulli_`; sixteen random bits per element from numpy's SFC64 and one
comparison cost 0.6 ns; for masks of a few hundred elements bits are drawn ahead, a call of the generator costs more than
they do. That rounds p to a multiple of 1/65536; the scale uses the rounded p, so the mean is exact.
On CUDA the fused kernels can only draw from the device's default generator; `reseed` seeds that one too.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

_LEVELS = 65536
_AHEAD = 4096  # words of 64 bits, four elements each


class Dropout:
    """Inverted dropout with a stream of its own; copying the object copies the stream."""

    def __init__(self, seed: int) -> None:
        self.reseed(seed)

    def reseed(self, seed: int) -> None:
        self._generator = np.random.Generator(np.random.SFC64(seed))
        self._ahead = torch.empty(0, dtype=torch.int16)  # drawn, not yet used
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(seed)

    def held(self) -> dict[str, Any]:
        """Where the stream stands now."""
        return copy.deepcopy(vars(self))

    @contextmanager
    def replaying(self, held: dict[str, Any]) -> Iterator[None]:
        """Inside, the stream is drawn from where it stood then; afterwards it is where it was before."""
        now = dict(vars(self))
        vars(self).update(copy.deepcopy(held))
        try:
            yield
        finally:
            vars(self).update(now)

    @staticmethod
    def scale(p: float) -> float:
        """What kept elements are multiplied by: 1/(1-p) for the p that is drawn."""
        return _LEVELS / (_LEVELS - round(p * _LEVELS))

    def keep(self, shape: torch.Size | tuple[int, ...], p: float) -> Tensor:
        """A CPU float32 tensor of the given shape, 0 with probability p and else 1."""
        count = math.prod(shape)
        bits = self._bits((count + 3) // 4 * 4)[:count].view(shape)
        # A comparison that writes floats is vectorised; one that writes bools, and its use as a factor, are not.
        return torch.ge(bits, round(p * _LEVELS) - _LEVELS // 2, out=torch.empty(shape))

    def _bits(self, count: int) -> Tensor:
        """The next numbers of the stream, whatever is drawn ahead: int16 [count], a multiple of 4."""
        missing = count - len(self._ahead)
        if missing > 0:
            words = missing // 4
            if count <= _AHEAD:  # a small mask: draw for the next ones, too
                words = max(words, _AHEAD)
            drawn = self._generator.integers(0, 2**64, words, dtype=np.uint64)
            fresh = torch.from_numpy(drawn.view(np.int16))
            self._ahead = torch.cat([self._ahead, fresh]) if len(self._ahead) else fresh
        bits = self._ahead[:count]
        self._ahead = self._ahead[count:]
        return bits

    def each(self, work: Callable[[Tensor, Dropout], Tensor], x: Tensor) -> Tensor:
        """``work(x, self)``, for what draws in its own order; of a stack, for each member's rows with its own stream."""
        return work(x, self)

    def __call__(self, x: Tensor, p: float) -> Tensor:
        """Zero each element with probability p and scale the others by 1/(1-p)."""
        if x.device.type != "cpu":
            return F.dropout(x, p, training=True)
        return x * self.keep(x.shape, p).mul_(self.scale(p)).to(x.dtype)

    def add(self, x: Tensor, y: Tensor, p: float) -> Tensor:
        """``x + dropout(y)``."""
        if x.device.type != "cpu":
            return x + F.dropout(y, p, training=True)
        return torch.addcmul(x, y, self.keep(y.shape, p).to(y.dtype), value=self.scale(p))


class StackedDropout(Dropout):
    """Of rows that belong to k members, one behind the other: on a CPU each draws what it would draw alone.

    On CUDA the rows of all members draw from the device's generator.
    """

    def __init__(self, members: Sequence[Dropout]) -> None:
        self._members = members

    def reseed(self, seed: int) -> None:
        raise NotImplementedError("each member is reseeded by itself")

    def keep(self, shape: torch.Size | tuple[int, ...], p: float) -> Tensor:
        own = (shape[0] // len(self._members), *shape[1:])
        return torch.cat([member.keep(own, p) for member in self._members])

    def each(self, work: Callable[[Tensor, Dropout], Tensor], x: Tensor) -> Tensor:
        parts = x.chunk(len(self._members))
        return torch.cat([work(part, member) for part, member in zip(parts, self._members, strict=True)])
