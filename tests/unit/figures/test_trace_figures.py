"""Figures of traces say where agents walk and what they read, exactly as traced, and never from an incomplete grid."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from made_traces import made_trace, write_trace

from recollect.artifacts.sealed import read_json, sha256_of, verify
from recollect.common.traces import Trace
from recollect.figures import attention_maps, registry, style, trace_reading
from recollect.figures.spec import SMOKE_WORDS, TABLE_COLUMNS, Drawn, FigureSpec, figure_spec
from recollect.figures.writing import render
from recollect.settings.errors import UserError
from recollect.settings.resolve import figure_reads


def spec(kind: str = "state_visitation", **changes: Any) -> FigureSpec:
    values: dict[str, Any] = {
        "name": "visits",
        "kind": kind,
        "scale": "demo",
        "environments": ["dark_room"],
        "methods": ["radt"],
        "seeds": [0, 1],
        "caption": "Where agents walk.",
        "options": {"resamples": 200} if kind == "attention_maps" else {},
    }
    return figure_spec({**values, **changes})


def traces(methods: Sequence[str] = ("radt",), seeds: Sequence[int] = (0, 1), **made: Any) -> list[Trace]:
    return [made_trace(method=m, seed=s, retrieves=m.startswith("radt"), **made) for m in methods for s in seeds]


def draw(read: list[Trace], figure: FigureSpec) -> Drawn:
    return registry.kind(figure.kind).draw(read, figure)


def error_of(read: list[Trace], figure: FigureSpec) -> str:
    with pytest.raises(UserError) as caught:
        draw(read, figure)
    return str(caught.value)


# ------------------------------------------------------------------------------------------------------ visitation


def test_visits_are_counted_cell_by_cell_over_all_episodes() -> None:
    read = traces(("radt", "ad"))
    drawn = draw(read, spec(methods=["radt", "ad"]))
    assert list(drawn.table.columns) == list(TABLE_COLUMNS)
    panel = drawn.table[(drawn.table["panel"] == "goal_6") & (drawn.table["method"] == "ad")]
    assert panel["x"].tolist() == list(range(4 * 5)) and set(panel["seeds"]) == {2} and set(panel["tasks"]) == {1}
    counted = []
    for trace in read[2:]:
        expected = np.zeros((4, 5))
        for row, column in trace.played.observation[trace.played.task == 6]:
            expected[row, column] += 1
        counted.append(expected.ravel())
    assert panel["y"].tolist() == np.mean(counted, 0).tolist() and panel["y"].sum() == 6 * 12
    assert (
        panel["low"].tolist() == np.min(counted, 0).tolist() and panel["high"].tolist() == np.max(counted, 0).tolist()
    )


def test_only_the_first_episodes_are_counted_where_asked() -> None:
    drawn = draw(traces(seeds=(0,)), spec(seeds=[0], options={"episodes": 2, "tasks": [13]}))
    assert set(drawn.table["panel"]) == {"goal_13"} and drawn.table["y"].sum() == 2 * 12
    assert drawn.table["low"].isna().all() and "2 in-context episodes" in " ".join(drawn.notes)


def test_the_colours_on_the_canvas_are_the_rows_of_the_table() -> None:
    drawn = draw(traces(seeds=(0,)), spec(seeds=[0]))
    panels = [axes for axes in drawn.figure.axes if axes.get_title()]
    assert len(panels) == 3
    for axes, task in zip(panels, (0, 6, 13), strict=True):
        expected = drawn.table.loc[drawn.table["panel"] == f"goal_{task}", "y"].to_numpy()
        shown = [np.ma.filled(mesh.get_array(), 0).ravel() for mesh in axes.collections]
        assert any(np.array_equal(values, expected) for values in shown)


def test_the_goal_is_marked_in_its_cell() -> None:
    (trace,) = traces(seeds=(0,))
    drawn = draw([trace], spec(seeds=[0]))
    for axes, task in zip(drawn.figure.axes, trace.about["tasks"], strict=False):
        _, row, column = task["scene"]["marks"][0]
        assert any(line.get_xydata().tolist() == [[column, row]] for line in axes.lines)
        assert axes.get_title() == f"goal ({column}, {row})"


# ------------------------------------------------------------------------------------------------------- attention


def test_attention_is_the_mean_over_episodes_tasks_and_seeds() -> None:
    read = traces(length=4)
    drawn = draw(read, spec("attention_maps"))
    early, late = "layer 2, episodes 2–3", "layer 2, episodes 5–6"
    for panel, episodes in ((early, (1, 2)), (late, (4, 5))):
        rows = drawn.table[drawn.table["panel"] == panel]
        cells = []
        for trace in read:
            for task in trace.tasks:
                chosen = (trace.played.task == task) & np.isin(trace.played.episode, episodes)
                cells.append(trace.maps["attention"][chosen, 1].sum(-1, dtype=np.float64).mean(0))
        assert rows["x"].tolist() == [1, 2, 3, 4]
        np.testing.assert_allclose(rows["y"], np.mean(cells, 0), rtol=1e-12)
        assert set(rows["seeds"]) == {2} and set(rows["tasks"]) == {3} and rows["y"].sum() == pytest.approx(1, abs=2e-3)
        assert ((rows["low"] <= rows["y"]) & (rows["y"] <= rows["high"])).all()


def test_maps_have_a_row_for_each_bin_of_steps() -> None:
    read = traces(seeds=(0,), length=4)
    drawn = draw(read, spec("attention_maps", seeds=[0], options={"step_bin": 5, "resamples": 200}))
    names = [f"layer 1, episodes 5–6, steps {steps}" for steps in ("1–5", "6–10", "11–12")]
    assert [name for name in dict.fromkeys(drawn.table["panel"]) if name.startswith("layer 1, episodes 5–6, ")] == names
    (trace,) = read
    per_task = []
    for task in trace.tasks:
        chosen = (trace.played.task == task) & (trace.played.episode >= 4) & (trace.played.timestep >= 10)
        per_task.append(trace.maps["attention"][chosen, 0].sum(-1, dtype=np.float64).mean(0))
    np.testing.assert_allclose(drawn.table.loc[drawn.table["panel"] == names[2], "y"], np.mean(per_task, 0), rtol=1e-12)


def test_the_uniform_line_is_what_even_reading_would_be() -> None:
    drawn = draw(traces(length=4), spec("attention_maps"))
    line = drawn.table[drawn.table["method"] == "line:uniform"]
    assert set(line["y"]) == {0.25} and set(line["panel"]) == {"layer 1", "layer 2"} and set(line["seeds"]) == {0}


def test_steps_that_no_agent_reached_are_left_empty() -> None:
    """Episodes may end early: such a row of a map has no number, and nothing else changes."""
    read = [replace(trace, about={**trace.about, "horizon": 20}) for trace in traces(length=4)]
    drawn = draw(read, spec("attention_maps"))
    assert drawn.table.loc[drawn.table["panel"] == "layer 1, episodes 5–6, steps 16–20", "y"].isna().all()
    assert np.isfinite(drawn.table.loc[drawn.table["panel"] == "layer 1, episodes 5–6", "y"]).all()


def test_a_step_that_found_fewer_windows_than_it_may_read_counts() -> None:
    (trace,) = traces(seeds=(0,), length=4)
    found_RK = np.pad(trace.facts["retrieved_episode"], ((0, 0), (0, 1)), constant_values=-1)
    fewer = replace(trace, facts={**trace.facts, "retrieved_episode": found_RK})
    for one, other in zip(*(attention_maps.attention_of(t, 6, range(1, 3), 5) for t in (trace, fewer)), strict=True):
        np.testing.assert_array_equal(one, other)


def test_early_and_late_never_overlap_and_leave_the_first_episode_out() -> None:
    for episodes in range(3, 60):
        early, late = attention_maps.groups(episodes, 5).values()
        assert early.start == 1 and early.stop <= late.start and late.stop == episodes and len(early) == len(late) >= 1
    with pytest.raises(UserError, match="at least 3 episodes"):
        attention_maps.groups(2, 5)


# ------------------------------------------------------------------------------------------------ how they look


@pytest.mark.quick("four layers", "wide room")
@pytest.mark.parametrize(
    ("read", "figure"),
    [
        (
            traces(("radt", "radt_agnostic", "ad", "dt"), room=(10, 10)),
            spec(methods=["radt", "radt_agnostic", "ad", "dt"]),
        ),
        (traces(room=(20, 40)), spec(scale="smoke", wiring_test=True)),
        (traces(horizon=40, length=10), spec("attention_maps")),
        (traces(horizon=40, length=10, layers=4, tokens=4), spec("attention_maps", scale="smoke", random_models=True)),
    ],
    ids=["four methods", "wide room", "two layers", "four layers"],
)
def test_no_text_overlaps_and_none_leaves_the_page(read: list[Trace], figure: FigureSpec) -> None:
    from matplotlib.text import Text

    drawn = draw(read, figure)
    with style.paper_style():
        drawn.figure.draw_without_rendering()
        texts = [text for text in drawn.figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
        boxes = [(text.get_text(), text.get_window_extent()) for text in texts]
    width, height = drawn.figure.bbox.width, drawn.figure.bbox.height
    assert (SMOKE_WORDS in [name for name, _ in boxes]) == figure.wiring_test
    assert drawn.figure.get_figwidth() <= style.DOUBLE_COLUMN
    for name, box in boxes:
        assert box.x0 > -1 and box.x1 < width + 1 and box.y0 > -1 and box.y1 < height + 1, name
    for (first, box), (second, other) in combinations(boxes, 2):
        overlap = min(box.x1, other.x1) - max(box.x0, other.x0), min(box.y1, other.y1) - max(box.y0, other.y0)
        assert min(overlap) < 1, f"'{first}' over '{second}'"


# ------------------------------------------------------------------------------------------------------ the files


@pytest.mark.quick("state_visitation")
@pytest.mark.parametrize("kind", ["state_visitation", "attention_maps"])
def test_a_figure_of_traces_has_the_files_of_any_figure(tmp_path: Path, kind: str) -> None:
    files = [write_trace(trace, tmp_path) for trace in traces()]
    drawn = render(spec(kind), files, tmp_path / "figure", {"code_fingerprint": "0123", "device": "cpu"})
    for suffix in (".pdf", ".png", ".csv", ".json"):
        verify(tmp_path / f"figure{suffix}")
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "figure.csv"), drawn.table, check_dtype=False)
    manifest = read_json(tmp_path / "figure.json")
    assert manifest["inputs"] == [{"path": file.as_posix(), "sha256": sha256_of(file)} for file in files]
    assert set(manifest["axes"]) == {"panel", "x", "y", "low, high"} and manifest["seeds"] == [0, 1]
    assert manifest["caption"].startswith("Where agents walk. ")


@pytest.mark.slow
def test_the_same_traces_give_the_same_bytes_in_any_process(tmp_path: Path) -> None:
    files, kinds = [write_trace(trace, tmp_path) for trace in traces()], ("state_visitation", "attention_maps")
    for kind in kinds:
        (tmp_path / f"{kind}.json").write_text(spec(kind).model_dump_json())
        render(spec(kind), files, tmp_path / f"first_{kind}", {})
    code = (
        "import sys, pathlib; from recollect.figures.spec import FigureSpec; "
        "from recollect.figures.writing import render; folder = pathlib.Path(sys.argv[1])\n"
        f"for kind in {kinds}: render(FigureSpec.model_validate_json((folder / f'{{kind}}.json').read_text()), "
        "sys.argv[2:], folder / f'second_{kind}', {})"
    )
    command = [sys.executable, "-c", code, str(tmp_path), *map(str, files)]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONHASHSEED": "12345"})
    for name in (f"{kind}{suffix}" for kind in kinds for suffix in (".pdf", ".png", ".csv")):
        assert (tmp_path / f"first_{name}").read_bytes() == (tmp_path / f"second_{name}").read_bytes(), name


# ------------------------------------------------------------------------------------------------------ bad input


def test_what_is_missing_is_named() -> None:
    assert "there is no trace of ad on dark_room, seed 0 and 1 more" in error_of(traces(), spec(methods=["radt", "ad"]))
    assert "seed 1 stands twice" in error_of([*traces(), *traces(seeds=(1,))], spec())
    assert "task 4 is not in the traces, which hold 0, 6, 13" in error_of(traces(), spec(options={"tasks": [4]}))
    other = [*traces(seeds=(0,)), *traces(seeds=(1,), tasks=(0, 6))]
    assert "radt on dark_room, seed 1 has tasks [0, 6]" in error_of(other, spec())
    first, second = traces()
    second = replace(second, about={**second.about, "split": "train"})
    assert "seed 1 has tasks [0, 6, 13] of split 'train' traced" in error_of([first, second], spec())
    assert "draws one environment, not 2" in error_of(traces(), spec(environments=["dark_room", "other"]))


def test_the_file_of_ones_own_figure_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "mine_here" / "config" / "figures" / "f.yaml"
    file.parent.mkdir(parents=True)
    file.touch()
    monkeypatch.setenv("RECOLLECT_MINE", str(tmp_path / "mine_here"))
    with pytest.raises(UserError) as refused:
        trace_reading.grid_of(traces(), spec(name="f", methods=["radt", "ad"]))
    assert refused.value.do.endswith(f"take it out of {file}")


def test_what_cannot_be_drawn_is_said() -> None:
    assert "cannot be drawn from above" in error_of(traces(scenes=False), spec())
    assert "ad reads no memory" in error_of(traces(("ad",)), spec("attention_maps", methods=["ad"]))
    assert "of one method, not 2" in error_of(
        traces(("radt", "radt2")), spec("attention_maps", methods=["radt", "radt2"])
    )
    assert "nothing was read" in error_of(
        [
            replace(t, facts={**t.facts, "retrieved_episode": np.full_like(t.facts["retrieved_episode"], -1)})
            for t in traces()
        ],
        spec("attention_maps"),
    )


def test_a_figure_without_its_traces_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there are no traces"):
        render(spec(), [], tmp_path / "figure")
    file = write_trace(traces(seeds=(0,))[0], tmp_path)
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(UserError, match="cut short or changed"):
        render(spec(seeds=[0]), [file], tmp_path / "out" / "figure")
    assert not (tmp_path / "out").exists()


def test_a_kind_says_in_its_file_what_it_reads(workdir: Path) -> None:
    for figure in ("radt_visits", "radt_attention"):
        assert figure_reads("demo", figure) == "traces"
    assert figure_reads("demo", "radt_dark_room_10x10") == "scores"


def test_attention_to_a_step_is_the_sum_over_its_tokens() -> None:
    one, three = (
        attention_maps.attention_of(made_trace(tokens=tokens), 0, range(1, 6), 5)[1].sum(-1) for tokens in (1, 3)
    )
    np.testing.assert_allclose(one, three, atol=1e-3)
