"""Symbolic Alchemy keeps the published rules: graphs, maps, rotations, what potions do and what stones are worth."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from recollect.environments import alchemy
from recollect.environments.alchemy import CORNERS_V3, PERMUTATIONS_P3, ROTATIONS_R33, graphs

STONE, POTION = slice(0, 15), slice(15, 39)


def make(count: int, **options: Any) -> alchemy.Alchemy:
    world = alchemy.World(alchemy.tasks("train", **options) * count, seeds=np.arange(count, dtype=np.uint64), **options)
    world.reset()
    return world


def seen(world: alchemy.Alchemy) -> np.ndarray:
    return world.reset(options={"reset_mask": np.zeros(world.num_envs, bool)})[0]


def test_there_are_109_graphs_and_each_number_of_constraints_is_as_likely() -> None:
    """1, 12, 48 and 48 graphs with 0, 1, 2 and 3 constraints, each number with chance 1/4 (dm_alchemy, graph_distr)."""
    edge_GV3, constraints_G = graphs()
    assert Counter(constraints_G.tolist()) == {0: 1, 1: 12, 2: 48, 3: 48}
    assert len({edge.tobytes() for edge in edge_GV3}) == 109
    drawn = np.bincount(constraints_G[make(8000).get_state()["graph"]], minlength=4) / 8000
    np.testing.assert_allclose(drawn, 0.25, atol=0.02)


def test_all_corners_hang_together_and_an_edge_is_one_in_both_directions() -> None:
    for edge_V3 in graphs()[0]:
        for axis in range(3):
            np.testing.assert_array_equal(edge_V3[:, axis], edge_V3[np.arange(8) ^ (1 << axis), axis])
        joined = np.eye(8, dtype=int)
        for v, axis in np.argwhere(edge_V3):
            joined[v, v ^ (1 << axis)] = 1
        assert (np.linalg.matrix_power(joined, 8) > 0).all()
    # A constraint asks for a value of another coordinate, so an axis has 4, 2 or 1 of its 4 edges.
    assert set((graphs()[0].sum(1) // 2).ravel().tolist()) == {1, 2, 4}


def test_rotations_are_by_45_degrees_and_scaled_to_whole_features() -> None:
    assert ROTATIONS_R33[0].tolist() == np.eye(3).tolist()
    for rotation, still in zip(ROTATIONS_R33[1:], (2, 1, 0), strict=True):
        turned = CORNERS_V3 @ rotation.T
        assert set(np.unique(turned)) == {-1.0, 0.0, 1.0}
        np.testing.assert_array_equal(turned[:, still], CORNERS_V3[:, still])
        assert ((turned == 0).sum(1) == 1).all() and len({tuple(corner) for corner in turned.tolist()}) == 8
        assert np.linalg.det(rotation) == pytest.approx(0.5)  # 45 degrees, shrunk by the root of 2 in two directions
        assert np.trace(rotation) == pytest.approx(2.0)


def test_parts_of_a_chemistry_are_uniform_and_independent_of_the_others() -> None:
    state = make(20_000).get_state()
    for name, many in (("potion_axes", 6), ("rotation", 4)):
        np.testing.assert_allclose(np.bincount(state[name], minlength=many) / 20_000, 1 / many, atol=0.012)
    for name in ("potion_signs", "stone_signs"):
        np.testing.assert_allclose((state[name] == 1).mean(0), 0.5, atol=0.015)
    both = np.bincount(state["rotation"] * 6 + state["potion_axes"]) / 20_000
    np.testing.assert_allclose(both, 1 / 24, atol=0.008)
    np.testing.assert_allclose(np.bincount(state["stones"].ravel()) / 60_000, 1 / 8, atol=0.006)
    np.testing.assert_allclose(np.bincount(state["potions"].ravel()) / 240_000, 1 / 6, atol=0.004)


def expected(state: dict[str, np.ndarray], b: int) -> list[float]:
    """The observation, from the text of dm_alchemy, item by item."""
    numbers: list[float] = []
    for s in range(3):
        if state["stones_used"][b, s]:
            numbers += [2, 2, 2, 2, 1]
            continue
        latent = [1 if state["stones"][b, s] >> axis & 1 else -1 for axis in range(3)]
        aligned = np.array([1 if x == sign else -1 for x, sign in zip(latent, state["stone_signs"][b], strict=True)])
        about = {1: 2, 2: 1, 3: 0}.get(int(state["rotation"][b]))
        if about is None:
            perceived = aligned.astype(float)
        else:  # the package's matrix takes perceived features to aligned ones: -45 degrees, the two others scaled by root 2
            i, j = [axis for axis in range(3) if axis != about]
            matrix = np.eye(3)
            matrix[i, i] = matrix[j, j] = 1
            matrix[i, j], matrix[j, i] = (1, -1) if about != 1 else (-1, 1)
            perceived = np.linalg.inv(matrix) @ aligned
        numbers += [*perceived.tolist(), sum(latent) / 3, 0]
    for p in range(12):
        if state["potions_used"][b, p]:
            numbers += [1, 1]
            continue
        axis, direction = state["potions"][b, p] // 2, 2 * (state["potions"][b, p] % 2) - 1
        pair = PERMUTATIONS_P3[state["potion_axes"][b]].tolist().index(axis)
        color = 2 * pair + (state["potion_signs"][b, axis] == direction)
        numbers += [color / 3 - 1, 0]
    return numbers


def test_observations_and_steps_are_those_of_a_plain_simulation() -> None:
    world, draws, B = make(40), np.random.default_rng(0), 40
    edges = graphs()[0]
    for step in range(1, 200):
        state = world.get_state()
        observation = seen(world)
        np.testing.assert_allclose(observation, [expected(state, b) for b in range(B)], atol=1e-6)
        assert world.observation_space.contains(observation)
        action = draws.integers(40, size=B)
        reward = world.step(action)[1]
        after = world.get_state()
        for b in range(B):
            stone, what = divmod(int(action[b]) - 1, 13)
            corner = int(state["stones"][b, stone])
            alive = action[b] > 0 and not state["stones_used"][b, stone]
            worth = {-3: -3, -1: -1, 1: 1, 3: 15}[int(CORNERS_V3[corner].sum())]
            assert reward[b] == (worth if alive and what == 0 else 0)
            if step % 20 == 0:  # a new trial: nothing is used, the chemistry is the same
                assert not after["stones_used"][b].any() and not after["potions_used"][b].any()
                continue
            if alive and what == 0:
                state["stones_used"][b, stone] = True
            elif alive and not state["potions_used"][b, what - 1]:
                axis, up = divmod(int(state["potions"][b, what - 1]), 2)
                state["potions_used"][b, what - 1] = True
                if edges[state["graph"][b], corner, axis] and (corner >> axis & 1) != up:
                    state["stones"][b, stone] = corner ^ (1 << axis)
            for name in ("stones", "stones_used", "potions_used", "graph", "rotation", "potion_axes", "stone_signs"):
                assert after[name][b].tolist() == state[name][b].tolist(), (name, step)
    kept = world.get_state()
    assert world.step(np.zeros(B, np.int64))[2].all() and world.horizon == 200
    for name in ("stones", "stones_used", "potions", "potions_used"):  # the last items stay in sight: no trial begins
        np.testing.assert_array_equal(world.get_state()[name], kept[name])


def test_the_simple_level_is_the_whole_cube_seen_as_it_is() -> None:
    world = make(500, bottleneck="none", rotation=False, randomized_mapping=False)
    state, observation = world.get_state(), seen(world)
    assert not state["graph"].any() and graphs()[0][0].all()
    np.testing.assert_array_equal(observation[:, STONE].reshape(500, 3, 5)[..., :3], CORNERS_V3[state["stones"]])
    np.testing.assert_allclose(observation[:, POTION].reshape(500, 12, 2)[..., 0], state["potions"] / 3 - 1, atol=1e-6)
