"""Chunks: the window arithmetic, against a loop that follows the definition word by word."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recollect.radt.chunks import Chunks, ChunkSettings, cut_chunks, finished_chunks, window_rows
from recollect.radt.value_windows import ValueWindows
from recollect.settings.errors import UserError

GRIDS = ChunkSettings(stride=25, key_context=50, past=25, future=25)  # as released


def loop(starts, lengths, settings, partial):
    rows = []
    for episode, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        count = length // settings.stride
        if partial and length % settings.stride:
            count += 1
        for i in range(count):
            c = i * settings.stride
            e = min(max(c, 2), length)
            key = [start + t for t in range(max(0, e - settings.key_context), e)]
            low, high = max(0, c - settings.past), min(length, c + settings.future)
            if settings.full_values:
                low = max(0, min(c - settings.past, length - settings.value_length))
                high = min(length, low + settings.value_length)
            rows.append((episode, c, key, [start + t for t in range(low, high)]))
    return rows


def real(rows, mask):
    return [list(row[keep]) for row, keep in zip(rows, mask, strict=True)]


def test_windows_of_a_hundred_steps_are_those_of_the_specification():
    chunks = cut_chunks(np.array([1000]), np.array([100]), np.array([7]), np.array([3.5]), GRIDS)
    assert list(chunks.cut) == [0, 25, 50, 75]
    keys = list(zip(chunks.key_first - 1000, chunks.key_end - 1000, strict=True))
    values = list(zip(chunks.value_first - 1000, chunks.value_end - 1000, strict=True))
    assert keys == [(0, 2), (0, 25), (0, 50), (25, 75)]
    assert values == [(0, 25), (0, 50), (25, 75), (50, 100)]
    assert list(chunks.last) == [1, 24, 49, 74]
    assert list(chunks.task) == [7] * 4 and list(chunks.total_return) == [3.5] * 4


@given(
    lengths=st.lists(st.integers(1, 90), min_size=1, max_size=6),
    stride=st.integers(1, 30),
    context=st.integers(1, 40),
    past=st.integers(0, 30),
    future=st.integers(1, 30),
    full=st.booleans(),
    partial=st.booleans(),
)
def test_every_window_equals_the_loop(lengths, stride, context, past, future, full, partial):
    settings = ChunkSettings(stride=stride, key_context=context, past=past, future=future, full_values=full)
    starts = np.cumsum([5, *lengths[:-1]])
    columns = (starts, np.array(lengths), np.arange(len(lengths)), np.zeros(len(lengths)))
    chunks = cut_chunks(*columns, settings, keep_partial=partial)
    expected = loop(starts, lengths, settings, partial)
    assert list(zip(chunks.episode, chunks.cut, strict=True)) == [row[:2] for row in expected]
    everything = np.arange(len(chunks))
    key_rows, key_mask = chunks.key_windows(everything, context)
    values = ValueWindows(chunks, settings.value_length).whole(torch.from_numpy(everything))
    value_rows, value_mask = (part.numpy() for part in values)
    assert key_rows.shape == (len(expected), context) and value_rows.shape == (len(expected), past + future)
    assert real(key_rows, key_mask) == [row[2] for row in expected]
    assert real(value_rows, value_mask) == [row[3] for row in expected]


def test_padding_stands_on_the_left_and_never_leaves_the_episode():
    rows, mask = window_rows(np.array([40]), np.array([43]), 5)
    assert rows.tolist() == [[40, 40, 40, 41, 42]]
    assert mask.tolist() == [[False, False, True, True, True]]


def test_a_finished_episode_also_gives_its_last_incomplete_stride():
    chunks = finished_chunks(np.array([60, 20]), np.array([2.0, 1.0]), GRIDS)
    assert list(zip(chunks.task, chunks.cut, strict=True)) == [(0, 0), (0, 25), (0, 50), (1, 0)]
    assert (chunks.value_first[2], chunks.value_end[2]) == (25, 60)
    assert (chunks.value_first[3], chunks.value_end[3]) == (0, 20)
    assert list(chunks.total_return) == [2.0, 2.0, 2.0, 1.0]


def test_the_table_survives_a_round_trip_and_a_selection():
    chunks = cut_chunks(np.array([0, 50]), np.array([50, 75]), np.array([0, 1]), np.array([1.0, 2.0]), GRIDS)
    again = Chunks.from_arrays(chunks.to_arrays())
    assert {name: a.tolist() for name, a in again.to_arrays().items()} == {
        name: a.tolist() for name, a in chunks.to_arrays().items()
    }
    kept = chunks.take(np.array([1, 4]))
    assert list(kept.episode) == [0, 1] and list(kept.cut) == [25, 50] and len(kept) == 2


def test_bad_tables_are_refused():
    with pytest.raises(UserError, match="no step"):
        cut_chunks(np.array([0]), np.array([0]), np.array([0]), np.array([0.0]), GRIDS)
    with pytest.raises(UserError, match="differ in length"):
        cut_chunks(np.array([0, 1]), np.array([5]), np.array([0]), np.array([0.0]), GRIDS)
    arrays = cut_chunks(np.array([0]), np.array([50]), np.array([0]), np.array([0.0]), GRIDS).to_arrays()
    del arrays["cut"]
    with pytest.raises(UserError, match="no column cut"):
        Chunks.from_arrays(arrays)


def test_both_ends_of_a_shortened_value_are_uniform_around_its_cut():
    settings = ChunkSettings(stride=4, key_context=8, past=4, future=4)
    chunks = cut_chunks(np.array([100]), np.array([8]), np.array([0]), np.array([0.0]), settings)
    values = ValueWindows(chunks, settings.value_length)
    for entry, firsts, lasts in (
        (0, [100], [100, 101, 102, 103]),
        (1, [100, 101, 102, 103, 104], [104, 105, 106, 107]),
    ):
        chance = (torch.arange(100, dtype=torch.float64) + 0.5) / 100
        pairs = torch.cartesian_prod(chance, chance)
        rows, mask = values.shortened(torch.full((len(pairs),), entry), pairs)
        first, last = rows.masked_fill(~mask, 1000).amin(1), rows[:, -1]
        found = torch.stack([first, last], 1).unique(dim=0, return_counts=True)
        assert found[0].tolist() == [[a, b] for a in firsts for b in lasts]
        assert set(found[1].tolist()) == {len(pairs) // (len(firsts) * len(lasts))}
        assert (mask.sum(1) == last - first + 1).all()
