"""Training-time retrieval: from a batch of queries to the memory entries that the policy reads.

Steps, each vectorised over the batch (RA-DT, arXiv 2410.07071, section 3 and appendix; the released grid configs):
search the nearest candidates; drop those that are too similar (copies of the query) or from the query's own trajectory;
keep the best; min-max their similarities per query; add weights (same task, return, position); take the top k; answer
queries that have seen too little with a random entry of their task; order several by (return, last timestep).

Differences from the released code, each with its switch. Upstream demotes dropped candidates (similarity or score -1)
instead of dropping them, which squeezes the min-max of all others and lets a copy of the query win on the task bonus:
``excluded="demote"``. Where nothing is left we take a random entry of the task, and no context where the task has none.
The kinds ``return``, ``max_return`` and ``last`` look at the query's task (released: at the whole memory, so that one
entry answers all queries), and added noise has mean 0 (released: the mean of the keys). Ours is ``within``: what it did
at demo scale stands in docs/radt.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from recollect.radt.pooling import normalised
from recollect.radt.training_memory import NOTHING, Queries, TrainingMemory


class RetrievalSettings(BaseModel):
    """What is retrieved for a training window. Defaults are the released grid-world configs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["retrieval", "task", "uniform", "return", "max_return", "last", "none"] = Field(
        default="retrieval",
        description="retrieval; a random entry of the same task; a random entry of any task; of the same task one drawn "
        "with a chance proportional to its return, that of highest return, the one played last; nothing",
    )
    engine: Literal["exact", "ivf", "hnsw"] = Field(
        default="exact", description="exact search, or an approximate one of faiss for very large memories"
    )
    probe: int = Field(
        default=16, ge=1, description="effort of an approximate search: lists looked at (ivf), efSearch (hnsw)"
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
    combine: Literal["add", "multiply"] = Field(
        default="add",
        description="multiply: the score is the product of similarity and of all terms whose weight is not 0, each as "
        "it is, without min-max (released option)",
    )
    choose: Literal["best", "sample"] = Field(
        default="best",
        description="the entries of highest score, or a draw with chances proportional to scores (released option)",
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
    blend_share: float = Field(default=1.0, ge=0, le=1, description="share of the queries that are blended")
    blends: int = Field(
        default=1, ge=1, description="differently blended copies of each query; each of them retrieves `select` entries"
    )
    noise: float = Field(default=0.0, ge=0, le=1, description="share of the queries that noise is added to")
    noise_std: float = Field(
        default=0.1, ge=0, description="of that noise, in standard deviations of the memory's keys, entry by entry"
    )
    lowest_query_return: float | None = Field(
        default=None, description="a query of a trajectory below this return gets a random entry of its task"
    )
    random_task: float = Field(
        default=0.0, ge=0, le=1, description="share of queries whose entries are replaced by random ones of their task"
    )
    random_any: float = Field(default=0.0, ge=0, le=1, description="the same with random ones of any task")
    random_neighbour: float = Field(
        default=0.0, ge=0, le=1, description="share of entries replaced by what another query of the batch retrieved"
    )

    @property
    def places(self) -> int:
        """Entries retrieved for a query in all, K."""
        return self.select * self.blends


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


def minmax(values_BL: Tensor, valid_BL: Tensor) -> Tensor:
    """Each row mapped to [0, 1] over its valid places; 0 where all valid values are equal, and at invalid places."""
    low = values_BL.masked_fill(~valid_BL, float("inf")).amin(dim=1, keepdim=True)
    high = values_BL.masked_fill(~valid_BL, float("-inf")).amax(dim=1, keepdim=True)
    spread = high - low
    usable = valid_BL & (spread > 0)
    scaled = (torch.where(usable, values_BL, low) - low) / torch.where(spread > 0, spread, torch.ones_like(spread))
    return torch.where(usable, scaled, torch.zeros_like(scaled))


def disturbed(
    queries: Queries, memory: TrainingMemory, settings: RetrievalSettings, generator: torch.Generator
) -> Tensor:
    """What is searched for: the query keys, blended and noisy where that is asked for, of length one again."""
    key_BD = blended(queries, memory, settings, generator) if settings.blend else queries.key_BD
    if settings.noise:
        noise_BD = torch.randn(key_BD.shape, generator=generator, device=generator.device).to(key_BD.device)
        noisy_BD = normalised(key_BD + settings.noise_std * memory.spread_D * noise_BD)
        key_BD = torch.where(_chosen(settings.noise, (len(key_BD), 1), generator, key_BD), noisy_BD, key_BD)
    return key_BD


def blended(
    queries: Queries, memory: TrainingMemory, settings: RetrievalSettings, generator: torch.Generator
) -> Tensor:
    """Query keys with a share of a random same-task key, of length one again; unchanged where the task has none."""
    ids = memory.draw(queries.task_B, queries.episode_B, generator, exclude_own=settings.exclude_own)
    if settings.blend_share < 1:
        ids = ids.masked_fill(~_chosen(settings.blend_share, ids.shape, generator, ids), -1)
    mixed = (1 - settings.blend) * queries.key_BD + settings.blend * memory.keys_ND[ids.clamp_min(0)]
    return torch.where((ids >= 0)[:, None], normalised(mixed), queries.key_BD)


def _chosen(share: float, shape: tuple[int, ...], generator: torch.Generator, like: Tensor) -> Tensor:
    """True at a random share of the places, on the device of `like`."""
    return (torch.rand(shape, generator=generator, device=generator.device) < share).to(like.device)


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

    multiplied = settings.combine == "multiply"
    score = settings.similarity_weight * (
        torch.where(valid, similarity, 0.0) if multiplied else minmax(similarity, valid)
    )
    for weight, term in (
        (settings.task_weight, same_task),
        (settings.return_weight, returns if multiplied else minmax(returns, valid)),
        (settings.position_weight, same_task & (memory.episode_N[entry] < episode_B1)),
        (settings.improvement_weight, returns < queries.total_return_B[:, None]),
    ):
        if weight:
            score = score * (weight * term) if multiplied else score + weight * term
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
    if settings.blends > 1:
        once = settings.model_copy(update={"blends": 1})
        many = retrieve(queries.repeated(settings.blends), memory, once, generator)
        id_BK, score_BK = (x.reshape(len(queries.task_B), settings.places) for x in (many.id_BK, many.score_BK))
        return _ordered(id_BK, score_BK, many.random_B.view(-1, settings.blends).any(1), memory)
    size, device = len(queries.task_B), memory.keys_ND.device
    score = torch.full((size, settings.select), NOTHING, device=device)
    ids = torch.full((size, settings.select), -1, dtype=torch.long, device=device)
    random = torch.zeros(size, dtype=torch.bool, device=device)
    if settings.kind == "none":
        return Retrieved(ids, score, random)
    if settings.kind in ("task", "uniform"):
        random = ~random
    else:
        all_scores, all_ids = (_candidates if settings.kind == "retrieval" else _of_task)(
            queries, memory, settings, generator
        )
        drawn = settings.kind == "return" or (settings.kind == "retrieval" and settings.choose == "sample")
        best_scores, best_ids = taken(all_scores, all_ids, settings.select, generator if drawn else None)
        score[:, : best_ids.shape[1]], ids[:, : best_ids.shape[1]] = best_scores, best_ids
        random = ids[:, 0] < 0
    if settings.kind == "retrieval":
        random = random | (queries.last_B < settings.shortest_query)
        if settings.lowest_query_return is not None:
            random = random | (queries.total_return_B < settings.lowest_query_return)
        if settings.random_task:
            random = random | _chosen(settings.random_task, (size,), generator, ids)
    replaced = [(random, settings.kind == "uniform")]
    if settings.kind == "retrieval" and settings.random_any:
        replaced.append((_chosen(settings.random_any, (size,), generator, ids), True))
    for mask, any_task in replaced:
        for place in range(settings.select):
            entry = memory.draw(
                queries.task_B,
                queries.episode_B,
                generator,
                exclude_own=settings.exclude_own,
                any_task=any_task,
                within=settings.within,
            )
            ids[:, place] = torch.where(mask, entry, ids[:, place])
        score = torch.where(mask[:, None], torch.where(ids >= 0, 0.0, NOTHING), score)
        random = random | mask
    if settings.random_neighbour:
        other = torch.randint(ids.numel(), ids.shape, generator=generator, device=generator.device).to(device)
        found = ids.flatten()[other]
        own = (memory.episode_N[found.clamp_min(0)] == queries.episode_B[:, None]) & settings.exclude_own
        swapped = _chosen(settings.random_neighbour, ids.shape, generator, ids) & (found >= 0) & ~own
        ids, score = torch.where(swapped, found, ids), score.masked_fill(swapped, 0.0)
    return _ordered(ids, score, random, memory)


def _candidates(
    queries: Queries, memory: TrainingMemory, settings: RetrievalSettings, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Scores and ids [B, L] of the entries that a search finds."""
    key_BD = disturbed(queries, memory, settings, generator)
    if settings.within is None:
        similarity, candidate = memory.search(key_BD, settings.candidates)
    else:
        similarity, candidate = memory.near(queries, key_BD, settings.within, settings.candidates)
    device = memory.keys_ND.device
    return scored(similarity.to(device), candidate.to(device), queries, memory, settings)


def _of_task(
    queries: Queries, memory: TrainingMemory, settings: RetrievalSettings, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Values and ids [B, S] of all entries of each query's task: returns, or for `last` their places in time."""
    del generator
    ids = memory.of_task(queries, settings.within)
    own = (memory.episode_N[ids.clamp_min(0)] == queries.episode_B[:, None]) & settings.exclude_own
    ids = ids.masked_fill(own, -1)
    if settings.kind == "last":
        value = torch.arange(ids.shape[1], device=ids.device).float().expand(ids.shape)
    else:
        value = memory.total_return_N[ids.clamp_min(0)]
    return value.masked_fill(ids < 0, NOTHING), ids


def taken(value_BL: Tensor, id_BL: Tensor, k: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """The at most k entries of highest value; or with a generator k draws (with replacement, as released) with chances
    proportional to the values. What has value -inf is never taken."""
    if generator is None:
        value, order = value_BL.sort(dim=1, descending=True, stable=True)
        return value[:, :k], id_BL.gather(1, order)[:, :k]
    chance = torch.rand(len(value_BL), k, generator=generator, device=generator.device, dtype=torch.float64)
    place_BK = drawn_places(value_BL, chance.to(value_BL.device))
    return value_BL.gather(1, place_BK), id_BL.gather(1, place_BK)


def drawn_places(value_BL: Tensor, chance_BK: Tensor) -> Tensor:
    """Places [B, K] drawn with chances proportional to the values (negative ones count as 0, and 0 as 1e-8)."""
    weight_BL = (value_BL.double().clamp_min(0) + 1e-8) * (value_BL > NOTHING)
    until_BL = weight_BL.cumsum(1)
    total_B1 = until_BL[:, -1:]
    place_BK = torch.searchsorted(until_BL, (chance_BK * total_B1).contiguous(), right=True)
    return torch.minimum(place_BK, (until_BL < total_B1).sum(1, keepdim=True))


def _ordered(id_BK: Tensor, score_BK: Tensor, random_B: Tensor, memory: TrainingMemory) -> Retrieved:
    entry = id_BK.clamp_min(0)
    id_BK, score_BK = by_return(id_BK, score_BK, memory.total_return_N[entry], memory.last_N[entry])
    return Retrieved(id_BK, score_BK, random_B)


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
