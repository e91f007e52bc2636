"""HELM's figures: each is drawn from a whole grid of scores, with the published values that belong to it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from recollect.artifacts.scores import scores_frame
from recollect.figures.registry import kind
from recollect.figures.spec import FigureSpec
from recollect.settings.resolve import figure_reads, names, scale_settings
from recollect.stages.figure import spec_of

FIGURES = [
    "helm_lm_depth",
    "helm_memory",
    "helm_minigrid",
    "helm_minigrid_memory",
    "helm_miniworld",
    "helm_procgen",
    "helm_procgen_aggregate",
    "helm_procgen_curve",
    "helm_psychlab",
    "helm_random_maze",
    "helm_read_out",
    "helm_words",
]
QUICK = {
    "aggregate_curve": {"resamples": 100, "points": 12},
    "curve_panels": {"resamples": 100, "points": 12},
    "bars": {"resamples": 100},
}
PUBLISHED = {
    "helm_minigrid": 5,
    "helm_procgen": 18,
    "helm_procgen_aggregate": 3,
    "helm_procgen_curve": 3,
    "helm_lm_depth": 7,
}


def made_scores(figure: FigureSpec) -> pd.DataFrame:
    """Scores of a figure's grid: final evaluations, and a learning curve of ten points up to 500K steps."""
    frames, metrics = [], {"return", figure.options.get("normalised", "return")}
    for i, env in enumerate(figure.environments):
        for k, method in enumerate(figure.methods):
            about = {"env": env, "method": method, "seed": np.array(figure.seeds)[:, None], "task": 0}
            noise = np.stack([np.random.default_rng([i, k, seed]).standard_normal(8) / 9 for seed in figure.seeds])
            for metric in metrics:
                place = {"step": 500_000, "split": "eval", "episode": np.arange(8), "metric": metric}
                frames.append(scores_frame(**about, **place, value=noise + k / 9))
            steps = np.arange(1, 11) * 50_000
            curve = {"step": steps, "split": "learning", "episode": 0, "metric": "return"}
            frames.append(scores_frame(**about, **curve, value=steps / 500_000 + noise[:, :1]))
    return pd.concat(frames, ignore_index=True)


def test_all_of_them_are_tested() -> None:
    of_scores = [n for n in names("figures") if n.startswith("helm_") and figure_reads("paper", n) == "scores"]
    assert of_scores == FIGURES


@pytest.mark.quick("helm_minigrid_memory", "helm_psychlab")
@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_drawn_with_its_published_values(name: str, workdir: Path) -> None:
    figure = spec_of("paper", name)
    assert figure.kind != "curve_panels" or figure.options["window"] == 1  # a return is that of 100 episodes as it is
    assert set(figure.seeds) <= set(scale_settings("paper").figures["helm_random_maze"]["seeds"]) | set(range(1, 11))
    quick = figure.options | QUICK.get(figure.kind, {})
    figure = figure.model_copy(update={"seeds": figure.seeds[:4], "options": quick})
    drawn = kind(figure.kind).draw(made_scores(figure), figure)
    measured = drawn.table[drawn.table["seeds"] > 0]
    assert set(measured["method"]) == set(figure.methods) and set(measured["seeds"]) == {4}
    assert drawn.table["method"].str.startswith("published:").sum() == PUBLISHED.get(name, 0)
    assert any("nterquartile mean" in note for note in (*drawn.notes, drawn.axes["y"]))


@pytest.mark.quick("helm_minigrid-smoke", "helm_memory-demo")
@pytest.mark.parametrize("scale", ["smoke", "demo"])
@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_drawn_at_smaller_scales(name: str, scale: str, workdir: Path) -> None:
    figure = spec_of(scale, name)
    quick = figure.options | QUICK.get(figure.kind, {})
    figure = figure.model_copy(update={"options": quick})
    drawn = kind(figure.kind).draw(made_scores(figure), figure)
    assert not drawn.table["method"].str.startswith("published:").any()
    assert figure.random_models == (scale == "smoke")


def test_a_random_model_of_any_method_is_said(workdir: Path) -> None:
    for name, methods in (("without", ["ppo_lstm"]), ("second", ["ppo_lstm", "helm"])):
        made = {"kind": "bars", "environments": ["random_maze"], "methods": methods, "seeds": [0]}
        (workdir / f"config/figures/{name}.yaml").write_text(json.dumps(made))
        assert spec_of("smoke", name).random_models == (name == "second")
