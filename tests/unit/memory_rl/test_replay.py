"""The episode replay: windows stay inside episodes, starts are uniform, the ring forgets the oldest first."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recollect.memory_rl.replay import Batch, EpisodeReplay
from recollect.settings.errors import UserError


def add(replay: EpisodeReplay, ids: list[int], lengths: list[int]) -> None:
    """Episodes whose numbers say what they are of: observation (id, t), action t + 1, reward id + t/1000."""
    longest = max(lengths)
    time = np.arange(longest + 1)
    number = np.array(ids)[:, None]
    observation = np.stack(np.broadcast_arrays(number, time), axis=-1).astype(np.float32)
    action = np.broadcast_to(time[1:], (len(ids), longest))
    reward = (number + time[:-1] / 1000).astype(np.float32)
    terminal = (time[1:] == np.array(lengths)[:, None]).astype(np.uint8)
    replay.add(observation, action, reward, terminal, np.array(lengths))


def check_windows(batch: Batch, lengths: dict[int, int]) -> None:
    observation, mask = batch.observation_BTD.numpy(), batch.mask_BT.numpy().astype(bool)
    n = mask.shape[1]
    for row in range(len(mask)):
        number, start = int(observation[row, 0, 0]), int(observation[row, 0, 1])
        length = lengths[number]
        assert start <= max(0, length - n)
        valid = min(n, length - start)
        assert mask[row].tolist() == [k < valid for k in range(n)]
        np.testing.assert_array_equal(observation[row, : valid + 1, 0], number)
        np.testing.assert_array_equal(observation[row, : valid + 1, 1], start + np.arange(valid + 1))
        np.testing.assert_array_equal(batch.action_BT[row, :valid], start + 1 + np.arange(valid))
        expected = np.float32(number + (start + np.arange(valid)) / 1000)
        np.testing.assert_allclose(batch.reward_BT[row, :valid], expected, atol=1e-6)
        np.testing.assert_array_equal(batch.terminal_BT[row, :valid], start + 1 + np.arange(valid) == length)


@settings(max_examples=60, deadline=None)
@given(
    rounds=st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=5), min_size=1, max_size=8),
    capacity=st.integers(10, 60),
    n=st.integers(1, 9),
)
def test_windows_stay_inside_the_episodes_that_a_plain_list_would_hold(
    rounds: list[list[int]], capacity: int, n: int
) -> None:
    replay = EpisodeReplay(capacity, 2, np.float32, "cpu")
    stored: list[tuple[int, int]] = []
    number = 0
    for lengths in rounds:
        ids = list(range(number, number + len(lengths)))
        add(replay, ids, lengths)
        number += len(lengths)
        stored += list(zip(ids, lengths, strict=True))
        while sum(length + 1 for _, length in stored) > capacity:
            stored.pop(0)
        assert replay.arrays()["length"].tolist() == [length for _, length in stored]
    batch = replay.sample(32, n, seed=0, counter=number)
    check_windows(batch, dict(stored))
    assert set(batch.observation_BTD[:, 0, 0].int().tolist()) <= {identity for identity, _ in stored}


def test_every_valid_start_is_equally_likely_in_episodes_of_different_length() -> None:
    replay = EpisodeReplay(1000, 2, np.float32, "cpu")
    add(replay, [0, 1, 2], [3, 5, 10])  # with n = 4: 1, 2 and 7 starts
    batch = replay.sample(30_000, 4, seed=1, counter=0)
    starts = batch.observation_BTD[:, 0].int().numpy()
    found, counts = np.unique(starts, axis=0, return_counts=True)
    assert found.tolist() == [[0, 0], [1, 0], [1, 1], *[[2, t] for t in range(7)]]
    assert np.abs(counts - 3000).max() < 5 * np.sqrt(3000)


def test_a_batch_is_a_function_of_contents_seed_and_counter() -> None:
    replay = EpisodeReplay(100, 2, np.float32, "cpu")
    add(replay, list(range(8)), [4] * 8)
    first = replay.sample(16, 3, seed=5, counter=9)
    replay.sample(16, 3, seed=5, counter=10)
    again, other = replay.sample(16, 3, seed=5, counter=9), replay.sample(16, 3, seed=5, counter=10)
    assert torch.equal(first.observation_BTD, again.observation_BTD)
    assert not torch.equal(first.observation_BTD, other.observation_BTD)


@pytest.mark.parametrize("episodes", [3, 11, 17, 40])  # the ring is not full; nearly; has just turned; has turned twice
def test_a_reloaded_replay_goes_on_with_the_same_bytes(episodes: int) -> None:
    first, second = (EpisodeReplay(64, 2, np.float32, "cpu") for _ in range(2))
    for number in range(episodes):
        add(first, [number], [1 + number % 6])
    second.load({name: np.array(value) for name, value in first.arrays().items()})
    for replay in (first, second):
        add(replay, [90, 91], [5, 2])
    for a, b in zip(first.arrays().items(), second.arrays().items(), strict=True):
        assert a[0] == b[0] and np.asarray(a[1]).tobytes() == np.asarray(b[1]).tobytes()
    assert torch.equal(
        first.sample(8, 3, seed=0, counter=0).observation_BTD, second.sample(8, 3, seed=0, counter=0).observation_BTD
    )


def test_bytes_stay_bytes_and_the_final_row_is_neutral() -> None:
    replay = EpisodeReplay(20, 3, np.uint8, "cpu")
    observation = np.arange(9, dtype=np.uint8).reshape(1, 3, 3) + 200
    replay.add(observation, np.array([[3, 2]]), np.array([[1.0, 2.0]]), np.array([[0, 0]]), np.array([2]))
    assert replay.observation.dtype == torch.uint8
    np.testing.assert_array_equal(replay.observation[:3], observation[0])
    stored = replay.arrays()
    assert stored["action"].tolist() == [3, 2, 0] and stored["reward"].tolist() == [1.0, 2.0, 0.0]
    assert stored["terminal"].tolist() == [0, 0, 1]  # a truncated episode bootstraps from its last transition
    assert replay.sample(1, 2, seed=0, counter=0).terminal_BT.tolist() == [[0.0, 0.0]]


def test_floats_come_out_to_the_bit() -> None:
    draws = np.random.default_rng(0)
    observation, action = (draws.normal(size=(1, n, 3)).astype(np.float32) for n in (5, 4))
    reward = draws.normal(size=(1, 4)).astype(np.float32)
    replay = EpisodeReplay(20, 3, np.float64, "cpu", action_size=3)
    replay.add(observation, action, reward, np.zeros((1, 4)), np.array([4]))
    batch = replay.sample(1, 4, seed=0, counter=0)
    for found, wanted in ((batch.observation_BTD, observation), (batch.action_BT, action), (batch.reward_BT, reward)):
        assert found.dtype == torch.float32 and np.array_equal(found, wanted)


def test_what_cannot_be_held_or_drawn_is_said() -> None:
    replay = EpisodeReplay(8, 2, np.float32, "cpu")
    with pytest.raises(UserError, match="no episode to draw"):
        replay.sample(1, 2, seed=0, counter=0)
    with pytest.raises(UserError, match="8 steps does not fit into a replay of 8 rows"):
        add(replay, [0], [8])
    with pytest.raises(UserError, match="holds no episode"):
        EpisodeReplay(1, 2, np.float32, "cpu")
