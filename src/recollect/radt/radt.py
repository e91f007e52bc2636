"""Retrieval-Augmented Decision Transformer (RA-DT): a DT that reads one retrieved window of past experience.

Training: a window of the histories asks the memory (built by `embed` and `index`) for a similar window, rather of the same
task, and reads it by cross-attention while it predicts its actions. Acting: the memory starts empty and grows with the agent's
own episodes; what is similar and had a high return is read. Domain-specific: the memory's embedder is a trained DT;
domain-agnostic: FrozenHopfield and a frozen language model. Differences, and why:

- Test-time keys are normalised, as in training and in the paper, where nothing else is said. The released configuration does not,
  and published numbers are its: config/methods/radt.yaml has `acting.similarity: inner_product`.
- Where a search leaves nothing, a random window of the task is read, and none where the task has no other. Else a task
  without another window reads one of another task, as released: the same task is a weight only.
- `queries: nearest_key` (not in the paper) takes the precomputed key of the most similar cut as a training window's
  query, so that training runs no embedder; for small budgets. `computed` is as published.
- `retrieval.within` and `network.context_embedding: shared` (not in the paper) are for small budgets: windows of about
  the same skill, and one set of tables for both windows.
- Without a context (first episode) cross-attention is skipped; `context_drop` lets training see that too.
- Released options that the published runs do not use are off by default; docs/radt.md lists the options, and which are not there.

Source: Schmied et al. (arXiv 2410.07071) sections 3-4; specification 3.6, 4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Literal

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
from recollect.radt.acting import ActionSelection, InContextPolicy, check_policy
from recollect.radt.actions import where
from recollect.radt.cached_reading import CachedReading
from recollect.radt.chunks import chunk_settings, memory_of
from recollect.radt.context_reader import ContextReader
from recollect.radt.decision_transformer import DecisionTransformer, bins_of
from recollect.radt.demonstrations import Demonstrations
from recollect.radt.embedders import Embedder
from recollect.radt.embedding import (
    SteppedQueries,
    check_language_model,
    embedder_name,
    load_embedder,
    trained_embedder,
)
from recollect.radt.episodic_memory import EpisodicSettings, Hits
from recollect.radt.experience import Experience
from recollect.radt.memory_settings import MemorySettings
from recollect.radt.own_episodes import OwnEpisodes
from recollect.radt.retrieval import RetrievalSettings
from recollect.radt.supervised import open_experience, train_policy
from recollect.radt.windows import WindowSampler
from recollect.settings.errors import UserError
from recollect.settings.schema import ReturnSettings, Settings

Memory = MemorySettings  # what `memory:` of a method of this algorithm may hold
RETRIEVAL_STREAM = 0x5EED_3E77  # keeps a row's draws of what it reads apart from its others


class Hyperparameters(dt.Hyperparameters):
    """DT's, what training windows read besides, and how RA-DT acts. Defaults are the paper's for Dark-Room 10x10."""

    network: dt.Network = dt.Network(return_embedding="bins")
    retrieval: RetrievalSettings = RetrievalSettings()
    queries: Literal["computed", "nearest_key"] = Field("computed", description="Where training queries come from.")
    query_dropout: float = Field(0.2, ge=0, le=1, description="Share of state tokens zeroed in a computed query.")
    context_drop: float = Field(0.0, ge=0, le=1, description="Share of training windows that read nothing.")
    null_document: float = Field(
        0.0, ge=0, le=1, description="Share of retrieved windows of training that are read as an empty document."
    )
    values: Literal["cut", "full", "dynamic"] = Field(
        "cut",
        description="What is read around a cut. cut: what the episode has of `past` and `future`; full: moved inwards at "
        "the ends of an episode; dynamic: as cut, in training with both ends at random.",
    )
    neighbours: str | None = Field(
        None,
        description="A folder: the entries of all training steps are looked up ahead and kept there for other runs.",
    )
    selection: ActionSelection = Field("top_half", description="Released: sample from the best half of the logits.")
    return_loss: float = Field(
        1.0,
        description="Weight of the return-to-go loss (released Dark configs; 0 elsewhere). With merged tokens there is none.",
    )
    acting: EpisodicSettings = EpisodicSettings()
    retrieve_every: int = Field(
        1, ge=1, description="Environment steps between retrievals. Paper: 1 (grids), 25 (others)."
    )


@dataclass(frozen=True)
class Batch:
    window: Experience
    context: Experience
    has_context_B: Tensor
    notes: dict[str, float] = field(default_factory=dict)  # of what was retrieved, to be logged


def radt_loss(
    model: Callable[..., Any], batch: Batch, weight: float, returns: ReturnSettings
) -> tuple[Tensor, dict[str, Tensor]]:
    """Action cross-entropy and, where the network predicts it, return-to-go cross-entropy at the state token."""
    logits_BTA, return_logits_BTR = model(batch.window, batch.context, batch.has_context_B)
    loss, metrics = dt.action_loss(logits_BTA, batch.window)
    if return_logits_BTR is not None and weight:
        bin_BT = bins_of(batch.window.return_to_go, returns.low, returns.high, returns.bins)
        of_returns = return_loss(return_logits_BTR, bin_BT, batch.window)
        loss = loss + weight * of_returns
        metrics["return_loss"] = of_returns.detach()
    metrics["with_context"] = batch.has_context_B.float().mean()
    return loss, metrics


def return_loss(logits_BTR: Tensor, bin_BT: Tensor, window: Experience) -> Tensor:
    """Mean cross-entropy of return-to-go bins over all real timesteps of the windows."""
    if not dt.gathers(window):
        return dt.cross_entropy_where(window.mask, logits_BTR.float(), bin_BT)
    return F.cross_entropy(logits_BTR[window.mask].float(), bin_BT[window.mask])


class RetrievalPolicy(InContextPolicy):
    """Plays with its own earlier episodes as memory; the context is re-read every `retrieve_every` steps."""

    found = ("hits", "context", "has_context_B", "changed_B")
    acting = (*InContextPolicy.acting, "own", "queries", "reading", "acted", *found)

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
        self.chunk_settings = replace(chunk_settings(memory_of(settings)), full_values=self.chosen.values == "full")
        self.present_action = memory_of(settings).present_action

    @property
    def joins_splits(self) -> bool:
        return super().joins_splits and not self.chosen.acting.shared  # a shared memory is one split's

    def begin(self, rows: int) -> None:
        # What is read: the memory, how queries are embedded, and what the network has computed of its context.
        like = {
            "observation": self.observation,
            "return_to_go": self.reward,
            "action": self.action,
            "reward": self.reward,
        }
        self.own = OwnEpisodes(
            self.embedder,
            self.chunk_settings,
            self.chosen.acting.with_returns_divided(self.reward_scale),
            like,
            self.no_action,
            episodes=self.episodes,
            demonstrations=self.demonstrations,
        )
        self.queries = SteppedQueries.of(self.embedder, rows, self.horizon, self.cache_dtype)
        self.reading = CachedReading(self.computing, rows, min(self.chosen.context, self.horizon), self.cache_dtype)
        # What each row has found so far: nothing.
        self.acted = 0  # calls of `act`
        self.hits = Hits.nothing(rows, self.chosen.acting.select, self.device)  # of each row's last retrieval
        self.context = self.own.windows(self.hits)
        self.has_context_B = torch.zeros(rows, dtype=torch.bool, device=self.device)
        self.changed_B = np.zeros(rows, bool)  # whose context is another than at the last step

    def brief(self, tasks: Sequence[Task]) -> None:
        super().brief(tasks)
        self.own.brief(tasks)

    def forget(self, mask_B: np.ndarray) -> None:
        if self.queries is not None:
            self.queries.clear(mask_B)
        self.has_context_B = self.has_context_B & ~sent(mask_B, self.device)
        self.changed_B |= mask_B
        self.own.forget(mask_B)

    def finish(self, rows: np.ndarray, lengths: np.ndarray) -> None:
        """Store the windows of the episodes that have just ended, with the returns that they really had."""
        if self.queries is not None:
            self.queries.clear(np.isin(np.arange(len(self.seeds_B)), rows))
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
        self.own.add(row_M, lengths, fields)

    def retrieve(self, row_N: np.ndarray, query_ND: Tensor) -> None:
        """Search for what these rows, ascending, read from now on."""
        rows = sent(row_N, self.device)
        all_own = len(row_N) == len(self.seeds_B) and not self.chosen.acting.shared
        hits = self.own.memory.search(query_ND, None if all_own else self.own.shelf(rows), self._chances(row_N))
        # Most rows find again what they already read: only the others' windows are gathered. Here the host waits, once.
        other_N = np.flatnonzero(self._keep(rows, hits).cpu().numpy())
        if len(other_N):
            self._read(row_N[other_N], hits.select(sent(other_N, self.device)))

    def _keep(self, rows: Tensor, hits: Hits) -> Tensor:
        """Keep what these rows have found; bool [N], whether it is something else than what each reads."""
        if len(rows) == len(self.seeds_B):
            before, had_N = self.hits, self.has_context_B
            self.hits = hits
        else:
            before, had_N = self.hits.select(rows), self.has_context_B[rows]
            self.hits.put(rows, hits)
        return before.differ(hits) | (had_N != hits.found_BK.any(1))

    def _read(self, row_N: np.ndarray, hits: Hits) -> None:
        """The windows that these rows have found become their context."""
        rows = sent(row_N, self.device)
        self.context.put(rows, self.own.windows(hits))
        self.has_context_B[rows] = hits.found_BK.any(1)
        self.changed_B[row_N] = True

    def _chances(self, row_N: np.ndarray) -> np.ndarray | None:
        """Numbers in (0, 1) that decide what these rows draw from memory [N, K]; None where nothing is drawn."""
        if not self.chosen.acting.draws:
            return None
        select = self.chosen.acting.select
        counter_K = self.acted * select + np.arange(select)
        seed_M = self.seeds_B[row_N].repeat(select)
        return uniform(seed_M, np.tile(counter_K, len(row_N)), RETRIEVAL_STREAM).reshape(len(row_N), select)

    def logits(self) -> Tensor:
        query_BD = None if self.queries is None else self.queries.append(self.now())
        due_B = self.step_B % self.chosen.retrieve_every == 0  # the first step of an episode always is
        if due_B.any() and self.own.memory.most:
            row_N = np.flatnonzero(due_B)
            if query_BD is None:
                seen = self.window(self.chunk_settings.key_context)
                if not due_B.all():
                    seen = seen.select(sent(row_N, self.device))
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
        highest = self.own.memory.best_return(self.own.shelf(rows)).double().cpu().numpy() * self.reward_scale
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
        total_return_NK = hits.total_return_BK * self.reward_scale
        numbers = {"similarity": hits.similarity_BK, "score": hits.score_BK, "total_return": total_return_NK}
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


def check(settings: Settings, facts: Facts) -> None:
    """Raise a UserError where settings do not go together: before the first job, not when the embedder has learned."""
    _check_memory(settings, facts)
    _check_losses(settings, facts)
    check_policy(build_network, settings, facts)


def _check_memory(settings: Settings, facts: Facts) -> None:
    memory = memory_of(settings)
    if embedder_name(memory)[0] == "method":
        trained_embedder(settings)
    else:
        check_language_model(memory, facts)
    # Of a world that is not here no horizon is known: 1 stands for it.
    if 1 < facts.horizon < memory.stride:
        raise UserError(
            f"no episode is as long as `memory.stride`: they end after {facts.horizon} steps, and it is {memory.stride}",
            where=f"memory.stride of '{settings.method.name}' in '{settings.environment.name}'",
            do=f"set memory.stride to {facts.horizon} or less",
        )


def _check_losses(settings: Settings, facts: Facts) -> None:
    chosen: Hyperparameters = settings.method.hyperparameters
    if facts.action_size and chosen.return_loss and chosen.optimisation.micro_batches > 1:
        raise UserError(
            "the loss of returns is a mean over steps, that of actions here over numbers: parts of a batch weigh otherwise",
            where="hyperparameters: optimisation.micro_batches",
            do="set optimisation.micro_batches: 1, or return_loss: 0 as published for continuous actions",
        )


def build_network(settings: Settings, facts: Facts) -> DecisionTransformer:
    chosen: Hyperparameters = settings.method.hyperparameters
    steps_read = max(chosen.retrieval.places, chosen.acting.select) * chunk_settings(memory_of(settings)).value_length
    network = chosen.network.build(
        settings.environment,
        facts,
        seed=settings.seed,
        return_to_go=True,
        steps=max(steps_read, min(chosen.context, facts.horizon)),
        window=chosen.context,
        predict_return=chosen.return_loss > 0 and chosen.network.tokens == "interleaved",
        reads_context=True,
    )
    if embedder_name(memory_of(settings))[0] == "lm":
        # As released: tables of the context are copied from those of the window. Where a DT is loaded, all is drawn anew.
        assert network.embed_context is not None
        network.embed_context.load_state_dict(network.embed.state_dict())
    return network


def train(settings: Settings, inputs: Inputs, run: Run) -> RetrievalPolicy:
    """Learn to predict the histories' actions while reading what the memory holds that is similar."""
    chosen: Hyperparameters = settings.method.hyperparameters
    facts = facts_of(settings.environment)
    _check_losses(settings, facts)
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
    demonstrations = Demonstrations.load(settings, inputs, facts)
    return RetrievalPolicy(network.to(inputs.device).eval(), embedder, settings, demonstrations)
