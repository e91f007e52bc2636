"""Each different frame is looked at once, and each different window read once: bounded caches in front of frozen functions.

Agents see the same few frames over and over, and a frozen encoder says the same of each. A random policy's 20,000 steps in
MiniGrid's tasks show 101 to 1,860 different ones. Specification 10.4, item 24.

Hashes are made and looked up on the host, which worlds give their frames to; a GPU gets row numbers and is not waited for.

What a network makes of a row can differ in the last bit with the rows beside it in a batch. So a cache is part of
the state of a run that must resume bit-exactly: `arrays` and `load`.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recollect.common.transfer import sent
from recollect.helm.asking import Asking, Question, answered

KEY_BYTES = 16  # bytes of a hash


class VectorCache:
    """Vectors by key, computed for those that are not remembered, all of a call in one batch.

    Where there would be more than `size`, the one that was used longest ago is forgotten. A key twice in a call is computed once.
    """

    def __init__(self, size: int) -> None:
        self.size = max(1, size)
        self._slots: OrderedDict[bytes, int] = OrderedDict()  # in the order of their last use
        self._vectors: Tensor | None = None

    def find(self, keys: list[bytes], make: Callable[[list[int]], Tensor]) -> Tensor:
        """Vectors [N, W] of N > 0 keys; `make` gives those of rows (increasing, each key once) not remembered."""
        return answered(self.finding(keys), make)

    def finding(self, keys: list[bytes]) -> Asking:
        """The same by whoever answers in the place of `make`; it asks for rows, a list, where some are not remembered."""
        new: dict[bytes, int] = {}  # the first row of each key that is not remembered
        old, fresh = [], []
        for i, key in enumerate(keys):
            if key in self._slots:
                old.append(i)
            else:
                new.setdefault(key, i)
                fresh.append(i)
        known_OW = None if self._vectors is None else _rows(self._vectors, [self._slots[keys[i]] for i in old])
        for i in old:
            self._slots.move_to_end(keys[i])
        if not new:
            assert known_OW is not None
            return known_OW
        made_MW = (yield list(new.values())).detach()
        found = made_MW.new_empty(len(keys), made_MW.shape[1])
        if known_OW is not None:
            _write(found, old, known_OW)
        place = {key: m for m, key in enumerate(new)}
        _write(found, fresh, _rows(made_MW, [place[keys[i]] for i in fresh]))
        self._remember(list(new), made_MW)
        return found

    def arrays(self) -> dict[str, Tensor]:
        """What is remembered, those used longest ago first: `keys` uint8 [M, 16] and `vectors` [M, W]; nothing if empty."""
        if not self._slots or self._vectors is None:
            return {}
        keys = torch.from_numpy(np.frombuffer(b"".join(self._slots), np.uint8).reshape(-1, KEY_BYTES).copy())
        return {"keys": keys, "vectors": self._vectors[list(self._slots.values())]}

    def load(self, arrays: Mapping[str, Any], device: str | torch.device = "cpu") -> None:
        self._slots.clear()
        self._vectors = None
        if arrays:
            keys = [bytes(row) for row in np.asarray(arrays["keys"])]
            self._remember(keys, torch.as_tensor(arrays["vectors"]).to(device))

    def _remember(self, keys: list[bytes], vectors_MW: Tensor) -> None:
        keys, vectors_MW = keys[-self.size :], vectors_MW[-self.size :]
        rows = 0 if self._vectors is None else len(self._vectors)
        needed = min(self.size, len(self._slots) + len(keys))
        if needed > rows:  # twice as many each time, so that a small world costs little
            room = vectors_MW.new_zeros((min(self.size, max(needed, 2 * rows, 64)), vectors_MW.shape[1]))
            if self._vectors is not None:
                room[:rows] = self._vectors
            self._vectors = room
        assert self._vectors is not None
        places = []
        for key in keys:
            forgotten = self._slots.popitem(last=False)[1] if len(self._slots) >= self.size else len(self._slots)
            self._slots[key] = forgotten
            places.append(forgotten)
        _write(self._vectors, places, vectors_MW)


def _rows(vectors_MW: Tensor, rows: list[int]) -> Tensor:
    return vectors_MW.index_select(0, sent(torch.tensor(rows, dtype=torch.int64), vectors_MW.device))


def _write(vectors_MW: Tensor, rows: list[int], values_NW: Tensor) -> None:
    vectors_MW.index_copy_(0, sent(torch.tensor(rows, dtype=torch.int64), vectors_MW.device), values_NW)


class FrameCache(VectorCache):
    """Vectors of frames, from a function uint8 [M, ...] -> [M, W], M > 0; see `VectorCache`.

    Args:
        function: of what `prepare` makes of frames.
        prepare, finish: what comes before it and behind it; default: nothing.
    """

    def __init__(
        self,
        function: Callable[[Any], Tensor],
        size: int = 20_000,
        *,
        prepare: Callable[[np.ndarray], Any] | None = None,
        finish: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__(size)
        self.function, self.prepare, self.finish = function, prepare, finish

    def __call__(self, frames: np.ndarray) -> Tensor:
        """Vectors [N, W] of frames uint8 [N, ...], N > 0."""
        return answered(self.reading(frames), self.function)

    def reading(self, frames: np.ndarray) -> Asking:
        """The same by whoever answers in the place of `function`, as of several caches at once."""
        vectors = Question(self.finding(keys_of(frames)))
        if vectors.asked is not None:
            new = np.ascontiguousarray(frames[vectors.asked])
            made = yield new if self.prepare is None else self.prepare(new)
            vectors.told(made if self.finish is None else self.finish(made))
        return vectors.result


def keys_of(arrays_N: np.ndarray) -> list[bytes]:
    """A hash of each row's numbers, shape and type. (SHA-256: processors have instructions for it.)"""
    about = hashlib.sha256(repr((arrays_N.shape[1:], arrays_N.dtype.str)).encode())
    bytes_NB = np.ascontiguousarray(arrays_N).reshape(len(arrays_N), -1).view(np.uint8)
    keys = []
    for row_B in bytes_NB:
        whole = about.copy()
        whole.update(row_B.data)
        keys.append(whole.digest()[:KEY_BYTES])
    return keys


def key_of(array: np.ndarray) -> bytes:
    """The same of one array."""
    return keys_of(array[None])[0]
