"""embed: histories + embedder -> keys of every memory entry (`data/{scale}/{env}/{method}/embeddings.safetensors`)."""

from __future__ import annotations

import numpy as np
import torch

from recollect.artifacts.lock import run_lock
from recollect.artifacts.progress import Progress
from recollect.artifacts.sealed import write_arrays
from recollect.common.contract import Inputs, facts_of
from recollect.radt.chunks import Chunks, chunk_settings, cut_chunks, memory_of
from recollect.radt.embedding import load_embedder
from recollect.radt.settings import MemorySettings
from recollect.radt.supervised import ExperienceStore, open_histories
from recollect.settings.resolve import resolve
from recollect.stages import paths, provenance
from recollect.stages.inputs import embedder_inputs, learned_histories

BATCH = 256


def evenly_spaced(chunks: Chunks, per_task: int | None) -> Chunks:
    """About so many chunks of each task: all those of episodes evenly spaced over its history; all chunks if None."""
    if per_task is None:
        return chunks
    kept = []
    for task in np.unique(chunks.task):
        own = np.flatnonzero(chunks.task == task)
        episodes = np.unique(chunks.episode[own])
        wanted = max(1, min(len(episodes), round(per_task * len(episodes) / len(own))))
        chosen = episodes[np.unique(np.linspace(0, len(episodes) - 1, wanted).round().astype(int))]
        kept.append(own[np.isin(chunks.episode[own], chosen)])
    return chunks.take(np.concatenate(kept))


def embed(scale: str, env: str, method: str, *, device: str = "cpu") -> None:
    """Embed the key window of every chunk of the histories."""
    settings = resolve(scale, env, method, seed=0)
    memory: MemorySettings = memory_of(settings)
    inputs = Inputs(histories=learned_histories(scale, env), device=device, **embedder_inputs(scale, env, method))
    known = provenance.describe(
        provenance.memory_settings(scale, env, method),
        provenance.memory_code("embed", scale, env, method),
        [inputs.histories, inputs.embedder_policy, inputs.language_model],
        device,
    )
    target = paths.embeddings(scale, env, method)
    with run_lock(target.parent):
        facts = facts_of(settings.environment)
        embedder = load_embedder(settings, inputs, facts)
        histories = open_histories(inputs.need("histories"), facts)
        scale_of_rewards = settings.method.hyperparameters.reward_scale
        store = ExperienceStore(histories, actions=facts.actions, device=device, reward_scale=scale_of_rewards)
        table = histories.episodes
        cut = cut_chunks(table.start, table.length, table.task, table.total_return, chunk_settings(memory))
        chunks = evenly_spaced(cut, memory.max_entries_per_task)
        keys = np.zeros((len(chunks), embedder.width), np.float32)
        with Progress(len(chunks), f"embedding {len(chunks)} windows", "windows") as progress:
            for first in range(0, len(chunks), BATCH):
                places = np.arange(first, min(first + BATCH, len(chunks)))
                rows, mask = chunks.key_windows(places, memory.key_context)
                with torch.inference_mode():
                    keys[places] = embedder.keys(store.windows(rows, mask)).float().cpu().numpy()
                progress.update(places[-1] + 1)
        write_arrays(target, {"keys": keys, **chunks.to_arrays()}, kind="embeddings", provenance=known)
