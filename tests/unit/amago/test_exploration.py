"""AMAGO's exploration: its schedules at their corners, and what noise does to each kind of action."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from recollect.amago.exploration import Exploration, ExplorationSettings, explored, level

BILEVEL = ExplorationSettings(anneal=1000)


@pytest.mark.parametrize(("k", "t", "expected"), [(0, 0, 1.0), (0, 50, 0.8), (1000, 0, 0.05), (1000, 50, 0.01),
                                                  (9999, 50, 0.01), (500, 25, (0.525 + 0.405) / 2)])  # fmt: skip
def test_bilevel_exploration_at_its_corners(k: int, t: int, expected: float) -> None:
    assert float(level(BILEVEL, k, np.array([t]), 50)[0]) == pytest.approx(expected)


def test_plain_exploration_falls_over_training_only_and_none_is_none() -> None:
    plain, none = (BILEVEL.model_copy(update={"kind": kind}) for kind in ("plain", "none"))
    for k, expected in ((0, 1.0), (500, 0.525), (1000, 0.05), (9999, 0.05)):
        assert level(plain, k, np.array([0, 25, 50]), 50) == pytest.approx([expected] * 3)
        assert not level(none, k, np.array([0, 25, 50]), 50).any()


def test_exploration_may_rise_and_is_never_below_nothing() -> None:
    rising = ExplorationSettings(start=(0.05, 1.0), kind="plain", anneal=100)
    assert [level(rising, k, np.zeros(1), 5)[0] for k in (0, 50, 100, 200)] == pytest.approx([0.05, 0.525, 1.0, 1.0])
    both = ExplorationSettings(end=(0.0, 0.5), anneal=100)
    assert [level(both, k, np.array([5]), 5)[0] for k in (0, 50, 100)] == pytest.approx([0.0, 0.25, 0.5])
    with pytest.raises(ValueError, match="greater than or equal to 0"):
        ExplorationSettings(start=(5.0, -3.0))
    one_step = Exploration(ExplorationSettings(kind="window", randomize=False), 2, 1, seed=0)
    assert one_step.epsilon(0, np.zeros(2, int)).tolist() == [1.0, 1.0]


def test_the_released_end_point_is_a_switch() -> None:
    defect = BILEVEL.model_copy(update={"end_defect": True})
    assert float(level(defect, 0, np.array([50]), 50)[0]) == pytest.approx(0.05)
    assert float(level(defect, 43, np.array([50]), 50)[0]) == pytest.approx(0.01)
    assert float(level(defect, 0, np.array([0]), 50)[0]) == pytest.approx(1.0)


def test_each_rollout_of_each_actor_has_a_factor_of_its_own() -> None:
    exploration = Exploration(BILEVEL, 500, 50, seed=0)
    first = exploration.epsilon(0, np.zeros(500))
    assert abs(first.mean() - 0.5) < 0.05
    assert first.max() < 1.0
    mask = np.arange(500) < 250
    exploration.begin(mask)
    second = exploration.epsilon(0, np.zeros(500))
    assert (first[~mask] == second[~mask]).all()
    assert not (first[mask] == second[mask]).any()
    fixed = Exploration(BILEVEL.model_copy(update={"randomize": False}), 3, 50, seed=0)
    assert fixed.epsilon(0, np.zeros(3)).tolist() == [1.0] * 3


def test_the_t_maze_explores_at_its_ends_only() -> None:
    settings = ExplorationSettings(kind="window", start=(1.0, 0.01), anneal=1000, randomize=False)
    newer = Exploration(settings, 1, 21, seed=0)  # a corridor of 20

    def at(exploration: Exploration, t: int, k: int = 0) -> float:
        return float(exploration.epsilon(k, np.array([t]))[0])

    assert [at(newer, t) for t in (0, 17, 20)] == [1.0] * 3
    assert [at(newer, t) for t in (1, 10, 16)] == [0.5 / 20] * 3
    assert at(newer, 20, 1000) == pytest.approx(0.01)
    released = Exploration(settings.model_copy(update={"never_anneals": True}), 1, 21, seed=0)
    assert [at(released, t, 10**6) for t in (0, 18, 20)] == [1.0] * 3
    assert [at(released, t) for t in (1, 17)] == [0.5 / 21] * 2


def test_noise_on_each_kind_of_action() -> None:
    draws, B = np.random.default_rng(0), 20_000
    half = np.full(B, 0.5)
    discrete = explored(np.zeros(B, np.int64), half, "discrete", 4, draws)
    assert (discrete != 0).mean() == pytest.approx(0.5 * 0.75, abs=0.02)  # any of all, also the policy's own
    bits = explored(np.zeros((B, 2), np.int64), half, "binary", 2, draws)
    assert bits.mean() == pytest.approx(0.25, abs=0.02)
    noisy = explored(np.zeros((B, 1), np.float32), half, "continuous", 1, draws)
    assert noisy.std() == pytest.approx(0.5 * 0.94, abs=0.03)
    assert np.abs(noisy).max() == 1.0
    assert noisy.dtype == np.float32
    for kind in ("discrete", "continuous"):
        action = np.zeros(3, np.int64) if kind == "discrete" else np.zeros((3, 1), np.float32)
        kept: Any = kind
        assert (explored(action, np.zeros(3), kept, 4, draws) == action).all()


def test_between_the_ends_of_a_t_maze_no_factor_is_drawn() -> None:
    exploration = Exploration(ExplorationSettings(kind="window"), 50, 21, seed=0)
    assert exploration.epsilon(0, np.full(50, 10)) == pytest.approx([0.5 / 20] * 50)
    assert len(set(exploration.epsilon(0, np.zeros(50)))) == 50
