"""The counter-based generator is splitmix64, and its draws depend on (seed, counter) only."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from recollect.environments import counter_rng

WORDS = st.integers(0, 2**64 - 1)


def plain_mix(word: int) -> int:
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) % 2**64
    return word ^ (word >> 31)


def test_mix_gives_the_published_first_words_of_splitmix64_seed_1234567() -> None:
    states = np.array([1234567], dtype=np.uint64) + counter_rng.GAMMA * np.arange(1, 4, dtype=np.uint64)
    assert counter_rng.mix(states).tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@given(st.lists(st.tuples(WORDS, st.integers(0, 2**40)), min_size=1, max_size=20))
def test_draw_equals_whole_number_arithmetic_and_ignores_the_rest_of_the_batch(pairs: list[tuple[int, int]]) -> None:
    seeds = np.array([seed for seed, _ in pairs], dtype=np.uint64)
    counters = np.array([counter for _, counter in pairs], dtype=np.uint64)
    gamma = 0x9E3779B97F4A7C15
    expected = [plain_mix((plain_mix((s + gamma) % 2**64) + (c + 1) * gamma) % 2**64) for s, c in pairs]
    assert counter_rng.draw(seeds, counters).tolist() == expected


def test_integers_are_in_range_and_evenly_spread_over_counters_and_over_small_seeds() -> None:
    many = np.arange(70_000, dtype=np.uint64)
    same = np.full_like(many, 3)
    for drawn in (counter_rng.integers(same, many, 7), counter_rng.integers(many, same, 7)):
        counts = np.bincount(drawn, minlength=7)
        assert counts.size == 7
        assert abs(counts - 10_000).max() < 500  # 5 standard deviations


def test_bounds_may_differ_by_instance() -> None:
    bounds = np.array([1, 2, 1000] * 100)
    drawn = counter_rng.integers(np.arange(300, dtype=np.uint64), np.zeros(300, dtype=np.uint64), bounds)
    assert (drawn < bounds).all()
    assert (drawn[0::3] == 0).all()
    assert drawn[2::3].max() > 900


def test_instance_seeds_do_not_depend_on_how_many_there_are() -> None:
    assert counter_rng.instance_seeds(5, 9)[:4].tolist() == counter_rng.instance_seeds(5, 4).tolist()
    assert len(set(counter_rng.instance_seeds(5, 1000).tolist())) == 1000
