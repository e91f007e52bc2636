"""OpenSimplex noise of many points at once: bit for bit what the package `opensimplex` 0.4 gives for each of them.

The noise of a point is a sum over corners of the lattice around it: how near a corner is, times how far the point lies along
the corner's gradient. The seed chooses gradients and nothing else. So `Points` finds corners and distances once, and the noise
of a seed is a few products of arrays.

Numbers are computed in the package's order, and corners are added in its order, as other orders round otherwise.

P points, C corners of the lattice, N pairs of a point and a corner near it; 3 axes x, y, z.
"""

from __future__ import annotations

from itertools import product

import numpy as np

STRETCH, SQUISH = -1 / 6, 1 / 3
LARGEST = 103  # sum
FACTOR, SUMMAND = 6364136223846793005, 1442695040888963407  # of the seed's generator, which is linear, modulo 2^64
# 24 gradients: of eight signs, x's first and z's last, each with the long part on each axis.
GRADIENT_3G = np.array(
    [
        [sign * (11 if axis == long else 4) for axis, sign in enumerate(signs[::-1])]
        for signs in product((1, -1), (1, -1), (-1, 1))
        for long in range(3)
    ],
    np.float64,
).T.copy()


def permutation(seed: int) -> np.ndarray:
    """The numbers 0 to 255 in the seed's order, int64 [256]."""
    for _ in range(3):
        seed = (seed * FACTOR + SUMMAND) % 2**64
    left, order = list(range(256)), [0] * 256
    for i in range(255, -1, -1):
        seed = (seed * FACTOR + SUMMAND) % 2**64
        signed = seed - 2**64 if seed >= 2**63 else seed
        drawn = (signed + 31) % (i + 1)
        order[i], left[drawn] = left[drawn], left[i]
    return np.array(order)


def _corners() -> tuple[np.ndarray, np.ndarray]:
    """Where the corners are that count in each of 27 cases, in the order of adding: the sum of two parts, int8 [3, 8, 27].

    A cell of the lattice is a cube, cut into a lower tetrahedron at (0, 0, 0), an upper one at (1, 1, 1) and an octahedron. Its
    own corners come first, and then two of its neighbours', which depend on where in it a point is. The package subtracts the
    second part after all else. Cases of fewer corners are filled up with ones too far away to count.
    """
    units, ones = np.eye(3, dtype=int), np.ones(3, int)
    one_each, two_each = list(units), list(ones - units[::-1])
    lower, upper, octahedron = [0 * ones, *one_each], [*two_each, ones], [*one_each, *two_each]
    others = [(unit, units[[b for b in range(3) if b != axis]]) for axis, unit in enumerate(units)]
    cases = [[*lower, *(unit - other)] for unit, other in others]
    cases += [[*lower, ones - unit, ones - 2 * unit] for unit in units]
    cases += [[*upper, *(ones - unit + other)] for unit, other in others]
    cases += [[*upper, unit, 2 * unit] for unit in units]
    cases += [[*octahedron, ones, 2 * unit] for unit in units]
    cases += [[*octahedron, 0 * ones, ones - 2 * unit] for unit in units]
    cases += [[*octahedron, ones - 2 * unit, 2 * other] for unit in units for other in units]
    whole = np.array([case + [9 * ones] * (8 - len(case)) for case in cases], np.int8)
    late = np.zeros_like(whole)
    late[6:9, 4:6, 1] = whole[6:9, 4:6, 1] == 2  # of a 2 along y one half, along x and z nothing
    late[18:, 7] = whole[18:, 7]
    return (whole - late).T.copy(), late.T.copy()


FIRST, LATE = _corners()


def _in_tetrahedron(inside_3P: np.ndarray, origin_P: np.ndarray) -> np.ndarray:
    """0 to 2: the tetrahedron's right corner and that of this axis are nearest. 3 to 5: those of both other axes are."""
    x, y, z = inside_3P
    instead_of_x, instead_of_y = (x < y) & (z > x), (x >= y) & (z > y)
    a, axis_a = np.where(instead_of_x, z, x), np.where(instead_of_x, 2, 0)
    b, axis_b = np.where(instead_of_y, z, y), np.where(instead_of_y, 2, 1)
    nearest = np.where(b > a, axis_b, axis_a)
    return np.where((origin_P > a) | (origin_P > b), nearest, 6 - axis_a - axis_b)


def _in_octahedron(inside_3P: np.ndarray) -> np.ndarray:
    """The two nearest corners are: 12 to 14, upper ones that have this axis in common; 15 to 17, those of both other axes;
    18 to 26, an upper and a lower one: three times the axis that the upper one lacks, and that of the lower one.
    """
    x, y, z = inside_3P
    sums = x + y, x + z, y + z  # above 1: of two opposite corners the upper one is nearer
    up_a, up_b, up_c = (total > 1 for total in sums)
    a, b, c = (np.abs(total - 1) for total in sums)
    instead_of_a, instead_of_b = (a <= b) & (a < c), (a > b) & (b < c)
    axis_a, up_a = np.where(instead_of_a, 0, 2), np.where(instead_of_a, up_c, up_a)
    axis_b, up_b = np.where(instead_of_b, 0, 1), np.where(instead_of_b, up_c, up_b)
    mixed = 18 + np.where(up_a, 3 * axis_a + axis_b, 3 * axis_b + axis_a)
    return np.where(up_a == up_b, np.where(up_a, 15, 18) - axis_a - axis_b, mixed)


class Points:
    """Points whose noise is asked for again and again, by different seeds. 53,000 take 0.2 s to prepare and 13 MB."""

    def __init__(self, x_P: np.ndarray, y_P: np.ndarray, z_P: np.ndarray) -> None:
        place_3P = np.stack([x_P, y_P, z_P]).astype(np.float64)
        stretched_3P = place_3P + (place_3P[0] + place_3P[1] + place_3P[2]) * STRETCH
        cell_3P = np.floor(stretched_3P)
        inside_3P = stretched_3P - cell_3P
        from_cell_3P = place_3P - (cell_3P + (cell_3P[0] + cell_3P[1] + cell_3P[2]) * SQUISH)
        total_P = inside_3P[0] + inside_3P[1] + inside_3P[2]
        lower_P = _in_tetrahedron(inside_3P, 1 - total_P)
        upper_P = 6 + _in_tetrahedron(-inside_3P, total_P - 3)
        case_P = np.where(total_P <= 1, lower_P, np.where(total_P >= 2, upper_P, _in_octahedron(inside_3P)))

        first_38P, late_38P = FIRST[..., case_P], LATE[..., case_P]
        corner_38P = first_38P + late_38P
        distance_38P = from_cell_3P[:, None] - first_38P - corner_38P.sum(0) * SQUISH - late_38P
        x, y, z = distance_38P
        near_8P = 2 - x * x - y * y - z * z

        # Pairs: the first corner that counts of each point, then the second of those that have one, and so on. Points of
        # the most corners come first, so those of an n-th corner are the first ones.
        count_P = (near_8P > 0).sum(0)
        order_P = np.argsort(-count_P, kind="stable")
        which_8P = np.argsort(near_8P <= 0, axis=0, kind="stable")
        self._lengths = [int((count_P > n).sum()) for n in range(count_P.max(initial=0))]
        point_N = np.concatenate([order_P[:length] for length in self._lengths])
        which_N = np.concatenate([which_8P[n, order_P[:length]] for n, length in enumerate(self._lengths)])
        self._rank_P = np.argsort(order_P)
        squared_N = near_8P[which_N, point_N] ** 2
        self._weight_N = squared_N * squared_N
        self._distance_3N = distance_38P[:, which_N, point_N]
        x, y, z = (cell_3P.astype(np.int64)[:, point_N] + corner_38P[:, which_N, point_N]) & 255
        corner_C, self._corner_N = np.unique(x << 16 | y << 8 | z, return_inverse=True)
        self._corner_3C = corner_C >> 16, corner_C >> 8 & 255, corner_C & 255

    def noise(self, order: np.ndarray) -> np.ndarray:
        """The noise of all points, float64 [P] in -1 to 1, by the seed whose `permutation` this is."""
        x_C, y_C, z_C = self._corner_3C
        gradient_C = order[(order[(order[x_C] + y_C) & 255] + z_C) & 255] % GRADIENT_3G.shape[1]
        sum_N, along_N = np.empty_like(self._weight_N), np.empty_like(self._weight_N)
        for axis in range(3):
            into_N = along_N if axis else sum_N
            GRADIENT_3G[axis, gradient_C].take(self._corner_N, out=into_N, mode="clip")
            into_N *= self._distance_3N[axis]
            if axis:
                sum_N += along_N
        sum_N *= self._weight_N
        total_P = np.zeros(self._rank_P.size)
        at = 0
        for length in self._lengths:
            total_P[:length] += sum_N[at : at + length]
            at += length
        total_P /= LARGEST
        return total_P[self._rank_P]
