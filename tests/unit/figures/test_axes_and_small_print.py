"""What stands at 0 is seen, steps have round numbers, the small print fills its rows, and a method looks alike everywhere."""

from __future__ import annotations

import pandas as pd
import pytest

from recollect.figures import learning_curves, method_styles, style


def test_a_curve_at_zero_lies_above_its_axis_and_others_begin_on_it() -> None:
    for lowest, hides in ((0.0, True), (0.5, False)):
        with style.paper_style():
            axes = style.blank_figure(3, 2).subplots()
            rows = pd.DataFrame({"y": [lowest, 1.0], "low": [lowest, 1.0]})
            axes.plot([0, 1], rows["y"])
            style.from_zero(axes, rows)
        assert (axes.get_ylim()[0] < 0) == hides and axes.get_ylim()[0] <= 0


def test_an_axis_begins_at_0_where_an_interval_does() -> None:
    with style.paper_style():
        axes = style.blank_figure(3, 2).subplots()
        rows = pd.DataFrame({"x": [0.0, 1.0], "y": [0.5, 1.0], "low": [0.0, 0.5], "high": [1.0, 1.5]})
        style.draw_band(axes, rows, method_styles.styles_of(["radt"])["radt"])
        assert axes.get_ylim()[0] < 0  # by itself
        style.from_zero(axes, rows)
    assert axes.get_ylim()[0] == 0


@pytest.mark.parametrize(
    ("end", "most", "labels"),
    [
        (98_400, 4, ["0", "25k", "50k", "75k"]),
        (500_000, 2, ["0", "250k", "500k"]),
        (6_000_000, 3, ["0", "2M", "4M", "6M"]),
        (1, 4, ["0", "1"]),
    ],
)
def test_steps_have_round_numbers_and_the_axis_ends_with_the_run(end: int, most: int, labels: list[str]) -> None:
    with style.paper_style():
        axes = style.blank_figure(3, 2).subplots()
        learning_curves.step_ticks(axes, end, most)
    assert [label.get_text() for label in axes.get_xticklabels()] == labels
    assert axes.get_xlim() == (0, end)
    inside = axes.get_xticklabels()[-1].get_horizontalalignment() == "right"
    assert inside == (axes.get_xticks()[-1] > 0.93 * end)  # else it would reach into the next panel


def test_rows_of_the_small_print_are_as_long_as_fits_and_tear_no_number_from_its_unit() -> None:
    sentence = "mean, interval, which for 3 seeds covers 67 % of what it says, " * 3
    with style.paper_style():
        canvas = style.blank_figure(style.SINGLE_COLUMN, 2)
        rows = style._lines(canvas, sentence.strip())
    assert " ".join(rows) == sentence.strip() and 2 < len(rows) < 6
    assert all(not row.endswith(("covers", "67")) for row in rows)


def test_how_actions_are_picked_looks_alike_whatever_else_a_figure_shows() -> None:
    picked = ["radt.greedy", "ad.greedy", "ad.sampled", "dt.greedy"]
    together = method_styles.styles_of(["radt", "ad", "dt", *picked])
    assert len(set(together.values())) == len(together)
    for method in picked:
        assert method_styles.styles_of([method, "mine", "other"])[method] == together[method]


@pytest.mark.parametrize(
    ("last", "ticks"),
    [
        (4, [1, 2, 3, 4]),
        (40, [1, 10, 20, 30, 40]),
        (2500, [1, 500, 1000, 1500, 2000, 2500]),
        (10_000, [1, *range(2000, 10_001, 2000)]),
    ],
)
def test_an_axis_that_counts_from_one_has_round_ticks_at_any_length(last: int, ticks: list[int]) -> None:
    assert style.count_ticks(last) == ticks
