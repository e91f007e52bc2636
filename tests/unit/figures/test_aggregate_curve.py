"""One learning curve for several environments: runs on a scale that these share, over seeds and environments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from recollect.artifacts.scores import concat_scores, scores_frame
from recollect.environments import procgen
from recollect.figures import aggregate_curve
from recollect.figures.spec import AGGREGATION, Drawn, figure_spec
from recollect.settings.errors import UserError
from recollect.settings.resolve import figure_settings

SCALES = {"low": (0, 1), "high": (10, 30)}


def scores(ends: dict[tuple[str, int], int] | None = None) -> pd.DataFrame:
    """From 0 to 1 on each environment's scale in 40 steps, method b half of it, seed 1 a tenth more."""
    frames = []
    for env, (zero, one) in SCALES.items():
        for share, method in ((1.0, "a"), (0.5, "b")):
            for seed in (0, 1):
                step = np.arange(0, (ends or {}).get((env, seed), 40) + 1, 10)
                about = {"env": env, "method": method, "seed": seed, "split": "learning", "task": 0, "episode": 0}
                value = zero + (one - zero) * (share * step / 40 + 0.1 * seed)
                frames.append(scores_frame(**about, step=step, metric="return", value=value))
    return concat_scores(frames)


def draw(table: pd.DataFrame, **options: Any) -> Drawn:
    chosen = {"scales": SCALES, "window": 1, "points": 5, "resamples": 100, **options}
    content = {"name": "c", "kind": "aggregate_curve", "scale": "demo", "environments": ["low", "high"]}
    return aggregate_curve.draw(
        table, figure_spec({**content, "methods": ["a", "b"], "seeds": [0, 1], "options": chosen})
    )


def test_environments_count_alike_on_their_own_scales() -> None:
    table = draw(scores()).table
    assert set(table["panel"]) == {AGGREGATION} and set(table["seeds"]) == set(table["tasks"]) == {2}
    a, b = (table[table["method"] == method] for method in "ab")
    assert a["x"].tolist() == [0, 10, 20, 30, 40]
    assert a["y"].tolist() == pytest.approx([0.05, 0.3, 0.55, 0.8, 1.05])
    assert b["y"].tolist() == pytest.approx([0.05, 0.175, 0.3, 0.425, 0.55])
    assert (a["low"] <= a["y"]).all() and (a["low"] < a["high"]).all()


def test_a_seed_that_stopped_early_in_one_environment_counts_in_none() -> None:
    drawn = draw(scores({("high", 1): 20}))
    assert set(drawn.table["seeds"]) == {1}
    assert drawn.table[drawn.table["method"] == "a"]["y"].tolist() == pytest.approx([0, 0.25, 0.5, 0.75, 1])
    assert any("high, seed 1 (stopped at 20 of 40 steps)" in note for note in drawn.notes)
    with pytest.raises(UserError, match="no seed of a is complete in all 2 environments"):
        draw(scores({("high", 1): 20, ("low", 0): 20}))


def test_no_option_is_named_that_this_kind_does_not_have() -> None:
    table = scores()
    early = (table["method"] == "b") & (table["step"] > 10)
    with pytest.raises(UserError, match="every run of b on low stopped before") as refused:
        draw(table[~early])
    assert refused.value.do == "let the runs finish"


def test_an_environment_without_a_scale_is_named() -> None:
    with pytest.raises(UserError, match="no scale of high"):
        draw(scores(), scales={"low": (0, 1)})


def test_the_games_scales_are_those_of_their_world(workdir: Path) -> None:
    scales = figure_settings("paper", "helm_procgen_curve").options["scales"]
    expected = {f"procgen_memory_{game}": returns for game, (_, returns) in procgen.MEMORY_GAMES.items()}
    assert {env: tuple(returns) for env, returns in scales.items()} == expected


def test_curves_end_where_the_shortest_environment_does() -> None:
    table = draw(scores({("high", 0): 20, ("high", 1): 20})).table
    assert table[table["method"] == "a"]["x"].tolist() == [0, 5, 10, 15, 20]


def test_points_that_a_run_did_not_reach_are_left_out() -> None:
    table = draw(scores({("high", 0): 400, ("high", 1): 350, ("low", 0): 380, ("low", 1): 380})).table
    assert table[table["method"] == "a"]["x"].tolist() == [0, 95, 190, 285] and set(table["seeds"]) == {2}
