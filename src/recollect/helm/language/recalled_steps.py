"""In front of a ring of keys and values on a CPU: a step that was taken before is not computed again.

Each of L layers looks at M inputs, so what a step makes of its inputs depends on at most L (M - 1) inputs before them. Agents
see the same few frames in the same few orders. So hashes of those inputs are enough to look up a step's state, and what the
ring would keep of it. Only steps that were never taken go through the network, in one batch.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Mapping
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recollect.artifacts.checkpoints import joined, part
from recollect.helm.frame_cache import KEY_BYTES, VectorCache, keys_of
from recollect.helm.language.rotary_transformer import RotaryCache

LONGEST = 200  # inputs that a key may be made of: beyond, hardly any sequence comes twice


def inputs_that_count(layers: int, length: int, tokens: int) -> int:
    """How many inputs before a step of K decide what it makes of its own.

    The state of the last one looks L (M - 1) inputs back; what the top layer keeps of the first, (L - 1) (M - 1).
    """
    return max(layers * (length - 1) - (tokens - 1), (layers - 1) * (length - 1))


class RecalledSteps:
    """A ring, and the steps that it need not take again.

    Args:
        ring: of some rows, just made.
        cache: of what steps made; other rings of the same model may have filled it.
    """

    def __init__(self, ring: RotaryCache, cache: VectorCache) -> None:
        self.ring, self.cache = ring, cache
        self._layers, self._most = len(ring.layers), inputs_that_count(len(ring.layers), ring.length, 1) + ring.tokens
        self._forget_all()

    @staticmethod
    def pays(ring: RotaryCache) -> bool:
        """Not on a GPU, which would be waited for, and not where a step looks too far back."""
        return (
            ring.layers[0].device.type == "cpu"
            and ring.layers[0].dtype == torch.float32
            and inputs_that_count(len(ring.layers), ring.length, ring.tokens) <= LONGEST
        )

    def _forget_all(self) -> None:
        # Hashes of each row's last inputs, since its reset.
        self._inputs_B = [deque[bytes](maxlen=self._most) for _ in range(self.ring.batch)]
        self._newest_BKD: Tensor | None = None

    def reset(self, mask_B: Tensor) -> None:
        self.ring.reset(mask_B)
        for row in mask_B.nonzero()[:, 0].tolist():
            self._inputs_B[row].clear()

    @torch.no_grad()
    def step(self, inputs_BKD: Tensor) -> Tensor:
        """States [B, D] of the last of K more inputs. Raises UserError if they do not fit."""
        self.ring.check(inputs_BKD)
        _, K, D = inputs_BKD.shape
        counted = inputs_that_count(self._layers, self.ring.length, K) + K
        hashes = keys_of(inputs_BKD.flatten(0, 1).numpy())
        keys = []
        for row, inputs in enumerate(self._inputs_B):
            inputs.extend(hashes[row * K : (row + 1) * K])
            seen = b"".join(islice(inputs, max(0, len(inputs) - counted), None))
            keys.append(hashlib.sha256(seen + K.to_bytes(4)).digest()[:KEY_BYTES])
        if self.ring.tokens == K:
            found_BW = self.cache.find(keys, lambda rows: self._taken(inputs_BKD, rows))
        else:  # the cache's vectors are of whole steps
            found_BW = self._taken(inputs_BKD, list(range(len(keys))))
        self.ring.append(found_BW[:, D:], K)
        self.ring.weights, self._newest_BKD = [], inputs_BKD
        return found_BW[:, :D]

    def _taken(self, inputs_BKD: Tensor, rows: list[int]) -> Tensor:
        ring = self.ring.of_rows(rows)
        states = ring.read(inputs_BKD[rows])
        return torch.cat([states[:, -1], ring.newest(inputs_BKD.shape[1])], 1)

    def attention(self) -> Tensor | None:
        """See `TokenRing.attention`; computed when it is asked for."""
        if self._newest_BKD is not None and not self.ring.weights:
            self.ring.looked(self._newest_BKD)
        return self.ring.attention()

    def arrays(self) -> dict[str, Tensor]:
        """For a checkpoint. `hashes`: of each row's last inputs, uint8 [B, inputs, 16], of which `known` [B] are real."""
        hashes_BIK = np.zeros((len(self._inputs_B), self._most, KEY_BYTES), np.uint8)
        for hashes_IK, inputs in zip(hashes_BIK, self._inputs_B, strict=True):
            hashes_IK[: len(inputs)] = np.frombuffer(b"".join(inputs), np.uint8).reshape(-1, KEY_BYTES)
        known_B = torch.tensor([len(inputs) for inputs in self._inputs_B], dtype=torch.int64)
        recalled = {"hashes": torch.from_numpy(hashes_BIK), "known": known_B}
        return self.ring.arrays() | joined(recalled=recalled, read=self.cache.arrays())

    def load(self, arrays: Mapping[str, Any]) -> None:
        self.ring.load(arrays)
        self._forget_all()
        recalled = part(arrays, "recalled")
        rows = zip(self._inputs_B, np.asarray(recalled["hashes"]), np.asarray(recalled["known"]), strict=True)
        for inputs, hashes_IK, known in rows:
            inputs.extend(bytes(key) for key in hashes_IK[:known])
        self.cache.load(part(arrays, "read"))
