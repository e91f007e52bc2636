"""What RA-DT's training windows read: the query, the search, and the retrieved window as experience.

Each is a pure function of (seed, step, window). The entries of all steps can be looked up ahead and kept in a file
(`look_up_ahead`; released option, specification 4.8), for runs that differ in the network or in how it learns only.
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
from recollect.common.transfer import sent
from recollect.radt.approximate import approximate_search
from recollect.radt.chunks import Chunks, chunk_settings, memory_of
from recollect.radt.embedders import Embedder
from recollect.radt.experience import Experience
from recollect.radt.retrieval import Retrieved, retrieve, statistics
from recollect.radt.supervised import ExperienceStore
from recollect.radt.training_memory import Queries, TrainingMemory
from recollect.radt.value_windows import ValueWindows
from recollect.settings.errors import UserError
from recollect.settings.schema import Settings
from recollect.settings.seeding import seed_of

if TYPE_CHECKING:
    from recollect.radt.radt import Hyperparameters


class ContextReader:
    """The memory of a run in training: what each window of a batch reads from it."""

    def __init__(
        self, settings: Settings, inputs: Inputs, store: ExperienceStore, histories: Histories, embedder: Embedder
    ) -> None:
        self.chosen: Hyperparameters = settings.method.hyperparameters
        self.chunk_settings = chunk_settings(memory_of(settings))
        self.store = store
        self.histories = histories
        self.embedder = embedder
        self.seed = settings.seed
        verify(inputs.need("index"), kind="index")
        self.index = FlatIndex.load(inputs.need("index"), inputs.device)  # kept: the keys are views of its memory
        rows = read_arrays(inputs.need("rows"), kind="memory rows")
        self.chunks = Chunks.from_arrays(rows, inputs.need("rows"))
        self.memory = self.training_memory()
        self.stored: dict[str, np.ndarray] | None = None  # `id` [steps, B, K] and `reads` [steps, B] of all steps
        if self.chosen.values == "full":
            steps = histories.episodes.length[self.chunks.episode]
            self.chunks = self.chunks.with_full_values(steps, self.chunk_settings.value_length)
        self.values = ValueWindows(self.chunks, self.chunk_settings.value_length, inputs.device)
        if self.chosen.queries == "nearest_key":
            self.open_embedded(inputs)

    def training_memory(self) -> TrainingMemory:
        """The index and the table beside it, searched as the settings say."""
        engine, probe = self.chosen.retrieval.engine, self.chosen.retrieval.probe
        search = self.index.search if engine == "exact" else approximate_search(self.index.keys, engine, probe)
        chunks = self.chunks
        columns = []
        for column in (chunks.task, chunks.episode, chunks.total_return, chunks.last):
            columns.append(torch.from_numpy(np.array(column)))
        return TrainingMemory(search, self.index.keys, *columns)

    def open_embedded(self, inputs: Inputs) -> None:
        """The keys of all embedded windows: what deduplication dropped may be a query, too."""
        path = inputs.need("embeddings")
        arrays = {name: np.array(column) for name, column in read_arrays(path, kind="embeddings").items()}
        self.embedded_keys = torch.from_numpy(arrays.pop("keys"))
        self.embedded = Chunks.from_arrays(arrays)
        bare = np.setdiff1d(self.histories.episodes.task, self.embedded.task)
        if len(bare):
            raise UserError(
                f"task {bare[0]} has no embedded window ({len(bare)} such tasks)",
                where=path,
                do="choose a memory stride that is shorter than the episodes, or `queries: computed`",
            )

    def queries(self, window: Experience, rows: np.ndarray, generator: torch.Generator | None) -> Queries:
        """One query per window of the batch; `rows` is the last row of each window. Without a generator no key is
        computed: for what is known already."""
        keys_ND = self.memory.keys_ND
        device = keys_ND.device
        table = self.histories.episodes
        episode_B = self.histories.episode_of_row(rows)
        last_B = window.timestep[:, -1]
        if self.chosen.retrieval.kind != "retrieval" or generator is None:
            key_BD = keys_ND.new_zeros(len(rows), keys_ND.shape[1])  # drawn, not searched for
        elif self.chosen.queries == "computed":
            seen = window.last(self.chunk_settings.key_context)
            key_BD = self.embedder.keys(seen, dropout=self.chosen.query_dropout, generator=generator)
        else:
            place_B = self.nearest(rows, episode_B, rows - table.start[episode_B])
            key_BD = sent(self.embedded_keys[torch.from_numpy(place_B)], device)
        task_B = table.task[episode_B].astype(np.int64)
        total_return_B = table.total_return[episode_B].astype(np.float32)
        return Queries(
            key_BD=key_BD,
            task_B=sent(task_B, device),
            episode_B=sent(episode_B, device),
            total_return_B=sent(total_return_B, device),
            last_B=last_B.to(device),
        )

    def nearest(self, rows: np.ndarray, episode: np.ndarray, last: np.ndarray) -> np.ndarray:
        """The embedded window that is most like each training window: of the same task, with the nearest cut, and of
        those from the nearest episode."""
        embedded = self.embedded
        task = self.histories.episodes.task[episode]
        first = np.searchsorted(embedded.task, task)
        past = np.searchsorted(embedded.task, task + 1)
        place = np.zeros(len(rows), np.int64)
        for i in range(len(rows)):
            same_task = slice(first[i], past[i])
            steps_off = np.abs(embedded.last[same_task] - last[i])
            nearest_cut = first[i] + np.flatnonzero(steps_off == steps_off.min())
            episodes_off = np.abs(embedded.episode[nearest_cut] - episode[i])
            place[i] = nearest_cut[episodes_off.argmin()]
        return place

    def find(self, window: Experience, rows: np.ndarray, step: int) -> tuple[Retrieved, Tensor]:
        """The entries of each window of a batch, and which windows read theirs, bool [B]."""
        if self.stored is not None:  # scores are not kept there
            device = self.memory.keys_ND.device
            id_BK = sent(self.stored["id"][step].astype(np.int64), device)
            reads_B = sent(np.array(self.stored["reads"][step]), device)
            no_score_BK = torch.zeros_like(id_BK).float()
            return Retrieved(id_BK, no_score_BK, torch.zeros_like(reads_B)), reads_B
        draws = torch.Generator().manual_seed(seed_of("retrieval", self.seed, step))
        queries = self.queries(window, rows, draws)
        retrieved = retrieve(queries, self.memory, self.chosen.retrieval, draws)
        device = retrieved.id_BK.device
        reads_B = torch.ones(len(rows), dtype=torch.bool, device=device)
        if self.chosen.context_drop:
            reads_B = sent(torch.rand(len(rows), generator=draws) >= self.chosen.context_drop, device)
        return retrieved, reads_B

    def read(self, window: Experience, rows: np.ndarray, step: int) -> tuple[Experience, Tensor, dict[str, Any]]:
        """The retrieved windows, and which rows have one: a pure function of (seed, step, window)."""
        retrieved, reads_B = self.find(window, rows, step)
        draws = torch.Generator().manual_seed(seed_of("reading", self.seed, step))
        has_BK = retrieved.found_BK & reads_B[:, None]
        # N = B K retrieved windows of S steps; those of a row are then read one behind the other.
        id_N = retrieved.id_BK.clamp(min=0).flatten()
        if self.chosen.values == "dynamic":
            row_NS, mask_NS = self.values.shortened(
                id_N, torch.rand(len(id_N), 2, generator=draws, dtype=torch.float64)
            )
        else:
            row_NS, mask_NS = self.values.whole(id_N)
        empty_BK = torch.zeros_like(has_BK)
        if self.chosen.null_document:
            is_empty_BK = torch.rand(has_BK.shape, generator=draws) < self.chosen.null_document
            empty_BK = sent(is_empty_BK, has_BK.device) & has_BK
        told_BK = has_BK & ~empty_BK
        mask_NS = mask_NS & told_BK.flatten()[:, None]
        context = self.store.windows(row_NS.reshape(len(rows), -1), mask_NS.reshape(len(rows), -1))
        if self.chosen.null_document:
            # An empty document says nothing, but it is read.
            empty_BS = empty_BK.repeat_interleave(self.values.length, 1)
            context = replace(context, mask=context.mask | empty_BS)
        described = {}
        if step % 1000 == 0:
            described = statistics(retrieved, self.queries(window, rows, None), self.memory)
        return context, has_BK.any(1), described

    def memory_statistics(self) -> dict[str, float]:
        """How much the memory holds, and of what returns: a few numbers for the training table."""
        episode, first = np.unique(self.chunks.episode, return_index=True)
        return_E = self.chunks.total_return[first]
        return {
            "entries": len(self.chunks),
            "episodes": len(episode),
            "tasks": len(np.unique(self.chunks.task)),
            "return_mean": float(return_E.mean()),
            "return_std": float(return_E.std()),
            "return_lowest": float(return_E.min()),
            "return_highest": float(return_E.max()),
        }

    def look_up_ahead(
        self, settings: Settings, inputs: Inputs, batch_of: Callable[[int], tuple[Experience, np.ndarray]]
    ) -> None:
        """From now on read the entries of all training steps from a file of `neighbours`, which is made if it is not there.

        Args:
            batch_of: step -> (windows, last rows), what `find` is asked with.
        """
        assert self.chosen.neighbours is not None
        identity = repr(self._identity(settings, inputs))
        name = hashlib.sha256(identity.encode()).hexdigest()[:16]
        path = Path(self.chosen.neighbours) / f"{name}.safetensors"
        if not path.is_file():
            steps = self.chosen.optimisation.steps
            ids, reads = [], []
            with Progress(steps, "looking up neighbours", "steps") as progress:
                for step in range(steps):
                    window, rows = batch_of(step)
                    retrieved, reads_B = self.find(window, rows, step)
                    ids.append(retrieved.id_BK.int().cpu().numpy())
                    reads.append(reads_B.cpu().numpy())
                    progress.update(step + 1)
            arrays = {"id": np.stack(ids), "reads": np.stack(reads)}
            write_arrays(path, arrays, kind="neighbours", provenance={"of": identity})
        self.stored = read_arrays(path, kind="neighbours")

    def _identity(self, settings: Settings, inputs: Inputs) -> list[Any]:
        """All that the entries of a run's training steps depend on: settings, code, files and type of device."""
        learning = {
            "network",
            "optimisation",
            "selection",
            "return_loss",
            "acting",
            "acting_precision",
            "retrieve_every",
        }
        reading = {"values", "null_document", "neighbours"}
        identity = [
            self.chosen.model_dump(exclude=learning | reading),
            memory_of(settings).model_dump(),
            settings.environment.returns.model_dump(),
            settings.seed,
            self.chosen.optimisation.steps,
            self.chosen.optimisation.batch_size,
            self.chosen.optimisation.precision,
            code_fingerprint("recollect.radt.radt"),
            torch.device(inputs.device).type,
        ]
        for name in ("histories", "index", "rows", "embeddings", "embedder_policy", "language_model"):
            if name in inputs:
                identity.append(sha256_of(inputs[name]))
        return identity
