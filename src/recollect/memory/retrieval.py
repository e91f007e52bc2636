"""Training-time retrieval: from a batch of queries to the memory entries that the policy reads.

Steps, each vectorised over the batch (RA-DT, arXiv 2410.07071, section 3 and appendix; the released grid configs):
search the nearest candidates; drop those that are too similar (copies of the query) or from the query's own trajectory;
keep the best; min-max their similarities per query; add weights (same task, return, position); take the top k; answer
queries that have seen too little with a random entry of their task; order several by (return, last timestep).

Differences from the released code, each with its switch. Upstream demotes dropped candidates (similarity or score -1)
instead of dropping them, which squeezes the min-max of all others and lets a copy of the query win on the task bonus:
``excluded="demote"``. Where nothing is left we take a random entry of the task, and no context where the task has none.
Ours is ``within``: what it did at demo scale stands in docs/radt.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from recollect.memory.pooling import normalised
from recollect.settings.errors import UserError

Search = Callable[[Tensor, int], tuple[Tensor, Tensor]]
NOTHING = float("-inf")


class RetrievalSettings(BaseModel):
    """What is retrieved for a training window. Defaults are the released grid-world configs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["retrieval", "task", "uniform", "none"] = Field(
        default="retrieval",
        description="retrieval; a random entry of the same task; a random entry of any task; nothing",
    )
    candidates: int = Field(default=100, ge=1, description="nearest entries looked at (before the similarity cut-off)")
    cut_off: float | None = Field(
        default=0.98, description="candidates more similar than this are dropped; null: none are"
    )
    keep: int = Field(default=50, ge=1, description="best candidates kept for re-weighting, l")
    select: int = Field(
        default=1, ge=1, description="entries retrieved, k (paper: 1 on grids, 4 on Meta-World and DMControl)"
    )
    similarity_weight: float = Field(default=1.0, description="weight of the min-max normalised similarity")
    task_weight: float = Field(
        default=1.0, description="added for an entry of the query's task (paper's alpha in training)"
    )
    return_weight: float = Field(default=0.0, description="weight of the min-max normalised return")
    position_weight: float = Field(default=0.0, description="added for an earlier trajectory of the query's task")
    improvement_weight: float = Field(
        default=0.0, description="added for an entry of lower return than the query's trajectory"
    )
    within: int | None = Field(
        default=None,
        ge=1,
        description="ours, not in the paper: only entries of the query's task that were played at most this many "
        "trajectories before or after the query's are looked at, so that what is read is of about the query's skill",
    )
    exclude_own: bool = Field(default=True, description="never retrieve from the query's own trajectory")
    excluded: Literal["drop", "demote"] = Field(
        default="drop", description="demote: as upstream, to similarity or score -1"
    )
    shortest_query: int = Field(
        default=10, ge=0, description="a query whose last timestep is below this gets a random entry of its task"
    )
    blend: float = Field(
        default=0.0, ge=0, le=1, description="share of a random same-task key in the query (paper: 0.5)"
    )


@dataclass(frozen=True)
class Queries:
    """A batch of queries: keys of length one, and what is known of the window each came from.

    ``episode`` is -1 where the trajectory is not in the memory; ``last`` is the window's last timestep.
    """

    key_BD: Tensor
    task_B: Tensor
    episode_B: Tensor
    total_return_B: Tensor
    last_B: Tensor


@dataclass(frozen=True)
class Retrieved:
    """Entries for each query, ordered ascending by (return, last timestep); places that found nothing come first.

    ``id_BK`` is -1 and ``score_BK`` -inf where nothing was found. A randomly drawn entry has score 0.
    """

    id_BK: Tensor
    score_BK: Tensor
    random_B: Tensor

    @property
    def found_BK(self) -> Tensor:
        """True where there is an entry."""
        return self.id_BK >= 0


class TrainingMemory:
    """The table beside the keys, on one device, with what random draws need.

    Args:
        search: ``search(queries_QD, k) -> (scores, ids)``: ``FlatIndex.search`` or a closure over ``matmul_search``.
        keys_ND: keys of length one (used by query blending).
        task_N, episode_N, total_return_N, last_N: the chunk table.
    """

    def __init__(
        self, search: Search, keys_ND: Tensor, task_N: Tensor, episode_N: Tensor, total_return_N: Tensor, last_N: Tensor
    ) -> None:
        columns = (task_N, episode_N, total_return_N, last_N)
        if any(len(column) != len(keys_ND) for column in columns) or len(keys_ND) == 0:
            raise UserError(
                f"The memory has {len(keys_ND)} keys but a table of {[len(column) for column in columns]} rows.",
                where="memory",
                do="Build the index and its row table together (`recollect index`).",
            )
        device = keys_ND.device
        self.search, self.keys_ND = search, keys_ND
        self.task_N, self.episode_N = task_N.to(device).long(), episode_N.to(device).long()
        self.total_return_N, self.last_N = total_return_N.to(device).float(), last_N.to(device).long()
        # Entries ordered by (task, episode), so that "of this task but not of this episode" is an interval with a hole.
        order = self.episode_N.argsort(stable=True)
        self._order = order[self.task_N[order].argsort(stable=True)]
        self._episodes = int(self.episode_N.max()) + 3  # one more for any episode that has no entry
        self._codes = self._code(self.task_N, self.episode_N)[self._order]

    def _code(self, task: Tensor, episode: Tensor) -> Tensor:
        return task * self._episodes + episode + 1  # + 1: the unknown episode -1 sorts before all

    def _span(self, task: Tensor, own: Tensor, within: int | None) -> tuple[Tensor, Tensor]:
        """From where to where (not included) in `_order` the entries of each task stand, or those around code `own`."""
        lowest, highest = task * self._episodes, (task + 1) * self._episodes
        if within is not None:
            lowest, highest = torch.maximum(own - within, lowest), torch.minimum(own + within + 1, highest)
        return torch.searchsorted(self._codes, lowest), torch.searchsorted(self._codes, highest)

    def near(self, queries: Queries, key_BD: Tensor, within: int, k: int) -> tuple[Tensor, Tensor]:
        """The most similar entries of each query's task that are at most ``within`` trajectories away.

        Returns:
            similarity and ids [B, <= k], the most similar first, equal ones by id; -inf and -1 where there is none.
        """
        device = self._codes.device
        task, episode = queries.task_B.to(device).long(), queries.episode_B.to(device).long()
        first, past = self._span(task, self._code(task, episode), within)
        place = first[:, None] + torch.arange(max(int((past - first).max()), 1), device=device)
        there = place < past[:, None]
        ids = self._order[place.clamp_max(len(self._order) - 1)]
        similarity = torch.bmm(self.keys_ND[ids], key_BD[:, :, None]).squeeze(2).masked_fill(~there, NOTHING)
        similarity, order = similarity.sort(dim=1, descending=True, stable=True)
        return similarity[:, :k], ids.masked_fill(~there, -1).gather(1, order)[:, :k]

    def draw(
        self,
        task_B: Tensor,
        episode_B: Tensor,
        generator: torch.Generator,
        *,
        exclude_own: bool,
        any_task: bool = False,
        within: int | None = None,
    ) -> Tensor:
        """One uniformly random entry per query, of its task (or of any), not of its own trajectory if asked.

        Returns:
            ids [B]; -1 where there is no such entry. Several draws for one query may give the same entry.
        """
        task_B, episode_B = task_B.to(self._codes.device).long(), episode_B.to(self._codes.device).long()
        own = self._code(task_B, episode_B.clamp(-1, self._episodes - 2))
        own_first = torch.searchsorted(self._codes, own)
        own_count = torch.searchsorted(self._codes, own, right=True) - own_first
        if not exclude_own:
            own_count = torch.zeros_like(own_count)
        if any_task:
            first, count = torch.zeros_like(own), torch.full_like(own, len(self._codes))
        else:
            first, past = self._span(task_B, own, within)
            count = past - first
        free = count - own_count
        chance = torch.rand(len(task_B), generator=generator, device=generator.device, dtype=torch.float64)
        place = first + torch.minimum((chance.to(free.device) * free).long(), free - 1).clamp_min(0)
        place = torch.where((own_count > 0) & (place >= own_first), place + own_count, place)
        ids = self._order[place.clamp_max(len(self._order) - 1)]
        return torch.where(free > 0, ids, torch.full_like(ids, -1))


def minmax(values_BL: Tensor, valid_BL: Tensor) -> Tensor:
    """Each row mapped to [0, 1] over its valid places; 0 where all valid values are equal, and at invalid places."""
    low = values_BL.masked_fill(~valid_BL, float("inf")).amin(dim=1, keepdim=True)
    high = values_BL.masked_fill(~valid_BL, float("-inf")).amax(dim=1, keepdim=True)
    spread = high - low
    usable = valid_BL & (spread > 0)
    scaled = (torch.where(usable, values_BL, low) - low) / torch.where(spread > 0, spread, torch.ones_like(spread))
    return torch.where(usable, scaled, torch.zeros_like(scaled))


def blended(
    queries: Queries, memory: TrainingMemory, settings: RetrievalSettings, generator: torch.Generator
) -> Tensor:
    """Query keys with a share of a random same-task key, of length one again; unchanged where the task has none."""
    ids = memory.draw(queries.task_B, queries.episode_B, generator, exclude_own=settings.exclude_own)
    mixed = (1 - settings.blend) * queries.key_BD + settings.blend * memory.keys_ND[ids.clamp_min(0)]
    return torch.where((ids >= 0)[:, None], normalised(mixed), queries.key_BD)


def scored(
    similarity_BC: Tensor, id_BC: Tensor, queries: Queries, memory: TrainingMemory, settings: RetrievalSettings
) -> tuple[Tensor, Tensor]:
    """Scores of the kept candidates.

    Args:
        similarity_BC, id_BC: candidates sorted by (similarity descending, id ascending); id -1 where there is none.

    Returns:
        score [B, L] (-inf: not to be retrieved) and ids [B, L], L = min(C, ``keep``), best similarity first.
    """
    task_B1, episode_B1 = queries.task_B[:, None], queries.episode_B[:, None]
    demote = settings.excluded == "demote"
    entry = id_BC.clamp_min(0)
    valid = id_BC >= 0
    own = (memory.episode_N[entry] == episode_B1) & settings.exclude_own
    copies = similarity_BC > (settings.cut_off if settings.cut_off is not None else float("inf"))
    if demote:
        similarity_BC = similarity_BC.masked_fill(copies, -1.0)
    else:
        valid = valid & ~copies & ~own
    similarity_BC = similarity_BC.masked_fill(~valid, NOTHING)
    similarity, order = similarity_BC.sort(dim=1, descending=True, stable=True)
    order = order[:, : settings.keep]
    similarity, ids, valid, own = similarity[:, : settings.keep], *(x.gather(1, order) for x in (id_BC, valid, own))
    entry = ids.clamp_min(0)
    returns, same_task = memory.total_return_N[entry], memory.task_N[entry] == task_B1

    score = settings.similarity_weight * minmax(similarity, valid)
    score = score + settings.task_weight * same_task
    if settings.return_weight:
        score = score + settings.return_weight * minmax(returns, valid)
    if settings.position_weight:
        score = score + settings.position_weight * (same_task & (memory.episode_N[entry] < episode_B1))
    if settings.improvement_weight:
        score = score + settings.improvement_weight * (returns < queries.total_return_B[:, None])
    if demote:
        score = score.masked_fill(own, -1.0)
    return score.masked_fill(~valid, NOTHING), ids.masked_fill(~valid, -1)


def retrieve(
    queries: Queries, memory: TrainingMemory, settings: RetrievalSettings, generator: torch.Generator
) -> Retrieved:
    """The entries for each query.

    Args:
        queries: on the memory's device.
        generator: for random draws; name it by purpose and step, so that a resumed run draws the same.

    Returns:
        [B, k] entries; see ``Retrieved``. Equal scores: the more similar entry, then the lower id, wins.
    """
    size, device = len(queries.task_B), memory.keys_ND.device
    score = torch.full((size, settings.select), NOTHING, device=device)
    ids = torch.full((size, settings.select), -1, dtype=torch.long, device=device)
    if settings.kind == "none":
        return Retrieved(ids, score, torch.zeros(size, dtype=torch.bool, device=device))
    if settings.kind == "retrieval":
        key_BD = blended(queries, memory, settings, generator) if settings.blend else queries.key_BD
        if settings.within is None:
            similarity, candidate = memory.search(key_BD, settings.candidates)
        else:
            similarity, candidate = memory.near(queries, key_BD, settings.within, settings.candidates)
        all_scores, all_ids = scored(similarity.to(device), candidate.to(device), queries, memory, settings)
        all_scores, order = all_scores.sort(dim=1, descending=True, stable=True)
        taken = min(settings.select, order.shape[1])
        score[:, :taken], ids[:, :taken] = all_scores[:, :taken], all_ids.gather(1, order[:, :taken])
        random = (queries.last_B < settings.shortest_query) | (ids[:, 0] < 0)
    else:
        random = torch.ones(size, dtype=torch.bool, device=device)
    for place in range(settings.select):
        drawn = memory.draw(
            queries.task_B,
            queries.episode_B,
            generator,
            exclude_own=settings.exclude_own,
            any_task=settings.kind == "uniform",
            within=settings.within,
        )
        ids[:, place] = torch.where(random, drawn, ids[:, place])
    score = torch.where(random[:, None], torch.where(ids >= 0, 0.0, NOTHING), score)
    ids, score = by_return(ids, score, memory.total_return_N[ids.clamp_min(0)], memory.last_N[ids.clamp_min(0)])
    return Retrieved(ids, score, random)


def by_return(id_BK: Tensor, score_BK: Tensor, return_BK: Tensor, last_BK: Tensor) -> tuple[Tensor, Tensor]:
    """Entries sorted ascending by (return, last timestep), so that the best stands nearest; -1 first."""
    order = last_BK.argsort(dim=1, stable=True)
    value = return_BK.masked_fill(id_BK < 0, NOTHING).gather(1, order)
    order = order.gather(1, value.argsort(dim=1, stable=True))
    return id_BK.gather(1, order), score_BK.gather(1, order)


def statistics(retrieved: Retrieved, queries: Queries, memory: TrainingMemory) -> dict[str, float]:
    """Means over the found entries: share of the query's task, of its trajectory, and the distance in return."""
    found, entry = retrieved.found_BK, retrieved.id_BK.clamp_min(0)
    count = max(int(found.sum()), 1)
    gap = (memory.total_return_N[entry] - queries.total_return_B[:, None]).abs()
    per_entry = {
        "same_task": memory.task_N[entry] == queries.task_B[:, None],
        "same_trajectory": memory.episode_N[entry] == queries.episode_B[:, None],
        "return_gap": gap,
    }
    return {name: float((values.float() * found).sum()) / count for name, values in per_entry.items()}
