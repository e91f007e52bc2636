"""A frozen language model as memory that keeps keys and values in a ring: Transformer-XL's kin and Llama's.

On a CPU a step of Llama's that was taken before is not computed again, see `recalled_steps`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from recollect.helm.frame_cache import VectorCache
from recollect.helm.language.recalled_steps import RecalledSteps
from recollect.helm.language.rotary_transformer import RotaryCache
from recollect.helm.language.token_ring import TokenRing

REMEMBERED = 5000  # steps whose results are kept


class RingMemory:
    """See `LanguageMemory`.

    Args:
        ring: makes an empty one for a number of rows.
        embeddings_VD: token embeddings as the model sees them.
    """

    def __init__(self, ring: Callable[[int], TokenRing], embeddings_VD: Tensor, words: tuple[str, ...]) -> None:
        self.ring, self.embeddings_VD, self.vocabulary = ring, embeddings_VD, words
        self.width = self.output_width = embeddings_VD.shape[1]
        self.taken = VectorCache(REMEMBERED)
        self.start(0)
        self.memory_length, self.batch_tokens = self.cache.length, self.cache.tokens
        keys_and_values, _, *of_a_row = self.cache.layers[0].shape
        self.row_bytes = self.cache.layers[0].itemsize * len(self.cache.layers) * keys_and_values * math.prod(of_a_row)

    def start(self, batch: int) -> None:
        self.cache = self.ring(batch)
        self.recalled: RecalledSteps | None = None
        if isinstance(self.cache, RotaryCache) and RecalledSteps.pays(self.cache):
            self.recalled = RecalledSteps(self.cache, self.taken)

    def reset(self, mask_B: Tensor) -> None:
        (self.recalled or self.cache).reset(mask_B)

    def step(self, inputs_BKD: Tensor) -> Tensor:
        if self.recalled is not None:
            return self.recalled.step(inputs_BKD)
        return _of_the_last(self.cache.read(inputs_BKD))

    def peek(self, inputs_BKD: Tensor) -> Tensor:
        return _of_the_last(self.cache.read(inputs_BKD, remember=False))

    def attention(self, rows_N: Tensor | None = None) -> Tensor | None:
        attention_LBM = (self.recalled or self.cache).attention()
        return attention_LBM if attention_LBM is None or rows_N is None else attention_LBM[:, rows_N]

    def arrays(self) -> dict[str, Tensor]:
        return (self.recalled or self.cache).arrays()

    def load(self, arrays: Mapping[str, Any]) -> None:
        self.start(len(arrays[self.cache.counted]))
        (self.recalled or self.cache).load(arrays)


def _of_the_last(states: Tensor) -> Tensor:
    return states[:, -1] if states.ndim == 3 else states
