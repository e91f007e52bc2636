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
- While acting only what a step changes is computed, with the same numbers: `cached_reading.CachedReading`, and for
  queries, where the embedder's window holds a whole episode, `embedding.SteppedQueries`.
- Without a context (first episode) cross-attention is skipped; `context_drop` lets training see that too.
- Released options that the published runs do not use (docs/radt.md, "Options of retrieval") are off by default.

Source: Schmied et al. (arXiv 2410.07071) sections 3-4; specification 3.6, 4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from recollect.artifacts.checkpoints import part
from recollect.artifacts.run import Run
from recollect.common.contract import Facts, Inputs, facts_of
from recollect.common.draws import uniform
from recollect.environments.base import Task
from recollect.radt import dt
from recollect.radt.acting import ActionSelection, InContextPolicy
from recollect.radt.actions import where
from recollect.radt.cached_reading import CachedReading
from recollect.radt.chunking import chunk_settings, memory_of
from recollect.radt.chunks import finished_chunks
from recollect.radt.context_reader import ContextReader
from recollect.radt.decision_transformer import DecisionTransformer, Experience, bins_of
from recollect.radt.demonstrations import Demonstrations
from recollect.radt.embedders import Embedder
from recollect.radt.embedding import SteppedQueries, load_embedder
from recollect.radt.episodic_memory import EpisodeLog, EpisodicMemory, EpisodicSettings, Hits
from recollect.radt.retrieval import RetrievalSettings
from recollect.radt.supervised import ExperienceStore, open_histories, train_policy
from recollect.radt.windows import WindowSampler
from recollect.settings.schema import Settings

RETRIEVAL_STREAM = 0x5EED_3E77  # keeps a row's draws of what it reads apart from its others


class Hyperparameters(dt.Hyperparameters):
    """DT's, and how it retrieves. Defaults are the paper's for Dark-Room 10x10."""

    network: dt.Network = dt.Network(return_embedding="bins")
    selection: ActionSelection = Field("top_half", description="Released: sample from the best half of the logits.")
    return_loss: float = Field(1.0, description="Weight of the return-to-go loss (released Dark configs; 0 elsewhere).")
    retrieval: RetrievalSettings = RetrievalSettings()
    queries: Literal["computed", "nearest_key"] = Field("computed", description="Where training queries come from.")
    query_dropout: float = Field(0.2, description="Share of state tokens zeroed in a computed query.")
    context_drop: float = Field(0.0, description="Share of training windows that read nothing.")
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

    def __init__(
        self,
        network: DecisionTransformer,
        embedder: Embedder,
        settings: Settings,
        demonstrations: Demonstrations | None = None,
    ) -> None:
        chosen: Hyperparameters = settings.method.hyperparameters
        super().__init__(
            network, settings.environment.returns, selection=chosen.selection, reward_scale=chosen.reward_scale
        )
        self.embedder, self.chosen, self.demonstrations = embedder, chosen, demonstrations
        self.chunks = chunk_settings(memory_of(settings)).model_copy(update={"full_values": chosen.values == "full"})

    def begin(self, rows: int) -> None:
        shown, acting = self.demonstrations, self.chosen.acting
        per_episode = -(-self.horizon // self.chunks.stride)
        given = 0 if shown is None else len(shown.length_N) if acting.shared else acting.demonstration_episodes
        shelves, room = (1, rows * self.episodes + given) if acting.shared else (rows, self.episodes + given)
        self.memory = EpisodicMemory(shelves, room * per_episode, self.embedder.width, acting, self.device)
        self.queries = SteppedQueries.of(self.embedder, rows, self.horizon)
        self.reading = CachedReading(self.network, rows, min(self.chosen.context, self.horizon))
        self.log = EpisodeLog(  # of the rows, and behind them of the demonstrated tasks
            {
                "observation": (tuple(self.observation.shape[2:]), self.observation.dtype),
                "return_to_go": ((), torch.float32),
                "action": (tuple(self.action.shape[2:]), self.action.dtype),
                "reward": ((), torch.float32),
            },
            rows + (0 if shown is None else len(shown.names)),
            self.episodes if shown is None else max(self.episodes, acting.demonstration_episodes),
            self.horizon,
            self.device,
        )
        self.shown = None if shown is None else self.demonstrate(shown, rows)
        self.shown_B = np.full(rows, -1)  # which of the demonstrated tasks each row plays; see `brief`
        steps = self.chosen.acting.select * self.chunks.value_length
        nothing = torch.zeros(rows, steps, dtype=torch.int64, device=self.device)
        self.context = Experience(  # what every row reads, until its next retrieval
            observation=self.observation.new_zeros(rows, steps, self.observation.shape[2]),
            return_to_go=nothing.float(),
            action=self.action.new_full((rows, steps, *self.action.shape[2:]), self.no_action),
            reward=nothing.float(),
            timestep=nothing.clone(),
            mask=nothing.bool(),
        )
        self.has_context_B = torch.zeros(rows, dtype=torch.bool, device=self.device)
        self.hits = Hits.nothing(rows, self.chosen.acting.select, self.device)  # of each row's last retrieval
        self.changed_B = np.zeros(rows, bool)  # whose context is another than at the last step

    def demonstrate(self, shown: Demonstrations, rows: int) -> dict[str, Tensor]:
        """Log all demonstrations; the entries that they make, in the order in which they were played."""
        parts = []
        for episodes in shown.rounds():
            here = torch.from_numpy(episodes).to(self.device)
            owner = torch.from_numpy(rows + shown.task_N[episodes]).to(self.device)
            fields = {name: getattr(shown.steps, name)[here] for name in self.log.fields}
            parts.append(self.entries(owner, shown.length_N[episodes], fields))
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def brief(self, tasks: Sequence[Task]) -> None:
        """See `contract.Briefed.brief`: puts the tasks' demonstrations into memory."""
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
            own = self.shown["owner_M"] == len(mask_B) + int(self.shown_B[row])
            entries = {name: column[own] for name, column in self.shown.items()}
            self.memory.add(torch.full_like(entries["owner_M"], int(row)), **entries)

    def forget(self, mask_B: np.ndarray) -> None:
        mask = torch.from_numpy(mask_B)
        if self.queries is not None:
            self.queries.clear(mask_B)
        self.has_context_B = self.has_context_B & ~mask.to(self.device)
        self.changed_B |= mask_B
        if self.chosen.acting.shared:  # what a row has stored is everyone's
            return
        self.memory.reset(mask)
        self.log.reset(F.pad(mask, (0, len(self.log.count_E) - len(mask))))
        if self.shown is not None and mask_B.any():
            self.show(mask_B)

    def shelf(self, rows: Tensor) -> Tensor:
        """Which memory each row reads and fills."""
        return torch.zeros_like(rows) if self.chosen.acting.shared else rows

    def finish(self, rows: np.ndarray, lengths: np.ndarray) -> None:
        """Store the windows of the episodes that have just ended, with the returns that they really had."""
        device = self.device
        if self.queries is not None:
            self.queries.clear(np.isin(np.arange(len(self.seeds_B)), rows))
        if self.chosen.acting.shared:  # a row that plays on after its last episode adds nothing
            room = self.log.count_E.cpu().numpy()[rows] < self.episodes
            rows, lengths = rows[room], lengths[room]
        task = torch.from_numpy(rows).to(device)
        real_MT = torch.arange(self.horizon, device=device) < torch.from_numpy(lengths).to(device)[:, None]
        reward_MT = self.reward[task] * real_MT
        fields = {
            "observation": self.observation[task],
            "return_to_go": reward_MT.flip(1).cumsum(1).flip(1),
            "action": where(real_MT, self.action[task], self.no_action),
            "reward": reward_MT,
        }
        if len(rows):
            entries = self.entries(task, lengths, fields)
            self.memory.add(self.shelf(entries["owner_M"]), **entries)

    def entries(self, owner_M: Tensor, lengths: np.ndarray, fields: dict[str, Tensor]) -> dict[str, Tensor]:
        """Log one whole episode for each owner; the memory entries that they make, as `EpisodicMemory.add` takes them."""
        slot_M = self.log.write(owner_M, fields)
        cut = finished_chunks(lengths, fields["return_to_go"][:, 0].cpu().numpy(), self.chunks)
        place = torch.from_numpy(cut.task).to(self.device)
        key_rows, key_mask = cut.key_windows(np.arange(len(cut)), self.chunks.context)
        keys_MD = self.embedder.keys(
            self.logged(owner_M[place], slot_M[place], torch.from_numpy(key_rows), torch.from_numpy(key_mask)),
            normalise=False,  # the episodic memory normalises, or does not: `acting.similarity`
        )
        columns: dict[str, np.ndarray] = {
            "first_M": cut.value_first, "end_M": cut.value_end, "last_M": cut.last, "total_return_M": cut.total_return,
        }  # fmt: skip
        made = {name: torch.from_numpy(column).to(self.device) for name, column in columns.items()}
        return {"key_MD": keys_MD, "slot_M": slot_M[place], "owner_M": owner_M[place], **made}

    def logged(self, owner_M: Tensor, slot_M: Tensor, step_MT: Tensor, mask_MT: Tensor) -> Experience:
        """Windows of logged episodes by timestep."""
        step_MT, mask_MT = step_MT.to(self.device), mask_MT.to(self.device)
        fields = {name: table[owner_M[:, None], slot_M[:, None], step_MT] for name, table in self.log.fields.items()}
        return Experience(
            observation=fields["observation"] * mask_MT[..., None],
            return_to_go=fields["return_to_go"] * mask_MT,
            action=where(mask_MT, fields["action"], self.no_action),
            reward=fields["reward"] * mask_MT,
            timestep=step_MT * mask_MT,
            mask=mask_MT,
        )

    def retrieve(self, rows: Tensor, query_BD: Tensor) -> None:
        """Look up what these rows read from now on."""
        chance_BK = None
        if self.chosen.acting.draws:
            counters_BK = self.draws_B[rows.cpu().numpy(), None] * self.chosen.acting.select
            counters_BK = counters_BK + np.arange(self.chosen.acting.select)
            seeds = self.seeds_B[rows.cpu().numpy()].repeat(self.chosen.acting.select)
            chance_BK = uniform(seeds, counters_BK.ravel(), RETRIEVAL_STREAM).reshape(counters_BK.shape)
        hits = self.memory.search(query_BD, self.shelf(rows), chance_BK)
        other_B = self.hits.differ(rows, hits) | (self.has_context_B[rows] != hits.found_BK.any(1))
        self.hits.put(rows, hits)
        self.changed_B[rows.cpu().numpy()] |= other_B.cpu().numpy()
        rows, hits = rows[other_B], hits.select(other_B)
        found_BK = hits.found_BK
        size, length = found_BK.shape, self.chunks.value_length
        flat = {name: getattr(hits, f"{name}_BK").flatten() for name in ("owner", "slot", "first", "end")}
        step_MS = flat["end"][:, None] + torch.arange(-length, 0, device=self.device)
        mask_MS = (step_MS >= flat["first"][:, None]) & found_BK.flatten()[:, None]
        step_MS = torch.maximum(step_MS, flat["first"][:, None])
        windows = self.logged(flat["owner"], flat["slot"], step_MS, mask_MS)
        for name in Experience.__dataclass_fields__:  # several retrieved windows are read one behind the other
            getattr(self.context, name)[rows] = getattr(windows, name).unflatten(0, size).flatten(1, 2)
        self.has_context_B[rows] = found_BK.any(1)

    def logits(self) -> Tensor:
        query_BD = None if self.queries is None else self.queries.append(self.now())
        due_B = self.step_B % self.chosen.retrieve_every == 0  # the first step of an episode always is
        due, remembers = np.flatnonzero(due_B), bool((self.memory.count_E > 0).any())
        if len(due) and remembers:
            rows = torch.from_numpy(due).to(self.device)
            if query_BD is None:
                self.retrieve(rows, self.embedder.keys(self.window(self.chunks.context).select(rows)))
            else:
                self.retrieve(rows, query_BD[rows])
        changed_B, self.changed_B = self.changed_B, np.zeros_like(self.changed_B)
        return self.reading.act(self, self.context, self.has_context_B, changed_B)

    def target_returns(self, mask_B: np.ndarray) -> np.ndarray:
        """A multiple of the highest return in memory where that is asked for; see `InContextPolicy.target_returns`."""
        targets = super().target_returns(mask_B)
        if (factor := self.chosen.acting.target_factor) is None:
            return targets
        rows = torch.from_numpy(np.flatnonzero(mask_B)).to(self.device)
        highest = self.memory.best_return(self.shelf(rows)).double().cpu().numpy() * self.reward_scale
        return np.where(highest > 0, np.round(factor * highest), targets)

    def traced(self, rows_N: np.ndarray) -> dict[str, np.ndarray]:
        """What each row reads; see `contract.Traced.traced`."""
        here, hits = torch.from_numpy(rows_N).to(self.device), self.hits
        reads_NK = (hits.found_BK & self.has_context_B[:, None])[here]
        own_NK = reads_NK & (hits.owner_BK[here] == here[:, None])  # neither demonstrations nor other rows' episodes
        facts = super().traced(rows_N)
        places = {"episode": hits.slot_BK, "first": hits.first_BK, "end": hits.end_BK}
        for name, place_BK in places.items():
            facts[f"retrieved_{name}"] = torch.where(own_NK, place_BK[here], -1).int().cpu().numpy()
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


def build_network(settings: Settings, facts: Facts) -> DecisionTransformer:
    """The untrained network of a run."""
    chosen: Hyperparameters = settings.method.hyperparameters
    read = max(chosen.retrieval.places, chosen.acting.select) * chunk_settings(memory_of(settings)).value_length
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
        histories,
        context=chosen.context,
        batch_size=chosen.optimisation.batch_size,
        seed=settings.seed,
        episodes_by=chosen.episodes_by,
        top=chosen.top_episodes,
    )

    def windows_of(step: int) -> tuple[Experience, np.ndarray]:
        windows = sampler.batch(step)
        return store.windows(windows.rows, windows.mask), windows.rows[:, -1]

    if chosen.neighbours is not None:
        reader.look_up_ahead(settings, inputs, windows_of)

    def batch_of(step: int) -> Batch:
        window, rows = windows_of(step)
        context, has_context_B, described = reader.read(window, rows, step)
        if step == 0:
            run.log(step, **{f"memory_{name}": value for name, value in reader.memory_statistics().items()})
        if described:
            run.log(step, **{f"retrieved_{name}": value for name, value in described.items()})
        return Batch(window, context, has_context_B)

    policy = RetrievalPolicy(network, embedder, settings, Demonstrations.load(settings, inputs, facts))
    returns = settings.environment.returns
    return train_policy(
        policy,
        settings,
        run,
        batch_of=batch_of,
        loss_of=lambda model, batch: radt_loss(model, batch, chosen, returns),
    )


def load_policy(settings: Settings, arrays: Mapping[str, np.ndarray], inputs: Inputs) -> RetrievalPolicy:
    """The policy of a finished run, with its embedder."""
    facts = facts_of(settings.environment)
    network = build_network(settings, facts)
    dt.load_network(network, arrays, settings)
    own = part(arrays, "embedder")
    embedder = load_embedder(settings, inputs, facts, arrays=own)
    shown = Demonstrations.load(settings, inputs, facts)
    return RetrievalPolicy(network.to(inputs.device).eval(), embedder, settings, shown)
