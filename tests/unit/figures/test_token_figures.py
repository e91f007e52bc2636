"""Figures of words and of distances show what was traced, word for word, and refuse what they cannot show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_traces import WORDS, made_image_trace, made_trace, write_trace

from recollect.figures import registry
from recollect.figures.input_distances import distances
from recollect.figures.spec import RANDOM_MODEL, FigureSpec, figure_spec
from recollect.figures.writing import render
from recollect.settings.errors import UserError
from recollect.settings.resolve import figure_reads
from recollect.stages.figure import spec_of


def spec(kind: str, **changes: Any) -> FigureSpec:
    values = {
        "name": "words",
        "kind": kind,
        "scale": "demo",
        "environments": ["grid"],
        "methods": ["shelm"],
        "seeds": [0],
    }
    return figure_spec({**values, "caption": "Words.", **changes})


def draw(traces: list[Any], figure: FigureSpec) -> Any:
    return registry.kind(figure.kind).draw(traces, figure)


def test_a_strip_has_the_words_of_its_steps_best_first() -> None:
    trace = made_image_trace(words=3)
    table = draw([trace], spec("tokens", options={"steps": [1, 4], "episode": 1, "words": 2})).table
    expected = [
        (f"grid, step {step}: {WORDS[token - 100]}", k + 1, score)
        for step in (1, 4)
        for k, (token, score) in enumerate(
            zip(trace.facts["tokens"][6 + step][:2], trace.facts["token_scores"][6 + step][:2], strict=True)
        )
    ]
    assert list(table[["panel", "x", "y"]].itertuples(index=False, name=None)) == expected


def test_images_are_spread_over_the_episode_and_their_axes_show_them() -> None:
    traces = [made_image_trace(), made_image_trace(method="helm", mixture=True)]
    drawn = draw(traces, spec("tokens", methods=["shelm", "helm"], options={"images": 3}))
    steps = drawn.table["panel"].str.extract(r"step (\d+):")[0].astype(int)
    assert sorted(set(steps)) == [1, 4, 7]
    pictures = [axes.images[0].get_array() for axes in drawn.figure.axes if axes.images]
    seen = np.concatenate([trace.played.observation[[0, 3, 6]].transpose(0, 2, 3, 1) for trace in traces])
    np.testing.assert_array_equal(pictures, seen)
    said = " ".join(text.get_text() for text in reversed(drawn.figure.texts))
    assert "cosine (bars from 0 to 1) or weight in the mixture (bars up to the row's largest)" in said


@pytest.mark.parametrize(("mixture", "longest"), [(False, 0.6), (True, 1.0)])
def test_bars_of_words_end_where_their_scale_says_and_before_their_numbers(mixture: bool, longest: float) -> None:
    trace = made_image_trace(mixture=mixture)
    trace.facts["token_scores"][:] = np.linspace(0.6, 0.5, trace.facts["token_scores"].shape[1])
    drawn = draw([trace], spec("tokens", options={"images": 3}))
    below = [axes for axes in drawn.figure.axes if axes.patches]
    assert max(bar.get_width() for axes in below for bar in axes.patches[1::2]) == pytest.approx(longest)
    for axes in below:
        scale = axes.patches[0].get_window_extent().x1
        assert all(text.get_window_extent().x0 > scale for text in axes.texts[1::2])


def test_distances_are_those_of_images_and_of_what_they_became() -> None:
    trace = made_image_trace(method="helm", mixture=True)
    table = draw([trace], spec("input_distances", methods=["helm"])).table
    rows = [0, 2, 4, 6]  # with a map, of the first episode
    for what, vectors in (
        ("images", trace.played.observation[rows].reshape(4, -1) / 255),
        ("inputs", trace.maps["inputs"][:4].reshape(4, -1)),
    ):
        expected = np.linalg.norm(vectors[:, None].astype(float) - vectors[None], axis=2)
        expected /= max(expected.max(), 1e-12)
        for i, row in enumerate(rows[:-1]):
            mine = table[table["panel"] == f"grid, {what}, step {row + 1}"]
            assert mine["x"].tolist() == [later + 1 for later in rows[i + 1 :]]
            np.testing.assert_allclose(mine["y"], expected[i, i + 1 :], atol=1e-6)


def test_images_that_are_all_the_same_have_no_distance() -> None:
    assert not distances(np.ones((3, 4))).any()


@pytest.mark.parametrize(
    ("kind", "trace", "changes", "words"),
    [
        ("tokens", made_image_trace(reads=False), {}, "no words to draw"),
        ("tokens", made_image_trace(), {"options": {"episode": 3}}, "episode 3 of task 0 is not traced"),
        ("tokens", made_image_trace(), {"options": {"steps": [8]}}, "step 8 is not in the episode"),
        ("tokens", made_image_trace(), {"options": {"task": 2}}, "task 2 is not in the traces"),
        ("input_distances", made_image_trace(reads=False), {}, "nothing became an input"),
        ("input_distances", made_image_trace(), {"options": {"episode": 9}}, "episode 9 of task 0 is not traced"),
        ("tokens", made_trace(method="shelm", env="grid", tasks=(0,)), {}, "no words to draw"),
    ],
)
def test_what_cannot_be_shown_is_refused(kind: str, trace: Any, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        draw([trace], spec(kind, **changes))


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["demo", "smoke", "paper"])
@pytest.mark.parametrize("name", ["helm_tokens", "helm_distances"])
def test_the_configured_figures_are_drawn_from_traces_of_one_seed(name: str, scale: str, workdir: Path) -> None:
    figure = spec_of(scale, name)
    assert figure_reads(scale, name) == "traces" and len(figure.seeds) == 1
    files = [
        write_trace(made_image_trace(method=m, env=e, seed=figure.seeds[0], mixture=m != "shelm"), workdir)
        for e in figure.environments
        for m in figure.methods
    ]
    drawn = render(figure, files, workdir / "out" / name)
    assert set(drawn.table["method"]) == set(figure.methods)
    assert {panel.split(",")[0] for panel in drawn.table["panel"]} == set(figure.environments)
    assert (
        (RANDOM_MODEL in [text.get_text() for text in drawn.figure.texts]) == figure.random_models == (scale == "smoke")
    )
    again = render(figure, files, workdir / "again" / name)
    assert (workdir / "out" / f"{name}.pdf").read_bytes() == (workdir / "again" / f"{name}.pdf").read_bytes()
    assert again.table.equals(drawn.table)
