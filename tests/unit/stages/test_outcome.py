"""The last line of a command that made something by hand: what it made and where, and what a policy scored."""

from __future__ import annotations

from pathlib import Path

import made_results
import pytest
from made_results import ROOM, SCALE
from typer.testing import CliRunner

from recollect import cli
from recollect.artifacts.sealed import read_table, write_table
from recollect.stages import paths, records
from recollect.stages.outcome import outcome
from recollect.stages.stage import Job
from recollect.stages.table import STAGES

RUN = ("smoke", "tmaze_passive_5", "dqn_ff", 0)


def last_line(*words: str) -> str:
    done = CliRunner().invoke(cli.app, list(words), catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout.splitlines()[-1]


def test_training_and_scoring_by_hand_end_with_their_files_and_the_score(workdir: Path) -> None:
    words = ["--scale", "smoke", "--env", "tmaze_passive_5", "--method", "dqn_ff", "--seed", "0", "--threads", "1"]
    assert last_line("train", *words) == f"{paths.policy(*RUN)}, and train.parquet"
    said = last_line("evaluate", *words)
    scores = read_table(paths.scores(*RUN))
    final = scores[(scores["split"] == "eval") & (scores["metric"] == "return")]
    assert said.startswith(f"return: {final['value'].mean():.4g}") and said.endswith(f"({paths.scores(*RUN)})")
    assert last_line("run", *words) == said  # what is there is kept, and said as well


def test_training_that_may_trust_a_checkpoint_is_recorded_as_any_other(workdir: Path) -> None:
    words = ["--scale", "smoke", "--env", "tmaze_passive_5", "--method", "dqn_ff", "--seed", "0", "--threads", "1"]
    last_line("train", *words, "--trust-checkpoint")
    assert records.read(records.place(Job("train", *RUN[:3], "0"))) is not None


def test_a_figure_and_the_scores_of_a_kept_policy_are_named(workdir: Path) -> None:
    few = made_results.configure("few", [ROOM], ["ad"], range(3), kind="in_context_curve")
    for seed in range(3):
        made_results.write_run(ROOM, "ad", seed)
    files = f"results/{SCALE}/figures/{few}.pdf, and {few}.png, {few}.csv, {few}.json"
    assert last_line("figure", "--scale", SCALE, "--figure", few) == files
    kept = paths.kept_scores(SCALE, ROOM, "ad", 0, "epoch_000050")
    write_table(kept, read_table(paths.scores(SCALE, ROOM, "ad", 0)), kind="scores")
    said = outcome(STAGES["evaluate"], Job("evaluate", SCALE, ROOM, "ad", "0"), {"checkpoint": "50"})
    assert said.startswith("return, last 3 episodes: ") and said.endswith(f"({kept})")


@pytest.mark.parametrize("stage", [name for name, stage in STAGES.items() if stage.over == ("scale", "env")])
def test_what_is_no_score_is_a_path(stage: str) -> None:
    said = outcome(STAGES[stage], Job(stage, "smoke", ROOM), {})
    assert said.split(",")[0] == str(STAGES[stage].makes(Job(stage, "smoke", ROOM))[0])
