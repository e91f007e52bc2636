"""Where every trajectory is cut for the retrieval memory: which steps make a key, which steps make a value.

A chunk is one memory entry. Its *key* is the embedding of the steps before a cut; its *value* is the raw window around
the cut (past and future), which the policy reads by cross-attention. Nothing is copied here: a chunk is a few integers,
and windows become row indices only when they are asked for, so a memory of 300 000 entries costs a few megabytes.

Source: RA-DT (arXiv 2410.07071), section on the retrieval memory; the released code's window arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from recollect.radt.memory_settings import MemorySettings
from recollect.settings.errors import UserError, shown
from recollect.settings.resolve import method_path
from recollect.settings.schema import Settings

Integers = NDArray[np.int64]
Floats = NDArray[np.float32]
Mask = NDArray[np.bool_]

SHORTEST_KEY = 2  # the first cut of an episode has nothing before it; its key reads the first two steps instead


@dataclass(frozen=True)
class ChunkSettings:
    """How trajectories are cut. All lengths are in timesteps.

    Attributes:
        stride: distance between two cuts.
        key_context: steps that a key sees, C.
        past, future: steps of a value before the cut, and from it on.
        full_values: values at the ends of an episode are moved inwards, to be full.
    """

    stride: int
    key_context: int
    past: int
    future: int
    full_values: bool = False

    @property
    def value_length(self) -> int:
        return self.past + self.future


def memory_of(settings: Settings) -> MemorySettings:
    """The method's memory settings, which a retrieving method cannot do without."""
    if settings.method.memory is None:
        raise UserError(
            f"'{settings.method.name}' has no memory to retrieve from",
            where=shown(method_path(settings.method.name)),
            do="add a `memory:` section to its file (see config/methods/radt.yaml)",
        )
    return settings.method.memory


def chunk_settings(memory: MemorySettings) -> ChunkSettings:
    return ChunkSettings(stride=memory.stride, key_context=memory.key_context, past=memory.past, future=memory.future)


def window_rows(first: Integers, end: Integers, length: int) -> tuple[Integers, Mask]:
    """Row indices of the windows [first, end), left-padded to a fixed length.

    Args:
        end: [M] one past its last row; ``end - first`` is in 1..length.

    Returns:
        rows [M, n] and mask [M, n] (True = real). A padded place repeats the window's first row, so that a gather is
        always valid and never leaves the episode.
    """
    first_M1 = first[:, None]
    rows = end[:, None] + np.arange(-length, 0)
    return np.maximum(rows, first_M1), rows >= first_M1


@dataclass(frozen=True)
class Chunks:
    """A table of chunks: M rows, in the order (episode, cut). Rows of the histories are global, first/end half-open.

    Attributes:
        task: [M] task of the episode.
        episode: [M] global episode index (the row of the episode table).
        cut: [M] timestep of the cut inside its episode.
        last: [M] last timestep of the key window (used to order several retrieved windows).
        total_return: [M] undiscounted return of the whole episode.
        key_first, key_end, value_first, value_end: [M] global rows.
    """

    task: Integers
    episode: Integers
    cut: Integers
    last: Integers
    total_return: Floats
    key_first: Integers
    key_end: Integers
    value_first: Integers
    value_end: Integers

    def __len__(self) -> int:
        return len(self.task)

    def take(self, kept: NDArray[np.integer] | Mask) -> Chunks:
        return replace(self, **{name: array[kept] for name, array in self.to_arrays().items()})

    def key_windows(self, chosen: NDArray[np.integer], length: int) -> tuple[Integers, Mask]:
        """Rows and mask [M', length] of the chosen chunks' key windows; ``length`` is the settings' ``key_context``."""
        return window_rows(self.key_first[chosen], self.key_end[chosen], length)

    @property
    def origin(self) -> Integers:
        """[M] global row of the first step of each chunk's episode."""
        return self.key_end - self.last - 1

    def with_full_values(self, steps: Integers, length: int) -> Chunks:
        """Values moved inwards at the ends of an episode, so that they are full where the episode is long enough.

        Args:
            steps: [M] length of each chunk's episode.
        """
        latest_first = np.maximum(steps - length, 0)
        first = np.minimum(self.value_first - self.origin, latest_first)
        end = np.minimum(first + length, steps)
        return replace(self, value_first=self.origin + first, value_end=self.origin + end)

    def to_arrays(self) -> dict[str, np.ndarray]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray], where: object = "chunk table") -> Chunks:
        """The table from named arrays. Raises UserError if a column is missing or of another length."""
        names = [field.name for field in fields(cls)]
        missing = [name for name in names if name not in arrays]
        again = "Build the index again."
        if missing:
            raise UserError(f"The chunk table has no column {', '.join(missing)}.", where=where, do=again)
        columns = {name: arrays[name] for name in names}
        if len({len(column) for column in columns.values()}) != 1:
            raise UserError("The columns of the chunk table differ in length.", where=where, do=again)
        return cls(**columns)


def cut_chunks(
    start: NDArray[np.integer],
    length: NDArray[np.integer],
    task: NDArray[np.integer],
    total_return: NDArray[np.floating],
    settings: ChunkSettings,
    *,
    keep_partial: bool = False,
) -> Chunks:
    """Cut every episode of an episode table, with no loop over episodes.

    For the cut c = 0, s, 2s, … and e = max(c, 2): key = [max(0, e - C), e), value = [max(0, c - p), min(L, c + f)).
    An episode of length L has floor(L / s) cuts (ceil with ``keep_partial``).

    Args:
        start, length, task, total_return: [N] columns of the episode table; ``start`` is a global row.
        keep_partial: the last, incomplete stride of an episode is cut, too. The released code does not do this in training,
            so that episodes shorter than one stride never enter the training memory.

    Raises:
        UserError: the columns differ in length, or an episode is empty.
    """
    columns = [np.asarray(column) for column in (start, length, task, total_return)]
    if len({column.shape for column in columns}) != 1 or columns[0].ndim != 1:
        raise UserError(
            "The columns of the episode table differ in length.", where="episode table", do="Generate again."
        )
    if len(columns[1]) and columns[1].min() < 1:
        raise UserError("An episode has no step.", where="episode table", do="Generate the histories again.")
    start, length, task = (column.astype(np.int64) for column in columns[:3])
    # One row per cut: the n-th of its episode.
    stride = settings.stride
    cuts = length // stride
    if keep_partial:
        cuts = -(-length // stride)
    episode = np.repeat(np.arange(len(cuts)), cuts)
    cuts_before = np.cumsum(cuts) - cuts
    nth = np.arange(len(episode)) - cuts_before[episode]
    cut = nth * stride

    origin, steps = start[episode], length[episode]
    key_end = np.minimum(np.maximum(cut, SHORTEST_KEY), steps)
    value_first = np.maximum(cut - settings.past, 0)
    value_end = np.minimum(cut + settings.future, steps)
    chunks = Chunks(
        task=task[episode],
        episode=episode,
        cut=cut,
        last=key_end - 1,
        total_return=columns[3].astype(np.float32)[episode],
        key_first=origin + np.maximum(key_end - settings.key_context, 0),
        key_end=origin + key_end,
        value_first=origin + value_first,
        value_end=origin + value_end,
    )
    if settings.full_values:
        return chunks.with_full_values(steps, settings.value_length)
    return chunks


def finished_chunks(length: NDArray[np.integer], total_return: NDArray[np.floating], settings: ChunkSettings) -> Chunks:
    """The chunks of episodes that have just ended at test time, one episode per task of a batch.

    Cuts c = 0, s, 2s, … < L, so a last incomplete stride counts (as in the released evaluation code). Row numbers are
    timesteps of the episode; ``episode`` and ``task`` are both the place in the batch.

    Args:
        length: [E] steps of each finished episode.
        total_return: [E] its undiscounted return.
    """
    here = np.arange(len(length))
    return cut_chunks(np.zeros_like(here), length, here, total_return, settings, keep_partial=True)
