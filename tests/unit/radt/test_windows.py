"""Window sampling: the published rules, exactly, and a batch is a pure function of (seed, step)."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from recollect.common.histories import Histories
from recollect.radt.supervised import ExperienceStore
from recollect.radt.windows import DistillationSampler, QuerySampler, WindowSampler
from recollect.settings.errors import UserError


def histories_of(lengths_by_task, trailing=0):
    """Tasks with episodes of these lengths, each followed by `trailing` rows of an unfinished one."""
    done, task, episode = [], [], []
    for name, lengths in enumerate(lengths_by_task):
        for index, length in enumerate([*lengths, *([trailing] if trailing else [])]):
            done += [False] * (length - 1) + [index < len(lengths)]
            task += [name] * length
            episode += [index] * length
    rows = len(done)
    return Histories(
        {
            "observation": np.arange(2 * rows, dtype=np.int32).reshape(rows, 2),
            "action": np.zeros(rows, np.int8),
            "reward": np.zeros(rows, np.float32),
            "done": np.array(done),
            "task": np.array(task, np.int32),
            "episode": np.array(episode, np.int32),
        }
    )


LENGTHS = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=5), min_size=1, max_size=3)


@given(LENGTHS, st.integers(0, 2), st.integers(1, 12), st.integers(0, 5), st.integers(0, 99))
def test_a_window_is_the_steps_before_its_end_and_padding_is_on_the_left(lengths, trailing, context, seed, step):
    histories = histories_of(lengths, trailing)
    table = histories.episodes
    batch = WindowSampler(histories, context=context, batch_size=7, seed=seed).batch(step)
    assert batch.rows.shape == batch.mask.shape == (7, context)
    for b in range(7):
        length, first = table.length[batch.episode[b]], table.start[batch.episode[b]]
        assert 1 <= batch.end[b] <= max(1, length - 1)
        start = max(0, batch.end[b] - context)
        wanted = first + np.arange(start, batch.end[b])
        np.testing.assert_array_equal(batch.rows[b][batch.mask[b]], wanted)
        np.testing.assert_array_equal(batch.mask[b], np.arange(context) >= context - len(wanted))
        assert (batch.rows[b][~batch.mask[b]] == first).all()
        assert batch.earlier[b] == -1


@given(LENGTHS, st.integers(0, 2), st.integers(1, 12), st.integers(1, 6), st.integers(0, 99))
def test_a_distillation_window_is_the_earlier_episode_then_the_current_one(lengths, trailing, context, back, step):
    histories = histories_of(lengths, trailing)
    table = histories.episodes
    sampler = DistillationSampler(histories, context=context, episodes_back=back, batch_size=7, seed=1)
    batch = sampler.batch(step)
    assert batch.rows.shape == batch.mask.shape == (7, 2 * context)
    for b in range(7):
        current = int(batch.episode[b])
        task = table.task[current]
        first_of_task = int(np.flatnonzero(table.task == task)[0])
        # The published rule, for S = 2.
        start = max(current - back * (2 - 1), first_of_task)
        interval = max((current - start) // (2 - 1), 1)
        before = list(range(start, current, interval))
        assert batch.earlier[b] == (before[0] if before else -1) and len(before) <= 1
        wanted = []
        for earlier in before:
            length = int(table.length[earlier])
            wanted += list(table.start[earlier] + np.arange(max(0, length - context), length))
        wanted += list(table.start[current] + np.arange(max(0, batch.end[b] - context), batch.end[b]))
        np.testing.assert_array_equal(batch.rows[b][batch.mask[b]], wanted)
        np.testing.assert_array_equal(batch.mask[b], np.arange(2 * context) >= 2 * context - len(wanted))
        assert (batch.rows[b][~batch.mask[b]] == wanted[0]).all()
        assert (histories.task[batch.rows[b]] == task).all()


def test_the_earlier_episode_is_complete_and_k_places_before():
    histories = histories_of([[4] * 6, [3, 3]])
    sampler = DistillationSampler(histories, context=4, episodes_back=2, batch_size=1, seed=0)
    windows = sampler.windows(np.array([5, 1, 0, 7, 6]), np.array([3, 2, 2, 1, 1]))
    assert windows.earlier.tolist() == [3, 0, -1, 6, -1]
    assert windows.rows[0][windows.mask[0]].tolist() == [12, 13, 14, 15, 20, 21, 22]
    assert windows.rows[1][windows.mask[1]].tolist() == [0, 1, 2, 3, 4, 5]
    assert windows.rows[2][windows.mask[2]].tolist() == [0, 1]


@pytest.mark.parametrize("sampler", [WindowSampler, DistillationSampler])
def test_episodes_are_drawn_by_length_and_ends_uniformly(sampler):
    lengths = [[2, 5, 1], [3, 9]]
    histories = histories_of(lengths, trailing=2)
    more = {"episodes_back": 1} if sampler is DistillationSampler else {}
    drawn = sampler(histories, context=4, batch_size=4000, seed=0, **more)
    counts: Counter[tuple[int, int]] = Counter()
    for step in range(10):
        batch = drawn.batch(step)
        counts.update(zip(batch.episode.tolist(), batch.end.tolist(), strict=True))
    flat = [length for task in lengths for length in task]
    wanted = {}
    for episode, length in enumerate(flat):
        ends = range(1, max(2, length))
        for end in ends:
            wanted[episode, end] = 40_000 * length / sum(flat) / len(ends)
    assert counts.keys() == wanted.keys()
    places = sorted(wanted)
    assert chisquare([counts[p] for p in places], [wanted[p] for p in places]).pvalue > 1e-3


@settings(max_examples=20)
@given(st.integers(0, 2**40), st.integers(0, 2**40))
def test_a_batch_depends_on_seed_and_step_only(seed, step):
    histories = histories_of([[50] * 20])
    one = WindowSampler(histories, context=8, batch_size=32, seed=seed)
    one.batch(step + 1)
    again = WindowSampler(histories, context=8, batch_size=32, seed=seed).batch(step)
    np.testing.assert_array_equal(one.batch(step).rows, again.rows)
    assert (one.batch(step + 1).rows != again.rows).any()
    assert (WindowSampler(histories, context=8, batch_size=32, seed=seed + 1).batch(step).rows != again.rows).any()


def test_windows_of_the_columns_are_zero_where_padded():
    histories = histories_of([[6]])
    windows = WindowSampler(histories, context=4, batch_size=1, seed=0).windows(np.array([0]), np.array([3]))
    seen = ExperienceStore(histories, actions=5).windows(windows.rows, windows.mask)
    assert ((seen.timestep + 1) * seen.mask).tolist() == [[0, 1, 2, 3]]
    assert seen.timestep.tolist() == [[0, 0, 1, 2]]
    assert seen.observation.tolist() == [[[0, 0], [0, 1], [2, 3], [4, 5]]]


def test_numbers_below_one_are_refused():
    histories = histories_of([[6]])
    with pytest.raises(UserError, match="context is 0"):
        WindowSampler(histories, context=0, batch_size=1, seed=0)
    with pytest.raises(UserError, match="batch size is 0"):
        WindowSampler(histories, context=1, batch_size=0, seed=0)
    with pytest.raises(UserError, match="episodes_back is 0"):
        DistillationSampler(histories, context=1, episodes_back=0, batch_size=1, seed=0)
    with pytest.raises(UserError, match="queries is 0"):
        QuerySampler(histories, context=1, queries=0, batch_size=1, seed=0)


@given(LENGTHS, st.integers(0, 2), st.integers(1, 12), st.integers(1, 4), st.integers(0, 99))
def test_queries_are_steps_of_other_episodes_of_the_contexts_task(lengths, trailing, context, queries, seed):
    histories = histories_of(lengths, trailing)
    table = histories.episodes
    batch = QuerySampler(histories, context=context, queries=queries, batch_size=7, seed=seed).batch(3)
    assert batch.rows.shape == batch.mask.shape == (7, context) and batch.queries.shape == (7, queries)
    for b in range(7):
        asked = histories.episode_of_row(batch.queries[b])
        (task,) = set(table.task[asked].tolist())
        step = batch.queries[b] - table.start[asked]
        assert (step < np.maximum(table.length[asked] - 1, 1)).all()
        if len(lengths[task]) == 1:
            assert batch.context[b] == -1 and not batch.mask[b].any()
            continue
        assert table.task[batch.context[b]] == task and batch.context[b] not in asked
        past = table.start[batch.context[b]] + table.length[batch.context[b]]
        seen = min(context, table.length[batch.context[b]])
        np.testing.assert_array_equal(batch.rows[b][batch.mask[b]], np.arange(past - seen, past))
        np.testing.assert_array_equal(batch.mask[b], np.arange(context) >= context - seen)


def test_contexts_are_uniform_and_queries_are_drawn_as_the_ends_of_windows():
    lengths = [5, 1, 3, 9]
    table = histories_of([lengths]).episodes
    drawn = QuerySampler(histories_of([lengths]), context=4, queries=3, batch_size=4000, seed=0)
    contexts: Counter[int] = Counter()
    asked: Counter[tuple[int, int]] = Counter()
    for step in range(5):
        batch = drawn.batch(step)
        contexts.update(batch.context.tolist())
        asked.update((c, int(q)) for c, row in zip(batch.context, batch.queries, strict=True) for q in row)
    assert chisquare([contexts[e] for e in range(4)]).pvalue > 1e-3
    wanted = {}
    for context in range(4):
        others = sum(lengths) - lengths[context]
        for episode, length in enumerate(lengths):
            for step in range(max(1, length - 1)):
                share = length / others / max(1, length - 1)
                if episode != context:
                    wanted[context, int(table.start[episode]) + step] = 3 * contexts[context] * share
    assert asked.keys() == wanted.keys()
    places = sorted(wanted)
    assert chisquare([asked[p] for p in places], [wanted[p] for p in places]).pvalue > 1e-3


def test_a_share_of_contexts_is_dropped_and_a_batch_is_the_same_again():
    histories = histories_of([[5] * 4, [6] * 5])
    sampler = QuerySampler(histories, context=6, queries=2, batch_size=2000, seed=0, drop=0.25)
    batch, again = sampler.batch(7), QuerySampler(histories, context=6, queries=2, batch_size=2000, seed=0, drop=0.25)
    assert 0.2 < (batch.context == -1).mean() < 0.3
    assert (batch.mask.any(1) == (batch.context >= 0)).all()
    for name in ("rows", "mask", "queries", "context"):
        np.testing.assert_array_equal(getattr(batch, name), getattr(again.batch(7), name))
    assert (again.batch(8).queries != batch.queries).any()
