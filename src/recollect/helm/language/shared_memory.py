"""One language model that reads for several agents at once: their rows lie in one ring, and a step is one batch.

An agent alone reads 16 rows or so, and what a step takes is then mostly reading the weights. What a row becomes does not
depend on the other rows, but for rounding: a product of more rows may add in another order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, NoReturn

import torch
from torch import Tensor

from recollect.helm.language.language_memory import LanguageMemory
from recollect.helm.language.ring_memory import RingMemory
from recollect.helm.language.transformer_xl import XLCache
from recollect.settings.errors import UserError


class SharedMemory:
    """The rows of several memories of one model in one ring, each as it was.

    Args:
        memories: of the agents, as `ring_of` gives them; any of them may be a share of another such ring.

    Attributes:
        shares: what is theirs from now on.
    """

    def __init__(self, memories: Sequence[RingMemory | MemoryShare]) -> None:
        first = _ring_behind(memories[0])
        self.whole: RingMemory = copy(first)
        self.rows = [_rows_of(memory) for memory in memories]
        self.whole.start(sum(self.rows))
        cache, written = self._cache, []
        # All rows write to the same slot. A memory that was at another goes on here: only the age of a slot counts.
        place = first.cache.count
        for at, rows, memory in zip(self._firsts, self.rows, memories, strict=True):
            part = cache.part(at, rows)
            part.load({**memory.arrays(), "at": place})
            written.append(part.written_B)
        cache.count, cache.written_B = place, torch.cat(written)
        self._forgotten_B = torch.zeros(sum(self.rows), dtype=torch.bool)
        self.shares = [MemoryShare(self, n) for n in range(len(memories))]

    @property
    def _cache(self) -> XLCache:
        assert isinstance(self.whole.cache, XLCache)
        return self.whole.cache

    @property
    def _firsts(self) -> list[int]:
        """The first row of each share."""
        return [sum(self.rows[:n]) for n in range(len(self.rows))]

    def step(self, inputs: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """History vectors [B, H] of each share after K more inputs [B, K, D], which are remembered.

        A share without inputs reads zeros from here on: its run has failed, and its memory is of no more use.
        """
        if self._forgotten_B.any():
            self.whole.reset(self._forgotten_B)
            self._forgotten_B = torch.zeros_like(self._forgotten_B)
        like = next(iter(inputs.values()))
        parts = [
            inputs[n] if n in inputs else like.new_zeros(rows, *like.shape[1:]) for n, rows in enumerate(self.rows)
        ]
        vectors = self.whole.step(torch.cat(parts)).split(self.rows)
        return {n: vectors[n] for n in inputs}

    def reset(self, share: int, mask_B: Tensor) -> None:
        """Forget some rows of a share; it is done before the next step."""
        first = self._firsts[share]
        self._forgotten_B[first : first + self.rows[share]] |= mask_B.cpu()

    def arrays(self, share: int) -> dict[str, Tensor]:
        if self._forgotten_B.any():
            self.whole.reset(self._forgotten_B)
            self._forgotten_B = torch.zeros_like(self._forgotten_B)
        return self._cache.part(self._firsts[share], self.rows[share]).arrays()


class MemoryShare:
    """Some rows of a shared memory, in the place of an agent's own (see `LanguageMemory`); only `SharedMemory.step` reads on."""

    def __init__(self, shared: SharedMemory, number: int) -> None:
        self.shared, self.number = shared, number
        whole = shared.whole
        self.embeddings_VD, self.vocabulary = whole.embeddings_VD, whole.vocabulary
        self.width, self.output_width = whole.width, whole.output_width
        self.memory_length, self.row_bytes = whole.memory_length, whole.row_bytes

    def reset(self, mask_B: Tensor) -> None:
        self.shared.reset(self.number, mask_B)

    def arrays(self) -> dict[str, Tensor]:
        return self.shared.arrays(self.number)

    def attention(self, rows_N: Tensor | None = None) -> Tensor | None:
        first = sum(self.shared.rows[: self.number])
        own_B = torch.arange(self.shared.rows[self.number]) if rows_N is None else rows_N
        return self.shared.whole.attention(own_B + first)

    def start(self, batch: int) -> NoReturn:
        raise RuntimeError("a share of a memory has the rows that it was made with")

    def step(self, inputs_BKD: Tensor) -> NoReturn:
        raise RuntimeError("all shares of a memory read together")

    def peek(self, inputs_BKD: Tensor) -> NoReturn:
        raise RuntimeError("all shares of a memory read together")

    def load(self, arrays: Mapping[str, Any]) -> NoReturn:
        raise RuntimeError("a memory is loaded before it is shared")


def ring_of(memory: LanguageMemory) -> RingMemory | MemoryShare:
    """A memory of a kind that is shared. Raises UserError: it is of another."""
    if isinstance(memory, MemoryShare) or (isinstance(memory, RingMemory) and isinstance(memory.cache, XLCache)):
        return memory
    raise UserError(
        "only keys and values of Transformer-XL's are shared among seeds",
        where="language_model",
        do="train the seeds one after the other: take the method out of the scale's `ensembles`",
    )


def _ring_behind(memory: RingMemory | MemoryShare) -> RingMemory:
    return memory.shared.whole if isinstance(memory, MemoryShare) else memory


def _rows_of(memory: RingMemory | MemoryShare) -> int:
    return memory.shared.rows[memory.number] if isinstance(memory, MemoryShare) else memory.cache.batch
