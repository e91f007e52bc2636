"""What runs logged while they learned: drawn from the tables of training, a panel for each metric."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fast_yaml
import numpy as np
import pandas as pd
import pytest

from recollect.artifacts.scores import concat_scores, scores_frame
from recollect.figures import training_metrics
from recollect.figures.spec import Drawn, FigureSpec, figure_spec
from recollect.settings.errors import UserError
from recollect.stages import inputs, paths
from recollect.stages.plan import plan


def losses_spec(**changes: Any) -> FigureSpec:
    base = {"name": "l", "kind": "training_metrics", "scale": "demo", "environments": ["room"], "methods": ["a", "b"]}
    options = {"metric": ["loss", "norm"], "resamples": 100, "points": 5, **changes.pop("options", {})}
    return figure_spec({**base, "seeds": [0, 1], "options": options, **changes})


def logged(ends: dict[int, int] | None = None) -> pd.DataFrame:
    """Losses that fall from 4 to 0 in steps of ten, norms of 1 to 10,000; method b has twice as much, and a seed 1 more."""
    frames = []
    for twice, method in enumerate("ab", start=1):
        for seed in (0, 1):
            step = np.arange(0, (ends or {}).get(seed, 40) + 1, 10)
            about = {"env": "room", "method": method, "seed": seed, "step": step, "split": "train"}
            frames.append(scores_frame(**about, metric="loss", value=twice * (4.0 - step / 10) + seed))
            frames.append(scores_frame(**about, metric="norm", value=10.0 ** (step / 10)))
    return concat_scores(frames)


def draw(scores: pd.DataFrame, **changes: Any) -> Drawn:
    return training_metrics.draw(scores, losses_spec(**changes))


def test_a_panel_shows_the_mean_of_a_metric_over_seeds_at_each_step() -> None:
    table = draw(logged()).table
    assert table["panel"].unique().tolist() == ["room", "room/norm"]
    loss = table[(table["panel"] == "room") & (table["method"] == "b")]
    assert loss["x"].tolist() == [0, 10, 20, 30, 40] and loss["y"].tolist() == [8.5, 6.5, 4.5, 2.5, 0.5]
    assert set(table["seeds"]) == {2}
    norm = table[(table["panel"] == "room/norm") & (table["method"] == "a")]
    assert norm["y"].tolist() == pytest.approx([1, 10, 100, 1000, 10_000])


def test_axes_say_what_they_show_and_those_that_are_asked_for_are_logarithmic() -> None:
    options = {"metric_labels": {"norm": "norm of the gradient"}, "logarithmic": ["norm"]}
    first, second = draw(logged(), options=options).figure.axes[:2]
    assert [axes.get_ylabel() for axes in (first, second)] == ["loss", "norm of the gradient"]
    assert (first.get_yscale(), second.get_yscale()) == ("linear", "log")
    assert first.get_ylim()[0] == 0  # no value is negative
    assert "100" in [label.get_text() for label in second.get_yticklabels()]


def test_a_run_that_stopped_early_is_named_once_and_not_drawn() -> None:
    drawn = draw(logged({1: 20}))
    assert set(drawn.table["seeds"]) == {1} and drawn.table["y"].iloc[0] == 4.0
    (note,) = (note for note in drawn.notes if note.startswith("Dropped"))
    assert note.count("seed 1 (stopped at 20 of 40 steps)") == 2  # of two methods, whatever the metrics


def test_a_metric_that_was_not_logged_is_refused() -> None:
    with pytest.raises(UserError, match="no scores with metric 'entropy'"):
        draw(logged(), options={"metric": "entropy"})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"metric": []}, "at least one is needed"),
        ({"metric": ["loss", "loss"]}, "names something twice: loss"),
        ({"logarithmic": ["los"]}, "'los' is none of the figure's metrics"),
        ({"metric_labels": {"los": "loss"}}, "'los' is none of the figure's metrics"),
        ({"logarithmic": ["loss"]}, "loss in room is not above 0 throughout"),
    ],
)
def test_options_that_cannot_be_drawn_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        draw(logged(), options=options)


def test_a_figure_of_training_waits_for_the_runs_that_it_draws(workdir: Path) -> None:
    content = {"kind": "training_metrics", "environments": ["tmaze_passive_5"], "methods": ["dqn_ff"], "seeds": [0]}
    Path("config/figures/mine.yaml").write_text(fast_yaml.dump(content))
    made = plan("smoke", ["mine"])
    run = ("smoke", "tmaze_passive_5", "dqn_ff", 0)
    assert list(inputs.figure_inputs("smoke", "mine").values()) == [paths.train_table(*run)]
    assert paths.train_table(*run) in made.files("run")


def test_each_environment_is_drawn_from_its_own_runs_to_its_own_end() -> None:
    longer = logged({0: 60, 1: 60})
    longer = longer.assign(env="hall", value=longer["value"] + 100)
    drawn = draw(concat_scores([logged(), longer]), environments=["room", "hall"], options={"metric": "loss"})
    for panel, steps, losses in (("room", [0, 10, 20, 30, 40], [4.5, 3.5, 2.5, 1.5, 0.5]),
                                 ("hall", [0, 15, 30, 45, 60], [104.5, 103, 101.5, 100, 98.5])):  # fmt: skip
        rows = drawn.table[(drawn.table["panel"] == panel) & (drawn.table["method"] == "a")]
        assert rows["x"].tolist() == steps and rows["y"].tolist() == losses
