"""A run of Snakemake that fails ends by saying which jobs did not end, on what, and that it can go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

RUNS = "results/smoke/runs/tmaze_passive_5/dqn_lstm{}/seed_0/scores.parquet"


@pytest.mark.slow
def test_the_jobs_that_failed_stand_at_the_end_with_their_errors(real_workflow: Callable[[str], Any]) -> None:
    workflow = real_workflow("repository")
    breaks, works = RUNS.format(".learning_rate=1e+30"), RUNS.format("")
    done = workflow.run("snakemake", "--cores", "2", "--keep-going", breaks, works, check=False)
    assert done.returncode == 1
    said = done.stdout.splitlines()
    *_, failed, goes_on = said[: said.index("What is finished is kept. The same command goes on from there.") + 1]
    assert failed.startswith("not finished: logs/smoke/tmaze_passive_5/dqn_lstm.learning_rate=1e+30/seed_0/run.log: ")
    assert failed.endswith("error: training diverged: 'critic_loss' is nan") and goes_on
    assert "Cannot restore" not in done.stdout  # Snakemake says so of each file of a failed job that never was there
    assert (workflow.folder / works).is_file()
