"""Retrieval-Augmented Decision Transformer (RA-DT): a DT that reads one retrieved window of past experience.

Training: a window of the histories asks the memory (built by `embed` and `index`) for a similar window of the same task
and reads it by cross-attention while it predicts its actions. Acting: the memory starts empty and grows with the agent's
own episodes; what is similar and had a high return is read. Domain-specific: the memory's embedder is a trained DT;
domain-agnostic: FrozenHopfield and a frozen language model. Differences, and why:

- Test-time keys are normalised, as in training and in the paper; the released configuration does not
  (`acting.similarity: inner_product`).
- Windows of other tasks never mix in where a task has no entry left: then nothing is read.
- `queries: nearest_key` (not in the paper) takes the precomputed key of the most similar cut as a training window's
  query, so that training runs no embedder; for small budgets. `computed` is as published.
- `retrieval.within` and `network.context_embedding: shared` (not in the paper) are for small budgets: windows of about
  the same skill, and one set of tables for both windows.
- Without a context (first episode) cross-attention is skipped; `context_drop` lets training see that too.
- Released options that the published runs do not use are off by default; docs/radt.md lists all options with both values.

Source: Schmied et al. (arXiv 2410.07071) sections 3-4; specification 3.6, 4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from recollect.artifacts.checkpoints import joined, part
from recollect.artifacts.run import Run
from recollect.common.contract import Facts, Inputs, facts_of
from recollect.common.draws import uniform
from recollect.common.transfer import sent
from recollect.environments.base import Task
from recollect.radt import dt
from recollect.radt.acting import ActionSelection, InContextPolicy
from recollect.radt.actions import where
from recollect.radt.cached_reading import CachedReading
from recollect.radt.chunks import chunk_settings, finished_chunks, memory_of
from recollect.radt.context_reader import ContextReader, ReadingSettings
from recollect.radt.decision_transformer import DecisionTransformer
from recollect.radt.demonstrations import Demonstrations
from recollect.radt.embedders import Embedder
from recollect.radt.embedding import SteppedQueries, load_embedder
from recollect.radt.episode_log import EpisodeLog
from recollect.radt.episodic_memory import EpisodicMemory, EpisodicSettings, Hits
from recollect.radt.experience import Experience
from recollect.radt.losses import Batch as Batch
from recollect.radt.losses import radt_loss as radt_loss
from recollect.radt.settings import MemorySettings
from recollect.radt.supervised import open_experience, train_policy
from recollect.radt.windows import WindowSampler
from recollect.settings.schema import Settings

Memory = MemorySettings  # what `memory:` of a method of this algorithm may hold
RETRIEVAL_STREAM = 0x5EED_3E77  # keeps a row's draws of what it reads apart from its others


class Hyperparameters(ReadingSettings):
    """What training reads, and how RA-DT acts. Defaults are the paper's for Dark-Room 10x10."""

    network: dt.Network = dt.Network(return_embedding="bins")
    selection: ActionSelection = Field("top_half", description="Released: sample from the best half of the logits.")
    return_loss: float = Field(1.0, description="Weight of the return-to-go loss (released Dark configs; 0 elsewhere).")
    acting: EpisodicSettings = EpisodicSettings()
    retrieve_every: int = Field(1, description="Environment steps between retrievals. Paper: 1 (grids), 25 (others).")


class RetrievalPolicy(InContextPolicy):
    """Plays with its own earlier episodes as memory; the context is re-read every `retrieve_every` steps."""

    found = ("hits", "context", "has_context_B", "changed_B")
    acting = (*InContextPolicy.acting, "memory", "log", "queries", "reading", "acted", *found)

    def __init__(
        self,
        network: DecisionTransformer,
        embedder: Embedder,
        settings: Settings,
        demonstrations: Demonstrations | None = None,
    ) -> None:
        super().__init__(network, settings)
        self.chosen: Hyperparameters = settings.method.hyperparameters
        self.embedder = embedder
        self.demonstrations = demonstrations
        full_values = {"full_values": self.chosen.values == "full"}
        self.chunks = chunk_settings(memory_of(settings)).model_copy(update=full_values)
        self.present_action = memory_of(settings).present_action

    @property
    def joins_splits(self) -> bool:
        return super().joins_splits and not self.chosen.acting.shared  # a shared memory is one split's

    def begin(self, rows: int) -> None:
        # What is read: the memory, how queries are embedded, and what the network has computed of its context.
        self._make_memory(rows)
        self.queries = SteppedQueries.of(self.embedder, rows, self.horizon, self.cache_dtype)
        self.reading = CachedReading(self.network, rows, min(self.chosen.context, self.horizon), self.cache_dtype)
        self.shown: dict[str, Tensor] | None = None
        if self.demonstrations is not None:
            self.shown = self.demonstrate(self.demonstrations, rows)
        # What each row has found so far: nothing.
        self.acted = 0  # calls of `act`
        self.shown_B = np.full(rows, -1)  # which of the demonstrated tasks each row plays; see `brief`
        self.hits = Hits.nothing(rows, self.chosen.acting.select, self.device)  # of each row's last retrieval
        self.context = self.context_of(self.hits)
        self.has_context_B = torch.zeros(rows, dtype=torch.bool, device=self.device)
        self.changed_B = np.zeros(rows, bool)  # whose context is another than at the last step

    def _make_memory(self, rows: int) -> None:
        """The memory, one for each row or one for all, and the log of the episodes that its entries point into."""
        acting = self.chosen.acting
        memories, episodes_each = rows, self.episodes
        tasks_logged, episodes_logged = rows, self.episodes
        if acting.shared:
            memories, episodes_each = 1, rows * self.episodes
        if self.demonstrations is not None:
            shared_episodes = len(self.demonstrations.length_N)
            episodes_each += shared_episodes if acting.shared else acting.demonstration_episodes
            tasks_logged += len(self.demonstrations.names)  # they stand behind the rows
            episodes_logged = max(episodes_logged, acting.demonstration_episodes)
        entries_per_episode = math.ceil(self.horizon / self.chunks.stride)
        capacity = episodes_each * entries_per_episode
        self.memory = EpisodicMemory(memories, capacity, self.embedder.width, acting, self.device)
        fields = {
            "observation": (tuple(self.observation.shape[2:]), self.observation.dtype),
            "return_to_go": ((), torch.float32),
            "action": (tuple(self.action.shape[2:]), self.action.dtype),
            "reward": ((), torch.float32),
        }
        self.log = EpisodeLog(fields, tasks_logged, episodes_logged, self.horizon, self.device)

    def demonstrate(self, shown: Demonstrations, rows: int) -> dict[str, Tensor]:
        """Log all demonstrations; the entries that they make, in the order in which they were played."""
        rounds = []
        for episodes in shown.rounds():
            place_M = sent(episodes, self.device)
            owner_M = sent(rows + shown.task_N[episodes], self.device)
            fields = {name: getattr(shown.steps, name)[place_M] for name in self.log.fields}
            rounds.append(self.entries(owner_M, shown.length_N[episodes], fields))
        entries = {}
        for name in rounds[0]:
            entries[name] = torch.cat([columns[name] for columns in rounds])
        return entries

    def brief(self, tasks: Sequence[Task]) -> None:
        super().brief(tasks)
        if self.demonstrations is not None:
            self.shown_B = self.demonstrations.of(tasks)
            self.show(np.ones(len(tasks), bool))

    def show(self, mask_B: np.ndarray) -> None:
        """Put the demonstrations of these rows' tasks into their memory, or all into the shared one."""
        assert self.shown is not None
        if self.chosen.acting.shared:
            self.memory.add(torch.zeros_like(self.shown["owner_M"]), **self.shown)
            return
        for row in np.flatnonzero(mask_B & (self.shown_B >= 0)):
            owner = len(mask_B) + int(self.shown_B[row])
            own_M = self.shown["owner_M"] == owner
            entries = {name: column[own_M] for name, column in self.shown.items()}
            memory_M = torch.full_like(entries["owner_M"], int(row))
            self.memory.add(memory_M, **entries)

    def forget(self, mask_B: np.ndarray) -> None:
        mask = torch.from_numpy(mask_B)
        if self.queries is not None:
            self.queries.clear(mask_B)
        self.has_context_B = self.has_context_B & ~mask.to(self.device)
        self.changed_B |= mask_B
        if self.chosen.acting.shared:  # what a row has stored is everyone's
            return
        self.memory.reset(mask)
        demonstrated = len(self.log.count_E) - len(mask)
        self.log.reset(F.pad(mask, (0, demonstrated)))
        if self.shown is not None and mask_B.any():
            self.show(mask_B)

    def shelf(self, rows: Tensor) -> Tensor:
        return torch.zeros_like(rows) if self.chosen.acting.shared else rows

    def finish(self, rows: np.ndarray, lengths: np.ndarray) -> None:
        """Store the windows of the episodes that have just ended, with the returns that they really had."""
        if self.queries is not None:
            self.queries.clear(np.isin(np.arange(len(self.seeds_B)), rows))
        if self.chosen.acting.shared:  # a row that plays on after its last episode adds nothing
            has_room = self.log.count_E.cpu().numpy()[rows] < self.episodes
            rows, lengths = rows[has_room], lengths[has_room]
        if len(rows) == 0:
            return
        row_M = sent(rows, self.device)
        length_M1 = sent(lengths, self.device)[:, None]
        real_MT = torch.arange(self.horizon, device=self.device) < length_M1
        reward_MT = self.reward[row_M] * real_MT
        fields = {
            "observation": self.observation[row_M],
            "return_to_go": reward_MT.flip(1).cumsum(1).flip(1),
            "action": where(real_MT, self.action[row_M], self.no_action),
            "reward": reward_MT,
        }
        entries = self.entries(row_M, lengths, fields)
        self.memory.add(self.shelf(entries["owner_M"]), **entries)

    def entries(self, owner_E: Tensor, lengths: np.ndarray, fields: dict[str, Tensor]) -> dict[str, Tensor]:
        """Log one whole episode for each owner; the M memory entries that they make, as `EpisodicMemory.add` takes them."""
        slot_E = self.log.write(owner_E, fields)
        total_return = fields["return_to_go"][:, 0].cpu().numpy()
        cut = finished_chunks(lengths, total_return, self.chunks)

        def column(values: np.ndarray) -> Tensor:
            return sent(values, self.device)

        episode_M = column(cut.task)
        owner_M, slot_M = owner_E[episode_M], slot_E[episode_M]
        seen = self.logged(owner_M, slot_M, column(cut.key_first), column(cut.key_end), self.chunks.context)
        return {
            # Not normalised here: the episodic memory does that, or not (`acting.similarity`).
            "key_MD": self.embedder.keys(seen, normalise=False),
            "slot_M": slot_M,
            "owner_M": owner_M,
            "first_M": column(cut.value_first),
            "end_M": column(cut.value_end),
            "last_M": column(cut.last),
            "total_return_M": column(cut.total_return),
        }

    def logged(self, owner_M: Tensor, slot_M: Tensor, first_M: Tensor, end_M: Tensor, length: int) -> Experience:
        """Windows [first, end) of logged episodes."""
        fields, mask_MT = self.log.windows(owner_M, slot_M, first_M, end_M, length)
        return Experience(
            observation=fields["observation"] * mask_MT[..., None],
            return_to_go=fields["return_to_go"] * mask_MT,
            action=where(mask_MT, fields["action"], self.no_action),
            reward=fields["reward"] * mask_MT,
            timestep=fields["timestep"] * mask_MT,
            mask=mask_MT,
        )

    def retrieve(self, row_N: np.ndarray, query_BD: Tensor) -> None:
        rows = sent(row_N, self.device)
        all_own = len(row_N) == len(self.seeds_B) and not self.chosen.acting.shared
        hits = self.memory.search(query_BD, None if all_own else self.shelf(rows), self._chances(row_N))
        found_B = hits.found_BK.any(1)
        other_B = self.hits.differ(rows, hits)
        other_B = other_B | (self.has_context_B[rows] != found_B)
        self.hits.put(rows, hits)
        # Most rows find again what they already read: only the others' windows are gathered. Here the host waits, once.
        other_N = np.flatnonzero(other_B.cpu().numpy())
        self.changed_B[row_N[other_N]] = True
        other = sent(other_N, self.device)
        changed = rows[other]
        context = self.context_of(hits.select(other))
        for name in Experience.__dataclass_fields__:
            getattr(self.context, name)[changed] = getattr(context, name)
        self.has_context_B[changed] = found_B[other]

    def context_of(self, hits: Hits) -> Experience:
        """The windows that were found for each row, one behind the other [B, K T]; padding where nothing was found."""
        places = (hits.owner_BK, hits.slot_BK, hits.first_BK, hits.end_BK)
        owner_M, slot_M, first_M, end_M = (place_BK.flatten() for place_BK in places)
        windows = self.logged(owner_M, slot_M, first_M, end_M, self.chunks.value_length)
        return windows.map(lambda field: field.unflatten(0, hits.found_BK.shape).flatten(1, 2))

    def _chances(self, row_N: np.ndarray) -> np.ndarray | None:
        """Numbers in (0, 1) that decide what these rows draw from memory [B, K]; None where nothing is drawn."""
        if not self.chosen.acting.draws:
            return None
        select = self.chosen.acting.select
        counter_K = self.acted * select + np.arange(select)
        seed_M = self.seeds_B[row_N].repeat(select)
        return uniform(seed_M, np.tile(counter_K, len(row_N)), RETRIEVAL_STREAM).reshape(len(row_N), select)

    def logits(self) -> Tensor:
        query_BD = None if self.queries is None else self.queries.append(self.now())
        due_B = self.step_B % self.chosen.retrieve_every == 0  # the first step of an episode always is
        if due_B.any() and self.memory.most:
            row_N = np.flatnonzero(due_B)
            if query_BD is None:
                seen = self.window(self.chunks.context).select(sent(row_N, self.device))
                if self.present_action == "zero":
                    seen.action[:, -1] = 0
                self.retrieve(row_N, self.embedder.keys(seen))
            else:
                self.retrieve(row_N, query_BD[sent(row_N, self.device)])
        changed_B = self.changed_B
        self.changed_B = np.zeros_like(changed_B)
        self.acted += 1
        return self.reading.act(self, self.context, self.has_context_B, changed_B)

    def target_returns(self, mask_B: np.ndarray) -> np.ndarray:
        """A multiple of the highest return in memory where that is asked for; see `InContextPolicy.target_returns`."""
        targets = super().target_returns(mask_B)
        factor = self.chosen.acting.target_factor
        if factor is None:
            return targets
        rows = sent(np.flatnonzero(mask_B), self.device)
        highest = self.memory.best_return(self.shelf(rows)).double().cpu().numpy() * self.reward_scale
        return np.where(highest > 0, np.round(factor * highest), targets)

    def traced(self, rows_N: np.ndarray) -> dict[str, np.ndarray]:
        rows = sent(rows_N, self.device)
        hits = self.hits.select(rows)
        reads_NK = hits.found_BK & self.has_context_B[rows, None]
        own_NK = reads_NK & (hits.owner_BK == rows[:, None])  # neither demonstrations nor other rows' episodes
        facts = super().traced(rows_N)
        places = {"episode": hits.slot_BK, "first": hits.first_BK, "end": hits.end_BK}
        for name, place_NK in places.items():
            own_place_NK = torch.where(own_NK, place_NK, -1)
            facts[f"retrieved_{name}"] = own_place_NK.int().cpu().numpy()
        numbers = {"similarity": hits.similarity_BK, "score": hits.score_BK, "total_return": hits.total_return_BK}
        for name, number_NK in numbers.items():
            read_number_NK = torch.where(reads_NK, number_NK.float(), torch.nan)
            facts[f"retrieved_{name}"] = read_number_NK.cpu().numpy()
        return facts

    def maps(self, rows_N: np.ndarray) -> dict[str, np.ndarray]:
        rows = sent(rows_N, self.device)
        window = self.window(self.chosen.context).select(rows)
        context = self.context.select(rows)
        attention_NLWP = self.network.reads(window, context, self.has_context_B[rows])
        return {"attention": attention_NLWP.half().cpu().numpy()}

    def arrays(self) -> dict[str, np.ndarray]:
        return super().arrays() | joined(embedder=self.embedder.arrays())


def build_network(settings: Settings, facts: Facts) -> DecisionTransformer:
    chosen: Hyperparameters = settings.method.hyperparameters
    steps_read = max(chosen.retrieval.places, chosen.acting.select) * chunk_settings(memory_of(settings)).value_length
    return chosen.network.build(
        settings.environment,
        facts,
        seed=settings.seed,
        return_to_go=True,
        steps=max(steps_read, min(chosen.context, facts.horizon)),
        window=chosen.context,
        predict_return=chosen.return_loss > 0 and chosen.network.tokens == "interleaved",
        reads_context=True,
    )


def train(settings: Settings, inputs: Inputs, run: Run) -> RetrievalPolicy:
    """Learn to predict the histories' actions while reading what the memory holds of the same task."""
    chosen: Hyperparameters = settings.method.hyperparameters
    facts = facts_of(settings.environment)
    network = build_network(settings, facts).to(inputs.device)
    histories, store = open_experience("histories", settings, inputs, facts)
    embedder = load_embedder(settings, inputs, facts)
    reader = ContextReader(settings, inputs, store, histories, embedder)
    sampler = WindowSampler(histories, **chosen.sampling(settings.seed))

    def windows_of(step: int) -> tuple[Experience, np.ndarray]:
        windows = sampler.batch(step)
        return store.windows(windows.rows, windows.mask), windows.rows[:, -1]

    if chosen.neighbours is not None:
        reader.look_up_ahead(settings, inputs, windows_of)

    def batch_of(step: int) -> Batch:
        window, rows = windows_of(step)
        context, has_context_B, described = reader.read(window, rows, step)
        held = reader.memory_statistics() if step == 0 else {}
        notes = {f"memory_{name}": value for name, value in held.items()}
        notes |= {f"retrieved_{name}": value for name, value in described.items()}
        return Batch(window, context, has_context_B, notes)

    policy = RetrievalPolicy(network, embedder, settings, Demonstrations.load(settings, inputs, facts))

    def loss_of(model: Callable[..., Any], batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        return radt_loss(model, batch, chosen.return_loss, settings.environment.returns)

    learned_of, notes_of = attrgetter("window"), attrgetter("notes")
    return train_policy(
        policy, settings, run, batch_of=batch_of, loss_of=loss_of, learned_of=learned_of, notes_of=notes_of
    )


def load_policy(settings: Settings, arrays: Mapping[str, np.ndarray], inputs: Inputs) -> RetrievalPolicy:
    facts = facts_of(settings.environment)
    network = build_network(settings, facts)
    dt.load_network(network, arrays, settings)
    embedder = load_embedder(settings, inputs, facts, arrays=part(arrays, "embedder"))
    shown = Demonstrations.load(settings, inputs, facts)
    return RetrievalPolicy(network.to(inputs.device).eval(), embedder, settings, shown)
