"""A verdict follows from a fixed rule; an interval covers the truth as often as it says, at the numbers of seeds in use."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from recollect.evaluation.contrasts import (
    Effect,
    Verdict,
    differences,
    judged,
    paired_effect,
    student,
    task_means,
    verdict_of,
)
from recollect.figures.learning_curves import curve


def interval(low: float, high: float, seeds: int = 5) -> Effect:
    return Effect((low + high) / 2, low, high, seeds, 1)


@pytest.mark.parametrize(
    ("wanted", "margin", "bounds", "verdict"),
    [
        ("above", 0, (1, 3), "holds"),
        ("above", 2, (1, 3), "undecided"),
        ("above", 4, (1, 3), "contradicted"),
        ("above", 0, (-1, 3), "undecided"),
        ("above", 0, (-3, -1), "contradicted"),
        ("below", 0, (-3, -1), "holds"),
        ("below", 2, (-3, -1), "undecided"),
        ("below", 0, (1, 3), "contradicted"),
        ("equal", 4, (-3, 1), "holds"),
        ("equal", 2, (-3, 1), "undecided"),
        ("equal", 2, (3, 4), "contradicted"),
        ("equal", 2, (-4, -3), "contradicted"),
    ],
)
def test_the_verdict_follows_from_interval_and_margin(
    wanted: str, margin: float, bounds: tuple[float, float], verdict: Verdict
) -> None:
    assert judged(interval(*bounds), wanted, margin)[0] == verdict  # type: ignore[arg-type]


def test_two_seeds_decide_nothing_and_three_may() -> None:
    assert judged(interval(1, 3, seeds=2), "above", 0) == ("undecided", "2 seeds are fewer than 3")
    assert judged(interval(1, 3, seeds=3), "above", 0) == ("holds", "")


def test_a_claim_holds_only_where_all_its_contrasts_do() -> None:
    assert verdict_of(["holds", "holds"]) == "holds"
    assert verdict_of(["holds", "undecided"]) == "undecided"
    assert verdict_of(["contradicted", "undecided", "holds"]) == "contradicted"
    assert verdict_of(["contradicted", "not run"]) == "not run"


def test_a_claim_about_most_tasks_needs_as_many_contrasts_as_it_says() -> None:
    assert verdict_of(["holds", "holds", "contradicted"], 2) == "holds"
    assert verdict_of(["holds", "undecided", "contradicted"], 2) == "undecided"
    assert verdict_of(["holds", "contradicted", "contradicted"], 2) == "contradicted"
    assert verdict_of(["holds", "holds", "not run"], 2) == "not run"


def curve_scores(returns: list[float]) -> pd.DataFrame:
    """Two episodes in each evaluation of a learning curve, every 100 steps, and a final evaluation."""
    learned = [
        ("learning", 100 * (i + 1), e, value + d) for i, value in enumerate(returns) for e, d in ((0, -1), (1, 1))
    ]
    rows = pd.DataFrame(
        [*learned, ("eval", 100 * len(returns), 0, -7.0)], columns=["split", "step", "episode", "value"]
    )
    return rows.assign(task=0, metric="return")


def test_a_last_policy_that_fails_once_counts_little_on_a_curve() -> None:
    failed = curve_scores([0.0] * 200 + [1.0] * 199 + [0.0])
    assert task_means(failed, "eval", "return", (0, 1)).tolist() == [-7]
    (final,) = task_means(failed, "learning", "return", (0.95, 1))
    assert 0.98 < final < 1
    (raw,) = task_means(failed, "learning", "return", (0.95, 1), window=1)
    assert final != raw


def test_the_final_value_of_a_claim_is_the_one_that_figures_draw() -> None:
    rng = np.random.default_rng(0)
    scores = curve_scores(rng.normal(size=137).tolist())
    drawn = scores[scores["split"] == "learning"].groupby("step")["value"].mean()
    for window in (1, 3, 10):
        whole = curve(0, drawn.index.to_numpy(), drawn.to_numpy(), 13_700, window=window)
        assert task_means(scores, "learning", "return", (0.95, 1), window).tolist() == [whole.final]


def test_what_lies_behind_the_end_of_a_figure_is_no_part_of_a_claim() -> None:
    scores = curve_scores([0.0] * 100 + [1.0] * 37)
    drawn = scores[scores["split"] == "learning"].groupby("step")["value"].mean()
    for end in (9500, 10_500, 14_000):  # before it rises, while it does, and behind the last evaluation
        whole = curve(0, drawn.index.to_numpy(), drawn.to_numpy(), end)
        assert task_means(scores, "learning", "return", (0.95, 1), end=end).tolist() == [whole.final]
    assert task_means(scores, "learning", "return", (0, 1), end=9500).tolist() == [0]
    assert task_means(scores, "learning", "return", (0.95, 1)).tolist() == [1]


def test_who_learns_earlier_has_the_larger_mean_over_the_curve() -> None:
    early, late = (
        task_means(curve_scores([0.0] * n + [1.0] * (200 - n)), "learning", "return", (0, 1))[0] for n in (50, 120)
    )
    assert early - late == pytest.approx(70 / 200, abs=0.01)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_score_that_is_not_finite_is_refused_and_not_left_out(bad: float) -> None:
    scores = curve_scores([0.0] * 5 + [bad] + [1.0] * 5)
    with pytest.raises(ValueError, match="2 of 22 scores of return are not finite numbers"):
        task_means(scores, "learning", "return", (0.95, 1))


def test_one_seed_has_an_effect_and_no_interval() -> None:
    effect = paired_effect(np.ones((1, 4)), np.random.default_rng(0))
    assert effect.value == 1 and np.isnan([effect.low, effect.high]).all()


@pytest.mark.parametrize(("seeds", "share"), [(3, 0.51), (5, 0.33), (10, 0.11)])
def test_where_seeds_succeed_or_fail_a_verdict_may_hold_by_chance_as_the_page_says(seeds: int, share: float) -> None:
    rng = np.random.default_rng(0)
    returns_TS1 = 0.5 + 0.5 * (rng.random((600, seeds, 1)) < 0.8)  # their mean is 0.9
    held = [judged(paired_effect(one - 0.9, rng, 200), "above", 0)[0] == "holds" for one in returns_TS1]
    assert np.mean(held) == pytest.approx(share, abs=0.06)
    assert paired_effect(np.full((seeds, 1), 0.05), rng, 200)[1:3] == pytest.approx((0.05, 0.05))


def test_pairing_removes_what_both_arms_share() -> None:
    rng = np.random.default_rng(0)
    shared_SN = rng.normal(0, 100, (5, 20))
    this_SN, that_SN = shared_SN + 1 + rng.normal(0, 0.1, (5, 20)), shared_SN + rng.normal(0, 0.1, (5, 20))
    effect = paired_effect(this_SN - that_SN, rng)
    assert 0.8 < effect.low < 1 < effect.high < 1.2


@pytest.mark.parametrize("shape", [(5, 1), (1, 5)], ids=["seeds", "tasks"])
def test_where_only_seeds_or_only_tasks_differ_the_interval_is_students(shape: tuple[int, int]) -> None:
    """The values lie alike on both sides of their mean, so that the bootstrap is nearly a normal."""
    value_K = 7 + np.array([-1.97, -0.83, 0.0, 0.83, 1.97])
    effect = paired_effect(np.broadcast_to(value_K.reshape(shape), (5, 5)), np.random.default_rng(0))
    low, high = stats.t.interval(0.95, 4, loc=value_K.mean(), scale=stats.sem(value_K))
    assert (effect.low, effect.high) == pytest.approx((low, high), abs=0.05 * (high - low) / 2)


def test_students_quantile_is_right_to_a_thousandth() -> None:
    for freedom in range(1, 100):
        assert student(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=0.001)


CASES = [
    (seeds, tasks, spreads)
    for seeds in (3, 5, 10)
    for tasks in (1, 20)
    for spreads in ((1, 0, 1), (0, 1, 1), (1, 1, 1), (0.1, 0.1, 1))
]


@pytest.mark.parametrize(
    ("seeds", "tasks", "spreads"),
    [(3, 20, (1, 1, 1)), (5, 1, (1, 0, 1)), *(pytest.param(*case, marks=pytest.mark.slow) for case in CASES)],
)
def test_the_interval_covers_the_truth_at_least_as_often_as_it_says(
    seeds: int, tasks: int, spreads: tuple[float, float, float]
) -> None:
    """Effects of seeds and of tasks and a rest of each pair, Gaussian. 400 trials: 95 % is 1.1 points exact."""
    rng = np.random.default_rng(seeds * 100 + tasks)
    of_seeds, of_tasks, rest = spreads
    if tasks == 1:
        of_tasks = 0  # one task stands for itself only
    covered = 0
    for _ in range(400):
        difference_SN = of_seeds * rng.normal(size=(seeds, 1)) + of_tasks * rng.normal(size=(1, tasks))
        difference_SN = difference_SN + rest * rng.normal(size=(seeds, tasks))
        effect = paired_effect(difference_SN, rng, resamples=1000)
        covered += effect.low <= 0 <= effect.high
    assert covered / 400 > 0.92


def test_an_interval_that_only_touches_the_margin_decides_nothing() -> None:
    for low, high in ((2, 3), (1, 2), (2, 2)):
        assert judged(interval(low, high), "above", 2)[0] == "undecided"
        assert judged(interval(-high, -low), "below", 2)[0] == "undecided"
    for low, high in ((-2, 1), (-1, 2), (2, 3), (-3, -2)):
        assert judged(interval(low, high), "equal", 2)[0] == "undecided"


def test_arms_whose_seeds_were_scored_on_different_tasks_are_no_pairs() -> None:
    whole = pd.DataFrame([[1.0, 2.0], [3.0, 4.0]])
    holed = whole.where(whole != 4)
    for this, that in ((holed, whole), (whole, holed), (holed, 0.0)):
        with pytest.raises(ValueError, match="different tasks"):
            differences(this, that)


def test_of_arms_with_other_tasks_the_means_are_paired_also_where_they_have_equally_many() -> None:
    this = pd.DataFrame([[1.0, 2.0], [3.0, 6.0]], columns=[0, 1])
    assert differences(this, this - 1).tolist() == [[1, 1], [1, 1]]
    other = pd.DataFrame([[0.0, 1.0], [2.0, 0.0]], columns=[7, 8])
    assert differences(this, other).tolist() == [[1.0], [3.5]]


def test_a_part_of_the_episodes_is_rounded_to_whole_ones() -> None:
    about = {"split": "eval", "metric": "return", "step": 1, "task": 0}
    scores = pd.DataFrame({**about, "episode": range(30), "value": np.arange(30.0)})
    assert task_means(scores, "eval", "return", (0.83, 1)).tolist() == [27]  # of 25 to 29
    assert task_means(scores, "eval", "return", (0, 0.17)).tolist() == [2]


def test_only_the_last_evaluation_is_the_final_one_and_other_metrics_and_splits_have_no_part_in_it() -> None:
    rows = [
        ("eval", "return", 1, 0, 9.0),
        ("eval", "return", 1, 1, 9.0),
        ("eval", "return", 2, 0, 1.0),
        ("eval", "return", 2, 1, 3.0),
        ("eval", "length", 2, 0, 50.0),
        ("train", "return", 2, 0, 70.0),
    ]
    scores = pd.DataFrame(rows, columns=["split", "metric", "step", "task", "value"]).assign(episode=0)
    assert task_means(scores, "eval", "return", (0, 1)).to_dict() == {0: 1, 1: 3}
