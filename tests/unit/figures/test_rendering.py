"""A figure's files say exactly what is drawn, are the same bytes each time, and never come from an incomplete grid."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import trim_mean

from recollect.artifacts.scores import scores_frame
from recollect.artifacts.sealed import read_json, sha256_of, verify, write_table
from recollect.figures import captions, in_context_curve, method_styles, reading, registry, statistics, style
from recollect.figures.overlaps import MEASURED, RIM
from recollect.figures.spec import SMOKE_WORDS, TABLE_COLUMNS, Drawn, FigureSpec, ScoreOptions, figure_spec
from recollect.figures.writing import manifest_of, render
from recollect.settings.claims import MARKS
from recollect.settings.errors import UserError
from recollect.settings.seeding import generator

PROVENANCE = {"code_fingerprint": "0123456789abcdef", "device": "cpu", "environment_lock": "lock"}
LABELS = {"radt": "RA-DT", "radt_agnostic": "RA-DT (domain-agnostic)", "ad": "AD", "dpt": "DPT", "dt": "DT"}
TMAZE = {"tmaze_10": 10, "tmaze_50": 50, "tmaze_250": 250}


def in_context_scores(
    env: str = "dark_room", methods: Sequence[str] = ("radt", "ad"), seeds: Sequence[int] = (0, 1, 2), episodes: int = 6
) -> pd.DataFrame:
    frames = []
    for k, method in enumerate(methods):
        for seed in seeds:
            noise = np.random.default_rng([k, seed]).standard_normal((5, episodes))
            values = 10 * (k + 1) + 5 * np.arange(episodes) + noise
            for step in (0, 1000):  # an earlier evaluation, which is not drawn
                frames.append(
                    scores_frame(
                        env=env,
                        method=method,
                        seed=seed,
                        step=step,
                        split="eval",
                        task=np.arange(5)[:, None],
                        episode=np.arange(episodes),
                        metric="return",
                        value=values * (step / 1000),
                    )
                )
    return pd.concat(frames, ignore_index=True)


def tmaze_scores(methods: Sequence[str] = ("dqn_gpt", "dqn_lstm"), seeds: Sequence[int] = (0, 1, 2, 3)) -> pd.DataFrame:
    frames = []
    for env, length in TMAZE.items():
        for method in methods:
            for seed in seeds:
                stop = 400 if (env, method, seed) == ("tmaze_50", "dqn_lstm", 3) else 1000
                steps = np.linspace(0, stop, 41).astype(int)
                top = 0.5 if method == "dqn_lstm" and length > 100 else 1.0
                values = np.minimum(top, top * steps / 500 + 0.01 * seed)
                frames.append(
                    scores_frame(
                        env=env,
                        method=method,
                        seed=seed,
                        step=steps[:, None],
                        split="learning",
                        task=0,
                        episode=np.arange(3),
                        metric="return",
                        value=values[:, None],
                    )
                )
    return pd.concat(frames, ignore_index=True)


def in_context_spec(**changes: Any) -> FigureSpec:
    values: dict[str, Any] = {
        "name": "radt_dark_room",
        "labels": LABELS,
        "kind": "in_context_curve",
        "title": "Dark-Room",
        "scale": "demo",
        "environments": ["dark_room"],
        "methods": ["radt", "ad"],
        "seeds": [0, 1, 2],
        "caption": "RA-DT improves with each episode.",
        "options": {"optimum": 60.0, "resamples": 200},
        "references": [
            {"panel": "dark_room", "method": "radt", "x": [1, 6], "y": [1, 50], "source": "the paper", "scale": "paper"}
        ],
    }
    return figure_spec({**values, **changes})


def length_spec(**changes: Any) -> FigureSpec:
    values: dict[str, Any] = {
        "name": "memory_rl_tmaze",
        "labels": {"dqn_gpt": "Transformer", "dqn_lstm": "LSTM"},
        "kind": "length_aggregation",
        "title": "T-Maze",
        "scale": "demo",
        "environments": list(TMAZE),
        "methods": ["dqn_gpt", "dqn_lstm"],
        "seeds": [0, 1, 2, 3],
        "options": {"lengths": TMAZE, "ends": {"tmaze_50": 1000}, "resamples": 200, "window": 1, "chance": 0.5},
    }
    return figure_spec({**values, **changes})


CLAIMS = [
    {"short": f"{number} {'words as long as a short name may be':<38}", "verdict": verdict}
    for number, verdict in enumerate(list(MARKS) * 2)
]


def draw(scores: pd.DataFrame, figure: FigureSpec) -> Drawn:
    return registry.kind(figure.kind).draw(scores, figure)


def texts_of(drawn: Drawn) -> list[Any]:
    from matplotlib.text import Text

    return [item for item in drawn.figure.findobj(Text) if item.get_visible() and item.get_text().strip()]


def write_scores(folder: Path, scores: pd.DataFrame) -> list[Path]:
    paths = []
    for (method, seed), rows in scores.groupby(["method", "seed"]):
        paths.append(folder / f"{method}_{seed}.parquet")
        write_table(paths[-1], rows.reset_index(drop=True), kind="scores")
    return paths


# ------------------------------------------------------------------------------------------------- what is drawn


def test_in_context_table_holds_the_means_by_episode_of_the_last_evaluation() -> None:
    scores = in_context_scores()
    drawn = draw(scores, in_context_spec())
    assert list(drawn.table.columns) == list(TABLE_COLUMNS)
    rows = drawn.table[drawn.table["method"] == "ad"]
    assert rows["x"].tolist() == [1, 2, 3, 4, 5, 6]
    cell = scores[(scores["method"] == "ad") & (scores["step"] == 1000)]
    assert np.allclose(rows["y"], cell.groupby("episode")["value"].mean())
    assert ((rows["low"] < rows["y"]) & (rows["y"] < rows["high"])).all()
    assert set(rows["seeds"]) == {3} and set(rows["tasks"]) == {5} and set(rows["panel"]) == {"dark_room"}


def test_the_lines_on_the_canvas_are_the_rows_of_the_table() -> None:
    drawn = draw(in_context_scores(), in_context_spec(scale="paper"))
    axes = drawn.figure.axes[0]
    found = {tuple(np.round(line.get_ydata(), 9)) for line in axes.lines if len(line.get_xdata()) > 2}
    for method in ("radt", "ad"):
        assert tuple(np.round(drawn.table.loc[drawn.table["method"] == method, "y"], 9)) in found
    for method, band in zip(("radt", "ad"), axes.collections, strict=True):
        rows = drawn.table[drawn.table["method"] == method]
        edges = pd.DataFrame(band.get_paths()[0].vertices, columns=["x", "y"]).groupby("x")["y"]
        assert np.allclose(edges.min(), rows["low"]) and np.allclose(edges.max(), rows["high"])
    optimum = drawn.table[drawn.table["method"] == "line:optimum"]
    assert optimum["y"].tolist() == [60.0, 60.0] and optimum["seeds"].tolist() == [0, 0]


def test_published_values_are_drawn_at_their_own_scale_only() -> None:
    methods = ["ad", "radt"]
    demo, paper = (
        draw(in_context_scores(), in_context_spec(scale=scale, methods=methods)) for scale in ("demo", "paper")
    )
    assert not demo.table["method"].str.startswith("published:").any()
    published = paper.table[paper.table["method"] == "published:radt"]
    assert published[["x", "y"]].to_numpy().tolist() == [[1, 1], [6, 50]]
    drawn = [line for line in paper.figure.axes[0].lines if np.array_equal(line.get_ydata(), [1, 50])]
    assert {line.get_color() for line in drawn if line.get_marker() == "None"} == {
        method_styles.styles_of(methods)["radt"].color
    }
    assert any("the paper" in note for note in paper.notes)
    legends = [text.get_text() for legend in paper.figure.legends for text in legend.get_texts()]
    assert "published (read off the paper's figure)" in legends
    of_demo = {"panel": "dark_room", "method": "radt", "x": [3], "y": [3], "source": "others", "scale": "demo"}
    both = in_context_spec(scale="paper", references=[*in_context_spec().model_dump()["references"], of_demo])
    told = manifest_of(both, draw(in_context_scores(), both), [], {})["published"]
    assert [item["source"] for item in told] == ["the paper"]


def test_an_optimum_far_above_the_curves_is_named_instead_of_flattening_them() -> None:
    drawn = draw(in_context_scores(), in_context_spec(options={"optimum": 900.0, "resamples": 200}))
    assert drawn.figure.axes[0].get_ylim()[1] < 100
    assert not drawn.table["method"].str.startswith("line:").any()
    assert any("900" in text.get_text() for text in texts_of(drawn))
    assert any("900" in note for note in drawn.notes)


@pytest.mark.parametrize(("optimum", "is_drawn"), [(-50.0, True), (-30.0, True), (0.0, False)])
def test_an_optimum_close_above_curves_below_zero_is_drawn(optimum: float, is_drawn: bool) -> None:
    scores = in_context_scores()
    scores["value"] -= 100
    drawn = draw(scores, in_context_spec(references=[], options={"optimum": optimum, "resamples": 200}))
    assert drawn.table["method"].str.startswith("line:").any() == is_drawn
    assert any("above the axis" in note for note in drawn.notes) != is_drawn


def test_the_statistic_is_an_option() -> None:
    scores = in_context_scores()
    scores.loc[(scores["seed"] == 0) & (scores["task"] == 0), "value"] = 1e4
    mean = draw(scores, in_context_spec()).table["y"].iloc[0]
    iqm = draw(scores, in_context_spec(options={"statistic": "iqm", "resamples": 200})).table["y"].iloc[0]
    assert iqm < 20 < 500 < mean


def test_length_aggregation_has_finals_and_curves_and_names_what_it_drops() -> None:
    drawn = draw(tmaze_scores(), length_spec())
    finals = drawn.table[drawn.table["panel"] == "aggregation"].set_index(["method", "x"])
    assert finals.loc[("dqn_gpt", 250.0), "y"] == pytest.approx(1.0)
    assert finals.loc[("dqn_lstm", 250.0), "y"] == pytest.approx(0.5)
    assert finals.loc[("dqn_lstm", 50.0), "seeds"] == 3 and finals.loc[("dqn_gpt", 50.0), "seeds"] == 4
    assert any("seed 3 (stopped at 400 of 1,000 steps)" in note for note in drawn.notes)
    assert any("seed 3 (stopped" in warning for warning in manifest_of(length_spec(), drawn, [], {})["warnings"])
    assert any("stopped early: 1 run" in text.get_text() for text in texts_of(drawn))
    assert finals.loc[("line:optimal without memory", 10.0), "y"] == 0.5
    curve = drawn.table[(drawn.table["panel"] == "tmaze_10") & (drawn.table["method"] == "dqn_gpt")]
    assert len(curve) == 300 and curve["x"].iloc[-1] == 1000


@pytest.mark.slow
def test_bars_beside_points_reach_from_the_lower_bound_to_the_upper() -> None:
    scores = tmaze_scores()
    scores.loc[scores["seed"] == 0, "value"] -= 0.5
    drawn = draw(scores, length_spec())
    for method, bars in zip(("dqn_gpt", "dqn_lstm"), drawn.figure.axes[0].collections, strict=True):
        rows = drawn.table[(drawn.table["panel"] == "aggregation") & (drawn.table["method"] == method)]
        assert (rows["high"] - rows["y"] < 0.8 * (rows["y"] - rows["low"])).any()  # not the same on both sides
        assert np.allclose([bar[:, 1] for bar in bars.get_segments()], rows[["low", "high"]])  # type: ignore[attr-defined]


def test_runs_that_end_a_little_apart_are_all_drawn_to_a_common_end() -> None:
    scores = tmaze_scores()
    late = (scores["env"] == "tmaze_10") & (scores["seed"] == 2) & (scores["step"] == 1000)
    drawn = draw(scores[~late], length_spec())
    curve = drawn.table[drawn.table["panel"] == "tmaze_10"]
    assert curve["x"].max() == 975 and set(curve.loc[curve["seeds"] > 0, "seeds"]) == {4}


def test_points_beyond_some_runs_count_fewer_seeds_but_do_not_change_the_small_print() -> None:
    scores = tmaze_scores()
    late = (scores["env"] == "tmaze_10") & (scores["seed"] > 0) & (scores["step"] > 950)
    ends = {"tmaze_10": 1000, "tmaze_50": 1000}
    drawn = draw(scores[~late], length_spec(options={"lengths": TMAZE, "ends": ends, "resamples": 100, "chance": 0.5}))
    curve = drawn.table[drawn.table["panel"] == "tmaze_10"]
    assert set(curve.loc[curve["x"] > 950, "seeds"]) == {0, 1} and curve.loc[curve["x"] > 950, "low"].isna().all()
    assert any("3 to 4 seeds" in text.get_text() for text in drawn.figure.texts)


def test_lengths_stand_equally_far_apart() -> None:
    axes = draw(tmaze_scores(), length_spec()).figure.axes[0]
    assert axes.get_xticks().tolist() == [0, 1, 2] and axes.get_xlim() == (-0.5, 2.5)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["10", "50", "250"]


# -------------------------------------------------------------------------------------------------- how it looks


@pytest.mark.parametrize(
    ("scores", "figure"),
    [
        (in_context_scores(), in_context_spec(scale="paper", random_models=True, claims=CLAIMS)),
        (
            pd.concat([in_context_scores(f"room_{i}", list(method_styles.METHOD_STYLES)[:5]) for i in range(4)]),
            in_context_spec(
                environments=[f"room_{i}" for i in range(4)], methods=list(method_styles.METHOD_STYLES)[:5]
            ),
        ),
        (tmaze_scores(), length_spec(claims=CLAIMS)),
    ],
    ids=["one panel", "four panels", "lengths"],
)
def test_no_text_overlaps_and_none_leaves_the_page(scores: pd.DataFrame, figure: FigureSpec) -> None:
    drawn = draw(scores, figure)
    with style.paper_style():
        drawn.figure.draw_without_rendering()
        boxes = [(text.get_text(), text.get_window_extent()) for text in texts_of(drawn)]
    width, height = drawn.figure.bbox.width, drawn.figure.bbox.height
    for name, box in boxes:
        assert box.x0 > -1 and box.x1 < width + 1 and box.y0 > -1 and box.y1 < height + 1, name
    for (first, box), (second, other) in combinations(boxes, 2):
        overlap = min(box.x1, other.x1) - max(box.x0, other.x0), min(box.y1, other.y1) - max(box.y0, other.y0)
        assert min(overlap) < 1, f"'{first}' over '{second}'"


def test_marks_of_claims_stand_below_the_panels_and_words_in_the_caption() -> None:
    claims = [{"short": "RA-DT above AD", "verdict": "holds"}, {"short": "RA-DT rises", "verdict": "undecided"}]
    drawn, without = (draw(in_context_scores(), in_context_spec(claims=some)) for some in (claims, []))
    (marks,) = {text.get_text() for text in drawn.figure.texts} - {text.get_text() for text in without.figure.texts}
    assert marks.split("    ") == ["✓ RA-DT above AD", "? RA-DT rises"]
    figure = in_context_spec(claims=claims)
    assert "Claims: RA-DT above AD: holds; RA-DT rises: undecided." in captions.caption(figure, drawn.notes)
    assert "Claims" not in captions.caption(in_context_spec(), without.notes)


@pytest.mark.slow
def test_pages_are_one_or_two_columns_wide() -> None:
    assert draw(in_context_scores(), in_context_spec()).figure.get_figwidth() == 3.4
    assert draw(tmaze_scores(), length_spec()).figure.get_figwidth() == 7.0


@pytest.mark.parametrize(
    ("said", "words"),
    [({"scale": "toys", "wiring_test": True}, SMOKE_WORDS), ({"random_models": True}, captions.RANDOM_MODEL)],
)
def test_a_wiring_test_and_a_random_model_each_say_so(said: dict[str, Any], words: str) -> None:
    figure = in_context_spec(**said)
    drawn = draw(in_context_scores(), figure)
    printed = {text.get_text() for text in texts_of(drawn)}
    assert printed & {SMOKE_WORDS, captions.RANDOM_MODEL} == {words}
    about = manifest_of(figure, drawn, [], {})
    assert about["wiring_test"] == ("SMOKE" in about["caption"]) == figure.wiring_test


def test_where_seeds_alone_are_drawn_anew_tasks_make_no_interval_wider() -> None:
    rows = {"panel": "a", "method": "b", "x": 1.0, "y": 0.5, "low": 0.4, "high": 0.6, "seeds": 3, "tasks": [1, 20]}
    one, twenty = (pd.DataFrame([{**rows, "tasks": tasks}]) for tasks in (1, 20))
    words = captions.band_words(one, "mean")
    assert captions.band_words(captions.resampled(twenty, "seeds"), "mean") == words
    assert captions.band_words(captions.resampled(twenty, "seeds and tasks"), "mean") != words


def test_small_print_names_scale_seeds_tasks_and_the_narrow_interval() -> None:
    drawn = draw(in_context_scores(), in_context_spec())
    printed = " ".join(text.get_text() for text in drawn.figure.texts)
    for words in ("scale demo", "3 seeds", "5 tasks", "bootstrap interval (covers 86 %)"):
        assert words in printed
    assert SMOKE_WORDS not in printed and "95 %" not in printed and "narrow" not in printed
    assert any("too narrow: nominal 95 %, actual about 86 %" in note for note in drawn.notes)
    enough = draw(in_context_scores(seeds=range(11)), in_context_spec(seeds=list(range(11))))
    assert "95 % bootstrap interval" in " ".join(text.get_text() for text in enough.figure.texts)


def test_where_lines_differ_the_least_covered_interval_is_named() -> None:
    """Of three seeds and one task an interval is the range, which leaves the truth out twice in eight."""
    lines = [("a", 1), ("b", 20)]
    for order in (lines, lines[::-1]):
        rows = [{"panel": panel, "method": "ad", "seeds": 3, "tasks": tasks, "low": 0.0} for panel, tasks in order]
        table = pd.DataFrame(rows)
        assert captions.band_words(table, "mean") == ", bootstrap interval (covers 75 %)"
        (warning,) = captions.narrow_intervals(table, "mean")
        assert "actual about 75 %" in warning


def alike_scores(envs: Sequence[str] = tuple(TMAZE), methods: Sequence[str] = ("dqn_gpt", "dqn_lstm")) -> pd.DataFrame:
    """Scores of methods that learn exactly the same."""
    scores = tmaze_scores(methods=methods)
    scores["value"] = np.minimum(1.0, scores["step"] / 500)
    return scores[scores["env"].isin(envs)]


def marks_of(axes: Any) -> list[Any]:
    return [line for line in axes.lines if line.get_gid() == MEASURED]


def test_a_line_that_others_cover_shows_on_both_sides_of_them() -> None:
    options = {"resamples": 100, "window": 1}
    figure = length_spec(kind="curve_panels", methods=["dqn_gpt", "dqn_lstm", "dqn_ff"], options=options)
    axes = draw(alike_scores(methods=figure.methods), figure).figure.axes[0]
    lines, rims = marks_of(axes), [line for line in axes.lines if line.get_gid() == RIM]
    assert [rim.get_color() for rim in rims] == [line.get_color() for line in lines[:2]]  # the last hides below nothing
    widths = [line.get_linewidth() for line in (*rims, lines[-1])]
    assert widths[0] - 1 > widths[1] and widths[1] - 1 > widths[2]
    assert len(rims[0].get_xdata()) == 300 and max(rim.get_zorder() for rim in rims) < lines[0].get_zorder()


def test_lines_apart_and_lines_that_cross_have_no_rims() -> None:
    for sign in (1, -1):
        scores = alike_scores(("tmaze_10",))
        scores.loc[scores["method"] == "dqn_lstm", "value"] = 0.6 + sign * (scores["value"] - 0.4) / 2
        drawn = draw(
            scores[scores["step"] <= 500], length_spec(kind="curve_panels", environments=["tmaze_10"], options={})
        )
        assert [line for line in drawn.figure.axes[0].lines if line.get_gid() == RIM] == []


@pytest.mark.slow
def test_points_of_methods_that_score_the_same_stand_side_by_side() -> None:
    options = {"lengths": TMAZE, "resamples": 100, "window": 1}
    axes = draw(alike_scores(), length_spec(options=options)).figure.axes[0]
    first, second = (line.get_transform().transform(line.get_xydata()) for line in marks_of(axes))
    assert (first[:, 1] == second[:, 1]).all()
    assert ((second - first)[:, 0] * 72 / axes.figure.dpi > marks_of(axes)[0].get_markersize()).all()
    inside = axes.get_window_extent()
    assert inside.x0 < first[:, 0].min() and second[:, 0].max() < inside.x1


@pytest.mark.slow
def test_two_points_are_not_joined_and_three_are() -> None:
    for envs, joined in ((["tmaze_10", "tmaze_50"], "None"), (list(TMAZE), "-")):
        options = {"lengths": {env: TMAZE[env] for env in envs}, "resamples": 100}
        drawn = draw(alike_scores(envs), length_spec(environments=envs, options=options))
        assert {line.get_linestyle() for line in marks_of(drawn.figure.axes[0])} == {joined}


@pytest.mark.slow
def test_panels_of_one_quantity_have_one_range() -> None:
    scores = tmaze_scores()
    scores.loc[scores["step"] < 100, "value"] = -1.0
    drawn = draw(scores, length_spec())
    (limits,) = {axes.get_ylim() for axes in drawn.figure.axes}
    assert limits[0] < -0.5 and limits[1] > 1


def test_a_panel_leaves_out_what_all_titles_begin_with() -> None:
    titles = {"tmaze_10": "T-Maze, length 10", "tmaze_50": "T-Maze, length 50, red", "tmaze_250": "T-Maze, length 250"}
    figure = length_spec(environment_labels=titles)
    assert [figure.panel_title(env) for env in titles] == ["length 10", "length 50, red", "length 250"]
    assert (
        length_spec(environments=["tmaze_10"], environment_labels=titles).panel_title("tmaze_10") == titles["tmaze_10"]
    )
    others = length_spec(environment_labels={**titles, "tmaze_250": "Room, length 250"})
    assert [others.panel_title(env) for env in titles] == [
        "T-Maze, length 10",
        "T-Maze, length 50, red",
        "Room, length 250",
    ]


def test_a_band_of_seeds_is_named_as_such_and_needs_no_warning() -> None:
    drawn = draw(in_context_scores(), in_context_spec(options={"band": "seeds"}))
    printed = " ".join(text.get_text() for text in drawn.figure.texts)
    assert "lowest to highest seed" in printed
    assert "interval" not in printed + " ".join(drawn.notes)
    scores = in_context_scores()
    scores.loc[scores["task"] == 0, "value"] += 1000.0
    row = draw(scores, in_context_spec(options={"band": "seeds", "statistic": "iqm"})).table.iloc[0]
    first = scores[(scores["method"] == "radt") & (scores["step"] == 1000) & (scores["episode"] == 0)]
    by_seed = trim_mean(first.pivot(index="seed", columns="task", values="value"), 0.25, axis=1)
    assert (row["low"], row["high"]) == pytest.approx((by_seed.min(), by_seed.max()))


def test_a_method_looks_the_same_in_every_figure() -> None:
    assert (
        method_styles.styles_of(["ad", "radt", "my_new_one"])["radt"] == method_styles.styles_of(["dt", "radt"])["radt"]
    )
    assert (
        method_styles.styles_of(["dqn_gpt"])["dqn_gpt"]
        == method_styles.styles_of(["sacd_lstm", "sacd_gpt"])["sacd_gpt"]
    )
    assert method_styles.styles_of(["mine", "ad"])["mine"] == method_styles.styles_of(["ad", "mine"])["mine"]


def test_the_legend_shows_each_line_under_its_own_name() -> None:
    drawn = draw(in_context_scores(), in_context_spec(methods=["ad", "radt"]))
    named = {}
    for legend in drawn.figure.legends:
        for text, key in zip(legend.get_texts(), legend.get_lines(), strict=True):
            named[text.get_text()] = (key.get_color(), key.get_marker(), key.get_linestyle())
    for line in marks_of(drawn.figure.axes[0]):
        (method,) = (
            m for m in ("ad", "radt") if np.allclose(drawn.table.loc[drawn.table["method"] == m, "y"], line.get_ydata())
        )
        assert named[LABELS[method]] == (line.get_color(), line.get_marker(), line.get_linestyle())


@pytest.mark.parametrize(
    ("steps", "said"),
    [(0, "0"), (750, "750"), (992_000, "992k"), (999_936, "1M"), (1_250_000, "1.25M"), (999_999_000, "1G")],
)
def test_steps_are_said_with_three_digits(steps: float, said: str) -> None:
    assert style.short_steps(steps) == said


def test_methods_of_one_figure_all_look_different() -> None:
    for methods in (
        ["radt", "radt_agnostic", "ad", "dpt", "dt"],
        ["dqn_gpt", "dqn_lstm", "dqn_gru", "dqn_ff", "sacd_gpt"],
        ["helm", "helmv2", "shelm", "ppo_lstm", "ppo_cnn"],
        ["radt", "a", "b", "c", "d", "e"],
    ):
        looks = list(method_styles.styles_of(methods).values())
        assert len(set(looks)) == len(looks)
        assert len({look.marker for look in looks}) == len(looks)


def test_colours_of_a_figure_stay_apart_for_colour_blind_readers() -> None:
    deuteranopia = np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]])  # Machado 2009
    for methods in (["radt", "radt_agnostic", "ad", "dpt", "dt"], ["helm", "helmv2", "shelm", "ppo_lstm", "ppo_cnn"]):
        codes = [look.color.lstrip("#") for look in method_styles.styles_of(methods).values()]
        seen = [deuteranopia @ (np.array([int(c[i : i + 2], 16) for i in (0, 2, 4)]) / 255) ** 2.2 for c in codes]
        for first, second in combinations(seen, 2):
            assert np.abs(first.clip(0) ** (1 / 2.2) - second.clip(0) ** (1 / 2.2)).max() > 0.12


# ------------------------------------------------------------------------------------------------------ the files


def test_render_writes_four_sealed_files_that_agree(tmp_path: Path) -> None:
    files = write_scores(tmp_path, in_context_scores())
    drawn = render(in_context_spec(), files, tmp_path / "out" / "figure", PROVENANCE)
    for suffix in (".pdf", ".png", ".csv", ".json"):
        verify(tmp_path / "out" / f"figure{suffix}")
    assert (tmp_path / "out" / "figure.pdf").read_bytes().startswith(b"%PDF")
    table = pd.read_csv(tmp_path / "out" / "figure.csv", float_precision="round_trip")
    pd.testing.assert_frame_equal(table, drawn.table, check_dtype=False, check_exact=True)
    manifest = read_json(tmp_path / "out" / "figure.json")
    assert manifest["inputs"] == [{"path": file.as_posix(), "sha256": sha256_of(file)} for file in files]
    assert manifest["outputs"]["pdf"] == sha256_of(tmp_path / "out" / "figure.pdf")
    assert (manifest["scale"], manifest["seeds"], manifest["device"]) == ("demo", [0, 1, 2], "cpu")
    assert manifest["code_fingerprint"] == PROVENANCE["code_fingerprint"]
    assert manifest["provenance"] == {"environment_lock": "lock"}
    assert set(manifest["axes"]) == {"panel", "x", "y", "low, high"}
    assert manifest["caption"].startswith("RA-DT improves with each episode. Mean over 3 seeds and 5 tasks; ")
    assert "actual about 86 %" in manifest["caption"] and manifest["warnings"]


@pytest.mark.slow
def test_the_same_scores_give_the_same_bytes_in_any_process(tmp_path: Path) -> None:
    files = write_scores(tmp_path, tmaze_scores())
    spec = tmp_path / "spec.json"
    spec.write_text(length_spec().model_dump_json())
    code = (
        "import sys, pathlib; from recollect.figures.spec import FigureSpec; "
        "from recollect.figures.writing import render; "
        "a = sys.argv; render(FigureSpec.model_validate_json(pathlib.Path(a[1]).read_text()), a[3:], a[2], {})"
    )
    render(length_spec(), files, tmp_path / "first", {})
    environment = {**os.environ, "PYTHONHASHSEED": "12345", "TZ": "Asia/Tokyo", "SOURCE_DATE_EPOCH": "86400"}
    command = [sys.executable, "-c", code, str(spec), str(tmp_path / "second"), *map(str, files)]
    subprocess.run(command, check=True, env=environment)
    for suffix in (".pdf", ".png", ".csv"):
        assert (tmp_path / f"first{suffix}").read_bytes() == (tmp_path / f"second{suffix}").read_bytes(), suffix
    pdf = (tmp_path / "first.pdf").read_bytes()
    assert b"CreationDate" not in pdf and b"matplotlib" not in pdf.lower()
    assert b"Software" not in (tmp_path / "first.png").read_bytes()


def test_a_figure_that_cannot_be_drawn_leaves_nothing(tmp_path: Path) -> None:
    files = write_scores(tmp_path, in_context_scores())
    with pytest.raises(UserError):
        render(in_context_spec(seeds=[0, 1, 7]), files, tmp_path / "out" / "figure", PROVENANCE)
    assert not (tmp_path / "out").exists()


# ------------------------------------------------------------------------------------------------------ bad input


def error_of(scores: pd.DataFrame, figure: FigureSpec) -> str:
    with pytest.raises(UserError) as caught:
        draw(scores, figure)
    return str(caught.value)


def test_what_is_missing_is_named() -> None:
    scores = in_context_scores()
    assert "no scores of method dpt" in error_of(scores, in_context_spec(methods=["radt", "dpt"]))
    assert "no scores of environment dark_rom" in error_of(scores, in_context_spec(environments=["dark_rom"]))
    assert "did you mean 'dark_room'?" in error_of(scores, in_context_spec(environments=["dark_rom"]))
    lacking = scores[(scores["method"] != "ad") | (scores["seed"] == 1)]
    assert "no eval return of ad on dark_room: seeds 0, 2" in error_of(lacking, in_context_spec())
    hole = scores.drop(scores.index[(scores["step"] == 1000) & (scores["task"] == 3) & (scores["seed"] == 2)][4])
    assert "1 of 90 scores of radt on dark_room are missing; first: seed 2, task 3" in error_of(hole, in_context_spec())
    assert "no scores with metric 'succes'" in error_of(scores, in_context_spec(options={"metric": "succes"}))


def test_scores_that_cannot_be_compared_are_refused() -> None:
    scores = in_context_scores()
    uneven = scores[~((scores["seed"] == 1) & (scores["method"] == "ad") & (scores["step"] == 1000))]
    assert "end at different steps: seed 0 at 1000, seed 1 at 0" in error_of(uneven, in_context_spec())
    scores.loc[(scores["seed"] == 1) & (scores["method"] == "ad") & (scores["step"] == 1000), "step"] = 899
    assert "seed 0 at 1000, seed 1 at 899" in error_of(scores, in_context_spec())
    scores = in_context_scores()
    other = scores[~((scores["method"] == "ad") & (scores["task"] == 4))]
    assert "radt was evaluated on 5 tasks and ad on 4" in error_of(other, in_context_spec())
    scores.loc[(scores["method"] == "ad") & (scores["task"] == 4), "task"] = 9
    assert "5 tasks and ad on 5 (not the same ones)" in error_of(scores, in_context_spec())


@pytest.mark.parametrize("kind", ["in_context_curve", "bars", "score_rows", "result_table"])
def test_seeds_that_end_a_little_apart_are_each_drawn_at_their_own_end(kind: str) -> None:
    scores, figure = in_context_scores(), in_context_spec(kind=kind, options={}, references=[])
    wanted = draw(scores, figure).table
    scores.loc[(scores["seed"] == 1) & (scores["step"] == 1000), "step"] = 950
    pd.testing.assert_frame_equal(draw(scores, figure).table, wanted)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_scores_that_are_not_finite_are_refused(value: float) -> None:
    scores = in_context_scores()
    scores.loc[scores.index[-1], "value"] = value
    message = error_of(scores, in_context_spec())
    assert "1 of 360 scores are not finite" in message and "ad on dark_room, seed 2" in message
    loss = scores_frame(env="dark_room", method="ad", seed=0, step=1, split="train", metric="loss", value=value)
    draw(pd.concat([in_context_scores(), loss], ignore_index=True), in_context_spec())  # not drawn: no concern


def test_score_files_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no score files"):
        render(in_context_spec(), [], tmp_path / "figure")
    with pytest.raises(UserError, match=r"nothing\.parquet"):
        render(in_context_spec(), [tmp_path / "nothing.parquet"], tmp_path / "figure")
    write_table(tmp_path / "empty.parquet", in_context_scores().iloc[:0], kind="scores")
    with pytest.raises(UserError, match="the score table is empty"):
        render(in_context_spec(), [tmp_path / "empty.parquet"], tmp_path / "figure")
    write_table(tmp_path / "wrong.parquet", pd.DataFrame({"a": [1]}), kind="scores")
    with pytest.raises(UserError, match="columns are wrong"):
        render(in_context_spec(), [tmp_path / "wrong.parquet"], tmp_path / "figure")
    twice = write_scores(tmp_path, in_context_scores())
    with pytest.raises(UserError, match="stand twice"):
        render(in_context_spec(), [*twice, twice[0]], tmp_path / "figure")


def test_wrong_settings_are_refused_with_the_nearest_name() -> None:
    with pytest.raises(UserError, match="did you mean 'in_context_curve'"):
        registry.kind("in_context_curves")
    with pytest.raises(UserError, match="did you mean 'optimum'"):
        draw(in_context_scores(), in_context_spec(options={"optimun": 3}))
    with pytest.raises(UserError, match="names something twice"):
        in_context_spec(seeds=[1, 1])
    with pytest.raises(UserError, match="two environments have the same length"):
        draw(tmaze_scores(), length_spec(options={"lengths": {"tmaze_10": 50}}))  # tmaze_50 is 50 by its name
    with pytest.raises(UserError, match="no length for tmaze_long"):
        draw(tmaze_scores(), length_spec(environments=["tmaze_long"]))
    with pytest.raises(UserError, match="every run of dqn_gpt on tmaze_10 stopped before"):
        draw(tmaze_scores(), length_spec(options={"lengths": TMAZE, "ends": {"tmaze_10": 5000}}))


def test_kinds_are_the_modules_that_draw() -> None:
    assert {"in_context_curve", "length_aggregation"} <= set(registry.kinds())
    assert not {"style", "statistics", "writing", "registry"} & set(registry.kinds())
    for name in registry.kinds():
        module = registry.kind(name)
        assert module.Options.model_config["extra"] == "forbid" and module.Options.model_config["frozen"]
    assert in_context_curve.Options().statistic == "mean"


@pytest.mark.parametrize(("steps", "kept"), [((950, 1000), [1000, 1000]), ((1000, 900), [1000, 900])])
def test_the_last_evaluation_of_each_run_alone_is_read_if_none_ends_far_before(
    steps: tuple[int, int], kept: list[int]
) -> None:
    about = {"name": "r", "kind": "bars", "scale": "demo", "environments": ["a"], "methods": ["m"], "seeds": [0, 1]}
    stale = steps[0] < steps[1]  # both runs have an earlier evaluation, too
    seed, step = (np.array([[0], [1]]), np.array(steps)) if stale else (np.array([0, 1]), np.array(steps))
    scores = scores_frame(
        env="a", method="m", seed=seed, step=step, split="eval", metric="return", task=0, episode=0, value=1.0
    )
    assert reading.last_rows(scores, figure_spec(about), "return", "eval")["step"].tolist() == kept


def test_an_option_for_the_number_of_resamples_is_what_is_drawn() -> None:
    scores_SN = np.random.default_rng(0).normal(size=(5, 3))
    expected = statistics.stratified_bootstrap(scores_SN, generator("bootstrap", "a"), resamples=100)
    assert ScoreOptions(resamples=100).interval(scores_SN, "a") == expected
