"""The test-time memory: equal to one loop per task, growing, and with ties that never depend on the batch."""

import numpy as np
import pytest
import torch

from recollect.radt.chunks import ChunkSettings, finished_chunks
from recollect.radt.episode_log import EpisodeLog
from recollect.radt.episodic_memory import EpisodicMemory, EpisodicSettings
from recollect.settings.errors import UserError

WIDTH = 6


class LoopMemory:
    """One task, lists and loops: the definition."""

    def __init__(self, settings):
        self.s, self.entries = settings, []

    def unit(self, vector):
        vector = vector.double().numpy()
        return vector / np.linalg.norm(vector) if self.s.similarity == "cosine" else vector

    def add(self, key, slot, first, end, last, total):
        if self.s.minimum_return is None or total >= self.s.minimum_return:
            self.entries.append((self.unit(key), slot, first, end, last, total))

    def search(self, query):
        q = self.unit(query)
        near = [(round(float(e[0] @ q) / 1e-6) * 1e-6, i) for i, e in enumerate(self.entries)]
        near = sorted(near, key=lambda pair: (-pair[0], pair[1]))[: self.s.candidates]
        if not near:
            return []

        def scale(values):
            low, high = min(values), max(values)
            return [0.0 if low == high else (v - low) / (high - low) for v in values]

        a, b = scale([v for v, _ in near]), scale([self.entries[i][5] for _, i in near])
        scores = {
            i: self.s.similarity_weight * x + self.s.return_weight * y for (_, i), x, y in zip(near, a, b, strict=True)
        }
        chosen = []
        while scores and len(chosen) < self.s.select:
            best = max(scores.values())
            index = min(i for i, v in scores.items() if v >= best - 1e-6)
            chosen.append((index, scores.pop(index)))
        return sorted(chosen, key=lambda pair: (self.entries[pair[0]][5], self.entries[pair[0]][4]))


VARIANTS = [
    {},
    {"similarity": "inner_product"},
    {"select": 3, "candidates": 10},
    {"return_weight": 0.25, "minimum_return": 4.0},
    {"similarity_weight": 0.0},
]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_equals_one_loop_per_task_while_it_grows(variant):
    settings = EpisodicSettings(**variant)
    g = torch.Generator().manual_seed(1)
    pool = torch.randn(12, WIDTH, generator=g)  # few distinct keys: many ties
    tasks = 4
    memory, loops = EpisodicMemory(tasks, 200, WIDTH, settings), [LoopMemory(settings) for _ in range(tasks)]
    for episode in range(12):
        playing = torch.arange(tasks)[torch.rand(tasks, generator=g) < 0.7]
        length = torch.randint(5, 60, (len(playing),), generator=g).numpy()
        total = torch.randint(0, 10, (len(playing),), generator=g).float().numpy()
        chunks = finished_chunks(length, total, ChunkSettings(stride=10, key_context=50, past=25, future=25))
        keys = pool[torch.randint(0, 12, (len(chunks),), generator=g)]
        task = playing.numpy()[chunks.task]
        columns = {
            "slot_M": np.full(len(chunks), episode),
            "first_M": chunks.value_first,
            "end_M": chunks.value_end,
            "last_M": chunks.last,
            "total_return_M": chunks.total_return,
        }
        memory.add(task, keys, owner_M=task, **columns)
        for row in range(len(chunks)):
            loops[task[row]].add(keys[row], *(column[row].item() for column in columns.values()))
        queries = torch.randn(tasks, WIDTH, generator=g)
        hits = memory.search(queries)
        assert memory.count_E.tolist() == [len(loop.entries) for loop in loops]
        for i in range(tasks):
            expected = loops[i].search(queries[i])
            found = hits.found_BK[i]
            assert hits.index_BK[i][found].tolist() == [index for index, _ in expected]
            np.testing.assert_allclose(hits.score_BK[i][found], [score for _, score in expected], atol=1e-9)
            for place, (index, _) in zip(found.nonzero().squeeze(1), expected, strict=True):
                _, slot, first, end, _, total_return = loops[i].entries[index]
                got = [x[i, place].item() for x in (hits.slot_BK, hits.first_BK, hits.end_BK, hits.total_return_BK)]
                assert got == [slot, first, end, total_return]
    assert memory.count_E.min() > 10


def one(memory, task, key, total, slot=0):
    places = {"slot_M": [slot], "first_M": [0], "end_M": [5], "last_M": [4]}
    memory.add([task], key[None], **places, total_return_M=[total], owner_M=[task])


def test_an_empty_memory_gives_no_context():
    memory = EpisodicMemory(2, 4, WIDTH, EpisodicSettings())
    one(memory, 1, torch.ones(WIDTH), 1.0, slot=3)
    hits = memory.search(torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(0)))
    assert hits.found_BK.tolist() == [[False], [True]] and hits.index_BK.tolist() == [[-1], [0]]
    assert hits.slot_BK.tolist() == [[0], [3]] and hits.end_BK.tolist() == [[0], [5]]
    memory.reset(torch.tensor([False, True]))
    assert not memory.search(torch.ones(2, WIDTH)).found_BK.any()


def test_return_decides_between_equal_keys_and_the_lowest_index_between_equal_entries():
    memory = EpisodicMemory(1, 5, WIDTH, EpisodicSettings())
    key = torch.randn(WIDTH, generator=torch.Generator().manual_seed(0))
    for total in (1.0, 7.0, 7.0, 3.0):
        one(memory, 0, key, total)
    assert memory.search(key[None]).index_BK.item() == 1


def test_noise_of_a_network_does_not_flip_a_tie():
    key = torch.randn(WIDTH, generator=torch.Generator().manual_seed(0))
    for noise in (-1e-7, 1e-7):
        memory = EpisodicMemory(1, 5, WIDTH, EpisodicSettings())
        one(memory, 0, key, 2.0)
        one(memory, 0, key * torch.tensor([1 + noise, *[1.0] * (WIDTH - 1)]), 2.0)
        one(memory, 0, torch.randn(WIDTH, generator=torch.Generator().manual_seed(1)), 0.0)
        assert memory.search(key[None]).index_BK.item() == 0


def test_a_task_answers_the_same_alone_and_in_a_batch():
    g = torch.Generator().manual_seed(2)
    big = EpisodicMemory(16, 60, WIDTH, EpisodicSettings())
    keys, totals = torch.randn(16, 60, WIDTH, generator=g), torch.rand(16, 60, generator=g)
    places = torch.arange(60).repeat(16)
    big.add(
        torch.arange(16).repeat_interleave(60),
        keys.flatten(0, 1),
        slot_M=places,
        first_M=places,
        end_M=places + 1,
        last_M=places,
        total_return_M=totals.flatten(),
        owner_M=places,
    )
    queries = torch.randn(16, WIDTH, generator=g)
    together = big.search(queries)
    some = torch.tensor([5, 2])
    chosen = big.search(queries[some], some)
    assert torch.equal(chosen.index_BK, together.index_BK[some])
    for i in range(16):
        alone = EpisodicMemory(1, 60, WIDTH, EpisodicSettings())
        p = torch.arange(60)
        alone.add(p * 0, keys[i], slot_M=p, first_M=p, end_M=p + 1, last_M=p, total_return_M=totals[i], owner_M=p)
        hits = alone.search(queries[i : i + 1])
        assert hits.index_BK[0].tolist() == together.index_BK[i].tolist()
        torch.testing.assert_close(hits.score_BK[0], together.score_BK[i], rtol=0, atol=1e-12)


def test_a_full_memory_and_a_wrong_width_are_refused():
    memory = EpisodicMemory(1, 1, WIDTH, EpisodicSettings())
    one(memory, 0, torch.ones(WIDTH), 1.0)
    with pytest.raises(UserError, match="holds 1 entries"):
        one(memory, 0, torch.ones(WIDTH), 1.0)
    with pytest.raises(UserError, match="do not fit"):
        one(memory, 0, torch.ones(WIDTH + 1), 1.0)


def test_the_log_gives_back_the_windows_that_were_played():
    log = EpisodeLog({"state": ((2,), torch.float32), "action": ((), torch.long)}, tasks=3, episodes=2, horizon=8)
    g = torch.Generator().manual_seed(0)
    state, action = torch.randn(2, 8, 2, generator=g), torch.randint(0, 5, (2, 8), generator=g)
    assert log.write(torch.tensor([2, 0]), {"state": state, "action": action}).tolist() == [0, 0]
    assert log.write(torch.tensor([0]), {"state": state[:1, :5] + 1, "action": action[:1, :5]}).tolist() == [1]
    windows, mask = log.windows(*(torch.tensor(x) for x in ([2, 0, 0, 1], [0, 0, 1, 0], [1, 0, 2, 0], [5, 8, 4, 0])), 8)
    assert mask.sum(1).tolist() == [4, 8, 2, 0] and mask[0].tolist() == [False] * 4 + [True] * 4
    assert torch.equal(windows["state"][0, 4:], state[0, 1:5]) and torch.equal(windows["action"][1], action[1])
    assert torch.equal(windows["state"][2, 6:], state[0, 2:4] + 1)
    with pytest.raises(UserError, match="room for 2 episodes"):
        log.write(torch.tensor([0]), {"state": state[:1], "action": action[:1]})
    log.reset(torch.tensor([True, False, False]))
    assert log.count_E.tolist() == [0, 0, 1]
