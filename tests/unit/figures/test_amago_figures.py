"""AMAGO's figures: each is drawn from a whole grid of scores with the published values that belong to it; rows of scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from recollect.artifacts.scores import concat_scores, scores_frame
from recollect.environments import crafter, popgym
from recollect.figures import score_rows
from recollect.figures.reference import groups
from recollect.figures.registry import kind
from recollect.figures.spec import FigureSpec, figure_spec
from recollect.settings.errors import UserError
from recollect.settings.resolve import figure_reads, figure_settings, names
from recollect.stages.figure import spec_of

FIGURES = [n for n in names("figures") if n.startswith("amago_") and figure_reads("paper", n) in ("scores", "training")]
#: Published points of each figure; those without are examples of the code, or show what is ours.
PUBLISHED = {
    "amago_2_meta_world": 4, "amago_ablations": 10, "amago_crafter": 20, "amago_dark_key_door_curves": 4,
    "amago_instructions": 2, "amago_maze_runner": 10, "amago_meta_world": 15, "amago_popgym": 2, "amago_popgym_curves": 39,
    "amago_popgym_tasks": 39, "amago_recall": 5, "amago_tmaze": 3, "amago_wind": 2,
}  # fmt: skip
LARGE = {"amago_popgym", "amago_popgym_curves", "amago_popgym_tasks"}
END = 16_000_000


def made_scores(figure: FigureSpec) -> pd.DataFrame:
    """A learning curve, final evaluations of every split, and rollouts in ten parts."""
    frames = []
    for i, env in enumerate(figure.environments):
        for k, method in enumerate(figure.methods):
            about = {"env": env, "method": method, "seed": np.array(figure.seeds)[:, None]}
            noise = np.array([[np.random.default_rng([i, k, seed]).uniform(0.0, 0.2)] for seed in figure.seeds])
            for metric in ("return", "success"):
                known = {**about, "metric": metric}
                steps = np.arange(5) * END // 4
                curve = {"step": steps, "split": "learning", "task": 0, "episode": 0}
                frames.append(scores_frame(**known, **curve, value=0.7 * steps / END + noise))
                for split, tasks in (("eval", 1), ("train", 1), ("single", 22), ("multi", 10), ("lengths", 5)):
                    place = {"step": END, "split": split, "task": np.arange(tasks), "episode": 0}
                    frames.append(scores_frame(**known, **place, value=0.5 + noise))
            for metric in figure.options["metric"] if figure.kind == "training_metrics" else ():
                logged = {"metric": metric, "step": np.arange(5) * END // 4, "split": "train"}
                frames.append(scores_frame(**about, **logged, value=1.0 + noise))
            place = {"step": END, "split": "eval", "task": 0, "episode": 0, "metric": "from_random"}
            frames.append(scores_frame(**about, **place, value=0.6 + noise))
            place = {"step": END, "split": "eval", "task": 0, "episode": np.arange(10), "metric": "part_return"}
            frames.append(scores_frame(**about, **place, value=np.arange(10.0)))
    return concat_scores(frames)


def drawn_table(figure: FigureSpec) -> pd.DataFrame:
    quick = {} if figure.kind == "result_table" else {"resamples": 100}
    if figure.kind in ("curve_panels", "training_metrics"):
        quick["points"] = 12
    figure = figure.model_copy(update={"options": figure.options | quick})
    return kind(figure.kind).draw(made_scores(figure), figure).table


@pytest.mark.quick("amago_dark_key_door", "amago_wind", "amago_2_meta_world")
@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_drawn_with_its_published_values(name: str, workdir: Path) -> None:
    figure = spec_of("paper", name)
    table = drawn_table(figure)
    measured = table[table["seeds"] > 0]
    assert set(measured["method"]) == set(figure.methods) and set(measured["seeds"]) == {3}
    assert table["method"].str.startswith("published:").sum() == PUBLISHED.get(name, 0)


@pytest.mark.quick("smoke")
@pytest.mark.parametrize("scale", ["smoke", "demo"])
def test_figures_of_smaller_scales_show_nothing_published(scale: str, workdir: Path) -> None:
    for name in FIGURES:
        assert not [item for item in spec_of(scale, name).references if item.scale == scale]


@pytest.mark.parametrize("name", ["amago_crafter", "amago_dark_key_door", "amago_popgym", "amago_popgym_tasks"])
def test_a_figure_whose_options_differ_is_drawn_at_a_smaller_scale(name: str, workdir: Path) -> None:
    table = drawn_table(spec_of("smoke", name))
    assert not table["method"].str.startswith("published:").any() and set(table["seeds"]) == {2}


def test_popgyms_figures_have_the_papers_39_tasks_once() -> None:
    expected = {f"amago_popgym_{task}" for task in popgym.TASKS}
    for name in sorted(LARGE):
        environments = figure_settings("paper", name).environments
        assert set(environments) == expected and len(environments) == 39
    panels = figure_settings("paper", "amago_popgym_tasks").options["panels"]
    published, curves = (groups()[f"amago_popgym_{name}"].curves for name in ("tasks", "curves"))
    for level, rows in panels.items():
        ends = [(place, curves[env]["amago_transformer"].y[-1]) for place, env in enumerate(rows, start=1)]
        points = published[level]["amago_transformer"]
        assert list(zip(points.x, points.y, strict=True)) == ends, level
        assert [row.removeprefix("amago_popgym_") for row in rows] == [
            game + level for game in (task.removesuffix("Easy") for task in map(_task, panels["Easy"]))
        ]


def _task(environment: str) -> str:
    return environment.removeprefix("amago_popgym_")


def test_crafters_rows_are_its_instructions_in_their_order() -> None:
    panels = figure_settings("paper", "amago_crafter").options["panels"]
    one, *more = [f"amago_crafter/lengths/{task.index}" for task in crafter.tasks("lengths")]
    single, several = crafter.tasks("single"), crafter.tasks("multi")
    assert list(panels["One goal"].values()) == [*(task.name.replace("_", " ") for task in single), "drawn anew"]
    assert list(panels["One goal"]) == [*(f"amago_crafter/single/{task.index}" for task in single), one]
    fixed = [f"amago_crafter/multi/{task.index}" for task in several]
    assert list(panels["Several goals"]) == [*fixed, *more, "amago_crafter"]
    drawn = [panels["Several goals"][row] for row in more]
    assert drawn == [f"{number}, drawn anew" for number in ("two", "three", "four", "five")]


#: Specification 6.1, tables 1 and 2 (waking up, by images) and figure 9: success in hundredths.
CRAFTER = {
    "collect coal": 90.1, "collect drink": 99.9, "collect iron": 0.0, "collect stone": 99.5, "collect wood": 99.9,
    "defeat skeleton": 76.5, "defeat zombie": 97.2, "eat cow": 96.6, "make stone pickaxe": 97.8, "make stone sword": 98.3,
    "make wood pickaxe": 99.8, "make wood sword": 99.8, "place furnace": 94.2, "place plant": 99.3, "place table": 96.7,
    "wake up": 93.7, "cow, stone pickaxe, coal, wood sword, zombie": 66.0, "one to five, drawn anew": 53.9,
}  # fmt: skip


def test_crafters_published_numbers_stand_in_the_rows_of_their_instructions() -> None:
    panels = figure_settings("paper", "amago_crafter").options["panels"]
    found: dict[str, float] = {}
    for name in ("textures", "pixels"):
        for panel, curves in groups()[f"amago_crafter_{name}"].curves.items():
            labels, points = list(panels[panel].values()), curves["amago_transformer"]
            found |= {labels[int(x) - 1]: 100 * y for x, y in zip(points.x, points.y, strict=True)}
    assert found == pytest.approx(CRAFTER)


# ---------------------------------------------------------------------------------------------------------------- rows


def rows_spec(panels: dict[str, dict[str, str]], **changes: Any) -> FigureSpec:
    base = {
        "name": "r",
        "kind": "score_rows",
        "scale": "demo",
        "environments": ["a", "b"],
        "methods": ["amago_ff", "mine"],
    }
    return figure_spec({**base, "seeds": [0, 1], "options": {"panels": panels, "resamples": 100}, **changes})


def row_scores() -> pd.DataFrame:
    """Task t of environment e scores 10 e + t, in t + 1 episodes, 100 more by `mine`; split `other` is 1000 more.

    An evaluation before, far below, is not to be drawn.
    """
    frames = []
    for e, env in enumerate(("a", "b")):
        for method, more in (("amago_ff", 0), ("mine", 100)):
            for seed in (0, 1):
                for split, much in (("eval", 0), ("other", 1000)):
                    for t in range(3):
                        known = {"env": env, "method": method, "seed": seed, "split": split, "task": t}
                        for step, early in ((4, -5000), (9, 0)):
                            frames.append(scores_frame(**known, step=step, episode=np.arange(t + 1), metric="return",
                                                       value=10.0 * e + t + more + much + early))  # fmt: skip
    return concat_scores(frames)


@pytest.mark.slow
def test_a_row_is_an_environment_a_split_or_a_task_and_tasks_count_alike() -> None:
    panels = {"first": {"a": "A", "b/other": "B"}, "second": {"b/eval/2": "third of B"}}
    table = score_rows.draw(row_scores(), rows_spec(panels)).table
    mine = table[table["method"] == "mine"]
    assert mine[["panel", "x", "y", "tasks"]].to_numpy().tolist() == [
        ["first", 1.0, 101.0, 3], ["first", 2.0, 1111.0, 3], ["second", 1.0, 112.0, 1],
    ]  # fmt: skip
    assert (table[table["method"] == "amago_ff"]["y"].to_numpy() == mine["y"].to_numpy() - 100).all()
    at = {"panel": "first", "method": "mine", "x": [2], "y": [1500], "source": "s"}
    beside = score_rows.draw(row_scores(), rows_spec(panels, scale="paper", references=[at])).figure.axes[0]
    (marker,) = (line for line in beside.lines if np.array_equal(line.get_xdata(), [1500.0]))
    assert np.allclose(marker.get_ydata(), 2, atol=0.5)
    plain = score_rows.draw(row_scores(), rows_spec({})).table
    assert plain["panel"].unique().tolist() == [""] and plain["y"].tolist() == [1.0, 101.0, 11.0, 111.0]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("c", "of none of the figure's environments"),
        ("a/eval/first", "is no row"),
        ("a/eval/7", "no return of amago_ff in row"),
        ("a/evil", "no scores with split 'evil'"),
    ],
)
def test_a_row_that_is_not_there_is_refused(row: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        score_rows.draw(row_scores(), rows_spec({"p": {row: "x"}}))


def test_seeds_that_were_scored_on_different_tasks_are_named() -> None:
    scores = row_scores()
    lacking = scores[~((scores["method"] == "mine") & (scores["seed"] == 1) & (scores["task"] == 2))]
    with pytest.raises(UserError, match="mine has no return of task 2 with seed 1 in row 'a'"):
        score_rows.draw(lacking, rows_spec({"p": {"a": "A"}}))


def test_markers_intervals_and_published_values_of_rows_are_those_of_the_table() -> None:
    references = [
        {"panel": "p", "method": method, "x": [1, 2], "y": y, "source": "s"}
        for method, y in (("amago_ff", [7, 8]), ("mine", [500, 600]))
    ]
    scores = row_scores()
    scores["value"] += 3.0 * scores["seed"]
    figure = rows_spec({"p": {"a": "A", "b": "B"}}, scale="paper", references=references)
    drawn = score_rows.draw(scores, figure)
    axes, table = drawn.figure.axes[0], drawn.table
    shown = {tuple(line.get_xdata()): np.array(line.get_ydata()) for line in axes.lines if len(line.get_xdata()) == 2}
    for method, intervals in zip(figure.methods, axes.collections, strict=True):
        rows = table[table["method"] == method]
        assert (rows["low"] < rows["y"]).all() and (rows["y"] < rows["high"]).all()
        assert np.allclose([bar[:, 0] for bar in intervals.get_segments()], rows[["low", "high"]])  # type: ignore[attr-defined]
        at = np.array([bar[0, 1] for bar in intervals.get_segments()])  # type: ignore[attr-defined]
        published = table[table["method"] == f"published:{method}"]
        for y in (rows["y"], published["y"]):
            assert np.allclose(shown[tuple(y)], at)
    assert shown[7, 8][0] < 1 < shown[500, 600][0]  # one above the other, in the order of methods


def test_a_row_is_the_mean_over_the_episodes_of_a_task() -> None:
    figure = rows_spec({"first": {"a": "A"}}, environments=["a"], methods=["mine"])
    about = {"env": "a", "method": "mine", "split": "eval", "metric": "return", "step": 9, "task": 0}
    scores = scores_frame(**about, seed=np.array([[0], [1]]), episode=np.arange(3), value=np.array([0.0, 0, 3]))
    assert score_rows.draw(scores, figure).table["y"].tolist() == [1]
