"""A replay knows which episodes it holds, and how many windows begin in each, whatever came and went."""

from __future__ import annotations

import numpy as np

from recollect.memory_rl.stored_episodes import StoredEpisodes


def test_what_is_stored_is_what_came_and_did_not_go() -> None:
    draws, stored = np.random.default_rng(0), StoredEpisodes()
    starts, lengths = np.zeros(0, np.int64), np.zeros(0, np.int64)
    for turn in range(300):
        new_starts, new_lengths = draws.integers(0, 1000, (2, draws.integers(0, 40)))
        stored.add(new_starts, new_lengths)
        starts, lengths = np.concatenate([starts, new_starts]), np.concatenate([lengths, new_lengths])
        gone = int(draws.integers(0, min(len(starts), 45) + 1))
        stored.drop(gone)
        starts, lengths = starts[gone:], lengths[gone:]
        assert len(stored) == len(starts)
        assert np.array_equal(stored.starts, starts) and np.array_equal(stored.lengths, lengths)
        for n in (1, 300) if turn % 3 else (300,):
            until_E, before = stored.windows(n)
            assert np.array_equal(until_E - before, np.cumsum(np.maximum(1, lengths - n + 1)))
    again = StoredEpisodes(starts, lengths)
    assert np.array_equal(again.starts, starts) and np.array_equal(
        again.windows(7)[0], np.cumsum(np.maximum(1, lengths - 6))
    )
