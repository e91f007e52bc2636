"""The statistics are the published ones, and say how far their intervals can be trusted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import trim_mean

from recollect.artifacts.scores import scores_frame
from recollect.figures import reading, statistics
from recollect.figures.spec import FigureSpec
from recollect.settings.errors import UserError


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_iqm_is_the_trimmed_mean_of_all_runs(seeds: int, tasks: int, seed: int) -> None:
    scores_SN = rng(seed).standard_normal((seeds, tasks)) * 50
    ours = statistics.iqm(scores_SN.reshape(-1))
    assert ours == pytest.approx(trim_mean(scores_SN, 0.25, axis=None), abs=1e-12, rel=1e-12)
    bounds = statistics.stratified_bootstrap(scores_SN, rng(), statistic="iqm", resamples=200)
    assert float(bounds.value) == pytest.approx(float(ours), abs=1e-12)


def test_iqm_of_known_scores() -> None:
    assert statistics.iqm(np.array([1000.0, 1, 2, 3, 4, -1000, 5, 6])) == 3.5


def test_one_run_that_is_far_off_does_not_widen_the_interval_of_the_interquartile_mean() -> None:
    scores_SN = rng(8).uniform(size=(20, 1))
    scores_SN[3] = 1e6
    bounds = statistics.stratified_bootstrap(scores_SN, rng(), statistic="iqm", resamples=500)
    assert 0 < bounds.low < bounds.value < bounds.high < 1


def test_resampling_stays_within_tasks() -> None:
    scores_SN = np.repeat([[0.0, 10.0, 200.0]], 4, axis=0)  # tasks differ, runs do not
    for statistic in ("mean", "iqm"):
        bounds = statistics.stratified_bootstrap(scores_SN, rng(), statistic=statistic, resamples=500)
        assert bounds.low == bounds.value == bounds.high


def test_interval_of_two_runs_is_their_range() -> None:
    bounds = statistics.stratified_bootstrap(np.array([[1.0], [3.0]]), rng())
    assert (float(bounds.low), float(bounds.value), float(bounds.high)) == (1.0, 2.0, 3.0)


def test_interval_of_zeros_and_ones_is_the_binomial_one() -> None:
    scores_SN = (np.arange(100) < 30).astype(float)[:, None]
    bounds = statistics.stratified_bootstrap(scores_SN, rng(), resamples=20_000)
    assert float(bounds.low) == pytest.approx(0.21, abs=0.011)  # quantiles of Binomial(100, 0.3)
    assert float(bounds.high) == pytest.approx(0.39, abs=0.011)


def test_one_run_has_no_interval() -> None:
    bounds = statistics.stratified_bootstrap(np.ones((1, 20, 3)), rng())
    assert bounds.value.tolist() == [1, 1, 1]
    assert np.isnan(bounds.low).all() and np.isnan(bounds.high).all()


def test_the_range_of_seeds_is_that_of_their_own_aggregates() -> None:
    scores_SN = np.array([[0.0, 10.0], [2.0, 4.0], [7.0, 9.0]])
    bounds = statistics.seed_range(scores_SN)
    assert (bounds.value, bounds.low, bounds.high) == (scores_SN.mean(), 3.0, 8.0)


def test_one_seed_has_no_range() -> None:
    bounds = statistics.seed_range(np.ones((1, 20, 3)))
    assert bounds.value.shape == (3,)
    assert np.isnan(bounds.low).all() and np.isnan(bounds.high).all()


def test_trailing_axes_are_aggregated_one_by_one() -> None:
    scores_SNE = rng(1).standard_normal((5, 4, 7))
    for statistic in ("mean", "iqm"):
        whole = statistics.stratified_bootstrap(scores_SNE, rng(2), statistic=statistic, resamples=300)
        for episode in (0, 6):
            alone = statistics.stratified_bootstrap(
                scores_SNE[:, :, episode], rng(2), statistic=statistic, resamples=300
            )
            assert np.allclose([field[episode] for field in whole], list(alone), atol=1e-12)


def test_blocks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    scores_SN = rng(3).standard_normal((4, 5))
    whole = statistics.stratified_bootstrap(scores_SN, rng(4), statistic="iqm", resamples=333)
    monkeypatch.setattr(statistics, "_BLOCK", 50)
    assert statistics.stratified_bootstrap(scores_SN, rng(4), statistic="iqm", resamples=333) == whole


def test_the_interval_depends_on_its_generator_alone() -> None:
    scores_SN = rng(5).standard_normal((3, 20))
    np.random.seed(1)
    first = statistics.stratified_bootstrap(scores_SN, rng(6))
    np.random.seed(2)
    assert statistics.stratified_bootstrap(scores_SN, rng(6)) == first
    assert statistics.stratified_bootstrap(scores_SN, rng(7)) != first


@pytest.mark.parametrize("bad", [np.empty((0, 3)), np.array([[1.0, np.nan]]), np.ones(3)])
def test_scores_that_are_no_grid_are_refused(bad: np.ndarray) -> None:
    with pytest.raises(ValueError, match="scores must be"):
        statistics.stratified_bootstrap(bad, rng())


def coverage(
    seeds: int, tasks: int, rng: np.random.Generator, *, statistic: statistics.Statistic, trials: int, resamples: int
) -> float:
    """Fraction of simulated experiments (standard normal scores) whose interval contains the true value, 0."""
    scores_SNX = rng.standard_normal((seeds, tasks, trials))
    bounds = statistics.stratified_bootstrap(scores_SNX, rng, statistic=statistic, resamples=resamples)
    return float(((bounds.low <= 0) & (bounds.high >= 0)).mean())


@pytest.mark.parametrize(
    ("seeds", "tasks", "statistic", "expected"),
    [
        (3, 1, "iqm", 0.75),  # exact: the interval is the range of three runs, which has 0 on one side twice in eight
        (3, 5, "iqm", 0.87),
        (3, 20, "mean", 0.88),
        (2, 20, "mean", 0.82),
        (4, 1, "mean", 0.80),
        (5, 1, "mean", 0.83),
        (5, 5, "iqm", 0.91),
        (10, 1, "mean", 0.90),
        (10, 5, "iqm", 0.93),
    ],
)
def test_real_coverage_of_the_nominal_interval(seeds: int, tasks: int, statistic: str, expected: float) -> None:
    found = np.mean(
        [coverage(seeds, tasks, rng(block), statistic=statistic, trials=150, resamples=400) for block in range(10)]
    )
    assert found == pytest.approx(expected, abs=0.03)
    assert statistics.actual_coverage(seeds, tasks, statistic) == pytest.approx(expected, abs=0.011)


def test_few_seeds_carry_a_warning() -> None:
    assert statistics.narrow_interval_warning(3, 20, "mean") == (
        "interval from 3 seeds is too narrow: nominal 95 %, actual about 88 %"
    )
    assert "about 86 %" in str(statistics.narrow_interval_warning(3, 9, "mean"))  # fewer tasks than tabulated: lower
    assert "about 50 %" in str(statistics.narrow_interval_warning(2, 1, "iqm"))
    assert "about 83 %" in str(statistics.narrow_interval_warning(6, 1, "mean"))  # fewer seeds than tabulated: lower
    assert "about 90 %" in str(statistics.narrow_interval_warning(10, 1, "mean"))
    assert "no interval" in str(statistics.narrow_interval_warning(1, 20, "mean"))
    assert statistics.narrow_interval_warning(11, 1, "mean") is None
    assert "nothing of other seeds" in str(statistics.narrow_interval_warning(1, 20, "mean", over_tasks=True))


@pytest.mark.parametrize("statistic", ["mean", "iqm"])
def test_the_interval_of_one_run_is_over_its_tasks(statistic: Any) -> None:
    """Tasks drawn from a normal distribution: the interval is that of their mean, and holds it as often as it says."""
    scores_NX = rng(3).standard_normal((40, 400))
    bounds = statistics.stratified_bootstrap(scores_NX[:, None], rng(4), statistic=statistic, resamples=400)
    assert bounds.value.shape == bounds.low.shape == (400,) and (bounds.low < bounds.value).all()
    assert ((bounds.low <= 0) & (bounds.high >= 0)).mean() == pytest.approx(0.94, abs=0.03)
    alone = statistics.stratified_bootstrap(scores_NX[:1, None], rng(4), statistic=statistic)
    assert np.isnan(alone.low).all() and np.array_equal(alone.value, scores_NX[0])


def test_more_seeds_and_more_tasks_cover_more() -> None:
    for by_seeds in statistics.ACTUAL_COVERAGE.values():
        two, three = (list(by_seeds[seeds].values()) for seeds in (2, 3))
        assert two == sorted(two) and three == sorted(three)
        assert all(few < more < 0.95 for few, more in zip(two, three, strict=True))


def test_tasks_of_episodes_that_are_numbered_over_all_of_them_count_alike_and_none_may_be_missing() -> None:
    """As the protocol `episodic` numbers them: task 0 in three episodes, task 1 in two."""
    figure = FigureSpec(name="f", kind="bars", scale="demo", environments=("e",), methods=("m",), seeds=(7, 3))
    tasks = np.array([0, 0, 0, 1, 1])
    about = {"env": "e", "method": "m", "step": 9, "split": "eval", "metric": "return"}
    rows = pd.concat(
        [
            scores_frame(
                **about, seed=seed, task=tasks, episode=np.arange(5), value=seed * np.array([1.0, 2, 3, 10, 20])
            )
            for seed in (3, 7)
        ]
    )
    score_SN, found = reading.task_means(rows, figure)
    assert score_SN.tolist() == [[14.0, 105.0], [6.0, 45.0]] and found == [0, 1]
    with pytest.raises(UserError, match="1 of 10 scores of m on e are missing; first: seed 7, task 1, episode 4"):
        reading.task_means(rows.iloc[:-1], figure)
    with pytest.raises(
        UserError, match="are missing"
    ):  # last episodes of a task are asked for where each episode has one
        reading.task_means(rows, figure, 2)
    in_context = scores_frame(
        **about, seed=[[[3]], [[7]]], task=[[0], [1]], episode=np.arange(2), value=np.arange(8.0).reshape(2, 2, 2)
    )
    score_SN, _ = reading.task_means(in_context, figure, 1)
    assert score_SN.tolist() == [[5.0, 7.0], [1.0, 3.0]]
