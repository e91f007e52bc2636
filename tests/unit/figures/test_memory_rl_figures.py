"""Memory-RL's learning curves per environment and its attention over an episode: what is drawn is what was measured."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from made_traces import made_trace
from matplotlib.colors import rgb_to_hsv, to_rgb

from recollect.artifacts.scores import concat_scores, scores_frame
from recollect.common.histories import Histories
from recollect.common.traces import Trace
from recollect.figures import curve_panels, history_attention, length_aggregation, method_styles, statistics
from recollect.figures.spec import FigureSpec, figure_spec
from recollect.settings.errors import UserError
from recollect.settings.resolve import figure_settings, names
from recollect.stages.figure import spec_of

SEEDS = (0, 1, 2, 3, 4)


def curve_spec(**changes: Any) -> FigureSpec:
    options = {"ends": 1000, "points": 100, "window": 1, "resamples": 100, **changes.pop("options", {})}
    values = {
        "name": "f",
        "labels": {"td3_gpt": "Transformer", "td3_lstm": "LSTM"},
        "kind": "curve_panels",
        "scale": "demo",
        "environments": ["walk_5", "walk_9"],
        "methods": ["td3_gpt", "td3_lstm"],
        "seeds": SEEDS,
        **changes,
    }
    return figure_spec({**values, "options": {k: v for k, v in options.items() if v is not None}})


def curve_scores(stops: dict[tuple[str, str, int], int] | None = None) -> pd.DataFrame:
    """Run s of td3_gpt reaches s at once, of td3_lstm 10 * s, in one evaluation every 50 steps; two episodes each."""
    frames = []
    for env in ("walk_5", "walk_9"):
        for method, scale in (("td3_gpt", 1.0), ("td3_lstm", 10.0)):
            for seed in SEEDS:
                last = (stops or {}).get((env, method, seed), 1000)
                known = {"env": env, "method": method, "seed": seed, "split": "learning", "task": 0}
                place = {"step": np.arange(50, last + 1, 50)[:, None], "episode": np.arange(2), "metric": "return"}
                frames.append(scores_frame(**known, **place, value=scale * seed + np.array([-1.0, 1.0])))
    return concat_scores(frames)


def test_each_environment_has_its_curves_its_line_and_its_own_ending() -> None:
    lines = {"walk_5": 348.0, "walk_9": 12.0}
    options = {
        "ends": {"walk_5": 1000, "walk_9": 500},
        "lines": lines,
        "line_label": "published",
        "line_source": "them",
    }
    drawn = curve_panels.draw(curve_scores(), curve_spec(options=options))
    table = drawn.table
    for env, end in (("walk_5", 1000.0), ("walk_9", 500.0)):
        here = table[table["panel"] == env]
        lstm = here[here["method"] == "td3_lstm"]
        assert len(lstm) == 100 and (lstm["y"] == 20).all() and lstm["x"].max() == end and set(lstm["seeds"]) == {5}
        line = here[here["method"] == "line:published"]
        assert line["x"].tolist() == [0, end] and set(line["y"]) == {lines[env]}
    assert "Dotted: them." in drawn.notes
    assert any("onto 100 points." in note for note in drawn.notes)
    assert not any("final value" in note for note in drawn.notes)  # none is drawn


@pytest.mark.quick("recollect.figures.curve_panels")
@pytest.mark.parametrize("kind", [curve_panels, length_aggregation])
def test_without_a_given_end_each_environment_has_its_own_and_the_window_is_as_asked(kind: Any) -> None:
    """Scores that rise by one each step, scored every 50 steps."""
    stops = {("walk_9", method, seed): 500 for method in ("td3_gpt", "td3_lstm") for seed in SEEDS}
    scores = curve_scores(stops)
    scores["value"] = scores["step"].astype(float)
    for window, behind in ((1, 0), (4, 75)):
        options = {"ends": {}, "points": None, "window": window}
        table = kind.draw(scores, curve_spec(kind=kind.__name__.rpartition(".")[2], options=options)).table
        for env, end in (("walk_5", 1000), ("walk_9", 500)):
            last = table[(table["panel"] == env) & (table["method"] == "td3_gpt")].iloc[-1]
            assert (last["x"], last["y"]) == (end, pytest.approx(end - behind))


@pytest.mark.slow
def test_the_interquartile_mean_leaves_out_the_best_and_the_worst_run() -> None:
    scores = curve_scores()
    far = (scores["method"] == "td3_gpt") & (scores["seed"] == 4)
    scores.loc[far, "value"] += 1000.0
    for statistic, expected in (("mean", 202.0), ("iqm", 2.0)):
        drawn = curve_panels.draw(scores, curve_spec(options={"statistic": statistic}))
        gpt = drawn.table[(drawn.table["method"] == "td3_gpt") & (drawn.table["panel"] == "walk_5")]
        assert gpt["y"].tolist() == pytest.approx([expected] * 100)
        spec = curve_spec(
            kind="length_aggregation",
            options={"statistic": statistic, "chance": None, "ends": {}, "points": None, "window": 1},
        )
        table = length_aggregation.draw(scores, spec).table
        final = table[(table["panel"] == "aggregation") & (table["method"] == "td3_gpt")]
        assert final["y"].tolist() == pytest.approx([expected] * 2)
        assert (final["low"] <= final["y"]).all() and (final["y"] <= final["high"]).all()
    assert statistics.iqm(np.array([0.0, 1, 2, 3, 1004])) == 2.0


def test_a_task_of_ours_stands_beside_the_published_one_and_published_values_beside_that_alone() -> None:
    scores = curve_scores()
    ours = scores.assign(env=scores["env"].astype(str) + "_0").replace({"walk_5_0": "ours_5", "walk_9_0": "ours_9"})
    published = {
        "panel": "aggregation",
        "method": "td3_gpt",
        "x": (7.0, 9.0),
        "y": (1.0, 40.0),
        "source": "them",
        "scale": "demo",
    }
    spec = curve_spec(
        kind="length_aggregation",
        environments=["walk_5", "walk_9", "ours_5", "ours_9"],
        environment_labels={"ours_5": "length 5, ours"},
        references=[published],
        options={"ends": {}, "points": None, "chance": 0.5, "beside": {"ours": ["ours_5", "ours_9"]}},
    )
    drawn = length_aggregation.draw(concat_scores([scores, ours]), spec)
    for panel in ("aggregation", "aggregation, ours"):
        rows = drawn.table[drawn.table["panel"] == panel]
        assert rows[rows["method"] == "td3_lstm"]["x"].tolist() == [5, 9]
        assert rows["method"].str.startswith("published:").any() == (panel == "aggregation")
        assert rows["method"].str.startswith("line:").any()
    (marker,) = (
        line
        for line in drawn.figure.axes[0].lines
        if np.array_equal(line.get_ydata(), [40.0]) and line.get_marker() == "o"
    )
    assert np.array_equal(marker.get_xdata(), [1.0])  # length 9 is the second, and of 7 nothing is drawn
    titles = [axes.get_title(loc="left") for axes in drawn.figure.axes]
    assert titles[:2] == ["final performance", "ours"]
    assert {"length 5", "length 9", "length 5, ours"} <= set(titles)
    assert any("over all lengths and seeds of the first panel, with" in note for note in drawn.notes)


def test_the_caption_sums_a_method_up_by_the_interquartile_mean_over_lengths_and_seeds() -> None:
    def notes(scores: pd.DataFrame, **options: Any) -> list[str]:
        given = {"chance": None, "ends": {"walk_5": 1000, "walk_9": 1000}, "points": None, **options}
        drawn = length_aggregation.draw(scores, curve_spec(kind="length_aggregation", options=given))
        return [
            note for note in drawn.notes if note.startswith("Interquartile mean of the final values over all lengths")
        ]

    scores = curve_scores()
    far = (scores["method"] == "td3_gpt") & (scores["seed"] == 4) & (scores["env"] == "walk_9")
    scores.loc[far, "value"] += 1000.0
    (said,) = notes(scores)  # of 0 0 1 1 2 2 3 3 4 1004 the middle six: 1 1 2 2 3 3 (two of ten cut at each end)
    assert "Transformer 2.00 (" in said and "LSTM 20.00 (" in said
    low, high = (float(part) for part in said.split("Transformer 2.00 (")[1].split(")")[0].split(" to "))
    assert 0 <= low < 2 < high < 1004
    assert notes(scores, summary=False) == []
    stopped = {("walk_9", "td3_gpt", seed): 850 for seed in SEEDS[:4]}
    (said,) = notes(curve_scores(stopped))  # one seed is left at both lengths
    assert "Transformer" not in said and "LSTM 20.00" in said


def test_a_run_that_stopped_early_is_not_drawn_but_named() -> None:
    drawn = curve_panels.draw(curve_scores({("walk_9", "td3_gpt", 3): 850}), curve_spec())
    gpt = drawn.table[(drawn.table["method"] == "td3_gpt") & (drawn.table["panel"] == "walk_9")]
    assert set(gpt["seeds"]) == {4} and gpt["y"].tolist() == pytest.approx([(0 + 1 + 2 + 4) / 4] * 100)
    assert any("walk 9, seed 3 (stopped at 850 of 1,000 steps)" in note for note in drawn.notes)
    whole = {("walk_9", "td3_gpt", seed): 850 for seed in SEEDS}
    with pytest.raises(UserError, match=r"every run of td3_gpt on walk_9 stopped before 0\.9"):
        curve_panels.draw(curve_scores(whole), curve_spec())


def test_an_option_about_an_environment_that_is_not_drawn_counts_for_nothing() -> None:
    others = {"ends": {"walk_5": 1000, "walk_7": 7}, "lines": {"walk_7": 3.0}, "line_label": "published"}
    for kind, options in (
        (curve_panels, others),
        (length_aggregation, {"ends": others["ends"], "lengths": {"walk_7": 7}, "points": None}),
    ):
        spec = curve_spec(kind=kind.__name__.rpartition(".")[2], environments=["walk_5"], options=options)
        table = kind.draw(curve_scores(), spec).table
        assert set(table["method"]) == {"td3_gpt", "td3_lstm"} and table["x"].max() == 1000


OF_LENGTHS = [name for name in names("figures") if figure_settings("paper", name).kind == "length_aggregation"]


@pytest.mark.quick("memory_rl_active_tmaze--1", "memory_rl_encoders-0")
@pytest.mark.parametrize("place", [0, -1])
@pytest.mark.parametrize("name", OF_LENGTHS)
def test_a_figure_that_is_narrowed_to_one_environment_is_drawn(name: str, place: int) -> None:
    spec = spec_of("paper", name)
    env, method = spec.environments[place], spec.methods[0]
    options = {**spec.options, "resamples": 100}
    spec = spec.model_copy(update={"environments": (env,), "methods": (method,), "seeds": (1, 2), "options": options})
    frames = []
    for seed in spec.seeds:
        known = {"env": env, "method": method, "seed": seed, "split": "learning", "task": 0, "episode": 0}
        metric = spec.options.get("metric", "return")
        steps = np.arange(1, 11) * 10_000_000
        frames.append(scores_frame(**known, step=steps, metric=metric, value=np.linspace(0, 1, 10)))
    drawn = length_aggregation.draw(concat_scores(frames), spec)
    of_finals, of_curve = drawn.table["panel"].unique()
    assert of_finals.startswith("aggregation") and of_curve == env
    summed_up = any(note.startswith("Interquartile mean of the final values") for note in drawn.notes)
    assert summed_up == (of_finals == "aggregation" and spec.options.get("summary", True))


def test_variants_keep_the_colour_of_their_family_and_all_look_different() -> None:
    variants = ("separate", "free_critic", "target_encoder")
    methods = [base + end for base in ("sacd_gpt", "sacd_lstm") for end in ("", *(f".{name}" for name in variants))]
    looks = method_styles.styles_of(methods)
    for unique in (
        set(looks.values()),
        {look.marker for look in looks.values()},
        {look.color for look in looks.values()},
    ):
        assert len(unique) == 8
    hues = {m: rgb_to_hsv(to_rgb(look.color))[0] for m, look in looks.items()}
    for method, hue in hues.items():
        assert hue == pytest.approx(hues[method.partition(".")[0]], abs=0.02)
    assert method_styles.styles_of(["sacd_gpt"])["sacd_gpt"] == looks["sacd_gpt"]


# ------------------------------------------------------------------------------------------------------------ attention


def attending(seed: int = 0, env: str = "maze_12", context: int = 13, horizon: int = 12, every: int = 1) -> Trace:
    """Two layers: the first reads the first step of the episode alone, the second all steps alike."""
    trace = made_trace(method="dqn_gpt", seed=seed, tasks=(0,), horizon=horizon, retrieves=False, env=env)
    step = trace.played.timestep
    map_row = np.flatnonzero((step % every == 0) | (step == horizon - 1))
    weights = np.zeros((len(map_row), 2, context))
    for place, row in enumerate(map_row):
        length = step[row] + 1
        if length <= context:
            weights[place, 0, context - length] = 1.0
        weights[place, 1, -min(length, context) :] = 1 / min(length, context)
    return Trace(trace.about, trace.played, {}, {"history_attention": weights.astype(np.float32)}, map_row, None)


def attention_spec(**changes: Any) -> FigureSpec:
    return figure_spec(
        {
            "name": "a",
            "kind": "history_attention",
            "scale": "demo",
            "environments": ["maze_12"],
            "methods": ["dqn_gpt"],
            "seeds": [0, 1],
            **changes,
            "options": {"resamples": 100, **changes.get("options", {})},
        }
    )


def drawn_attention(traces: list[Trace], **changes: Any) -> pd.DataFrame:
    return history_attention.draw(traces, attention_spec(**changes)).table


@pytest.mark.slow
def test_attention_stands_at_the_step_that_is_read_whatever_the_padding() -> None:
    for context in (13, 30):
        table = drawn_attention([attending(seed, context=context) for seed in (0, 1)])
        for acts in (1, 5, 12):
            first = table[table["panel"] == f"maze_12, layer 1, steps {acts}–{acts}"]
            assert first["y"].tolist() == [1.0] + [0.0] * 11
            second = table[table["panel"] == f"maze_12, layer 2, steps {acts}–{acts}"]
            assert second["y"].tolist() == pytest.approx([1 / acts] * acts + [0.0] * (12 - acts))
        decision = table[table["panel"] == "maze_12, layer 1, decision"]
        assert decision["y"].tolist()[:2] == [1.0, 0.0] and decision["low"].tolist()[0] == 1.0
        assert set(decision["seeds"][:12]) == {2}


def test_a_window_that_slid_has_left_the_first_step_behind() -> None:
    table = drawn_attention([attending(seed, context=5) for seed in (0, 1)])
    second = table[table["panel"] == "maze_12, layer 2, decision"]
    assert second["y"].tolist()[:12] == pytest.approx([0.0] * 7 + [0.2] * 5, abs=1e-6)


def test_long_episodes_are_put_into_bins_whose_attention_is_the_sum() -> None:
    table = drawn_attention([attending(seed, every=3) for seed in (0, 1)], options={"bins": 4})
    last = table[table["panel"] == "maze_12, layer 2, steps 10–12"]
    # Mapped are steps 10 (reads 10 steps) and 12 (reads all): bins of 3 steps.
    assert last["x"].tolist() == [1, 4, 7, 10]
    assert last["y"].tolist() == pytest.approx([(0.3 + 0.25) / 2] * 3 + [(0.1 + 0.25) / 2], abs=1e-6)


@pytest.mark.slow
def test_the_decision_may_be_other_steps_and_two_environments_stand_beside_each_other() -> None:
    traces = [attending(seed, env) for seed in (0, 1) for env in ("maze_12", "room_12")]
    options = {"decision": {"room_12": [-4, 10]}, "marks": {"room_12": {"door": -2}}, "titles": {"room_12": "Room"}}
    drawn = history_attention.draw(traces, attention_spec(environments=["maze_12", "room_12"], options=options))
    room = drawn.table[drawn.table["panel"] == "room_12, layer 2, decision"]["y"].tolist()[:12]
    assert room[8:10] == pytest.approx([(1 / 9 + 1 / 10) / 2, 1 / 20]) and room[10:] == [0.0, 0.0]
    alike = drawn.table[
        (drawn.table["panel"] == "room_12, layer 1, decision") & (drawn.table["method"] == "line:uniform")
    ]
    assert alike["y"].tolist() == pytest.approx(room)  # the second layer reads all alike
    assert "Decision: maze 12: steps 12 to 12, Room: steps 9 to 10." in drawn.notes
    with pytest.raises(UserError, match="no map of steps 2 to 3"):
        drawn_attention([attending(seed, every=6) for seed in (0, 1)], options={"decision": {"maze_12": [2, 3]}})


@pytest.mark.slow
def test_chosen_layers_are_drawn_in_their_order_and_episodes_end_where_they_end() -> None:
    """An episode of six steps among those of twelve: the decision is at the end of each."""
    long = attending()
    of_second, step = long.played.episode == 1, long.played.timestep
    kept = ~(of_second & (step >= 6))
    arrays = {name: column[kept] for name, column in long.played.arrays().items()}
    arrays["done"] = arrays["done"] | (of_second & (step == 5))[kept]
    maps = {"history_attention": long.maps["history_attention"][kept]}
    short = Trace(long.about, Histories(arrays), {}, maps, np.arange(int(kept.sum())), None)
    table = drawn_attention([short], seeds=[0], options={"layers": [2]})
    assert set(table["panel"].str.extract(r"(layer \d)")[0]) == {"layer 2"}
    of_decision = table[table["panel"] == "maze_12, layer 2, decision"].set_index("x")
    decision, alike = (of_decision[of_decision["method"] == method]["y"] for method in ("dqn_gpt", "line:uniform"))
    assert decision.to_numpy() == pytest.approx(alike.to_numpy())
    episodes = len(short.played.episodes)
    assert decision[1] == pytest.approx(((episodes - 1) / 12 + 1 / 6) / episodes)
    assert decision[12] == pytest.approx((episodes - 1) / 12 / episodes)
    drawn = history_attention.draw([short], attention_spec(seeds=[0]))
    assert "Decision: maze 12: steps -1 to -1 of each episode, where -1 is its last." in drawn.notes
    with pytest.raises(UserError, match="there is no layer 3"):
        drawn_attention([short], seeds=[0], options={"layers": [3]})


def test_a_policy_that_does_not_attend_is_refused() -> None:
    traces = [made_trace(method="dqn_gpt", seed=seed, tasks=(0,), retrieves=False, env="maze_12") for seed in (0, 1)]
    with pytest.raises(UserError, match="does not attend to its history"):
        drawn_attention(traces)
    with pytest.raises(UserError, match="attention is drawn of one method, not 2"):
        drawn_attention(traces, methods=["dqn_gpt", "dqn_lstm"])


# ------------------------------------------------------------------------------------------------------ published points


def test_a_published_point_is_whole_at_the_edge_of_a_panel_and_seen_below_zero() -> None:
    points = {"panel": "walk_5", "method": "td3_gpt", "x": [1000, 1500], "y": [-3, -2], "source": "s"}
    drawn = curve_panels.draw(
        curve_scores(), curve_spec(scale="paper", references=[points], options={"ends": 1000, "lines": None})
    )
    here, other = drawn.figure.axes[:2]
    whole = [line.get_xdata() for line in here.lines if not line.get_clip_on()]
    assert [list(x) for x in whole] == [[1000]]  # what lies beyond the axis has no marker in the margin
    assert here.get_ylim()[0] < -3 and other.get_ylim()[0] == 0


@pytest.mark.quick("readings2-published (table and read off the paper's figure)")
@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        (["table"], "published (table)"),
        ([None], "published (read off the paper's figure)"),
        (["table", None, "table"], "published (table and read off the paper's figure)"),
    ],
)
def test_the_legend_says_how_published_values_were_had(readings: list[str | None], expected: str) -> None:
    points = {"panel": "walk_5", "method": "td3_gpt", "x": [500], "y": [1], "source": "s"}
    references = [points | ({} if reading is None else {"reading": reading}) for reading in readings]
    drawn = curve_panels.draw(curve_scores(), curve_spec(scale="paper", references=references))
    assert expected in [text.get_text() for legend in drawn.figure.legends for text in legend.get_texts()]


def test_a_seed_that_is_not_the_figures_changes_no_end() -> None:
    stops = {(env, method, 4): 950 for env in ("walk_5", "walk_9") for method in ("td3_gpt", "td3_lstm")}
    table = curve_panels.draw(curve_scores(stops), curve_spec(seeds=[0, 1, 2, 3], options={"ends": {}})).table
    assert table["x"].max() == 1000 and set(table["seeds"]) == {4}


@pytest.mark.slow
def test_a_caption_sums_up_the_first_panel_alone() -> None:
    ours = curve_scores().replace({"walk_5": "ours_5", "walk_9": "ours_9"})
    ours["value"] += 1000
    figure = curve_spec(
        kind="length_aggregation",
        environments=["walk_5", "walk_9", "ours_5", "ours_9"],
        options={"ends": {}, "points": None, "chance": None, "beside": {"ours": ["ours_5", "ours_9"]}},
    )
    notes = length_aggregation.draw(concat_scores([curve_scores(), ours]), figure).notes
    (said,) = (note for note in notes if "of the first panel" in note)
    assert "Transformer 2.00 (" in said and "LSTM 20.00 (" in said


def test_maps_are_of_the_tasks_that_are_asked_for() -> None:
    trace = made_trace(method="dqn_gpt", seed=0, tasks=(0, 1), horizon=4, retrieves=False, env="maze_12")
    step, own = trace.played.timestep, trace.played.task == 0
    weights = np.zeros((len(step), 1, 4))
    weights[own, 0, -1] = 1
    other = np.flatnonzero(~own)
    weights[other, 0, 3 - step[other]] = 1
    maps = {"history_attention": weights.astype(np.float32)}
    table = drawn_attention(
        [Trace(trace.about, trace.played, {}, maps, np.arange(len(step)), None)], seeds=[0], options={"tasks": [0]}
    )
    assert table[table["panel"] == "maze_12, layer 1, steps 3–3"]["y"].tolist() == [0, 0, 1, 0]
