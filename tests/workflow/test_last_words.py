"""A run of Snakemake that fails ends by saying which jobs did not end, on what, and that it can go on."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
RUNS = "results/smoke/runs/tmaze_passive_5/dqn_lstm{}/seed_0/scores.parquet"


def test_of_each_job_that_failed_its_last_error_is_said_and_else_its_last_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "workflow")
    last_words = importlib.import_module("last_words")
    logs = {"a": "error: first\nerror: last\n  to do: mend it\n", "b": "at work\nKilled\n\n", "c": ""}
    for name, text in logs.items():
        (tmp_path / name).write_text(text)
    said = [f"    log: {tmp_path / name} (check log file(s) for error details)" for name in "aabcd"]
    (tmp_path / "of_snakemake").write_text("\n".join(["Error in rule run:", *said, "    log: e\n"]))
    lines = last_words.of([str(tmp_path / "of_snakemake"), str(tmp_path / "nowhere")]).splitlines()
    assert lines == [
        f"not finished: {tmp_path / 'a'}: error: last",
        f"not finished: {tmp_path / 'b'}: Killed",
        f"not finished: {tmp_path / 'c'}",
        f"not finished: {tmp_path / 'd'}",
        "What is finished is kept. The same command goes on from there.",
    ]


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
