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
from recollect.figures.statistics import iqm
from recollect.settings.resolve import figure_reads, names, resolve, scale_settings
from recollect.stages.figure import spec_of

ROOT = Path(__file__).resolve().parents[3]
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
    "helm_read_out_ablation",
    "helm_shelm_ablation",
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


@pytest.mark.parametrize(("scale", "env"), [("paper", "mini_grid_MemoryS11"), ("demo", "mini_grid_MemoryS5")])
def test_the_two_read_outs_differ_in_how_they_read_and_where_the_caption_says_so_in_the_learning_rate(
    scale: str, env: str
) -> None:
    helm, helmv2 = (resolve(scale, env, method, 0).method.hyperparameters.model_dump() for method in ("helm", "helmv2"))
    read = {"beta", "similarity", "mixture_precision"}
    read |= {"vision_language_model", "statistics", "played_statistics", "calibration"}
    differ = {name for name in helm | helmv2 if helm.get(name) != helmv2.get(name)} - read
    assert differ == ({"learning_rate"} if scale == "paper" else set())
    told = "learning rate that the authors tuned" in spec_of(scale, "helm_read_out").caption
    assert told == (scale == "paper")
    if told:
        assert (helm["learning_rate"], helmv2["learning_rate"]) == (0.0001, 0.0003)


@pytest.mark.parametrize(
    ("scale", "env", "images"), [("paper", "mini_grid_MemoryS11", 15), ("demo", "mini_grid_MemoryS7", 12)]
)
def test_words_for_an_image_change_how_many_inputs_are_remembered_and_not_how_many_images(
    scale: str, env: str, images: int
) -> None:
    """Specification 3.4: the authors' files of k words have k m + 1 inputs where one word has m."""
    base = resolve(scale, env, "shelm", 0).method.hyperparameters.model_dump()
    assert (base["topk"], base["memory_length"]) == (1, images)
    for words in (2, 4):
        more = resolve(scale, env, f"shelm.top_{words}", 0).method.hyperparameters.model_dump()
        assert more == {**base, "topk": words, "memory_length": words * images + 1}


def test_the_published_number_of_all_procgen_games_is_not_that_of_the_published_games() -> None:
    """As captions and page say: with our constants these make another one. It is of all runs, so it may be on our scale."""
    games = spec_of("paper", "helm_procgen")
    ends = {(one.panel, one.method): one.y[-1] for one in games.references}
    scales = spec_of("paper", "helm_procgen_curve").options["scales"]
    found = {}
    for method in games.methods:
        parts = sorted((ends[env, method] - low) / (high - low) for env, (low, high) in scales.items())
        found[method] = (parts[1] / 2 + parts[2] + parts[3] + parts[4] / 2) / 3  # interquartile mean of six
    assert {method: round(value, 3) for method, value in found.items()} == {
        "helm": 0.121,
        "ppo_lstm": 0.07,
        "ppo_cnn": 0.063,
    }
    seeds = np.linspace(-1, 1, 30)  # so a game's own interquartile mean is the published one
    seeds /= seeds.std()
    runs = []
    for env, (low, high) in scales.items():
        spread = 1.4 if env == "procgen_memory_maze" else 0.5
        runs.append((ends[env, "helm"] + spread * seeds - low) / (high - low))
    assert round(float(iqm(np.concatenate(runs))), 3) == 0.099

    page = (ROOT / "docs/helm.md").read_text(encoding="utf-8")
    assert "0.121, 0.070 and 0.063" in page and "deviations of 1.4 in maze and 0.5 in the others" in page.replace(
        "\n", " "
    )
    for name in ("helm_procgen_aggregate", "helm_procgen_curve"):
        assert "0.12, 0.07 and 0.06" in spec_of("paper", name).caption
