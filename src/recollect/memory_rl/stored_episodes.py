"""Which episodes a replay holds, oldest first. One that comes or goes costs the same, however many there are."""

from __future__ import annotations

import numpy as np

_ROOM = 64  # for episodes, at first


class StoredEpisodes:
    """The first rows and lengths of episodes, and how many windows begin in them."""

    def __init__(self, starts: np.ndarray | None = None, lengths: np.ndarray | None = None) -> None:
        self._table = np.zeros((3, _ROOM), np.int64)  # first row; length; windows that begin up to the episode's end
        self._first = self._end = 0
        self._n = 0  # of the windows that are counted
        if starts is not None and lengths is not None:
            self.add(starts, lengths)

    def __len__(self) -> int:
        return self._end - self._first

    @property
    def starts(self) -> np.ndarray:
        return self._table[0, self._first : self._end]

    @property
    def lengths(self) -> np.ndarray:
        return self._table[1, self._first : self._end]

    def add(self, starts: np.ndarray, lengths: np.ndarray) -> None:
        end = self._end + len(starts)
        if end > self._table.shape[1]:
            kept = self._table[:, self._first : self._end]
            kept[2] -= self._before
            self._table = np.zeros((3, 2 * (kept.shape[1] + len(starts))), np.int64)
            self._table[:, : kept.shape[1]] = kept
            self._first, self._end = 0, kept.shape[1]
            end = self._end + len(starts)
        self._table[0, self._end : end] = starts
        self._table[1, self._end : end] = lengths
        self._count(self._end, end)
        self._end = end

    def drop(self, count: int) -> None:
        """Forget the oldest ones."""
        self._first += count

    def windows(self, n: int) -> tuple[np.ndarray, int]:
        """How many windows of n transitions begin up to the end of each episode, int64 [E], and before the first one.

        An episode of length l has max(1, l - n + 1).
        """
        if n != self._n:
            self._n = n
            self._count(self._first, self._end)
        return self._table[2, self._first : self._end], self._before

    @property
    def _before(self) -> int:
        return int(self._table[2, self._first - 1]) if self._first else 0

    def _count(self, first: int, end: int) -> None:
        own = np.maximum(1, self._table[1, first:end] - self._n + 1)
        self._table[2, first:end] = np.cumsum(own)
        if first:
            self._table[2, first:end] += self._table[2, first - 1]
