"""Explicit generators, named by purpose. Nothing in the project draws from a global generator.

``seed_of("batches", seed, step)`` is a pure function, so whatever is drawn from it needs no saved state: a resumed run
draws the same numbers as one that was never stopped.
"""

from __future__ import annotations

import hashlib

import numpy as np


def seed_of(purpose: str, *keys: int | str) -> int:
    """A 63-bit seed that depends on the purpose and the keys only (not on the Python process or platform)."""
    text = "\x1f".join([purpose, *(str(key) for key in keys)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def generator(purpose: str, *keys: int | str) -> np.random.Generator:
    """A numpy generator of its own for one purpose, e.g. ``generator("batches", seed, step)``."""
    return np.random.Generator(np.random.PCG64(seed_of(purpose, *keys)))
