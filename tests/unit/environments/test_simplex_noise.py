"""Noise of many points at once is, bit for bit, what the package `opensimplex` gives for each of them."""

from __future__ import annotations

import numpy as np
import pytest

from recollect.environments.simplex_noise import GRADIENT_3G, Points, permutation

opensimplex = pytest.importorskip("opensimplex", reason="opensimplex is not installed")
internals = pytest.importorskip("opensimplex.internals", reason="opensimplex is not installed")

SEEDS = (0, 3, 7_919, 2**31 - 2, -5)


def test_gradients_and_permutations_are_the_packages() -> None:
    assert GRADIENT_3G.T.ravel().tolist() == opensimplex.constants.GRADIENTS3.tolist()
    for seed in SEEDS:
        assert permutation(seed).tolist() == opensimplex.OpenSimplex(seed)._perm.tolist()


@pytest.mark.parametrize("seed", SEEDS)
def test_noise_is_the_packages_to_the_last_bit(seed: int) -> None:
    """Anywhere, and on a grid, where places lie on the borders of the lattice's cells and are as near to several corners."""
    draws = np.random.default_rng(seed % 2**32)
    anywhere_P3 = draws.uniform(-300, 300, (1000, 3))
    grid_P3 = draws.integers(-60, 60, (1000, 3)) / draws.choice([1, 2, 3, 6, 15], (1000, 1))
    place_P3 = np.concatenate([anywhere_P3, grid_P3])
    package = opensimplex.OpenSimplex(seed)
    noise3 = getattr(internals._noise3, "py_func", internals._noise3)  # numba would take seconds to compile it
    expected = [float(noise3(*place, package._perm, package._perm_grad_index3)) for place in place_P3.tolist()]
    noise_P = Points(*place_P3.T).noise(permutation(seed))
    assert noise_P.tolist() == expected and np.abs(noise_P).max() > 0.6
