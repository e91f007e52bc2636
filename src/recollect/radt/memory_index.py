"""The search index of a memory: near-duplicates dropped, then every key that is left."""

from __future__ import annotations

import logging

import torch

from recollect.common.index import FlatIndex
from recollect.radt.chunks import Chunks
from recollect.radt.deduplication import deduplicate
from recollect.radt.memory_settings import MemorySettings

log = logging.getLogger(__name__)


def build_index(keys: torch.Tensor, chunks: Chunks, memory: MemorySettings) -> tuple[FlatIndex, Chunks]:
    """The index of keys [N, width], and the chunks of its entries, in its order.

    Near-copies are searched for on the device of the keys. Keys that nobody else holds are let go when they are no longer needed.
    """
    if memory.deduplicate != "none":
        worse_only = memory.deduplicate_worse_only
        found = deduplicate(
            keys,
            torch.from_numpy(chunks.task.copy()),
            threshold=memory.deduplicate_above,
            mode=memory.deduplicate,
            neighbours=memory.deduplicate_neighbours,
            total_return_N=torch.from_numpy(chunks.total_return.copy()) if worse_only else None,
        )
        log.info("deduplication kept %.1f %% of %d entries", 100 * found.fraction, found.total)
        keys, chunks = keys[torch.from_numpy(found.kept).to(keys.device)], chunks.take(found.kept)
    built = FlatIndex(keys.shape[1])
    built.add(keys)
    return built, chunks
