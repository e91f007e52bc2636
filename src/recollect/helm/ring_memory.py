"""What language models that keep keys and values in a ring have alike as memories: Transformer-XL's kin and Llama's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor


class Ring(Protocol):
    """Keys and values of the last inputs of B rows."""

    def reset(self, mask_B: Tensor) -> None: ...

    def read(self, x_BKD: Tensor, *, remember: bool = True) -> Tensor:
        """States of K new inputs, [B, K, D], or [B, D] of the last of them."""

    def attention(self) -> Tensor | None: ...

    def arrays(self) -> dict[str, Tensor]: ...

    def load(self, arrays: Mapping[str, Any]) -> None: ...


class RingMemory:
    """See `LanguageMemory`.

    Args:
        embeddings_VD: token embeddings as the model sees them.
        layers, heads, head_width: of the keys, and as many values, that are kept of each input, as numbers of `dtype`.
        graphed: whether a step is a CUDA graph on a GPU.
    """

    counted = "lengths"
    """The array of a checkpoint that has one number for each row."""

    def __init__(
        self,
        embeddings_VD: Tensor,
        words: tuple[str, ...],
        memory_length: int,
        batch_tokens: int,
        *,
        layers: int,
        heads: int,
        head_width: int,
        dtype: torch.dtype = torch.float32,
        graphed: bool = True,
    ) -> None:
        self.dtype, self.graphed = dtype, graphed
        self.embeddings_VD, self.vocabulary = embeddings_VD, words
        self.width = self.output_width = embeddings_VD.shape[1]
        self.memory_length, self.batch_tokens = memory_length, batch_tokens
        slots = memory_length + batch_tokens - 1
        self.row_bytes = dtype.itemsize * 2 * layers * heads * head_width * slots
        self.start(0)

    def ring(self, batch: int) -> Ring:
        """An empty one for so many rows."""
        raise NotImplementedError

    def start(self, batch: int) -> None:
        self.cache = self.ring(batch)

    def reset(self, mask_B: Tensor) -> None:
        self.cache.reset(mask_B)

    def step(self, inputs_BKD: Tensor) -> Tensor:
        return _of_the_last(self.cache.read(inputs_BKD))

    def peek(self, inputs_BKD: Tensor) -> Tensor:
        return _of_the_last(self.cache.read(inputs_BKD, remember=False))

    def attention(self) -> Tensor | None:
        return self.cache.attention()

    def arrays(self) -> dict[str, Tensor]:
        return self.cache.arrays()

    def load(self, arrays: Mapping[str, Any]) -> None:
        self.start(len(arrays[self.counted]))
        self.cache.load(arrays)


def _of_the_last(states: Tensor) -> Tensor:
    return states[:, -1] if states.ndim == 3 else states
