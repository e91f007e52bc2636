"""Histories: what is derived from the rows, and which files are refused."""

from __future__ import annotations

import logging
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recollect.artifacts.sealed import write_arrays
from recollect.common import histories as module
from recollect.common.histories import Histories
from recollect.settings.errors import UserError


def history_of(lengths_by_task, unfinished=(), tasks=None, seed=0):
    """Columns of tasks with episodes of these lengths; `unfinished` maps places of tasks to trailing rows."""
    draw = np.random.default_rng(seed)
    done, task, episode = [], [], []
    for place, lengths in enumerate(lengths_by_task):
        name = place if tasks is None else tasks[place]
        trailing = dict(unfinished).get(place, 0)
        for index, length in enumerate([*lengths, *([trailing] if trailing else [])]):
            ends = not (trailing and index == len(lengths))
            done += [False] * (length - 1) + [ends]
            task += [name] * length
            episode += [index] * length
    rows = len(done)
    return {
        "observation": draw.integers(0, 10, (rows, 2)).astype(np.int8),
        "action": draw.integers(0, 5, rows).astype(np.int8),
        "reward": draw.integers(0, 2, rows).astype(np.float32),
        "done": np.array(done),
        "task": np.array(task, np.int32),
        "episode": np.array(episode, np.int32),
    }


lengths_strategy = st.lists(st.lists(st.integers(1, 7), min_size=1, max_size=4), min_size=1, max_size=4)


@given(lengths_strategy, st.integers(0, 3), st.integers(0, 1000))
def test_everything_derived_agrees_with_a_loop_over_the_rows(lengths_by_task, trailing, seed):
    unfinished = {0: trailing} if trailing else {}
    columns = history_of(lengths_by_task, unfinished, seed=seed)
    histories = Histories(columns)
    histories.validate(observation_low=0, observation_high=9, actions=5)
    table = histories.episodes
    assert histories.incomplete_episodes == len(unfinished) and histories.incomplete_transitions == trailing
    row, place = 0, 0
    for task, lengths in enumerate(lengths_by_task):
        first = place
        for index, length in enumerate(lengths):
            inside = slice(row, row + length)
            rewards = columns["reward"][inside]
            assert (table.start[place], table.length[place], table.task[place]) == (row, length, task)
            assert (table.index[place], table.first_of_task[place]) == (index, first)
            assert table.total_return[place] == rewards.sum()
            np.testing.assert_array_equal(histories.timestep[inside], np.arange(length))
            np.testing.assert_array_equal(histories.return_to_go[inside], np.cumsum(rewards[::-1])[::-1])
            np.testing.assert_array_equal(histories.episode_of_row(np.arange(row, row + length)), place)
            row, place = row + length, place + 1
        row += unfinished.get(task, 0)
    assert len(table) == place


def test_the_unfinished_last_episode_of_each_task_is_left_out_and_counted(caplog):
    with caplog.at_level(logging.INFO):
        histories = Histories(history_of([[3, 2], [4], [2]], {0: 2, 2: 1}), where="some.safetensors")
    assert histories.episodes.start.tolist() == [0, 3, 7, 11]
    assert histories.incomplete_episodes == 2 and histories.incomplete_transitions == 3
    assert "some.safetensors: 2 unfinished last episodes (3 of 14 transitions)" in caplog.text
    for row in (5, 13, -1, 14):
        with pytest.raises(IndexError):
            histories.episode_of_row(np.array([0, row]))
    with pytest.raises(IndexError):  # of a first task without any complete episode
        Histories(history_of([[], [3]], {0: 2})).episode_of_row(np.array([0]))


def test_a_file_is_read_through_a_memory_map_and_comes_back_as_it_was(tmp_path):
    columns = history_of([[5, 5], [5]], tasks=[3, 8])
    write_arrays(tmp_path / "histories.safetensors", columns, kind="histories")
    histories = Histories.open(tmp_path / "histories.safetensors")
    assert not histories.observation.flags.owndata and not histories.observation.flags.writeable
    for name, column in columns.items():
        assert histories.arrays()[name].dtype == column.dtype
        np.testing.assert_array_equal(histories.arrays()[name], column)
    assert len(histories) == 15 and histories.episodes.task.tolist() == [3, 3, 8]


def test_returns_far_into_long_histories_are_exact():
    columns = history_of([[50] * 4000])
    columns["reward"] = np.full(len(columns["reward"]), 0.1, np.float32)
    histories = Histories(columns)
    np.testing.assert_allclose(histories.return_to_go[-50:], np.arange(50, 0, -1) * 0.1, rtol=1e-6)
    np.testing.assert_allclose(histories.episodes.total_return, 5.0, rtol=1e-6)


def test_continuous_actions_are_kept():
    columns = history_of([[3, 3]])
    columns["action"] = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    Histories(columns).validate()
    columns["action"][4, 2] = np.inf
    with pytest.raises(UserError, match=r"action has a value that is not finite: row 4 "):
        Histories(columns).validate()


def changed(**changes):
    columns = history_of([[3, 2], [4]])
    for name, change in changes.items():
        columns[name] = change(columns[name].copy())
    return columns


def put(row, value):
    def change(column):
        column[row] = value
        return column

    return change


@pytest.mark.parametrize("block", [1, module.BLOCK])
@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"reward": np.zeros(3, np.float32)}, "no column observation, action, done, task, episode"),
        (changed(action=lambda c: c[:-1]), "action has 8 rows, the column reward has 9"),
        (changed(observation=lambda c: c[:, 0]), r"observation has the wrong shape, \(9,\)"),
        (changed(reward=lambda c: c[:, None]), r"reward has the wrong shape, \(9, 1\)"),
        (changed(done=lambda c: c.astype(np.int8)), "done has the wrong type, int8"),
        (changed(reward=lambda c: c.astype(np.int64)), "reward has the wrong type, int64"),
        (changed(action=lambda c: c.astype(np.float32)), "no axis of action dimensions"),
        (changed(done=np.zeros_like), "no complete episode in 9 transitions"),
        (changed(reward=put(6, np.nan)), r"reward has a value that is not finite: row 6 \(task 1\) has nan"),
        (changed(observation=put((2, 1), -1)), r"below its range: row 2 .* has \["),
        (changed(observation=put((slice(3, 5), 0), 10)), r"above its range: row 3 .*, and 1 more"),
        (changed(action=put(1, 5)), "no such action: row 1 .* has 5"),
        (changed(action=put(1, -1)), "no such action: row 1 .* has -1"),
        (changed(task=put(slice(5, 9), -1)), r"not contiguous and ascending: row 5 \(task -1\)"),
        (changed(task=put(8, 0)), r"not contiguous and ascending: row 8 \(task 0\)"),
        (changed(episode=put(4, 7)), "episode number does not follow from task and done: row 4 .* has 7"),
        (changed(done=put(1, True)), "episode number does not follow from task and done: row 2 "),
    ],
)
def test_histories_that_are_none_are_refused_with_the_row(columns, message, block, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", block)
    with pytest.raises(UserError, match=message) as error:
        Histories(columns, where="file.safetensors").validate(observation_low=0, observation_high=9, actions=5)
    assert "where: file.safetensors" in str(error.value) and "to do: " in str(error.value)


def test_a_table_is_checked_in_blocks_that_take_little_memory_beside_it(monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 1 << 16)
    columns = history_of([[50] * 4] * 10)
    columns["observation"] = np.zeros((2000, 1000), np.float32)  # 8 MB
    histories = Histories(columns)
    tracemalloc.start()
    histories.validate(observation_low=0, observation_high=9, actions=5)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 500_000


def test_a_file_with_wrong_contents_is_refused_when_it_is_opened(tmp_path):
    path = tmp_path / "histories.safetensors"
    write_arrays(path, changed(reward=put(6, np.nan)), kind="histories")
    with pytest.raises(UserError, match="not finite"):
        Histories.open(path)
    write_arrays(path, changed(), kind="embeddings")
    with pytest.raises(UserError, match="embeddings"):
        Histories.open(path)
