"""Retrieval-Augmented Decision Transformer (RA-DT): a DT that reads one retrieved window of past experience.

Training: a window of the histories asks the memory (built by `embed` and `index`) for a similar window of the same task
and reads it by cross-attention while it predicts its actions. Acting: the memory starts empty and grows with the agent's
own episodes; what is similar and had a high return is read. Domain-specific: the memory's embedder is a trained DT;
domain-agnostic: FrozenHopfield and a frozen language model. Differences, and why:

- Test-time keys are normalised, as in training and in the paper; the released configuration does not
  (`acting.similarity: inner_product`).
- Deduplication keeps the first of a cluster; upstream can lose all of it (`memory.deduplicate: upstream`).
- Retrieval candidates that are excluded are dropped before the min-max, not demoted (`retrieval.excluded: demote`).
- Windows of other tasks never mix in by accident where a task has no entry left: then nothing is read.
- `queries: nearest_key` (not in the paper) takes the precomputed key of the most similar cut as a training window's
  query, so that training runs no embedder; for small budgets. `computed` is as published.
- `retrieval.within` and `network.context_embedding: shared` (not in the paper) are for small budgets: windows of about
  the same skill, and one set of tables for both windows.
- While acting only the last token of the last layer is computed, and where the embedder's window holds a whole episode
  its query grows step by step: the same numbers (`embedding.SteppedQueries`).
- Without a context (first episode) cross-attention is skipped; `context_drop` lets training see that too.

Source: Schmied et al. (arXiv 2410.07071) sections 3-4; specification 3.6, 4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from recollect.artifacts.run import Run
from recollect.artifacts.sealed import read_arrays, verify
from recollect.memory.chunks import Chunks, finished_chunks
from recollect.memory.embedders import Embedder
from recollect.memory.episodic_memory import EpisodeLog, EpisodicMemory, EpisodicSettings, Hits
from recollect.memory.index import FlatIndex
from recollect.memory.retrieval import Queries, RetrievalSettings, TrainingMemory, retrieve, statistics
from recollect.methods import dt
from recollect.methods.acting import ActionSelection, InContextPolicy
from recollect.methods.chunking import chunk_settings, memory_of
from recollect.methods.contract import Facts, Inputs, facts_of
from recollect.methods.embedding import SteppedQueries, load_embedder
from recollect.methods.supervised import ExperienceStore, open_histories, train_supervised
from recollect.nets.decision_transformer import DecisionTransformer, Experience, bins_of
from recollect.settings.errors import UserError
from recollect.settings.schema import Settings
from recollect.settings.seeding import seed_of
from recollect.trajectories.histories import Histories
from recollect.trajectories.windows import WindowSampler


class Hyperparameters(dt.Hyperparameters):
    """DT's, and how it retrieves. Defaults are the paper's for Dark-Room 10x10."""

    network: dt.Network = dt.Network(return_embedding="bins")
    selection: ActionSelection = Field("top_half", description="Released: sample from the best half of the logits.")
    return_loss: float = Field(1.0, description="Weight of the return-to-go loss (released Dark configs; 0 elsewhere).")
    retrieval: RetrievalSettings = RetrievalSettings()
    queries: Literal["computed", "nearest_key"] = Field("computed", description="Where training queries come from.")
    query_dropout: float = Field(0.2, description="Share of state tokens zeroed in a computed query.")
    context_drop: float = Field(0.0, description="Share of training windows that read nothing.")
    acting: EpisodicSettings = EpisodicSettings()
    retrieve_every: int = Field(1, description="Environment steps between retrievals. Paper: 1 (grids), 25 (others).")


@dataclass(frozen=True)
class Batch:
    """A training step's input: windows, what they read, and who reads."""

    window: Experience
    context: Experience
    has_context_B: Tensor


class RetrievalPolicy(InContextPolicy):
    """Plays with its own earlier episodes as memory; the context is re-read every `retrieve_every` steps."""

    def __init__(self, network: DecisionTransformer, embedder: Embedder, settings: Settings) -> None:
        chosen: Hyperparameters = settings.method.hyperparameters
        super().__init__(
            network, settings.environment.returns, selection=chosen.selection, reward_scale=chosen.reward_scale
        )
        self.embedder, self.chosen, self.memory_settings = embedder, chosen, memory_of(settings)
        self.chunks = chunk_settings(self.memory_settings)

    def begin(self, rows: int) -> None:
        per_episode = -(-self.horizon // self.chunks.stride)
        self.memory = EpisodicMemory(
            rows, self.episodes * per_episode, self.embedder.width, self.chosen.acting, self.device
        )
        self.queries = SteppedQueries.of(self.embedder, rows, self.horizon)
        self.log = EpisodeLog(
            {
                "observation": (tuple(self.observation.shape[2:]), self.observation.dtype),
                "return_to_go": ((), torch.float32),
                "action": ((), torch.int64),
                "reward": ((), torch.float32),
            },
            rows,
            self.episodes,
            self.horizon,
            self.device,
        )
        steps = self.chosen.acting.select * self.chunks.value_length
        nothing = torch.zeros(rows, steps, dtype=torch.int64, device=self.device)
        self.context = Experience(  # what every row reads, until its next retrieval
            observation=self.observation.new_zeros(rows, steps, self.observation.shape[2]),
            return_to_go=nothing.float(),
            action=nothing + self.no_action,
            reward=nothing.float(),
            timestep=nothing.clone(),
            mask=nothing.bool(),
        )
        self.has_context_B = torch.zeros(rows, dtype=torch.bool, device=self.device)
        self.hits = Hits.nothing(rows, self.chosen.acting.select, self.device)  # of each row's last retrieval

    def forget(self, mask_B: np.ndarray) -> None:
        mask = torch.from_numpy(mask_B)
        self.memory.reset(mask)
        self.log.reset(mask)
        if self.queries is not None:
            self.queries.clear(mask_B)
        self.has_context_B = self.has_context_B & ~mask.to(self.device)

    def finish(self, rows: np.ndarray, lengths: np.ndarray) -> None:
        """Store the windows of the episodes that have just ended, with the returns that they really had."""
        device = self.device
        if self.queries is not None:
            self.queries.clear(np.isin(np.arange(len(self.seeds_B)), rows))
        task = torch.from_numpy(rows).to(device)
        real_MT = torch.arange(self.horizon, device=device) < torch.from_numpy(lengths).to(device)[:, None]
        reward_MT = self.reward[task] * real_MT
        return_to_go_MT = reward_MT.flip(1).cumsum(1).flip(1)
        slot_M = self.log.write(
            task,
            {
                "observation": self.observation[task],
                "return_to_go": return_to_go_MT,
                "action": torch.where(real_MT, self.action[task], self.no_action),
                "reward": reward_MT,
            },
        )
        total_M = return_to_go_MT[:, 0].cpu().numpy()
        cut = finished_chunks(lengths, total_M, self.chunks)
        place = torch.from_numpy(cut.task).to(device)
        key_rows, key_mask = cut.key_windows(np.arange(len(cut)), self.chunks.context)
        keys_MD = self.embedder.keys(
            self.logged(task[place], slot_M[place], torch.from_numpy(key_rows), torch.from_numpy(key_mask)),
            normalise=False,  # the episodic memory normalises, or does not: `acting.similarity`
        )
        self.memory.add(
            task[place],
            keys_MD,
            slot_M=slot_M[place],
            first_M=cut.value_first,
            end_M=cut.value_end,
            last_M=cut.last,
            total_return_M=cut.total_return,
        )

    def logged(self, task_M: Tensor, slot_M: Tensor, step_MT: Tensor, mask_MT: Tensor) -> Experience:
        """Windows of logged episodes by timestep."""
        step_MT, mask_MT = step_MT.to(self.device), mask_MT.to(self.device)
        fields = {name: table[task_M[:, None], slot_M[:, None], step_MT] for name, table in self.log.fields.items()}
        return Experience(
            observation=fields["observation"] * mask_MT[..., None],
            return_to_go=fields["return_to_go"] * mask_MT,
            action=torch.where(mask_MT, fields["action"], self.no_action),
            reward=fields["reward"] * mask_MT,
            timestep=step_MT * mask_MT,
            mask=mask_MT,
        )

    def retrieve(self, rows: Tensor, query_BD: Tensor) -> None:
        """Look up what these rows read from now on."""
        hits = self.memory.search(query_BD, rows)
        self.hits.put(rows, hits)
        found_BK = hits.found_BK
        size, length = found_BK.shape, self.chunks.value_length
        flat = {name: getattr(hits, f"{name}_BK").flatten() for name in ("slot", "first", "end")}
        step_MS = flat["end"][:, None] + torch.arange(-length, 0, device=self.device)
        mask_MS = (step_MS >= flat["first"][:, None]) & found_BK.flatten()[:, None]
        step_MS = torch.maximum(step_MS, flat["first"][:, None])
        windows = self.logged(rows.repeat_interleave(size[1]), flat["slot"], step_MS, mask_MS)
        for name in Experience.__dataclass_fields__:  # several retrieved windows are read one behind the other
            getattr(self.context, name)[rows] = getattr(windows, name).unflatten(0, size).flatten(1, 2)
        self.has_context_B[rows] = found_BK.any(1)

    def logits(self) -> Tensor:
        window = self.window(self.chosen.context)
        query_BD = None if self.queries is None else self.queries.append(self.now())
        if not bool((self.memory.count_E > 0).any()):
            return self.network.act(window)
        due = np.flatnonzero(self.step_B % self.chosen.retrieve_every == 0)  # the first step of an episode always is
        if len(due):
            rows = torch.from_numpy(due).to(self.device)
            if query_BD is None:
                self.retrieve(rows, self.embedder.keys(self.window(self.chunks.context).select(rows)))
            else:
                self.retrieve(rows, query_BD[rows])
        return self.network.act(window, self.context, self.has_context_B)

    def traced(self, rows_N: np.ndarray) -> dict[str, np.ndarray]:
        """What each row reads; see `contract.Traced.traced`."""
        here, hits = torch.from_numpy(rows_N).to(self.device), self.hits
        reads_NK = (hits.found_BK & self.has_context_B[:, None])[here]
        facts = super().traced(rows_N)
        places = {"episode": hits.slot_BK, "first": hits.first_BK, "end": hits.end_BK}
        for name, place_BK in places.items():
            facts[f"retrieved_{name}"] = torch.where(reads_NK, place_BK[here], -1).int().cpu().numpy()
        numbers = {"similarity": hits.similarity_BK, "score": hits.score_BK, "total_return": hits.total_return_BK}
        for name, number_BK in numbers.items():
            facts[f"retrieved_{name}"] = torch.where(reads_NK, number_BK[here].float(), torch.nan).cpu().numpy()
        return facts

    def maps(self, rows_N: np.ndarray) -> dict[str, np.ndarray]:
        """How each row reads; see `contract.Traced.maps`."""
        here = torch.from_numpy(rows_N).to(self.device)
        window = self.window(self.chosen.context).select(here)
        attention_NLWP = self.network.reads(window, self.context.select(here), self.has_context_B[here])
        return {"attention": attention_NLWP.half().cpu().numpy()}

    def arrays(self) -> dict[str, np.ndarray]:
        """The policy's own network, and the embedder's where it was trained here."""
        return {**super().arrays(), **{f"embedder/{name}": value for name, value in self.embedder.arrays().items()}}


class ContextReader:
    """What a training window reads: the query, the search, and the retrieved window as experience."""

    def __init__(
        self, settings: Settings, inputs: Inputs, store: ExperienceStore, histories: Histories, embedder: Embedder
    ) -> None:
        self.chosen: Hyperparameters = settings.method.hyperparameters
        self.chunks_settings, self.store, self.embedder, self.seed = (
            chunk_settings(memory_of(settings)), store, embedder, settings.seed,
        )  # fmt: skip
        verify(inputs.need("index"), kind="index")
        index = FlatIndex.load(inputs.need("index"), inputs.device)
        self.chunks = Chunks.from_arrays(read_arrays(inputs.need("rows"), kind="memory rows"), inputs.rows)
        self.histories = histories
        columns = (
            torch.from_numpy(np.array(c))
            for c in (self.chunks.task, self.chunks.episode, self.chunks.total_return, self.chunks.last)
        )
        self.memory = TrainingMemory(index.search, index.keys, *columns)
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

    def queries(self, window: Experience, rows: np.ndarray, generator: torch.Generator) -> Queries:
        """One query per window of the batch; `rows` is the last row of each window."""
        device = self.memory.keys_ND.device
        table, episode = self.histories.episodes, self.histories.episode_of_row(rows)
        if self.chosen.retrieval.kind != "retrieval":
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

    def read(self, window: Experience, rows: np.ndarray, step: int) -> tuple[Experience, Tensor, dict[str, Any]]:
        """The retrieved windows, and which rows have one: a pure function of (seed, step, window)."""
        draws = torch.Generator().manual_seed(seed_of("retrieval", self.seed, step))
        queries = self.queries(window, rows, draws)
        found = retrieve(queries, self.memory, self.chosen.retrieval, draws)
        has_BK = found.found_BK
        if self.chosen.context_drop:
            dropped = torch.rand(len(rows), generator=draws) < self.chosen.context_drop
            has_BK = has_BK & ~dropped.to(has_BK.device)[:, None]
        ids = found.id_BK.clamp(min=0).cpu().numpy()
        length, size = self.chunks_settings.value_length, ids.shape
        value_rows, mask = self.chunks.value_windows(ids.reshape(-1), length)
        mask = mask & has_BK.cpu().numpy().reshape(-1, 1)
        context = self.store.windows(value_rows.reshape(size[0], -1), mask.reshape(size[0], -1))
        described = statistics(found, queries, self.memory) if step % 1000 == 0 else {}
        return context, has_BK.any(1), described


def build_network(settings: Settings, facts: Facts) -> DecisionTransformer:
    """The untrained network of a run."""
    chosen: Hyperparameters = settings.method.hyperparameters
    read = max(chosen.retrieval.select, chosen.acting.select) * chunk_settings(memory_of(settings)).value_length
    return chosen.network.build(
        settings.environment,
        facts,
        seed=settings.seed,
        return_to_go=True,
        steps=max(read, min(chosen.context, facts.horizon)),
        predict_return=chosen.return_loss > 0 and chosen.network.tokens == "interleaved",
        reads_context=True,
    )


def radt_loss(
    model: Callable[..., Any], batch: Batch, chosen: Hyperparameters, returns: Any
) -> tuple[Tensor, dict[str, Tensor]]:
    """Action cross-entropy and, where the network predicts it, return-to-go cross-entropy at the state token."""
    logits_BTA, return_logits_BTR = model(batch.window, batch.context, batch.has_context_B)
    loss, metrics = dt.action_loss(logits_BTA, batch.window)
    if return_logits_BTR is not None and chosen.return_loss:
        real = batch.window.mask
        target = bins_of(batch.window.return_to_go[real], returns.low, returns.high, returns.bins)
        return_loss = F.cross_entropy(return_logits_BTR[real].float(), target)
        loss = loss + chosen.return_loss * return_loss
        metrics["return_loss"] = return_loss.detach()
    metrics["with_context"] = batch.has_context_B.float().mean()
    return loss, metrics


def train(settings: Settings, inputs: Inputs, run: Run) -> RetrievalPolicy:
    """Learn to predict the histories' actions while reading what the memory holds of the same task."""
    chosen: Hyperparameters = settings.method.hyperparameters
    facts = facts_of(settings.environment)
    network = build_network(settings, facts).to(inputs.device)
    histories = open_histories(inputs.need("histories"), facts)
    store = ExperienceStore(histories, actions=facts.actions, device=inputs.device, reward_scale=chosen.reward_scale)
    embedder = load_embedder(settings, inputs, facts)
    reader = ContextReader(settings, inputs, store, histories, embedder)
    sampler = WindowSampler(
        histories, context=chosen.context, batch_size=chosen.optimisation.batch_size, seed=settings.seed
    )

    def batch_of(step: int) -> Batch:
        windows = sampler.batch(step)
        window = store.windows(windows.rows, windows.mask)
        context, has_context_B, described = reader.read(window, windows.rows[:, -1], step)
        if described:
            run.log(step, **{f"retrieved_{name}": value for name, value in described.items()})
        return Batch(window, context, has_context_B)

    policy = RetrievalPolicy(network, embedder, settings)
    train_supervised(
        network,
        batch_of=batch_of,
        loss_of=lambda model, batch: radt_loss(model, batch, chosen, settings.environment.returns),
        settings=chosen.optimisation,
        run=run,
        seed=settings.seed,
        device=inputs.device,
        evaluate=lambda step: run.evaluate_policy(policy, step),
    )
    return policy


def load_policy(settings: Settings, arrays: Mapping[str, np.ndarray], inputs: Inputs) -> RetrievalPolicy:
    """The policy of a finished run, with its embedder."""
    facts = facts_of(settings.environment)
    network = build_network(settings, facts)
    dt.load_network(network, arrays, settings)
    own = {name.removeprefix("embedder/"): value for name, value in arrays.items() if name.startswith("embedder/")}
    embedder = load_embedder(settings, inputs, facts, arrays=own)
    return RetrievalPolicy(network.to(inputs.device).eval(), embedder, settings)
