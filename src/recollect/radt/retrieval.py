"""Training-time retrieval: from a batch of queries to the memory entries that the policy reads.

Steps, each vectorised over the batch (RA-DT, arXiv 2410.07071, section 3 and appendix; the released grid configs):
search the nearest candidates; drop those that are too similar (copies of the query) or from the query's own trajectory;
keep the best; min-max their similarities per query; add weights (same task, return, position); take the top k; answer
queries that have seen too little with a random entry of their task; order several by (return, last timestep).

Differences from the released code, each with its switch. Upstream demotes dropped candidates (similarity or score -1)
instead of dropping them, which squeezes the min-max of all others and lets a copy of the query win on the task bonus:
``excluded="demote"``. The same task is a weight only, so a query whose task has no other entry reads one of another
task, as upstream does. Where the search leaves nothing we take a random entry of the task, and none where it has none.
The kinds ``return``, ``max_return`` and ``last`` look at the query's task (released: at the whole memory, so that one
entry answers all queries), and added noise has mean 0 (released: the mean of the keys). Ours is ``within``: what it did
at demo scale stands in docs/radt.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn.functional import pad

from recollect.common.transfer import sent
from recollect.radt.pooling import normalised
from recollect.radt.scores import Combine, by_return, combined, drawn_places, minmax
from recollect.radt.training_memory import NOTHING, Queries, TrainingMemory
from recollect.settings.schema import Frozen


class RetrievalSettings(Frozen):
    """What is retrieved for a training window. Defaults are the released grid-world configs."""

    kind: Literal["retrieval", "task", "uniform", "return", "max_return", "last", "none"] = Field(
        "retrieval",
        description="retrieval; a random entry of the same task; a random entry of any task; of the same task one drawn "
        "with a chance proportional to its return, that of highest return, the one played last; nothing",
    )
    engine: Literal["exact", "ivf", "hnsw"] = Field(
        "exact", description="exact search, or an approximate one of faiss (not with `within`)"
    )
    probe: int = Field(16, ge=1, description="effort of an approximate search: lists looked at (ivf), efSearch (hnsw)")
    candidates: int = Field(100, ge=1, description="nearest entries looked at (before the similarity cut-off)")
    cut_off: float | None = Field(0.98, description="candidates more similar than this are dropped; null: none are")
    keep: int = Field(50, ge=1, description="best candidates kept for re-weighting, l")
    select: int = Field(1, ge=1, description="entries retrieved, k (paper: 1 on grids, 4 on Meta-World and DMControl)")
    similarity_weight: float = Field(1.0, description="weight of the min-max normalised similarity")
    task_weight: float = Field(1.0, description="added for an entry of the query's task (paper's alpha in training)")
    return_weight: float = Field(0.0, description="weight of the min-max normalised return")
    position_weight: float = Field(0.0, description="added for an earlier trajectory of the query's task")
    improvement_weight: float = Field(0.0, description="added for a return below that of the query's trajectory")
    combine: Combine = Field(
        "add",
        description="multiply: the score is the product of all terms whose weight is not 0, each as it is, without "
        "min-max (released option)",
    )
    choose: Literal["best", "sample"] = Field(
        "best",
        description="the entries of highest score, or a draw with chances proportional to scores (released option)",
    )
    within: int | None = Field(
        None,
        ge=1,
        description="ours, not in the paper: only entries of the query's task that were played at most this many "
        "trajectories before or after the query's are looked at, so that what is read is of about the query's skill",
    )
    exclude_own: bool = Field(True, description="never retrieve from the query's own trajectory")
    excluded: Literal["drop", "demote"] = Field(
        "drop",
        description="demote: as upstream, to similarity or score -1; and a random entry may be of the query's own trajectory",
    )
    shortest_query: int = Field(
        10, ge=0, description="a query whose last timestep is below this gets a random entry of its task"
    )
    blend: float = Field(0.0, ge=0, le=1, description="share of a random same-task key in the query (paper: 0.5)")
    blend_share: float = Field(1.0, ge=0, le=1, description="share of the queries that are blended")
    blends: int = Field(
        1, ge=1, description="differently blended copies of each query; each of them retrieves `select` entries"
    )
    noise: float = Field(0.0, ge=0, le=1, description="share of the queries that noise is added to")
    noise_std: float = Field(
        0.1, ge=0, description="of that noise, in standard deviations of the memory's keys, entry by entry"
    )
    lowest_query_return: float | None = Field(
        None, description="a query of a trajectory below this return gets a random entry of its task"
    )
    random_task: float = Field(
        0.0, ge=0, le=1, description="share of queries whose entries are replaced by random ones of their task"
    )
    random_any: float = Field(0.0, ge=0, le=1, description="the same with random ones of any task")
    random_neighbour: float = Field(
        0.0, ge=0, le=1, description="share of entries replaced by what another query of the batch retrieved"
    )

    @model_validator(mode="after")
    def _is_searched_by_its_engine(self) -> RetrievalSettings:
        if self.within is not None and self.engine != "exact":
            raise ValueError(
                f"the engine is '{self.engine}', but the entries that `within` leaves are compared one by one"
            )
        return self

    @property
    def draws_others(self) -> bool:
        """Whether random entries are never of the query's own trajectory."""
        return self.exclude_own and self.excluded == "drop"

    @property
    def places(self) -> int:
        return self.select * self.blends


@dataclass(frozen=True)
class Retrieved:
    """Entries for each query, ordered ascending by (return, last timestep); places that found nothing come first.

    ``id_BK`` is -1 and ``score_BK`` -inf where nothing was found. A randomly drawn entry has score 0. ``random_B``, bool: queries
    of which some entries were drawn at random, as settings ask or since nothing was found.
    """

    id_BK: Tensor
    score_BK: Tensor
    random_B: Tensor

    @property
    def found_BK(self) -> Tensor:
        return self.id_BK >= 0


def disturbed(
    queries: Queries, memory: TrainingMemory, settings: RetrievalSettings, generator: torch.Generator
) -> Tensor:
    """What is searched for: the query keys, blended and noisy where that is asked for, of length one again."""
    key_BD = queries.key_BD
    if settings.blend:
        key_BD = blended(queries, memory, settings, generator)
    if settings.noise:
        noise_BD = sent(torch.randn(key_BD.shape, generator=generator, device=generator.device), key_BD.device)
        noisy_BD = normalised(key_BD + settings.noise_std * memory.spread_D * noise_BD)
        is_noisy_B1 = _share(settings.noise, (len(key_BD), 1), generator, key_BD.device)
        key_BD = torch.where(is_noisy_B1, noisy_BD, key_BD)
    return key_BD


def blended(
    queries: Queries, memory: TrainingMemory, settings: RetrievalSettings, generator: torch.Generator
) -> Tensor:
    """Query keys with a share of a random same-task key, of length one again; unchanged where the task has none."""
    id_B = memory.draw(queries.task_B, queries.episode_B, generator, exclude_own=settings.draws_others)
    if settings.blend_share < 1:
        is_blended_B = _share(settings.blend_share, id_B.shape, generator, id_B.device)
        id_B = id_B.masked_fill(~is_blended_B, -1)
    other_BD = memory.keys_ND[id_B.clamp_min(0)]
    mixed_BD = (1 - settings.blend) * queries.key_BD + settings.blend * other_BD
    return torch.where((id_B >= 0)[:, None], normalised(mixed_BD), queries.key_BD)


def _share(share: float, shape: tuple[int, ...], generator: torch.Generator, device: torch.device) -> Tensor:
    return sent(torch.rand(shape, generator=generator, device=generator.device) < share, device)


def _own(ids: Tensor, queries: Queries, memory: TrainingMemory, settings: RetrievalSettings) -> Tensor:
    """Which entries [B, ...] must not be retrieved as they are of the query's own trajectory."""
    episode = memory.episode_N[ids.clamp_min(0)]
    return (episode == queries.episode_B[:, None]) & settings.exclude_own


def scored(
    similarity_BC: Tensor, id_BC: Tensor, queries: Queries, memory: TrainingMemory, settings: RetrievalSettings
) -> tuple[Tensor, Tensor]:
    """Scores of the kept candidates.

    Args:
        similarity_BC, id_BC: candidates sorted by (similarity descending, id ascending); id -1 where there is none.

    Returns:
        score [B, L] (-inf: not to be retrieved) and ids [B, L], L = min(C, ``keep``), best similarity first.
    """
    demote = settings.excluded == "demote"
    valid_BC = id_BC >= 0
    own_BC = _own(id_BC, queries, memory, settings)
    copies_BC = torch.zeros_like(valid_BC)
    if settings.cut_off is not None:
        copies_BC = similarity_BC > settings.cut_off
    if demote:
        similarity_BC = similarity_BC.masked_fill(copies_BC, -1.0)
    else:
        valid_BC = valid_BC & ~copies_BC & ~own_BC
    similarity_BC = similarity_BC.masked_fill(~valid_BC, NOTHING)

    # The best are kept; the sort is stable, so that of equal ones the lower id stays in front.
    similarity_BC, order_BC = similarity_BC.sort(dim=1, descending=True, stable=True)
    similarity_BL, order_BL = similarity_BC[:, : settings.keep], order_BC[:, : settings.keep]
    id_BL = id_BC.gather(1, order_BL)
    valid_BL = valid_BC.gather(1, order_BL)
    own_BL = own_BC.gather(1, order_BL)

    entry_BL = id_BL.clamp_min(0)
    return_BL = memory.total_return_N[entry_BL]
    same_task_BL = memory.task_N[entry_BL] == queries.task_B[:, None]
    earlier_BL = same_task_BL & (memory.episode_N[entry_BL] < queries.episode_B[:, None])
    worse_BL = return_BL < queries.total_return_B[:, None]
    if settings.combine == "multiply":
        similarity_BL = torch.where(valid_BL, similarity_BL, 0.0)
    else:
        similarity_BL = minmax(similarity_BL, valid_BL)
        return_BL = minmax(return_BL, valid_BL)
    terms = (
        (settings.similarity_weight, similarity_BL),
        (settings.task_weight, same_task_BL),
        (settings.return_weight, return_BL),
        (settings.position_weight, earlier_BL),
        (settings.improvement_weight, worse_BL),
    )
    score_BL = combined(settings.combine, terms, like=similarity_BL)
    if demote:
        score_BL = score_BL.masked_fill(own_BL, -1.0)
    return score_BL.masked_fill(~valid_BL, NOTHING), id_BL.masked_fill(~valid_BL, -1)


def retrieve(
    queries: Queries, memory: TrainingMemory, settings: RetrievalSettings, generator: torch.Generator
) -> Retrieved:
    """The entries for each query.

    Args:
        generator: for random draws; name it by purpose and step, so that a resumed run draws the same.

    Returns:
        [B, k] entries; see ``Retrieved``. Equal scores: the more similar entry, then the lower id, wins.
    """
    if settings.blends > 1:  # what differently blended copies of each query retrieve
        once = settings.model_copy(update={"blends": 1})
        many = retrieve(queries.repeated(settings.blends), memory, once, generator)
        id_BK = many.id_BK.reshape(-1, settings.places)
        score_BK = many.score_BK.reshape(-1, settings.places)
        return _ordered(id_BK, score_BK, many.random_B.view(-1, settings.blends).any(1), memory)
    size, device = len(queries.task_B), memory.keys_ND.device
    found = Retrieved(
        torch.full((size, settings.select), -1, dtype=torch.long, device=device),
        torch.full((size, settings.select), NOTHING, device=device),
        torch.zeros(size, dtype=torch.bool, device=device),
    )
    if settings.kind == "none":
        return found
    if settings.kind not in ("task", "uniform"):
        found = _searched(queries, memory, settings, generator)
    found = _redrawn(found, queries, memory, settings, generator)
    if settings.random_neighbour:
        found = _swapped(found, queries, memory, settings, generator)
    return _ordered(found.id_BK, found.score_BK, found.random_B, memory)


def _searched(
    queries: Queries, memory: TrainingMemory, settings: RetrievalSettings, generator: torch.Generator
) -> Retrieved:
    """The best entries, or draws by their values; `random_B` says where nothing was found."""
    entries = _candidates if settings.kind == "retrieval" else _of_task
    value_BL, id_BL = entries(queries, memory, settings, generator)
    sampled = settings.kind == "retrieval" and settings.choose == "sample"
    drawn = sampled or settings.kind == "return"
    best_value, best_id = taken(value_BL, id_BL, settings.select, generator if drawn else None)
    missing = settings.select - best_id.shape[1]  # where the memory is small
    id_BK = pad(best_id, (0, missing), value=-1)
    return Retrieved(id_BK, pad(best_value, (0, missing), value=NOTHING), id_BK[:, 0] < 0)


def _redrawn(
    found: Retrieved, queries: Queries, memory: TrainingMemory, settings: RetrievalSettings, generator: torch.Generator
) -> Retrieved:
    """Random entries of the query's own task, or of any, in the places of some queries."""
    (size,), device = found.random_B.shape, found.random_B.device
    of_task_B = found.random_B
    if settings.kind in ("task", "uniform"):
        of_task_B = torch.ones_like(of_task_B)
    elif settings.kind == "retrieval":
        of_task_B = of_task_B | (queries.last_B < settings.shortest_query)
        if settings.lowest_query_return is not None:
            of_task_B = of_task_B | (queries.total_return_B < settings.lowest_query_return)
        if settings.random_task:
            of_task_B = of_task_B | _share(settings.random_task, (size,), generator, device)
    redrawn = [(of_task_B, settings.kind == "uniform")]
    if settings.kind == "retrieval" and settings.random_any:
        redrawn.append((_share(settings.random_any, (size,), generator, device), True))
    id_BK, score_BK, random_B = found.id_BK, found.score_BK, found.random_B
    asked, others, near = (queries.task_B, queries.episode_B), settings.draws_others, settings.within
    for mask_B, any_task in redrawn:
        drawn = [
            memory.draw(*asked, generator, exclude_own=others, any_task=any_task, within=near)
            for _ in range(settings.select)
        ]
        drawn_BK = torch.stack(drawn, dim=1)
        id_BK = torch.where(mask_B[:, None], drawn_BK, id_BK)
        score_BK = torch.where(mask_B[:, None], torch.where(drawn_BK >= 0, 0.0, NOTHING), score_BK)
        random_B = random_B | mask_B
    return Retrieved(id_BK, score_BK, random_B)


def _swapped(
    found: Retrieved, queries: Queries, memory: TrainingMemory, settings: RetrievalSettings, generator: torch.Generator
) -> Retrieved:
    """A share of the places is another place of the batch, whichever query that one answers."""
    id_BK, device = found.id_BK, found.id_BK.device
    place_BK = torch.randint(id_BK.numel(), id_BK.shape, generator=generator, device=generator.device)
    other_BK = id_BK.flatten()[sent(place_BK, device)]
    allowed_BK = (other_BK >= 0) & ~_own(other_BK, queries, memory, settings)
    swapped_BK = _share(settings.random_neighbour, id_BK.shape, generator, device) & allowed_BK
    id_BK = torch.where(swapped_BK, other_BK, id_BK)
    return Retrieved(id_BK, found.score_BK.masked_fill(swapped_BK, 0.0), found.random_B)


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
    id_BS = memory.of_task(queries, settings.within)
    id_BS = id_BS.masked_fill(_own(id_BS, queries, memory, settings), -1)
    if settings.kind == "last":
        value_BS = torch.arange(id_BS.shape[1], device=id_BS.device).float().expand(id_BS.shape)
    else:
        value_BS = memory.total_return_N[id_BS.clamp_min(0)]
    return value_BS.masked_fill(id_BS < 0, NOTHING), id_BS


def taken(value_BL: Tensor, id_BL: Tensor, k: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """The at most k entries of highest value; or with a generator k draws (with replacement, as released) with chances
    proportional to the values. What has value -inf is never taken."""
    if generator is None:
        value_BL, order_BL = value_BL.sort(dim=1, descending=True, stable=True)
        return value_BL[:, :k], id_BL.gather(1, order_BL)[:, :k]
    chance_BK = torch.rand(len(value_BL), k, generator=generator, device=generator.device, dtype=torch.float64)
    place_BK = drawn_places(value_BL, sent(chance_BK, value_BL.device))
    return value_BL.gather(1, place_BK), id_BL.gather(1, place_BK)


def _ordered(id_BK: Tensor, score_BK: Tensor, random_B: Tensor, memory: TrainingMemory) -> Retrieved:
    entry_BK = id_BK.clamp_min(0)
    return_BK, last_BK = memory.total_return_N[entry_BK], memory.last_N[entry_BK]
    id_BK, score_BK = by_return(id_BK, score_BK, return_BK, last_BK)
    return Retrieved(id_BK, score_BK, random_B)


def statistics(retrieved: Retrieved, queries: Queries, memory: TrainingMemory) -> dict[str, float]:
    """Means over the found entries: share of the query's task, of its trajectory, and the distance in return."""
    entry_BK = retrieved.id_BK.clamp_min(0)
    values = {
        "same_task": memory.task_N[entry_BK] == queries.task_B[:, None],
        "same_trajectory": memory.episode_N[entry_BK] == queries.episode_B[:, None],
        "return_gap": (memory.total_return_N[entry_BK] - queries.total_return_B[:, None]).abs(),
    }
    count = max(int(retrieved.found_BK.sum()), 1)
    means = {}
    for name, value_BK in values.items():
        means[name] = float((value_BK.float() * retrieved.found_BK).sum()) / count
    return means
