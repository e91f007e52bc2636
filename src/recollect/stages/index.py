"""index: embeddings -> exact search index and its row table (`memory.faiss`, `memory_rows.safetensors`)."""

from __future__ import annotations

import logging

import torch

from recollect.artifacts.lock import run_lock
from recollect.artifacts.sealed import read_arrays, sealing, write_arrays
from recollect.common.index import FlatIndex
from recollect.radt.chunks import Chunks, memory_of
from recollect.radt.deduplication import deduplicate
from recollect.settings.resolve import resolve
from recollect.stages import paths, provenance

log = logging.getLogger(__name__)


def index(scale: str, env: str, method: str) -> None:
    """Drop near-duplicates and build the search index."""
    memory = memory_of(resolve(scale, env, method, seed=0))
    source = paths.embeddings(scale, env, method)
    known = provenance.describe(
        provenance.memory_settings(scale, env, method),
        provenance.memory_code("index", scale, env, method),
        [source],
    )
    with run_lock(source.parent):
        arrays = read_arrays(source, kind="embeddings")
        keys, chunks = torch.from_numpy(arrays["keys"].copy()), Chunks.from_arrays(arrays, source)
        if memory.deduplicate != "none":
            task = torch.from_numpy(chunks.task.copy())
            found = deduplicate(
                keys,
                task,
                threshold=memory.deduplicate_above,
                mode=memory.deduplicate,
                neighbours=memory.deduplicate_neighbours,
                total_return_N=torch.from_numpy(chunks.total_return.copy()) if memory.deduplicate_worse_only else None,
            )
            log.info("deduplication kept %.1f %% of %d entries", 100 * found.fraction, found.total)
            keys, chunks = keys[torch.from_numpy(found.kept)], chunks.take(found.kept)
        built = FlatIndex(keys.shape[1])
        built.add(keys)
        with sealing(paths.index(scale, env, method), kind="index", provenance=known) as temporary:
            built.save(temporary)
        write_arrays(paths.rows(scale, env, method), chunks.to_arrays(), kind="memory rows", provenance=known)
