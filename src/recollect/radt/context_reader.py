"""What RA-DT's training windows read: the query, the search, and the retrieved window as experience.

Each is a pure function of (seed, step, window). The entries of all steps can be looked up ahead and kept in a file
(`Neighbours`; released option, specification 4.8), for runs that differ in the network or in how it learns only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from recollect.artifacts.fingerprint import code_fingerprint
from recollect.artifacts.progress import Progress
from recollect.artifacts.sealed import read_arrays, sha256_of, verify, write_arrays
from recollect.common.contract import Inputs
from recollect.common.histories import Histories
from recollect.common.index import FlatIndex
from recollect.radt.approximate import approximate_search
from recollect.radt.chunking import chunk_settings, memory_of
from recollect.radt.chunks import Chunks
from recollect.radt.decision_transformer import Experience
from recollect.radt.embedders import Embedder
from recollect.radt.retrieval import Retrieved, retrieve, statistics
from recollect.radt.supervised import ExperienceStore
from recollect.radt.training_memory import Queries, TrainingMemory
from recollect.settings.errors import UserError
from recollect.settings.schema import Settings
from recollect.settings.seeding import seed_of

if TYPE_CHECKING:
    from recollect.radt.radt import Hyperparameters


class ContextReader:
    """Finds and reads the context of training windows. Its settings stand in `radt.Hyperparameters`."""

    def __init__(
        self, settings: Settings, inputs: Inputs, store: ExperienceStore, histories: Histories, embedder: Embedder
    ) -> None:
        self.chosen: Hyperparameters = settings.method.hyperparameters
        self.chunks_settings, self.store, self.embedder, self.seed = (
            chunk_settings(memory_of(settings)), store, embedder, settings.seed,
        )  # fmt: skip
        verify(inputs.need("index"), kind="index")
        index = self.index = FlatIndex.load(
            inputs.need("index"), inputs.device
        )  # kept: the keys are views of its memory
        self.chunks = Chunks.from_arrays(read_arrays(inputs.need("rows"), kind="memory rows"), inputs.rows)
        self.histories = histories
        columns = (
            torch.from_numpy(np.array(c))
            for c in (self.chunks.task, self.chunks.episode, self.chunks.total_return, self.chunks.last)
        )
        engine, probe = self.chosen.retrieval.engine, self.chosen.retrieval.probe
        search = index.search if engine == "exact" else approximate_search(index.keys, engine, probe)
        self.memory = TrainingMemory(search, index.keys, *columns)
        self.stored: Neighbours | None = None
        if self.chosen.values == "full":
            steps = histories.episodes.length[self.chunks.episode]
            self.chunks = self.chunks.with_full_values(steps, self.chunks_settings.value_length)
        if self.chosen.queries == "nearest_key":
            embedded = read_arrays(inputs.need("embeddings"), kind="embeddings")
            self.embedded = Chunks.from_arrays({n: np.array(c) for n, c in embedded.items() if n != "keys"})
            self.embedded_keys = torch.from_numpy(np.array(embedded["keys"]))
            bare = np.setdiff1d(histories.episodes.task, self.embedded.task)
            if len(bare):
                raise UserError(
                    f"task {bare[0]} has no embedded window ({len(bare)} such tasks)",
                    where=inputs.need("embeddings"),
                    do="choose a memory stride that is shorter than the episodes, or `queries: computed`",
                )

    def queries(self, window: Experience, rows: np.ndarray, generator: torch.Generator | None) -> Queries:
        """One query per window of the batch; `rows` is the last row of each window. Without a generator no key is
        computed: for what is known already."""
        device = self.memory.keys_ND.device
        table, episode = self.histories.episodes, self.histories.episode_of_row(rows)
        if self.chosen.retrieval.kind != "retrieval" or generator is None:
            key_BD = self.memory.keys_ND.new_zeros(len(rows), self.memory.keys_ND.shape[1])  # drawn, not searched for
        elif self.chosen.queries == "computed":
            key_BD = self.embedder.keys(
                window.last(self.chunks_settings.context), dropout=self.chosen.query_dropout, generator=generator
            )
        else:
            last = window.timestep[:, -1].cpu().numpy()
            key_BD = self.embedded_keys[torch.from_numpy(self.nearest(rows, episode, last))].to(device)
        return Queries(
            key_BD=key_BD,
            task_B=torch.from_numpy(table.task[episode].astype(np.int64)).to(device),
            episode_B=torch.from_numpy(episode).to(device),
            total_return_B=torch.from_numpy(table.total_return[episode].astype(np.float32)).to(device),
            last_B=window.timestep[:, -1].to(device),
        )

    def nearest(self, rows: np.ndarray, episode: np.ndarray, last: np.ndarray) -> np.ndarray:
        """The embedded window that is most like each training window: of the same task, with the nearest cut, and of
        those from the nearest episode."""
        table, chunks = self.histories.episodes, self.embedded
        found = np.zeros(len(rows), np.int64)
        for place, (own, end) in enumerate(zip(episode, last + 1, strict=True)):
            first, past = np.searchsorted(chunks.task, [table.task[own], table.task[own] + 1])
            off = np.abs(chunks.last[first:past] + 1 - end)
            candidates = first + np.flatnonzero(off == off.min())
            found[place] = candidates[np.abs(chunks.episode[candidates] - own).argmin()]
        return found

    def find(self, window: Experience, rows: np.ndarray, step: int) -> tuple[Retrieved, Tensor]:
        """The entries of each window of a batch, and which windows read theirs, bool [B]."""
        if self.stored is not None:
            return self.stored.at(step, self.memory.keys_ND.device)
        draws = torch.Generator().manual_seed(seed_of("retrieval", self.seed, step))
        found = retrieve(self.queries(window, rows, draws), self.memory, self.chosen.retrieval, draws)
        reads_B = torch.ones(len(rows), dtype=torch.bool)
        if self.chosen.context_drop:
            reads_B = torch.rand(len(rows), generator=draws) >= self.chosen.context_drop
        return found, reads_B.to(found.id_BK.device)

    def read(self, window: Experience, rows: np.ndarray, step: int) -> tuple[Experience, Tensor, dict[str, Any]]:
        """The retrieved windows, and which rows have one: a pure function of (seed, step, window)."""
        found, reads_B = self.find(window, rows, step)
        draws = torch.Generator().manual_seed(seed_of("reading", self.seed, step))
        has_BK = found.found_BK & reads_B[:, None]
        ids = found.id_BK.clamp(min=0).cpu().numpy()
        length, size = self.chunks_settings.value_length, ids.shape
        if self.chosen.values == "dynamic":
            chance = torch.rand(ids.size, 2, generator=draws, dtype=torch.float64).numpy()
            value_rows, mask = self.chunks.shortened_windows(ids.reshape(-1), length, chance)
        else:
            value_rows, mask = self.chunks.value_windows(ids.reshape(-1), length)
        mask = mask & has_BK.cpu().numpy().reshape(-1, 1)
        if not self.chosen.null_document:
            context = self.store.windows(value_rows.reshape(size[0], -1), mask.reshape(size[0], -1))
        else:
            null_BK = (torch.rand(size, generator=draws) < self.chosen.null_document) & has_BK.cpu()
            mask = mask & ~null_BK.numpy().reshape(-1, 1)
            context = self.store.windows(value_rows.reshape(size[0], -1), mask.reshape(size[0], -1))
            empty_BS = null_BK.repeat_interleave(length, 1).to(context.mask.device)
            context = replace(context, mask=context.mask | empty_BS)
        described = {}
        if step % 1000 == 0:
            described = statistics(found, self.queries(window, rows, None), self.memory)
        return context, has_BK.any(1), described

    def memory_statistics(self) -> dict[str, float]:
        """How much the memory holds, and of what returns: a few numbers for the training table."""
        episode, first = np.unique(self.chunks.episode, return_index=True)
        returns = self.chunks.total_return[first]
        named = {"mean": returns.mean(), "std": returns.std(), "lowest": returns.min(), "highest": returns.max()}
        counts = {"entries": len(self.chunks), "episodes": len(episode), "tasks": len(np.unique(self.chunks.task))}
        return {**counts, **{f"return_{name}": float(value) for name, value in named.items()}}

    def look_up_ahead(
        self, settings: Settings, inputs: Inputs, batch_of: Callable[[int], tuple[Experience, np.ndarray]]
    ) -> None:
        """From now on read the entries of all training steps from a file of `neighbours`, which is made if it is not there.

        Args:
            settings, inputs: of the run.
            batch_of: step -> (windows, last rows), what `find` is asked with.
        """
        assert self.chosen.neighbours is not None
        optimisation = self.chosen.optimisation
        network = {"network", "optimisation", "selection", "return_loss", "acting", "retrieve_every", "values"}
        about = [
            self.chosen.model_dump(exclude=network | {"null_document", "neighbours"}),
            memory_of(settings).model_dump(), settings.environment.returns.model_dump(),
            settings.seed, optimisation.steps, optimisation.batch_size,
            code_fingerprint("recollect.radt.context_reader"),
        ]  # fmt: skip
        files = [inputs.histories, inputs.index, inputs.rows, inputs.embeddings, inputs.embedder_policy]
        about += [sha256_of(path) for path in (*files, inputs.language_model) if path is not None]
        name = hashlib.sha256(repr(about).encode()).hexdigest()[:16]
        path = Path(self.chosen.neighbours) / f"{name}.safetensors"
        if not path.is_file():
            made = []
            with Progress(optimisation.steps, "looking up neighbours", "steps") as progress:
                for step in range(optimisation.steps):
                    window, rows = batch_of(step)
                    found, reads_B = self.find(window, rows, step)
                    made.append((found.id_BK.int().cpu().numpy(), reads_B.cpu().numpy()))
                    progress.update(step + 1)
            ids, reads = (np.stack(column) for column in zip(*made, strict=True))
            write_arrays(path, {"id": ids, "reads": reads}, kind="neighbours", provenance={"of": repr(about)})
        self.stored = Neighbours(path)


class Neighbours:
    """The entries that every training window reads, from a file. `id` [steps, B, K], `reads` [steps, B]."""

    def __init__(self, path: Path) -> None:
        arrays = read_arrays(path, kind="neighbours")
        self.id_TBK, self.reads_TB = arrays["id"], arrays["reads"]

    def at(self, step: int, device: torch.device) -> tuple[Retrieved, Tensor]:
        """What `ContextReader.find` gave at a step (scores are not kept)."""
        id_BK = torch.from_numpy(self.id_TBK[step].astype(np.int64)).to(device)
        reads_B = torch.from_numpy(np.array(self.reads_TB[step])).to(device)
        return Retrieved(id_BK, torch.zeros_like(id_BK).float(), torch.zeros_like(reads_B)), reads_B
