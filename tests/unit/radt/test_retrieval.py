"""Training-time retrieval: every step against a plain loop."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from recollect.common.index import matmul_search
from recollect.radt.pooling import normalised
from recollect.radt.retrieval import (
    Queries,
    RetrievalSettings,
    TrainingMemory,
    blended,
    by_return,
    minmax,
    retrieve,
    scored,
    statistics,
)
from recollect.settings.errors import UserError

NOTHING = float("-inf")


def world(n=300, tasks=4, queries=40, seed=0, duplicates=False):
    g = torch.Generator().manual_seed(seed)
    keys = normalised(torch.randn(n, 6, generator=g))
    if duplicates:
        keys = keys[torch.randint(0, n // 4, (n,), generator=g)]
    episode = torch.arange(n) // 5
    task = episode // (n // 5 // tasks)
    memory = TrainingMemory(
        lambda q, k: matmul_search(q, keys, k),
        keys,
        task,
        episode,
        torch.randint(0, 20, (n,), generator=g).float(),
        torch.arange(n) % 5 * 10,
    )
    source = torch.randint(0, n, (queries,), generator=g)
    asked = Queries(
        normalised(keys[source] + 0.1 * torch.randn(queries, 6, generator=g)),
        task[source],
        episode[source],
        memory.total_return_N[source],
        torch.randint(0, 60, (queries,), generator=g),
    )
    return memory, asked


@pytest.mark.parametrize("within", [1, 3, 1000])
@pytest.mark.parametrize("duplicates", [False, True])
def test_within_looks_at_the_trajectories_around_the_query_only(within, duplicates):
    memory, asked = world(duplicates=duplicates)
    similarity, ids = memory.near(asked, asked.key_BD, within, 10)
    for row in range(len(ids)):
        scores = (memory.keys_ND @ asked.key_BD[row]).tolist()
        close = [
            i
            for i in range(len(scores))
            if memory.task_N[i] == asked.task_B[row] and abs(memory.episode_N[i] - asked.episode_B[row]) <= within
        ]
        found = [i for i in ids[row].tolist() if i >= 0]
        assert set(found) <= set(close) and len(found) == min(len(close), 10, ids.shape[1])
        best = sorted((scores[i] for i in close), reverse=True)[: len(found)]
        np.testing.assert_allclose([scores[i] for i in found], best, atol=1e-6)
        np.testing.assert_allclose(similarity[row, : len(found)].numpy(), best, atol=1e-6)


def test_within_holds_for_random_draws_too():
    memory, asked = world()
    settings = RetrievalSettings(kind="task", within=2, select=3)
    found = retrieve(asked, memory, settings, torch.Generator().manual_seed(0))
    away = (memory.episode_N[found.id_BK] - asked.episode_B[:, None]).abs()
    assert found.found_BK.all() and (away <= 2).all() and (away > 0).all()
    assert (memory.task_N[found.id_BK] == asked.task_B[:, None]).all()


def test_within_holds_for_a_query_behind_the_last_episode_that_has_an_entry():
    keys = torch.nn.functional.normalize(torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), dim=1)
    task, episode = torch.tensor([0, 0, 1, 1, 1, 1]), torch.tensor([0, 1, 10, 11, 12, 13])
    memory = TrainingMemory(
        lambda q, k: matmul_search(q, keys, k), keys, task, episode, torch.zeros(6), torch.full((6,), 20)
    )
    for at, near in ((13, {10, 11, 12}), (15, {12, 13}), (16, {13}), (17, {-1}), (40, {-1})):
        drawn = {
            int(i)
            for seed in range(40)
            for i in memory.draw(
                torch.tensor([1]), torch.tensor([at]), torch.Generator().manual_seed(seed), exclude_own=True, within=3
            )
        }
        assert {int(episode[i]) if i >= 0 else -1 for i in drawn} == near


@pytest.mark.parametrize("excluded", ["drop", "demote"])
def test_a_query_whose_task_has_no_other_episode_reads_a_window_of_another_task(excluded):
    """The task is a weight, as in the released code. Only a query that has seen too little asks its own task alone."""
    keys = normalised(torch.randn(20, 6, generator=torch.Generator().manual_seed(0)))
    episode = torch.arange(20) // 5
    task = (episode == 3).long()
    last = torch.arange(20) % 5 * 10
    memory = TrainingMemory(lambda q, k: matmul_search(q, keys, k), keys, task, episode, torch.zeros(20), last)
    seen = torch.tensor([40, 5])
    asked = Queries(keys[15:17], task[15:17], episode[15:17], torch.zeros(2), seen)
    found = retrieve(asked, memory, RetrievalSettings(excluded=excluded), torch.Generator().manual_seed(0))
    long, short = found.id_BK[:, 0].tolist()
    assert found.found_BK[0].all() and task[long] == 0
    assert short == -1 if excluded == "drop" else episode[short] == 3


def loop_minmax(values):
    low, high = min(values), max(values)
    return [0.0 if high == low else (v - low) / (high - low) for v in values]


def loop_scores(memory, asked, row, s):
    """The definition, one query at a time. Returns [(score, id)] in candidate order."""
    similarity = (memory.keys_ND.double() * asked.key_BD[row].double()).sum(1).float()
    candidates = sorted(range(len(similarity)), key=lambda i: (-similarity[i].item(), i))[: s.candidates]
    pairs = []
    for i in candidates:
        own = s.exclude_own and memory.episode_N[i] == asked.episode_B[row]
        copy = s.cut_off is not None and similarity[i] > s.cut_off
        if s.excluded == "drop" and (own or copy):
            continue
        pairs.append((-1.0 if copy else similarity[i].item(), i, bool(own)))
    pairs = sorted(pairs, key=lambda p: -p[0])[: s.keep]
    if not pairs:
        return []
    near = loop_minmax([p[0] for p in pairs])
    good = loop_minmax([memory.total_return_N[p[1]].item() for p in pairs])
    result = []
    for (_, i, own), a, b in zip(pairs, near, good, strict=True):
        same = memory.task_N[i] == asked.task_B[row]
        score = s.similarity_weight * a + s.task_weight * same.item() + s.return_weight * b
        score += s.position_weight * (same and memory.episode_N[i] < asked.episode_B[row]).item()
        score += s.improvement_weight * (memory.total_return_N[i] < asked.total_return_B[row]).item()
        result.append((-1.0 if own and s.excluded == "demote" else score, i))
    return result


VARIANTS = [
    {},
    {"excluded": "demote"},
    {"cut_off": None, "exclude_own": False, "position_weight": 1.0},
    {"cut_off": 0.9, "keep": 7},
    {"cut_off": 0.7, "candidates": 20, "keep": 20, "return_weight": 0.5, "excluded": "demote"},
    {"task_weight": 0.25, "return_weight": 2.0, "position_weight": 1.0, "improvement_weight": 0.5, "keep": 30},
]


@pytest.mark.quick(
    "False-{'cut_off': None, 'exclude_own': False, 'position_weight': 1.0}",
    "False-{'cut_off': 0.9, 'keep': 7}",
    "True-{}",
    "True-{'cut_off': 0.7, 'candidates': 20, 'keep': 20, 'return_weight': 0.5, 'excluded': 'demote'}",
    "False-{'task_weight': 0.25, 'return_weight': 2.0, 'position_weight': 1.0, 'improvement_weight': 0.5, 'keep': 30}",
)
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("duplicates", [False, True])
def test_scores_and_choice_equal_the_loop(variant, duplicates):
    settings = RetrievalSettings(**{"shortest_query": 0, **variant})
    memory, asked = world(duplicates=duplicates)
    similarity, ids = memory.search(asked.key_BD, settings.candidates)
    scores, kept = scored(similarity, ids, asked, memory, settings)
    for k in (1, 3):
        found = retrieve(asked, memory, settings.model_copy(update={"select": k}), torch.Generator().manual_seed(0))
        assert not found.random_B.any()
        for row in range(len(asked.task_B)):
            expected = loop_scores(memory, asked, row, settings)
            real = kept[row] >= 0
            assert kept[row][real].tolist() == [i for _, i in expected]
            np.testing.assert_allclose(scores[row][real], [x for x, _ in expected], atol=1e-6)
            assert (scores[row][~real] == NOTHING).all()
            # The vectorised scores choose (they agree with the loop's to 1e-6); order by (return, last timestep).
            exact = list(zip(scores[row][real].tolist(), [i for _, i in expected], strict=True))
            best = [i for _, i in sorted(exact, key=lambda pair: -pair[0])[:k]]
            best.sort(key=lambda i: (memory.total_return_N[i].item(), memory.last_N[i].item()))
            assert found.id_BK[row].tolist() == [-1] * (k - len(best)) + best


def test_without_a_cut_off_copies_of_the_query_are_retrieved():
    memory, asked = world()
    copy = (torch.arange(len(asked.task_B)) * 7) % len(memory.keys_ND)
    task, episode = memory.task_N[copy], torch.full_like(copy, -1)  # of a trajectory that is not in the memory
    asked = Queries(memory.keys_ND[copy], task, episode, memory.total_return_N[copy], torch.full_like(copy, 50))

    def found(cut_off):
        return retrieve(asked, memory, RetrievalSettings(cut_off=cut_off), torch.Generator().manual_seed(0))

    assert found(None).id_BK[:, 0].tolist() == copy.tolist()
    assert (found(0.98).id_BK[:, 0] != copy).all()
    above_every_cosine = found(2.0)
    for name in ("id_BK", "score_BK", "random_B"):
        assert torch.equal(getattr(found(None), name), getattr(above_every_cosine, name))


def test_what_is_as_similar_as_the_cut_off_stays():
    memory, asked = world(queries=1)
    similarity, ids = memory.search(asked.key_BD, 100)
    others = (memory.episode_N[ids] != asked.episode_B[:, None]) & (similarity > 0.5)
    place = int(others[0].nonzero()[-1])
    settings = RetrievalSettings(cut_off=float(similarity[0, place]))
    kept = scored(similarity, ids, asked, memory, settings)[1][0]
    assert kept[0] == ids[0, place] and not torch.isin(ids[0, :place], kept).any()


def test_defaults_never_give_a_copy_or_the_own_trajectory():
    memory, asked = world(duplicates=True)
    found = retrieve(asked, memory, RetrievalSettings(shortest_query=0), torch.Generator().manual_seed(0))
    chosen = found.id_BK[:, 0]
    assert (memory.episode_N[chosen] != asked.episode_B).all()
    assert ((memory.keys_ND[chosen] * asked.key_BD).sum(1) <= 0.98).all()
    same = (memory.task_N[chosen] == asked.task_B).float().mean()
    assert same > 0.9 and statistics(found, asked, memory)["same_task"] == pytest.approx(same.item())
    assert statistics(found, asked, memory)["same_trajectory"] == 0.0
    gap = (memory.total_return_N[chosen] - asked.total_return_B).abs().mean().item()
    assert statistics(found, asked, memory)["return_gap"] == pytest.approx(gap)
    some = torch.arange(len(chosen)) % 4 == 0  # means are over what was found
    fewer = replace(found, id_BK=found.id_BK.masked_fill(~some[:, None], -1))
    gap = (memory.total_return_N[chosen] - asked.total_return_B).abs()[some].mean().item()
    assert statistics(fewer, asked, memory)["return_gap"] == pytest.approx(gap)


def test_short_queries_get_a_random_entry_of_their_task():
    memory, asked = world()
    settings = RetrievalSettings(shortest_query=30)
    found = retrieve(asked, memory, settings, torch.Generator().manual_seed(0))
    again = retrieve(asked, memory, settings, torch.Generator().manual_seed(0))
    other = retrieve(asked, memory, settings, torch.Generator().manual_seed(1))
    short = asked.last_B < 30
    assert torch.equal(found.random_B, short) and 0 < short.sum() < len(short)
    assert (memory.task_N[found.id_BK[:, 0]] == asked.task_B)[short].all()
    assert (memory.episode_N[found.id_BK[:, 0]] != asked.episode_B)[short].all()
    assert torch.equal(found.id_BK, again.id_BK)
    assert (found.id_BK != other.id_BK)[short].any() and torch.equal(found.id_BK[~short], other.id_BK[~short])
    assert (found.score_BK[short] == 0).all()


def test_draws_are_uniform_over_the_task_without_the_own_trajectory():
    n = 12
    order = torch.tensor([7, 2, 9, 0, 5, 11, 3, 8, 1, 10, 4, 6])  # the table need not be sorted
    episode, task = (torch.arange(n) // 2)[order], (torch.arange(n) // 6)[order]
    memory = TrainingMemory(lambda q, k: (q, q), torch.eye(n), task, episode, torch.zeros(n), torch.zeros(n))
    draws = 6000
    g = torch.Generator().manual_seed(0)
    for own, exclude, any_task in (
        (4, True, False),
        (4, False, False),
        (4, True, True),
        (-1, True, False),
        (99, True, False),
    ):
        ids = memory.draw(
            torch.ones(draws, dtype=torch.long), torch.full((draws,), own), g, exclude_own=exclude, any_task=any_task
        )
        allowed = [
            i for i in range(n) if (any_task or task[i] == 1) and not (exclude and task[i] == 1 and episode[i] == own)
        ]
        counts = torch.bincount(ids, minlength=n)
        assert counts.nonzero().squeeze(1).tolist() == allowed
        assert (counts[allowed] - draws / len(allowed)).abs().max() < 5 * (draws / len(allowed)) ** 0.5
    assert memory.draw(torch.tensor([7]), torch.tensor([-1]), g, exclude_own=True).tolist() == [-1]


def test_a_task_with_no_other_trajectory_gets_no_context():
    memory = TrainingMemory(
        lambda q, k: matmul_search(q, torch.eye(3), k), torch.eye(3), *(torch.zeros(3) for _ in range(4))
    )
    asked = Queries(torch.eye(3)[:1], torch.tensor([0]), torch.tensor([0]), torch.zeros(1), torch.tensor([40]))
    found = retrieve(asked, memory, RetrievalSettings(select=2), torch.Generator().manual_seed(0))
    assert found.id_BK.tolist() == [[-1, -1]] and not found.found_BK.any() and found.random_B.all()
    assert (found.score_BK == NOTHING).all()
    as_released = RetrievalSettings(
        kind="task", excluded="demote"
    )  # what is drawn may be of the query's own trajectory
    assert retrieve(asked, memory, as_released, torch.Generator().manual_seed(0)).found_BK.all()


@pytest.mark.parametrize("kind", ["task", "uniform", "none"])
def test_sampling_kinds(kind):
    memory, asked = world(queries=200)
    memory.search = partial(pytest.fail, "sampling must not search")
    found = retrieve(asked, memory, RetrievalSettings(kind=kind, select=2), torch.Generator().manual_seed(0))
    if kind == "none":
        assert not found.found_BK.any()
        return
    same = memory.task_N[found.id_BK] == asked.task_B[:, None]
    assert found.found_BK.all() and (memory.episode_N[found.id_BK] != asked.episode_B[:, None]).all()
    assert same.all() if kind == "task" else 0.1 < same.float().mean() < 0.4


@pytest.mark.parametrize("share", [0.5, 0.25])
def test_blending_mixes_in_a_key_of_the_task_and_keeps_the_length(share):
    memory, asked = world()
    settings = RetrievalSettings(blend=share)
    ids = memory.draw(asked.task_B, asked.episode_B, torch.Generator().manual_seed(5), exclude_own=True)
    found = blended(asked, memory, settings, torch.Generator().manual_seed(5))
    for row in range(len(ids)):
        mixed = (1 - share) * asked.key_BD[row] + share * memory.keys_ND[ids[row]]
        torch.testing.assert_close(found[row], mixed / mixed.norm())
    unblended = retrieve(asked, memory, RetrievalSettings(), torch.Generator().manual_seed(0))
    assert not torch.equal(retrieve(asked, memory, settings, torch.Generator().manual_seed(0)).id_BK, unblended.id_BK)


def test_minmax_is_over_valid_places_only():
    values = torch.tensor([[1.0, 3.0, 2.0, 99.0], [5.0, 5.0, 0.0, 0.0], [1.0, 2.0, 3.0, 4.0]])
    valid = torch.tensor([[True, True, True, False], [True, True, False, False], [False] * 4])
    assert minmax(values, valid).tolist() == [[0, 1, 0.5, 0], [0] * 4, [0] * 4]


def test_windows_are_ordered_by_return_then_timestep():
    ids, scores = torch.tensor([[4, 7, -1, 9]]), torch.tensor([[1.0, 2.0, NOTHING, 3.0]])
    found, moved = by_return(ids, scores, torch.tensor([[5.0, 5.0, 99.0, 1.0]]), torch.tensor([[30, 20, 1, 50]]))
    assert found.tolist() == [[-1, 9, 7, 4]] and moved.tolist() == [[NOTHING, 3.0, 2.0, 1.0]]


def test_settings_refuse_unknown_keys_and_a_table_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="top_k"):
        RetrievalSettings(top_k=3)
    with pytest.raises(UserError, match="3 keys"):
        TrainingMemory(lambda q, k: (q, q), torch.eye(3), *(torch.zeros(2) for _ in range(4)))
