"""Two methods are compared as a claim compares them, by the runs that both have finished; what is missing is named."""

from __future__ import annotations

from pathlib import Path

import fast_yaml
import numpy as np
import pandas as pd
import pytest
from made_results import MAZE, ROOM, SCALE, claim, configure, described, method_changed
from typer.testing import CliRunner

from recollect.artifacts.scores import scores_frame
from recollect.artifacts.sealed import write_table
from recollect.cli import app
from recollect.settings.errors import UserError
from recollect.stages import paths
from recollect.stages.claims import verdicts
from recollect.stages.compare import compare


def scored(method: str, level: float, seeds: range, tasks: int = 3) -> None:
    """Returns of ten episodes around a level; those of the first five are far off it."""
    for seed in seeds:
        rng = np.random.default_rng([seed, *method.encode()])
        value_TE = level + rng.normal(0, 0.1, (tasks, 10)) - 100 * (np.arange(10) < 5)
        frame = scores_frame(
            env=ROOM, method=method, seed=seed, step=10, split="eval", task=np.arange(tasks)[:, None],
            episode=np.arange(10), metric="return", value=value_TE,
        )  # fmt: skip
        made = described("evaluate", SCALE, ROOM, method)
        write_table(paths.scores(SCALE, ROOM, method, seed), frame, kind="scores", provenance=made)


def test_the_difference_and_its_interval_are_those_of_a_claim_about_the_same_runs(workdir: Path) -> None:
    scored("ad", 5, range(4))
    scored("dt", 3, range(3))
    text = compare(SCALE, ROOM, "ad", "dt", [])
    assert text.startswith(f"ad minus dt on {ROOM} at scale {SCALE}: return, the last 5 episodes")
    assert "seeds          0, 1, 2\n  tasks          3 (eval)" in text
    assert text.endswith("left out, as the other method has no such seed: ad 3")
    claim("apart", configure("few", [ROOM], ["ad", "dt"], range(3), kind="in_context_curve"))
    path = Path("config/claims/apart.yaml")
    arms = {"this": {"env": ROOM, "method": "ad", "episodes": [0.5, 1.0]}, "that": {"method": "dt"}}
    path.write_text(
        fast_yaml.dump({**fast_yaml.load(path.read_text()), "contrasts": [{"says": "AD minus DT", **arms}]})
    )
    ((contrast,),) = (found["contrasts"] for found in verdicts(SCALE, ["few"]))
    lines = text.splitlines()
    assert f"{contrast['value']:.3g}" in lines[1]
    assert lines[2] == f"  95 % interval  {contrast['low']:.3g} to {contrast['high']:.3g}"


def test_where_episodes_begin_empty_all_count_and_unseen_tasks_before_others(workdir: Path) -> None:
    path = Path("config/environments/tmaze_passive.yaml")
    content = fast_yaml.load(path.read_text())
    content["evaluation"]["splits"] = ["train", "eval"]
    path.write_text(fast_yaml.dump(content))
    for method, value_E in (("dqn_gpt", np.arange(10.0)), ("dqn_lstm", np.zeros(10))):
        for seed in range(3):
            known = {"env": MAZE, "method": method, "seed": seed, "step": 10, "task": 0, "metric": "return"}
            splits = [scores_frame(**known, split=split, episode=np.arange(10), value=value_E + more)
                      for split, more in (("train", 100 * (method == "dqn_gpt")), ("eval", 0))]  # fmt: skip
            write_table(paths.scores(SCALE, MAZE, method, seed), pd.concat(splits), kind="scores")
    text = compare(SCALE, MAZE, "dqn_gpt", "dqn_lstm", range(3))
    assert text.startswith(f"dqn_gpt minus dqn_lstm on {MAZE} at scale {SCALE}: return\n")
    assert "difference     4.5 (dqn_gpt 4.5, dqn_lstm 0)" in text and "tasks          1 (eval)" in text


def test_few_seeds_are_said_and_one_has_no_interval(workdir: Path) -> None:
    for method in ("ad", "dt"):
        scored(method, 5, range(3))
    two = compare(SCALE, ROOM, "ad", "dt", [0, 2])
    assert "2 seeds are fewer than 3" in two and "seeds          0, 2\n" in two
    one = compare(SCALE, ROOM, "ad", "dt", [1])
    assert "one seed is fewer than 3" in one and "interval" not in one and "left out" not in one
    assert "fewer" not in compare(SCALE, ROOM, "ad", "dt", [])


def test_what_is_missing_or_unknown_is_named(workdir: Path) -> None:
    scored("ad", 5, range(2))
    with pytest.raises(UserError, match="ad has seeds 0, 1; dt has none") as refused:
        compare(SCALE, ROOM, "ad", "dt", [])
    assert f"`snakemake {paths.scores(SCALE, ROOM, 'dt', 0)}`" in refused.value.do
    scored("dt", 5, range(1))
    with pytest.raises(UserError, match="1 of 2 runs of 'dt' have no scores") as refused:
        compare(SCALE, ROOM, "ad", "dt", [0, 1])
    assert str(paths.scores(SCALE, ROOM, "dt", 1)) in refused.value.do
    for wrong, said in (
        ((SCALE, ROOM, "ad", "ddt", []), "did you mean"),
        ((SCALE, "dark_rom_10x10", "ad", "dt", []), "dark_room_10x10"),
        ((SCALE, ROOM, "ad", "dt", [], "retrn"), "did you mean 'return'"),
        ((SCALE, ROOM, "ad", "ad", []), "with itself"),
    ):
        with pytest.raises(UserError, match=said):
            compare(*wrong)  # type: ignore[arg-type]
    scored("dt", 5, range(2), tasks=2)
    assert "tasks          1 (eval)" in compare(SCALE, ROOM, "ad", "dt", [])  # other tasks: only their means are paired


def test_runs_that_are_not_of_today_are_compared_and_named(workdir: Path) -> None:
    for method in ("ad", "dt"):
        scored(method, 5, range(3))
    assert "warning" not in compare(SCALE, ROOM, "ad", "dt", [])
    method_changed("dt")
    scored("dt", 5, range(1))
    text = compare(SCALE, ROOM, "ad", "dt", [])
    said = f"warning: 2 of 6 runs are not of today's settings: {ROOM}/dt seeds 1 and 2."
    assert (
        text.splitlines()[-1].startswith(said) and f"`snakemake {paths.scores(SCALE, ROOM, 'dt', 1)}` for one" in text
    )
    assert "not of today" not in compare(SCALE, ROOM, "ad", "dt", [0])


def test_the_command_takes_the_scale_of_the_configuration(workdir: Path) -> None:
    for method in ("ad", "dt"):
        scored(method, 5, range(3))
    (workdir / "config/config.yaml").write_text(f"scale: {SCALE}\nfigures: radt_dark_room_10x10\n")
    done = CliRunner().invoke(app, ["compare", "ad", "dt", "--env", ROOM], catch_exceptions=False)
    assert done.exit_code == 0 and done.output.startswith(f"ad minus dt on {ROOM} at scale {SCALE}")
