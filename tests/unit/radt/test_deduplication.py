"""Deduplication: greedy keep-first against a loop, and the released code's variant."""

import numpy as np
import pytest
import torch

from recollect.radt.chunks import ChunkSettings, cut_chunks
from recollect.radt.deduplication import deduplicate
from recollect.radt.memory_index import build_index
from recollect.radt.memory_settings import MemorySettings
from recollect.radt.pooling import normalised


def clustered(n=400, tasks=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(25, 12, generator=generator)
    which = torch.randint(0, 25, (n,), generator=generator)
    spread = torch.rand(n, 1, generator=generator) * 0.35
    keys = normalised(centres[which] + spread * torch.randn(n, 12, generator=generator))
    returns = torch.randint(0, 4, (n,), generator=generator).float()  # many are equal
    return keys, torch.randint(0, tasks, (n,), generator=generator), returns


def loop(keys, task, threshold, returns=None):
    keys = keys.double().numpy()
    kept = []
    for i in range(len(keys)):
        if not any(
            task[i] == task[j] and keys[i] @ keys[j] > threshold and (returns is None or returns[i] <= returns[j])
            for j in kept
        ):
            kept.append(i)
    return kept


@pytest.mark.quick("7-0", "64-1", "1000-2")
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("block", [7, 64, 1000])
def test_greedy_keeps_the_first_of_every_neighbourhood(seed, block):
    keys, task, returns = clustered(seed=seed)
    found = deduplicate(keys, task, threshold=0.9, block=block)
    assert found.kept.tolist() == loop(keys, task, 0.9)
    assert 0 < len(found.kept) < 400 and found.fraction == len(found.kept) / 400
    better = deduplicate(keys, task, threshold=0.9, block=block, total_return_N=returns)
    assert better.kept.tolist() == loop(keys, task, 0.9, returns)
    assert len(better.kept) > len(found.kept)


def test_copies_are_kept_once_per_task_and_never_vanish():
    keys = torch.eye(4)[torch.tensor([0, 0, 1, 0, 1, 2])]
    task = torch.tensor([0, 1, 0, 0, 0, 1])
    assert deduplicate(keys, task).kept.tolist() == [0, 1, 2, 5]


def test_upstream_mode_can_lose_a_whole_cluster():
    keys = torch.eye(4)[torch.tensor([0, 0, 1, 2, 0])]
    task = torch.tensor([0, 0, 0, 0, 1])
    assert deduplicate(keys, task, mode="upstream").kept.tolist() == [2, 3, 4]
    assert deduplicate(keys, task, mode="upstream", block=1).kept.tolist() == [0, 2, 3, 4]


def test_upstream_mode_only_looks_at_ten_neighbours():
    keys = torch.eye(2)[torch.zeros(30, dtype=torch.long)]
    kept = deduplicate(keys, torch.zeros(30, dtype=torch.long), mode="upstream", block=1).kept
    # Entry 0 removes 1..9; each later query's ten nearest (lowest ids first) are 0..9, so entry 0 goes next.
    assert kept.tolist() == list(range(10, 30))


def test_an_empty_memory_stays_empty():
    found = deduplicate(torch.zeros(0, 4), torch.zeros(0, dtype=torch.long))
    assert found.kept.tolist() == [] and found.fraction == 1.0 and found.kept.dtype == np.int64


def test_upstream_mode_removes_no_copy_of_a_higher_return_where_told_so():
    keys = torch.eye(3)[torch.tensor([0, 0, 0, 1])]
    task, returns = torch.zeros(4, dtype=torch.long), torch.tensor([2.0, 3.0, 2.0, 0.0])
    alone = deduplicate(keys, task, mode="upstream", block=1, total_return_N=returns)
    assert alone.kept.tolist() == [1, 3]  # 0 removes its equal 2, and then 1 removes 0


@pytest.mark.parametrize(
    ("chosen", "kept"),
    [
        ({}, [0, 4]),
        ({"deduplicate_worse_only": True}, [0, 2, 4]),
        ({"deduplicate_above": 1.0}, [0, 1, 2, 3, 4]),
        ({"deduplicate": "upstream", "deduplicate_neighbours": 1}, [1, 2, 3, 4]),
        ({"deduplicate": "upstream"}, [4]),
        ({"deduplicate": "none"}, [0, 1, 2, 3, 4]),
    ],
    ids=str,
)
def test_an_index_leaves_out_the_copies_that_its_memory_says(chosen, kept):
    """Of four equal keys one has a higher return. Asked for one neighbour, all find the first of them."""
    keys, column = torch.eye(3)[torch.tensor([0, 0, 0, 0, 1])], np.arange(5)
    chunks = cut_chunks(
        column, column * 0 + 5, column * 0, np.array([2.0, 1.0, 3.0, 2.0, 0.0]), ChunkSettings(5, 5, 5, 5)
    )
    index, left = build_index(keys, chunks, MemorySettings(embedder="method:dt", **chosen))
    assert left.episode.tolist() == kept and torch.equal(index.keys, keys[kept])
