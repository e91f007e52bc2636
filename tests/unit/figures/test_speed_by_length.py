"""Measured speed against the length of a sequence: one point per method and length, with published ones of another machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from recollect.artifacts.scores import concat_scores, scores_frame
from recollect.figures import speed_by_length
from recollect.figures.spec import figure_spec
from recollect.settings.errors import UserError
from recollect.stages.figure import spec_of


def speeds(environments: tuple[str, ...], methods: tuple[str, ...], seeds: tuple[int, ...] = (0,)) -> pd.DataFrame:
    """1000 updates per second divided by the number in the environment's name; a later method is a hundred slower."""
    frames = []
    for env in environments:
        for k, method in enumerate(methods):
            for seed in seeds:
                about: dict[str, Any] = {"env": env, "method": method, "seed": seed, "step": 0, "split": "speed"}
                value = 1000.0 / int(env.rpartition("_")[2]) + seed - 100 * k
                frames.append(scores_frame(**about, metric="updates_per_second", value=value))
    return concat_scores(frames)


def test_points_stand_at_the_length_that_a_name_ends_with_in_ascending_order() -> None:
    environments, methods = ("maze_5", "maze_2"), ("amago_transformer", "amago_gru")
    base = {"name": "s", "kind": "speed_by_length", "scale": "demo", "environments": environments, "methods": methods}
    figure = figure_spec({**base, "seeds": [0, 2], "options": {"resamples": 100}})
    table = speed_by_length.draw(speeds(environments, methods, (0, 2)), figure).table
    assert table["x"].tolist() == [2, 5, 2, 5] and table["y"].tolist() == [501, 201, 401, 101]
    assert set(table["seeds"]) == {2} and (table["low"] < table["y"]).all()
    named = figure_spec({**base, "environments": ("maze",), "seeds": [0], "options": {}})
    with pytest.raises(UserError, match="no length for maze"):
        speed_by_length.draw(speeds(environments, methods), named)


def test_amagos_speeds_stand_beside_the_published_ones_of_another_machine(workdir: Path) -> None:
    figure = spec_of("paper", "amago_throughput")
    scores = speeds(figure.environments, figure.methods)
    scores.attrs["machines"] = ["NVIDIA H200"]
    drawn = speed_by_length.draw(scores, figure)
    published = drawn.table[drawn.table["method"].str.startswith("published:")]
    assert len(published) == 17 and set(published["x"]) <= set(drawn.table["x"])
    assert drawn.table["y"].loc[published.index].max() == 36
    (axes,) = drawn.figure.axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert [label.get_text() for label in axes.get_xticklabels()] == ["128", "512", "1024", "2048", "4096", "8000"]
    assert drawn.notes[-1] == "Measured on NVIDIA H200." and np.isfinite(drawn.table["y"]).all()


def test_lengths_the_metric_and_the_axis_are_those_that_are_asked_for() -> None:
    scores = speeds(("maze_5", "maze_2"), ("amago_gru",))
    acting = scores.assign(metric="steps_per_second", value=7 * scores["value"])
    options = {"metric": "steps_per_second", "lengths": {"maze_5": 10, "maze_2": 40}, "x_label": "tokens"}
    base = {"name": "s", "kind": "speed_by_length", "scale": "demo", "seeds": [0], "options": options}
    figure = figure_spec({**base, "environments": ["maze_5", "maze_2"], "methods": ["amago_gru"]})
    drawn = speed_by_length.draw(concat_scores([scores, acting]), figure)
    assert drawn.table["x"].tolist() == [10, 40] and drawn.table["y"].tolist() == pytest.approx([1400, 3500])
    assert drawn.axes["x"] == drawn.figure.axes[0].get_xlabel() == "tokens"
