"""The entries of a memory before the index: every chunk of the histories, and the key that it is found by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from recollect.common.contract import Inputs, facts_of
from recollect.common.parts_on_disk import encode_in_parts
from recollect.radt.chunks import Chunks, chunk_settings, cut_chunks, memory_of
from recollect.radt.embedding import load_embedder
from recollect.radt.supervised import open_experience
from recollect.settings.errors import UserError
from recollect.settings.schema import Settings

BATCH = 256
ROWS = 16 * BATCH  # of a part: what a kill costs


def evenly_spaced(chunks: Chunks, per_task: int | None) -> Chunks:
    """About so many chunks of each task: all those of episodes evenly spaced over its history; all chunks if None."""
    if per_task is None:
        return chunks
    kept = []
    for task in np.unique(chunks.task):
        own = np.flatnonzero(chunks.task == task)
        episodes = np.unique(chunks.episode[own])
        wanted = max(1, min(len(episodes), round(per_task * len(episodes) / len(own))))
        places = np.linspace(0, len(episodes) - 1, wanted).round().astype(int)
        kept.append(own[np.isin(chunks.episode[own], episodes[np.unique(places)])])
    return chunks.take(np.concatenate(kept))


def memory_entries(
    settings: Settings, inputs: Inputs, folder: Path, *, provenance: dict[str, Any]
) -> dict[str, np.ndarray]:
    """Cut the histories into chunks and embed the key window of each, going on from what a kill left.

    Args:
        settings: of a method with a memory.
        inputs: `histories`, and what the memory's embedder is read from.
        folder, provenance: see `encode_in_parts`.

    Returns:
        `keys` float32 [N, width], and the arrays of the N chunks.

    Raises:
        UserError: no episode is as long as the memory's stride.
    """
    memory, facts = memory_of(settings), facts_of(settings.environment)
    embedder = load_embedder(settings, inputs, facts)
    histories, store = open_experience("histories", settings, inputs, facts)
    table = histories.episodes
    cut = cut_chunks(table.start, table.length, table.task, table.total_return, chunk_settings(memory))
    if not len(cut):
        raise UserError(
            f"no episode is as long as `memory.stride`: the longest has {table.length.max()} steps, not {memory.stride}",
            where=f"memory.stride of '{settings.method.name}' in '{settings.environment.name}'",
            do=f"set memory.stride to {table.length.max()} or less",
        )
    chunks = evenly_spaced(cut, memory.max_entries_per_task)

    def keys_of(places: np.ndarray) -> np.ndarray:
        keys = np.zeros((len(places), embedder.width), np.float32)
        for first in range(0, len(places), BATCH):
            rows, mask = chunks.key_windows(places[first : first + BATCH], memory.key_context)
            with torch.inference_mode():
                keys[first : first + BATCH] = embedder.keys(store.windows(rows, mask)).float().cpu().numpy()
        return keys

    keys = encode_in_parts(np.arange(len(chunks)), keys_of, folder, provenance=provenance, rows=ROWS, what="windows")
    return {"keys": keys, **chunks.to_arrays()}
