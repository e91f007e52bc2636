"""Random numbers as a pure function of (instance seed, draw counter), for whole batches at once.

Why not one numpy Generator per instance: drawing from B generators needs a Python loop, and their state is awkward to
save. Here instance i's n-th number depends on its own seed and n only, so it never matters which other instances stand
in the batch, and the state that a resume needs is one counter per instance.

The function is splitmix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators").
"""

from __future__ import annotations

import numpy as np

GAMMA = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio, the step of splitmix64's state


def mix(words: np.ndarray) -> np.ndarray:
    """splitmix64's finaliser: a bijection of 64-bit words whose output looks random. uint64 [...] -> uint64 [...]."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def draw(seeds: np.ndarray, counters: np.ndarray) -> np.ndarray:
    """The ``counters[i]``-th random word (from 0) of the stream ``seeds[i]``: three times uint64 [N].

    The seed is mixed first, so that seeds 0, 1, 2, ... give unrelated streams.
    """
    return mix(mix(seeds + GAMMA) + (counters + np.uint64(1)) * GAMMA)


def integers(seeds: np.ndarray, counters: np.ndarray, bounds: np.ndarray | int) -> np.ndarray:
    """One int64 in {0, ..., bound - 1} per instance, [N]; bounds of at most 2^31 (bias below bound / 2^32)."""
    high_words = draw(seeds, counters) >> np.uint64(32)
    return ((high_words * np.asarray(bounds, dtype=np.uint64)) >> np.uint64(32)).astype(np.int64)


def instance_seeds(seed: int, count: int) -> np.ndarray:
    """Seeds of ``count`` instances from one whole number; the i-th depends on ``seed`` and i only. uint64 [count]."""
    word = np.full(count, seed % 2**64, dtype=np.uint64)
    return draw(word, np.arange(count, dtype=np.uint64))
