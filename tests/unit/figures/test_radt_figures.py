"""RA-DT's figures: bars, curves against training steps, several splits, speeds and tables show exactly what was scored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from recollect.artifacts.scores import scores_frame
from recollect.artifacts.sealed import write_table
from recollect.figures import reference, registry, style
from recollect.figures.spec import TABLE_COLUMNS, Drawn, FigureSpec, figure_spec, one_or_more, panel_names, panels_of
from recollect.figures.writing import manifest_of, render
from recollect.settings.errors import UserError
from recollect.settings.resolve import figure_reads, figure_settings, names
from recollect.settings.still import held_still
from recollect.stages.figure import spec_of
from recollect.stages.selection import chosen_figures, default_selection

MINE = (
    "radt_grid_worlds",
    "radt_grid_worlds_train",
    "radt_training_curve",
    "radt_maze_runner",
    "radt_maze_runner_curves",
    "radt_200_trials",
    "radt_ablations",
    "radt_language_models",
    "radt_efficiency",
    "radt_meta_world",
    "radt_dmcontrol",
    "radt_procgen",
)
SPEEDS = ("samples_per_second", "steps_per_second_alone", "steps_per_second_together")


def made_scores(
    figure: FigureSpec,
    *,
    splits: Sequence[str] = ("eval",),
    metrics: Sequence[str] = ("return",),
    steps: Sequence[int] = (100,),
    tasks: int = 3,
    episodes: int = 8,
) -> pd.DataFrame:
    """Scores of a figure's whole grid: each method and environment at a level of its own, with a rise and noise."""
    frames = []
    seed = np.array(figure.seeds)[:, None, None, None]
    step = np.array(steps)[:, None, None]
    place = {"seed": seed, "step": step, "task": np.arange(tasks)[:, None], "episode": np.arange(episodes)}
    for i, env in enumerate(figure.environments):
        for k, method in enumerate(figure.methods):
            drawn = [np.random.default_rng([i, k, s]).standard_normal((1, tasks, episodes)) for s in figure.seeds]
            noise = np.stack(drawn)
            for split in splits:
                level = (40 + 10 * i - 2 * k) * step / max(steps) + (5 if split == "train" else 0)
                values = level + 2 * np.arange(episodes) + noise
                for metric in metrics:
                    value = values if metric == "return" else values / 100
                    frames.append(
                        scores_frame(env=env, method=method, split=split, metric=metric, **place, value=value)
                    )
    return pd.concat(frames, ignore_index=True)


def made_speeds(figure: FigureSpec) -> pd.DataFrame:
    frames = []
    seeds = np.array(figure.seeds)
    for i, env in enumerate(figure.environments):
        for k, method in enumerate(figure.methods):
            about = {"env": env, "method": method, "seed": seeds, "step": 200, "split": "speed"}
            for n, metric in enumerate(SPEEDS):
                frames.append(scores_frame(**about, metric=metric, value=1000 * (n + 1) - 100 * k - 10 * i + seeds))
    return pd.concat(frames, ignore_index=True)


def spec(kind: str, **changes: Any) -> FigureSpec:
    values = {
        "name": "f",
        "labels": {"radt": "RA-DT", "ad": "AD"},
        "kind": kind,
        "scale": "demo",
        "environments": ["room"],
        "methods": ["radt", "ad"],
        "seeds": [0, 1],
    }
    return figure_spec({**values, **changes})


def draw(scores: pd.DataFrame, figure: FigureSpec) -> Drawn:
    return registry.kind(figure.kind).draw(scores, figure)


def quick(figure: FigureSpec) -> FigureSpec:
    few = {} if figure.kind == "result_table" else {"resamples": 100}
    return figure.model_copy(update={"options": figure.options | few})


def texts(figure: Figure) -> list[str]:
    return [item.get_text() for item in figure.findobj(Text) if item.get_visible() and item.get_text().strip()]


def cell(scores: pd.DataFrame, **of: Any) -> pd.DataFrame:
    for name, value in of.items():
        scores = scores[scores[name] == value]
    return scores


# ----------------------------------------------------------------------------------------- all configured figures


@pytest.mark.quick("radt_maze_runner", "radt_meta_world")
@pytest.mark.filterwarnings("error:constrained_layout not applied")  # by published values far beyond the axis
@pytest.mark.parametrize("name", MINE)
def test_every_figure_of_the_config_is_drawn_with_its_published_values(name: str, workdir: Path) -> None:
    figure = quick(spec_of("paper", name))
    if figure_reads("paper", name) == "speeds":
        scores = made_speeds(figure)
    else:
        groups = figure.options.get("groups", {}).values()
        splits = {group.get("split", "eval") for group in groups} or one_or_more(figure.options.get("split", "eval"))
        metrics = {"return", figure.options.get("normalised", "return")}
        steps = (50, 100) if "x" in figure.options else (100,)
        scores = made_scores(figure, splits=sorted(splits), metrics=sorted(metrics), steps=steps)
    drawn = draw(scores, figure)
    assert list(drawn.table.columns) == TABLE_COLUMNS
    manifest = manifest_of(figure, drawn, [], {})
    assert "3 seeds" in manifest["caption"] and "ublished" in manifest["caption"] and manifest["scale"] == "paper"
    assert any(text.startswith("scale paper · 3 seeds") for text in texts(drawn.figure))
    measured = drawn.table[drawn.table["seeds"] > 0]
    assert set(measured["method"]) == set(figure.methods) and set(measured["seeds"]) == {3}
    published = drawn.table[drawn.table["method"].str.startswith("published:")]
    assert len(published) == sum(len(item.x) for item in figure.references) > 0
    assert set(published["panel"]) <= set(measured["panel"])


@pytest.mark.quick("radt_procgen")
@pytest.mark.parametrize("name", ["radt_ablations", "radt_efficiency", "radt_maze_runner_curves", "radt_procgen"])
def test_no_text_overlaps_and_none_leaves_the_page(name: str, workdir: Path) -> None:
    figure = quick(spec_of("paper", name))
    splits, metrics = ("eval", "train", "seen", "unseen"), ("return", "hns")
    speeds = figure_reads("paper", name) == "speeds"
    drawn = draw(made_speeds(figure) if speeds else made_scores(figure, splits=splits, metrics=metrics), figure)
    with style.paper_style():
        drawn.figure.draw_without_rendering()
        found = [item for item in drawn.figure.findobj(Text) if item.get_visible() and item.get_text().strip()]
        shown = [axes for axes in drawn.figure.axes if axes.get_visible()]
        boxes = [
            (item.get_text(), item.get_window_extent()) for item in found if item.axes is None or item.axes in shown
        ]
    width, height = drawn.figure.bbox.width, drawn.figure.bbox.height
    for words, box in boxes:
        assert box.x0 > -1 and box.x1 < width + 1 and box.y0 > -1 and box.y1 < height + 1, words
    for (first, box), (second, other) in combinations(boxes, 2):
        overlap = min(box.x1, other.x1) - max(box.x0, other.x0), min(box.y1, other.y1) - max(box.y0, other.y0)
        assert min(overlap) < 1, f"'{first}' over '{second}'"


@pytest.mark.parametrize("name", MINE)
def test_published_values_are_drawn_at_the_papers_scale_only(name: str, workdir: Path) -> None:
    figure = spec_of("smoke", name)
    assert figure.references and not any(figure.references_of(item.panel) for item in figure.references)


@held_still()
def test_every_published_value_has_a_place_in_some_figure(workdir: Path) -> None:
    """A misspelt panel or method would be left out without a word."""
    placed: dict[str, set[tuple[str, str]]] = {}
    for name in names("figures"):
        for wanted in figure_settings("paper", name).references:
            placed.setdefault(wanted["published"], set()).update(
                (i.panel, i.method) for i in spec_of("paper", name).references
            )
    for name, group in reference.groups().items():
        named = {(panel, method) for panel, methods in group.curves.items() for method in methods}
        assert named <= placed.get(name, set()), name


def test_default_figures_are_of_every_line_of_research(workdir: Path) -> None:
    for figures in (default_selection().figures_at(), chosen_figures("demo", ["demo_all"])):
        assert {name.split("_")[0] for name in figures} == {"radt", "memory", "amago", "helm"}
    assert figure_settings("demo", "radt_dark_room_10x10").methods == ("radt", "ad", "ad.greedy", "dt")
    published = ("radt", "radt_agnostic", "ad", "dpt", "dt")
    ours = ("radt.greedy", "ad.sampled")  # each acts as the other does
    assert figure_settings("paper", "radt_dark_room_10x10").methods == published + ours
    assert set(MINE) <= set(names("figures"))


# ------------------------------------------------------------------------------------------------------------ bars


def test_a_bar_is_the_mean_of_the_last_episodes() -> None:
    figure = spec("bars", options={"last": 3, "resamples": 100})
    scores = made_scores(figure, steps=(50, 100))
    drawn = draw(scores, figure)
    table = drawn.table
    (intervals,), bars = drawn.figure.axes[0].collections, drawn.figure.axes[0].patches
    assert np.allclose([bar.get_width() for bar in bars], table["y"])  # type: ignore[attr-defined]
    said = [text.get_text() for text in drawn.figure.axes[0].texts]
    assert said == [f"{y:,.0f}" for y in table["y"]]
    assert np.allclose([line[:, 0] for line in intervals.get_segments()], table[["low", "high"]])  # type: ignore[attr-defined]
    for place, method in enumerate(figure.methods, start=1):
        row = cell(table, method=method).iloc[0]
        last = cell(scores, method=method, step=100)
        assert row["y"] == pytest.approx(last[last["episode"] >= 5]["value"].mean())
        assert row["low"] < row["y"] < row["high"] and (row["x"], row["tasks"]) == (place, 3)
    whole = draw(scores, spec("bars", options={"last": "all", "resamples": 100})).table
    assert whole["y"][0] == pytest.approx(cell(scores, method="radt", step=100)["value"].mean())


def test_named_panels_show_a_method_again_under_another_label() -> None:
    panels = {"weight": {"radt.low": "0", "radt": "1"}, "layers": {"radt": "all", "radt.one": "first"}}
    options = {"panels": panels, "resamples": 100}
    figure = spec("bars", methods=["radt", "radt.low", "radt.one"], options=options)
    drawn = draw(made_scores(figure), figure)
    rows = [tuple(row) for row in drawn.table[["panel", "method", "x"]].to_numpy()]
    assert rows == [("weight", "radt.low", 1), ("weight", "radt", 2), ("layers", "radt", 1), ("layers", "radt.one", 2)]
    assert cell(drawn.table, method="radt")["y"].nunique() == 1
    assert {"weight", "layers", "0", "1", "all", "first"} <= set(texts(drawn.figure))
    colors = [patch.get_facecolor() for axes in drawn.figure.axes for patch in axes.patches]
    assert colors[0] == colors[3] != colors[1] == colors[2]  # variants light, the method itself full


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"options": {"panels": {"a": {"radt": "x", "radt.lw": "y"}}}}, "did you mean 'radt.low'"),
        ({"options": {"panels": {"a": {"radt": "x"}}}}, "'radt.low' is in no panel"),
        ({"options": {"panels": {"a": {"radt": "x"}}, "split": ["eval", "train"]}}, "one environment, one split"),
        ({"options": {"last": 0}}, "'last"),
    ],
)
def test_wrong_panels_are_refused(changes: dict[str, Any], message: str) -> None:
    figure = spec("bars", methods=["radt", "radt.low"], **changes)
    with pytest.raises(UserError, match=message):
        draw(made_scores(figure, splits=("eval", "train")), figure)


def test_published_bars_are_the_last_five_where_those_were_read_off() -> None:
    panels = {"options": {"last": 5, "resamples": 100}, "scale": "paper"}
    at = {"panel": "room", "x": [40], "source": "s"}
    references = [{**at, "method": "radt", "y": [82], "last_five": 80}, {**at, "method": "ad", "y": [55]}]
    figure = spec("bars", references=references, **panels)
    drawn = draw(made_scores(figure), figure)
    table = drawn.table
    assert cell(table, method="published:radt")["y"].tolist() == [80]
    diamonds = [line.get_xydata().tolist() for line in drawn.figure.axes[0].lines if line.get_marker() == "D"]  # type: ignore[union-attr]
    assert diamonds == [[[80, 1]], [[55, 2]]]
    assert cell(table, method="published:ad")[["x", "y"]].to_numpy().tolist() == [[2, 55]]
    whole = figure.model_copy(update={"options": {"last": "all", "resamples": 100}})
    assert cell(draw(made_scores(figure), whole).table, method="published:radt")["y"].tolist() == [82]


def test_bars_of_a_rate_go_as_far_as_a_rate_can() -> None:
    figure = spec("bars", options={"top": 500, "resamples": 100})
    assert draw(made_scores(figure), figure).figure.axes[0].get_xlim()[1] >= 500


def test_negative_bars_intervals_and_published_values_lie_within_the_axes() -> None:
    at = {"panel": "room", "x": [40], "source": "s"}
    references = [{**at, "method": "radt", "y": [-60]}, {**at, "method": "ad", "y": [-1]}]
    figure = spec("bars", scale="paper", references=references, options={"resamples": 100})
    scores = made_scores(figure)
    for shift in (50, 80):  # intervals on both sides of zero, and all values below it
        shifted = scores.assign(value=scores["value"] - shift - 5 * scores["seed"])
        drawn = draw(shifted, figure)
        low, high = drawn.figure.axes[0].get_xlim()
        shown = drawn.table[["y", "low", "high"]].to_numpy()
        assert low < np.nanmin(shown) and high > max(0, np.nanmax(shown))
    one_scale = {"panels": {"a": {"radt": "x"}, "b": {"ad": "y"}}, "resamples": 100}
    panels = draw(shifted, spec("bars", options=one_scale)).figure.axes
    assert panels[0].get_xlim() == panels[1].get_xlim()


# ---------------------------------------------------------------------------- in-context curves: splits and steps


def test_each_split_has_its_panel() -> None:
    figure = spec("in_context_curve", options={"split": ["eval", "train"], "resamples": 100})
    scores = made_scores(figure, splits=("eval", "train"))
    drawn = draw(scores, figure)
    assert list(dict.fromkeys(drawn.table["panel"])) == ["room", "room/train"]
    for panel, split in (("room", "eval"), ("room/train", "train")):
        expected = cell(scores, method="ad", split=split).groupby("episode")["value"].mean()
        assert np.allclose(cell(drawn.table, panel=panel, method="ad")["y"], expected)
    assert {"room, unseen tasks", "room, training tasks"} <= set(texts(drawn.figure))
    assert any("splits 'eval' and 'train'" in note for note in drawn.notes)


def test_against_training_steps_a_point_is_the_mean_over_all_episodes() -> None:
    figure = spec("in_context_curve", options={"x": "step", "resamples": 100})
    scores = made_scores(figure, steps=(25, 50, 100))
    drawn = draw(scores, figure)
    rows = cell(drawn.table, method="radt")
    assert rows["x"].tolist() == [25, 50, 100]
    assert np.allclose(rows["y"], cell(scores, method="radt").groupby("step")["value"].mean())
    assert (rows["low"] < rows["y"]).all() and drawn.axes["x"] == "training step"
    assert any("mean over the 8 in-context episodes" in note for note in drawn.notes)


@pytest.mark.parametrize(
    ("x", "said"),
    [
        ("episode", "tenth of a rollout, counted from 1; the weights are frozen and the memory stays"),
        ("step", "tenth of a rollout"),
    ],
)
def test_what_the_axis_of_a_curve_is_called_stands_in_its_manifest(x: str, said: str) -> None:
    figure = spec("in_context_curve", options={"x": x, "x_label": "tenth of a rollout", "resamples": 100})
    drawn = draw(made_scores(figure), figure)
    assert drawn.axes["x"] == said and "tenth of a rollout" in texts(drawn.figure)


def test_successive_episodes_can_make_one_point() -> None:
    figure = spec("in_context_curve", options={"average": 4, "resamples": 100})
    scores = made_scores(figure)
    drawn = draw(scores, figure)
    rows = cell(drawn.table, method="radt")
    means = cell(scores, method="radt").groupby("episode")["value"].mean().to_numpy()
    assert rows["x"].tolist() == [2.5, 6.5]  # the middle of episodes 1 to 4, and of 5 to 8
    assert np.allclose(rows["y"], means.reshape(2, 4).mean(1)) and (rows["low"] < rows["y"]).all()
    assert any("mean of 4 successive episodes" in note for note in drawn.notes)
    with pytest.raises(UserError, match="8 episodes cannot be averaged by 3"):
        draw(scores, spec("in_context_curve", options={"average": 3}))


def test_one_seed_has_an_interval_over_tasks_and_the_figure_says_so() -> None:
    figure = spec("in_context_curve", seeds=[0], options={"resamples": 100})
    drawn = draw(made_scores(figure, tasks=5), figure)
    assert (drawn.table["low"] < drawn.table["y"]).all()
    assert any("1 seed · 5 tasks · mean, 95 % bootstrap interval over tasks" in t for t in texts(drawn.figure))
    assert any("bootstrap intervals over tasks" in note for note in drawn.notes)
    assert any("interval over the tasks of 1 seed, which says nothing of other seeds" in note for note in drawn.notes)
    alone = draw(made_scores(figure, tasks=1), figure)
    assert alone.table["low"].isna().all() and not any("interval" in text for text in texts(alone.figure))
    assert any("no interval can be given from 1 seed" in note for note in alone.notes)


def test_an_evaluation_that_one_seed_lacks_is_refused() -> None:
    figure = spec("in_context_curve", options={"x": "step", "resamples": 100})
    scores = made_scores(figure, steps=(25, 50, 100))
    holed = scores[~((scores["step"] == 50) & (scores["seed"] == 1) & (scores["method"] == "ad"))]
    with pytest.raises(UserError, match="24 of 48 scores of ad on room are missing; first: seed 1"):
        draw(holed, figure)


def test_panels_are_named_by_what_is_not_the_figures_first() -> None:
    made = panels_of(["a", "b"], ("eval", "train"), ("return", "success"))
    assert [panel.name for panel in made[:4]] == ["a", "b", "a/train", "b/train"]
    assert [panel.name for panel in made[4:]] == ["a/success", "b/success", "a/train/success", "b/train/success"]
    assert panel_names(["a"], {"panels": {"p": {}}, "groups": {"g": {}}}) == [
        "a",
        "p",
        "g",
        "g/normalised",
        "aggregation",
    ]


# ---------------------------------------------------------------------------------------------------------- speeds


@pytest.mark.slow
def test_speeds_say_on_which_machine_they_were_measured(tmp_path: Path) -> None:
    figure = spec("throughput", environments=["room", "hall"], options={"resamples": 100})
    write_table(tmp_path / "speed.parquet", made_speeds(figure), kind="speed", provenance={"machine": "H200"})
    drawn = render(figure, [tmp_path / "speed.parquet"], tmp_path / "figure")
    assert "Measured on H200." in drawn.notes
    assert len(set(drawn.table["panel"])) == 6 and {"room", "hall/steps_per_second_alone"} <= set(drawn.table["panel"])
    alone = cell(drawn.table, panel="room/steps_per_second_alone", method="ad")
    assert alone["y"].tolist() == [1900.5]
    write_table(tmp_path / "scores.parquet", made_speeds(figure), kind="scores")
    with pytest.raises(UserError, match="of kind 'scores', not 'speed'"):
        render(figure, [tmp_path / "scores.parquet"], tmp_path / "figure")


def test_one_speed_is_no_mean_of_episodes_and_names_its_aggregate() -> None:
    options = {"metric": "steps_per_second_alone", "statistic": "iqm", "resamples": 100}
    figure = spec("throughput", environments=["room"], options=options)
    drawn = draw(made_speeds(figure), figure)
    assert [axes.get_xlabel() for axes in drawn.figure.axes] == ["steps/s, one task"]
    assert drawn.axes["y"].endswith(": interquartile mean over seeds")


# ---------------------------------------------------------------------------------------------------------- tables


def test_a_table_has_means_deviations_and_normalised_returns() -> None:
    groups = {"both": {"environments": ["room", "hall"]}}
    options = {"groups": groups, "normalised": "hns", "decimals": 1}
    figure = spec("result_table", environments=["room", "hall"], options=options)
    scores = made_scores(figure, metrics=("return", "hns"))
    drawn = draw(scores, figure)
    row = cell(drawn.table, panel="both", method="ad").iloc[0]
    per_seed = cell(scores, method="ad", metric="return").groupby("seed")["value"].mean()
    assert row["y"] == pytest.approx(per_seed.mean()) and row["tasks"] == 6
    assert (row["high"] - row["low"]) / 2 == pytest.approx(per_seed.std(ddof=1))
    assert cell(drawn.table, panel="both/normalised", method="ad")["y"].iloc[0] == pytest.approx(row["y"] / 100)
    said = texts(drawn.figure)
    assert {"RA-DT", "AD", "both", "return", "normalised", f"{row['y']:.1f}", f"± {per_seed.std(ddof=1):.1f}"} <= set(
        said
    )


def test_a_column_is_of_its_own_tasks_and_of_the_last_episodes_of_the_last_evaluation() -> None:
    groups = {"seen": {"environments": ["room"], "split": "train"}, "unseen": {"environments": ["room"]}}
    figure = spec("result_table", options={"groups": groups, "last": 3})
    scores = made_scores(figure, splits=("eval", "train"), steps=(50, 100))
    table = draw(scores, figure).table
    for panel, split in (("seen", "train"), ("unseen", "eval")):
        last = cell(scores, method="ad", split=split, step=100)
        expected = last[last["episode"] >= 5]["value"].mean()
        assert cell(table, panel=panel, method="ad")["y"].tolist() == pytest.approx([expected])


def test_the_best_number_of_a_column_is_bold_and_published_ones_stand_beside_it() -> None:
    at = {"panel": "Room", "x": [1], "source": "s"}
    references = [{**at, "method": "ad", "y": [-0.14]}, {**at, "method": "radt", "y": [337.9]}]
    groups = {"Room": {"environments": ["room"]}}
    figure = spec("result_table", scale="paper", references=references, options={"groups": groups})
    drawn = draw(made_scores(figure), figure)
    best = f"{cell(drawn.table, method='radt')['y'].iloc[0]:.1f}"
    bold = [item.get_text() for item in drawn.figure.findobj(Text) if item.get_fontweight() == "bold"]
    assert bold == [best] and "published" in texts(drawn.figure)
    height = {item.get_text(): item.get_position()[1] for item in drawn.figure.findobj(Text)}
    assert height["337.9"] == height[best] == height["RA-DT"] != height["−0.1"] == height["AD"]
    scores = made_scores(figure)
    below = draw(scores.assign(value=-scores["value"]), figure)  # the other one is best now
    best = f"{cell(below.table, method='ad')['y'].iloc[0]:.1f}".replace("-", "−")
    assert [item.get_text() for item in below.figure.findobj(Text) if item.get_fontweight() == "bold"] == [best]
    elsewhere = draw(made_scores(figure), figure.model_copy(update={"scale": "demo"}))
    assert "published" not in texts(elsewhere.figure) and len(elsewhere.table) == 2


def test_one_seed_has_no_deviation_and_groups_must_fit() -> None:
    figure = spec("result_table", seeds=[0])
    drawn = draw(made_scores(figure), figure)
    assert drawn.table["low"].isna().all() and not any("±" in text for text in texts(drawn.figure))
    wrong = spec("result_table", options={"groups": {"g": {"environments": ["hall"]}}})
    with pytest.raises(UserError, match="'hall' is in `groups` and not in `environments`"):
        draw(made_scores(wrong), wrong)
    lacking = spec("result_table", environments=["room", "hall"], options={"groups": {"g": {"environments": ["room"]}}})
    with pytest.raises(UserError, match=r"'hall' is in .* or the other way round"):
        draw(made_scores(lacking), lacking)


def test_a_small_loss_is_not_printed_as_minus_zero() -> None:
    figure = spec("result_table", seeds=[0])
    drawn = draw(made_scores(figure).assign(value=-0.04), figure)
    assert "0.0" in texts(drawn.figure) and "−0.0" not in texts(drawn.figure)


def test_a_table_can_have_the_interquartile_mean_over_environments_and_seeds() -> None:
    rooms = ["room", "hall", "attic"]
    groups = {"all": {"environments": rooms}}
    figure = spec("result_table", environments=rooms, seeds=[0, 1, 2], options={"groups": groups, "statistic": "iqm"})
    scores = made_scores(figure)
    drawn = draw(scores, figure)
    row = cell(drawn.table, panel="all", method="ad").iloc[0]
    means = np.sort(cell(scores, method="ad").groupby(["env", "seed"])["value"].mean().to_numpy())
    assert row["y"] == pytest.approx(means[2:-2].mean()) and row["low"] < row["y"] < row["high"]
    assert f"{row['low']:.1f} to {row['high']:.1f}" in texts(drawn.figure)
    assert any("interquartile mean" in note for note in drawn.notes)


@pytest.mark.parametrize(
    ("seeds", "printed", "warned"),
    [
        ([0], "interquartile mean", "no interval can be given from 1 seed"),
        ([0, 1, 2], "interquartile mean, bootstrap interval (covers 85 %)", "nominal 95 %, actual about 85 %"),
        (list(range(11)), "interquartile mean, 95 % bootstrap interval", None),
    ],
)
def test_a_table_says_what_its_interval_over_few_seeds_covers(
    seeds: list[int], printed: str, warned: str | None
) -> None:
    """The seeds of each of two environments are drawn anew; how many tasks these have tells nothing."""
    rooms = ["room", "hall"]
    options = {"groups": {"both": {"environments": rooms}}, "normalised": "hns", "statistic": "iqm"}
    figure = spec("result_table", environments=rooms, seeds=seeds, options=options)
    drawn = draw(made_scores(figure, metrics=("return", "hns"), tasks=20), figure)
    assert " ".join(text.get_text() for text in reversed(drawn.figure.texts)).endswith(
        f"40 tasks · 2 environments · {printed}"
    )
    warnings = [note for note in drawn.notes if note.startswith("Warning: ")]
    assert len(warnings) == bool(warned) and all(str(warned) in note for note in warnings)
    assert any("interval" in note for note in drawn.notes if note not in warnings) == (len(seeds) > 1)


def test_columns_that_a_page_does_not_carry_stand_below() -> None:
    rooms = [f"room_{i}" for i in range(8)]
    figure = spec("result_table", environments=rooms)
    wide, narrow = (draw(made_scores(f), f).figure for f in (figure, spec("result_table")))
    assert wide.get_figwidth() < 7.3 and wide.get_figheight() > 1.6 * narrow.get_figheight()


@pytest.mark.quick("result_table")
@pytest.mark.parametrize("kind", ["bars", "result_table"])
def test_the_same_scores_give_the_same_bytes(kind: str, tmp_path: Path) -> None:
    figure = spec(kind)
    write_table(tmp_path / "s.parquet", made_scores(figure), kind="scores")
    read: Callable[[str], list[bytes]] = lambda stem: [(tmp_path / f"{stem}{s}").read_bytes() for s in (".pdf", ".csv")]  # noqa: E731
    for stem in ("first", "second"):
        render(figure, [tmp_path / "s.parquet"], tmp_path / stem)
    assert read("first") == read("second")


def test_a_published_bar_is_the_end_of_a_published_curve() -> None:
    end = {"panel": "room", "method": "ad", "x": [1, 40], "y": [7, 55], "source": "s"}
    figure = spec("bars", scale="paper", references=[end])
    table = draw(made_scores(figure), quick(figure)).table
    assert table[table["method"] == "published:ad"]["y"].tolist() == [55]


@pytest.mark.parametrize(
    ("episodes", "last", "said"),
    [
        (8, 5, "the last 5 episodes"),
        (3, 5, "the last 3 episodes"),
        (1, 5, "the last episode"),
        (3, "all", "all episodes"),
    ],
)
def test_no_more_episodes_are_named_than_were_played(episodes: int, last: int | str, said: str) -> None:
    for kind, options in (("bars", {"last": last, "resamples": 100}), ("result_table", {"last": last})):
        figure = spec(kind, options=options)
        drawn = draw(made_scores(figure, episodes=episodes), figure)
        assert said in " ".join(drawn.notes) and said in drawn.axes["y"]
        assert kind != "bars" or any(f"mean of {said}" in text for text in texts(drawn.figure))


def test_a_caption_says_what_the_interquartile_mean_is_taken_over() -> None:
    figure = spec(
        "result_table", environments=["room", "hall"], seeds=[0, 1, 2, 3], options={"statistic": "iqm", "last": 5}
    )
    drawn = draw(made_scores(figure, tasks=5), figure)
    assert drawn.notes[0].startswith(
        "Mean over 5 tasks and the last 5 episodes, then interquartile mean over 1 environment and 4 seeds"
    )
    groups = {"both": {"environments": ["room", "hall"]}}
    both = draw(made_scores(figure, tasks=5), spec("result_table", environments=["room", "hall"], seeds=[0, 1, 2, 3],
                options={"statistic": "iqm", "last": 5, "groups": groups}))  # fmt: skip
    assert "over 10 tasks" in both.notes[0] and "interquartile mean over 2 environments and 4 seeds" in both.notes[0]
