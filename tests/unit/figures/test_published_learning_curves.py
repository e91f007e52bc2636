"""Memory-RL's published plot pipeline, step by step on curves whose result can be written down."""

from __future__ import annotations

import numpy as np
import pytest

from recollect.common.curve_end import part_of_curve, smoothed
from recollect.figures import learning_curves as curves


def test_smoothing_is_a_trailing_mean_of_ten_with_a_short_start() -> None:
    values = np.arange(30.0)
    smooth = smoothed(values)
    assert smooth[0] == 0.0
    assert smooth[3] == pytest.approx(1.5)
    assert smooth[9] == pytest.approx(4.5)
    assert smooth[29] == pytest.approx(np.mean(values[20:]))


def test_grid_is_300_whole_steps_from_zero_to_the_end() -> None:
    grid = curves.grid(1_000_000)
    assert (len(grid), grid[0], grid[1], grid[-1]) == (300, 0, 3344, 1_000_000)  # 1e6 / 299 = 3344.48, cut off


def test_interpolation_is_linear_and_stops_at_the_last_evaluation() -> None:
    end = 2990
    steps = np.arange(100, 2801, 100)
    run = curves.curve(0, steps, steps.astype(float), end, window=1)
    there = run.steps <= 2800
    inner = there & (run.steps >= 100)
    assert np.allclose(run.values[inner], run.steps[inner])
    assert np.isnan(run.values[~there]).all() and (~there).sum() == 19
    assert (run.values[run.steps < 100] == 100).all()  # as published: held at the first evaluation


def test_final_value_is_the_mean_of_the_last_fifteen_points_of_the_run() -> None:
    steps = np.arange(100, 2801, 100)
    run = curves.curve(0, steps, steps.astype(float), 2990, window=1)
    assert run.final == pytest.approx(np.mean(np.arange(2660, 2801, 10)))
    whole = curves.curve(0, np.array([0, 2990]), np.array([0.0, 2990.0]), 2990, window=1)
    assert whole.final == pytest.approx(np.mean(np.arange(2850, 2991, 10)))


def test_a_part_within_a_curve_is_the_mean_of_its_own_points() -> None:
    found = part_of_curve(np.array([0, 2990]), np.array([0.0, 2990.0]), (0.2, 0.6), window=1)
    assert found == pytest.approx(np.mean(np.arange(600, 1800, 10)))


@pytest.mark.parametrize(("last", "complete"), [(899, False), (900, True), (1000, True), (1200, True)])
def test_a_run_is_complete_from_nine_tenths_of_the_end(last: int, complete: bool) -> None:
    assert curves.is_complete(np.array([10, last]), 1000) is complete


def test_average_goes_on_with_the_runs_that_do() -> None:
    long = curves.curve(0, np.array([0, 1000]), np.array([1.0, 1.0]), 1000)
    short = curves.curve(1, np.array([0, 950]), np.array([3.0, 3.0]), 1000)
    band, runs = curves.average([long, short], np.random.default_rng(0), resamples=200)
    early, late = long.steps <= 950, long.steps > 950
    assert set(runs[early]) == {2} and set(runs[late]) == {1}
    assert (band.value[early] == 2).all() and (band.value[late] == 1).all()
    assert (band.low[early] == 1).all() and (band.high[early] == 3).all()
    assert np.isnan(band.low[late]).all()


def test_steps_that_go_back_are_refused() -> None:
    with pytest.raises(ValueError, match="ascend"):
        curves.curve(0, np.array([5, 5]), np.array([1.0, 1.0]), 10)


def test_a_part_of_a_curve_is_rounded_to_whole_points() -> None:
    place = np.array([0, 49])
    part = part_of_curve(place, place.astype(float), (0.58, 1), window=1, points=50)
    assert part == np.arange(29, 50).mean()
