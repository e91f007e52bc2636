"""Training-time retrieval: what each released option promises. The published path is held by `test_retrieval`."""

from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from test_retrieval import world

from recollect.common.index import matmul_search
from recollect.radt.approximate import approximate_search
from recollect.radt.pooling import normalised
from recollect.radt.retrieval import RetrievalSettings, disturbed, retrieve, scored
from recollect.radt.scores import drawn_places

NOTHING = float("-inf")


def drawing(seed=0):
    return torch.Generator().manual_seed(seed)


def of_task(memory, asked, row):
    """Entries of the query's task that are not of its own trajectory, in the order in which they were played."""
    ids = range(len(memory.task_N))
    mine = [i for i in ids if memory.task_N[i] == asked.task_B[row] and memory.episode_N[i] != asked.episode_B[row]]
    return sorted(mine, key=lambda i: (int(memory.episode_N[i]), i))


def test_without_weights_the_order_is_that_of_similarity_and_each_weight_changes_it():
    memory, asked = world()
    none = {"task_weight": 0.0, "shortest_query": 0, "cut_off": None, "select": 5}
    alone = retrieve(asked, memory, RetrievalSettings(**none), drawing())
    for row in range(len(asked.task_B)):
        similarity = memory.keys_ND @ asked.key_BD[row]
        similarity[memory.episode_N == asked.episode_B[row]] = NOTHING
        assert set(alone.id_BK[row].tolist()) == set(similarity.topk(5).indices.tolist())
    for weight in ("task_weight", "return_weight", "position_weight", "improvement_weight"):
        weighted = retrieve(asked, memory, RetrievalSettings(**{**none, weight: 1.0}), drawing())
        assert not torch.equal(weighted.id_BK, alone.id_BK), weight


def test_a_product_of_scores_is_a_product_and_leaves_out_what_has_no_weight():
    memory, asked = world()
    settings = RetrievalSettings(
        combine="multiply", similarity_weight=2.0, task_weight=3.0, return_weight=0.5, cut_off=None, shortest_query=0
    )
    score, ids = scored(*memory.search(asked.key_BD, 100), asked, memory, settings)
    seen = 0
    for row, place in (ids >= 0).nonzero().tolist():
        entry = int(ids[row, place])
        similarity = float(memory.keys_ND[entry].double() @ asked.key_BD[row].double())
        task = float(memory.task_N[entry] == asked.task_B[row])
        wanted = 2.0 * similarity * 3.0 * task * 0.5 * float(memory.total_return_N[entry])
        assert score[row, place] == pytest.approx(wanted, abs=1e-4)
        seen += wanted > 0
    assert seen > 100
    without = scored(
        *memory.search(asked.key_BD, 100), asked, memory, settings.model_copy(update={"task_weight": 0.0})
    )[0]
    other = memory.task_N[ids.clamp_min(0)] != asked.task_B[:, None]
    assert (without[other & (ids >= 0)] != 0).any()  # a task of weight 0 is no factor of 0
    returns_alone = settings.model_copy(update={"similarity_weight": 0.0, "task_weight": 0.0})
    score, ids = scored(*memory.search(asked.key_BD, 100), asked, memory, returns_alone)
    torch.testing.assert_close(score[ids >= 0], 0.5 * memory.total_return_N[ids[ids >= 0]])


def test_places_are_drawn_in_proportion_to_their_values():
    value = torch.tensor([[4.0, NOTHING, 0.0, 1.0, -3.0, 5.0]]).expand(20000, 6)
    chance = torch.rand(20000, 2, generator=drawing(), dtype=torch.float64)
    counts = torch.bincount(drawn_places(value, chance).flatten(), minlength=6)
    assert counts[[1, 2, 4]].sum() == 0
    assert chisquare(counts[[0, 3, 5]].numpy(), np.array([4, 1, 5]) * 4000).pvalue > 1e-3
    ends = drawn_places(torch.tensor([[NOTHING, 2.0, 3.0, NOTHING]]), torch.tensor([[0.0, 1.0]], dtype=torch.float64))
    assert ends.tolist() == [[1, 2]]  # not even a chance of 1 leaves what may be drawn


def test_the_best_of_the_task_the_last_of_the_task_and_draws_by_return():
    memory, asked = world(queries=60)
    memory.search = partial(pytest.fail, "these kinds must not search")
    best = retrieve(asked, memory, RetrievalSettings(kind="max_return", select=2), drawing())
    last = retrieve(asked, memory, RetrievalSettings(kind="last", select=2), drawing())
    for row in range(60):
        mine = of_task(memory, asked, row)
        returns = sorted((float(memory.total_return_N[i]) for i in mine), reverse=True)
        assert sorted(memory.total_return_N[best.id_BK[row]].tolist(), reverse=True) == returns[:2]
        assert set(last.id_BK[row].tolist()) == set(mine[-2:])
    asked, total = asked.repeated(200), Counter()
    drawn = retrieve(asked, memory, RetrievalSettings(kind="return"), drawing()).id_BK[:200, 0]  # of the first query
    total.update(drawn.tolist())
    mine = of_task(memory, asked, 0)
    assert set(total) <= {i for i in mine if memory.total_return_N[i] > 0}
    mean = memory.total_return_N[mine].mean()
    assert memory.total_return_N[drawn].mean() > mean + 2  # of returns 0..19 by weight: 13, not 9.5


def test_sampled_scores_vary_and_never_take_what_is_excluded():
    memory, asked = world(duplicates=True)
    settings = RetrievalSettings(choose="sample", shortest_query=0, select=3)
    found, again = (retrieve(asked, memory, settings, drawing(seed)) for seed in (0, 1))
    best = retrieve(asked, memory, RetrievalSettings(shortest_query=0, select=3), drawing())
    assert not torch.equal(found.id_BK, again.id_BK) and not torch.equal(found.id_BK, best.id_BK)
    similarity = (memory.keys_ND[found.id_BK] * asked.key_BD[:, None]).sum(2)
    assert (similarity <= 0.98).all() and (memory.episode_N[found.id_BK] != asked.episode_B[:, None]).all()
    assert (found.score_BK >= 0).all()


def test_noise_moves_a_share_of_the_queries_by_the_spread_of_the_keys():
    memory, asked = world(queries=400)
    moved = disturbed(asked, memory, RetrievalSettings(noise=0.3, noise_std=0.5), drawing())
    changed = (moved != asked.key_BD).any(1)
    assert 0.2 < changed.float().mean() < 0.4
    torch.testing.assert_close(moved.norm(dim=1), torch.ones(400))
    everywhere = RetrievalSettings(noise=1.0, noise_std=0.5)
    noise = disturbed(asked, memory, everywhere, drawing()) - asked.key_BD
    doubled = disturbed(asked, memory, everywhere.model_copy(update={"noise_std": 1.0}), drawing()) - asked.key_BD
    assert 0.5 < float(noise.std() / (0.5 * memory.keys_ND.std())) < 1.2  # less than asked: lengths are one again
    assert doubled.norm() > 1.3 * noise.norm()


def test_a_share_of_queries_is_blended():
    memory, asked = world(queries=400)
    moved = disturbed(asked, memory, RetrievalSettings(blend=0.5, blend_share=0.25), drawing())
    changed = (moved != asked.key_BD).any(1)
    assert 0.17 < changed.float().mean() < 0.33
    assert (disturbed(asked, memory, RetrievalSettings(blend=0.5), drawing()) != asked.key_BD).any(1).all()


def test_every_differently_blended_copy_of_a_query_retrieves_its_own_entries():
    memory, asked = world()
    settings = RetrievalSettings(blend=0.7, blends=4, select=2, shortest_query=30)
    found = retrieve(asked, memory, settings, drawing())
    assert settings.places == 8 and found.id_BK.shape == (len(asked.task_B), 8)
    once = settings.model_copy(update={"blends": 1})
    copies = retrieve(asked.repeated(4), memory, once, drawing())
    for row in range(len(asked.task_B)):
        assert sorted(found.id_BK[row].tolist()) == sorted(copies.id_BK[4 * row : 4 * row + 4].flatten().tolist())
        returns = memory.total_return_N[found.id_BK[row]]
        assert (returns.diff() >= 0).all()  # the best stands nearest, among all of them
    assert len({tuple(copies.id_BK[place].tolist()) for place in range(4)}) > 1
    assert torch.equal(found.random_B, asked.last_B < 30)


def test_queries_of_poor_trajectories_get_a_random_entry_of_their_task():
    memory, asked = world()
    lowest = float(asked.total_return_B.median())  # some query has just this return
    settings = RetrievalSettings(shortest_query=0, lowest_query_return=lowest)
    found = retrieve(asked, memory, settings, drawing())
    poor = asked.total_return_B < lowest
    assert torch.equal(found.random_B, poor) and 0 < poor.sum() < len(poor)
    assert (memory.task_N[found.id_BK[:, 0]] == asked.task_B)[poor].all()


def test_a_share_of_queries_reads_at_random_of_its_task_or_of_any():
    memory, asked = world(queries=400)
    base = {"shortest_query": 0, "select": 2}
    plain = retrieve(asked, memory, RetrievalSettings(**base), drawing())
    of_own = retrieve(asked, memory, RetrievalSettings(**base, random_task=0.5), drawing())
    of_any = retrieve(asked, memory, RetrievalSettings(**base, random_any=0.5), drawing())
    for found in (of_own, of_any):
        assert 0.4 < found.random_B.float().mean() < 0.6
        assert torch.equal(found.id_BK[~found.random_B], plain.id_BK[~found.random_B])
        assert (memory.episode_N[found.id_BK] != asked.episode_B[:, None]).all()
    same = memory.task_N[of_own.id_BK] == asked.task_B[:, None]
    assert same[of_own.random_B].all()
    same = memory.task_N[of_any.id_BK] == asked.task_B[:, None]
    assert same[of_any.random_B].float().mean() < 0.4


def test_a_random_neighbour_is_what_another_query_of_the_batch_retrieved():
    memory, asked = world(queries=400)
    base = {"shortest_query": 0, "select": 1}
    plain = retrieve(asked, memory, RetrievalSettings(**base), drawing())
    found = retrieve(asked, memory, RetrievalSettings(**base, random_neighbour=0.4), drawing())
    changed = found.id_BK != plain.id_BK
    assert 0.3 < changed.float().mean() < 0.45
    assert set(found.id_BK.flatten().tolist()) <= set(plain.id_BK.flatten().tolist())
    assert (memory.episode_N[found.id_BK] != asked.episode_B[:, None]).all()


@pytest.mark.parametrize("option", ["noise", "random_task", "random_any", "random_neighbour", "blends", "choose"])
def test_what_is_random_is_a_function_of_the_generator(option):
    value = {"blends": 3, "choose": "sample"}.get(option, 0.5)
    settings = RetrievalSettings(**{option: value}, blend=0.5)
    memory, asked = world()
    first, again, other = (retrieve(asked, memory, settings, drawing(seed)).id_BK for seed in (3, 3, 4))
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_an_approximate_engine_that_would_never_be_asked_is_refused():
    with pytest.raises(ValueError, match="the engine is 'ivf'"):
        RetrievalSettings(within=60, engine="ivf")
    assert RetrievalSettings(engine="ivf").within is None and RetrievalSettings(within=60).engine == "exact"


@pytest.mark.parametrize("engine", ["ivf", "hnsw"])
def test_an_approximate_search_finds_most_and_never_gives_a_wrong_score(engine):
    g = drawing()
    keys = normalised(torch.randn(3000, 16, generator=g))
    queries = normalised(keys[:64] + 0.1 * torch.randn(64, 16, generator=g))
    _, exact_ids = matmul_search(queries, keys, 10)
    search = approximate_search(keys, engine, 24)
    scores, ids = search(queries, 10)
    assert (ids[:, :, None] == exact_ids[:, None]).any(2).float().mean() > 0.85
    assert torch.equal(ids[:, 0], exact_ids[:, 0])
    torch.testing.assert_close(scores, (keys[ids] * queries[:, None]).sum(2))
    assert (scores.diff(dim=1) <= 0).all()
    again = approximate_search(keys, engine, 24)(queries, 10)
    assert torch.equal(again[1], ids) and torch.equal(again[0], scores)
    more, found = approximate_search(keys[:5], engine, 24)(queries[:2], 8)
    assert (
        (found[:, 5:] == -1).all() and (more[:, 5:] == NOTHING).all() and sorted(found[0, :5].tolist()) == [*range(5)]
    )
    least = approximate_search(keys, engine, 1)(queries, 10)[1]
    assert (least[:, :, None] == exact_ids[:, None]).any(2).float().mean() < (
        ids[:, :, None] == exact_ids[:, None]
    ).any(2).float().mean()


def test_noise_is_as_wide_as_each_entry_of_the_keys() -> None:
    memory, _ = world()
    torch.testing.assert_close(memory.spread_D, memory.keys_ND.std(0, unbiased=False))
