"""The test-time memory: what each option of retrieval promises. The published path is held by `test_episodic_memory`."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from recollect.radt.episodic_memory import EpisodicMemory, EpisodicSettings, Hits

WIDTH, ENTRIES = 4, 12


def filled(settings, tasks=3, *, empty=()):
    """Memories of random keys; entry i of a task has return i % 5 and last timestep i."""
    g = torch.Generator().manual_seed(0)
    memory = EpisodicMemory(tasks, ENTRIES, WIDTH, settings)
    task = torch.arange(tasks).repeat_interleave(ENTRIES)
    task = task[~torch.isin(task, torch.tensor(empty))] if empty else task
    place = torch.arange(len(task)) % ENTRIES
    memory.add(
        task,
        torch.randn(len(task), WIDTH, generator=g),
        slot_M=place,
        first_M=place,
        end_M=place + 1,
        last_M=place,
        total_return_M=(place % 5).float(),
        owner_M=task,
    )
    return memory, torch.randn(tasks, WIDTH, generator=g)


def test_without_a_weight_of_returns_similarity_alone_decides():
    memory, query = filled(EpisodicSettings(return_weight=0.0, select=3))
    unit = torch.nn.functional.normalize
    nearest = torch.bmm(memory.keys_ECD, unit(query.double())[:, :, None]).squeeze(2).topk(3).indices
    found = memory.search(query).index_BK
    assert [set(row) for row in found.tolist()] == [set(row) for row in nearest.tolist()]
    weighted = filled(EpisodicSettings(return_weight=1.0, select=3))[0].search(query).index_BK
    assert not torch.equal(weighted, found)


def test_the_best_and_the_last_are_found_whatever_the_query():
    memory, query = filled(EpisodicSettings(kind="max_return", select=2, candidates=3))
    for asked in (query, -query):
        assert memory.search(asked).index_BK.tolist() == [[4, 9]] * 3  # returns 4 and 4, the only ones
    memory, query = filled(EpisodicSettings(kind="last", select=2, candidates=3), empty=(1,))
    found = memory.search(query)
    assert [set(row) for row in found.index_BK.tolist()] == [{10, 11}, {-1}, {10, 11}]
    assert found.found_BK.tolist() == [[True, True], [False, False], [True, True]]


@pytest.mark.parametrize("kind", ["random", "return"])
def test_entries_are_drawn_with_the_chances_that_are_promised(kind):
    memory, query = filled(EpisodicSettings(kind=kind, select=2))
    counts = torch.zeros(ENTRIES)
    g = np.random.default_rng(0)
    for _ in range(800):
        counts += torch.bincount(memory.search(query, chance_BK=g.random((3, 2))).index_BK.flatten(), minlength=ENTRIES)
    weight = (torch.arange(ENTRIES) % 5).double() if kind == "return" else torch.ones(ENTRIES).double()
    assert counts[weight == 0].sum() == 0
    expected = weight / weight.sum() * counts.sum()
    assert chisquare(counts[weight > 0].double().numpy(), expected[weight > 0].numpy()).pvalue > 1e-3


def test_a_draw_from_an_empty_memory_finds_nothing():
    memory, query = filled(EpisodicSettings(kind="random"), empty=(0,))
    found = memory.search(query, chance_BK=np.full((3, 1), 0.999))
    assert found.found_BK[:, 0].tolist() == [False, True, True] and found.index_BK[0, 0] == -1


def test_a_sampled_score_is_sometimes_not_the_best_and_always_a_candidate():
    best, query = filled(EpisodicSettings(candidates=4))
    memory, _ = filled(EpisodicSettings(candidates=4, choose="sample"))
    everything = filled(EpisodicSettings(candidates=4, select=4))[0].search(query).index_BK
    drawn = [memory.search(query, chance_BK=np.full((3, 1), c)).index_BK for c in np.linspace(0, 0.99, 40)]
    for row in range(3):
        seen = {int(found[row, 0]) for found in drawn}
        assert int(best.search(query).index_BK[row, 0]) in seen and len(seen) > 1
        assert seen <= set(everything[row].tolist())


def test_a_product_of_similarity_and_return():
    memory, query = filled(EpisodicSettings(combine="multiply", similarity_weight=2.0, return_weight=0.5, select=12))
    found = memory.search(query)
    torch.testing.assert_close(found.score_BK, 2.0 * found.similarity_BK * 0.5 * found.total_return_BK)
    alone, _ = filled(EpisodicSettings(combine="multiply", return_weight=0.0, select=12))
    found = alone.search(query)
    torch.testing.assert_close(found.score_BK, found.similarity_BK)
    returns, _ = filled(EpisodicSettings(combine="multiply", similarity_weight=0.0, select=12))
    found = returns.search(query)
    torch.testing.assert_close(found.score_BK, found.total_return_BK.double())


def test_a_shared_memory_gives_each_query_what_one_memory_of_its_own_would():
    alone, query = filled(EpisodicSettings(select=2), tasks=1)
    many = torch.cat([query, -query, query + 1])
    shared = alone.search(many, torch.zeros(3, dtype=torch.long))
    for row in range(3):
        one = alone.search(many[row : row + 1])
        for name in one.__dataclass_fields__:
            assert getattr(one, name)[0].tolist() == getattr(shared, name)[row].tolist(), name


def test_entries_say_whose_episode_they_are():
    memory = EpisodicMemory(1, 4, WIDTH, EpisodicSettings(select=2))
    place = torch.zeros(2, dtype=torch.long)
    memory.add(
        place,
        torch.eye(WIDTH)[:2],
        slot_M=place,
        first_M=place,
        end_M=place + 3,
        last_M=place,
        total_return_M=torch.tensor([1.0, 2.0]),
        owner_M=torch.tensor([7, 3]),
    )
    assert memory.search(torch.eye(WIDTH)[:1]).owner_BK.tolist() == [[7, 3]]


def test_the_highest_return_in_memory():
    memory, _ = filled(EpisodicSettings(), empty=(1,))
    assert memory.best_return(torch.tensor([2, 1])).tolist() == [4.0, float("-inf")]
    memory.reset(torch.tensor([False, False, True]))
    assert memory.best_return(torch.tensor([2])).tolist() == [float("-inf")]


def test_a_memory_that_was_put_back_answers_as_before():
    memory, query = filled(EpisodicSettings(select=3))
    again = EpisodicMemory(*memory.keys_ECD.shape, memory.settings)
    again.load_state(memory.state_arrays())
    for name in Hits.__dataclass_fields__:
        assert torch.equal(getattr(memory.search(query), name), getattr(again.search(query), name)), name


@pytest.mark.parametrize("name", ["owner_BK", "slot_BK", "first_BK", "end_BK"])
def test_what_stands_elsewhere_in_the_log_differs(name):
    memory, query = filled(EpisodicSettings(select=2))
    found = memory.search(query)
    elsewhere = getattr(found, name).clone()
    elsewhere[0, 1] += 1
    assert found.differ(replace(found, **{name: elsewhere})).tolist() == [True] + [False] * (len(query) - 1)
    assert not found.differ(replace(found, score_BK=found.score_BK + 1)).any()
