"""Where a world is played by another Python that is not there, Snakemake says so before the first job, and only then."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HISTORIES = "data/paper/procgen/histories.safetensors"


@pytest.mark.slow
def test_a_missing_python_stops_the_run_before_any_job(real_workflow: Callable[[str], Any], stand_in: Path) -> None:
    workflow = dataclasses.replace(real_workflow("clean"), commands=stand_in)
    said = workflow.snakemake(
        "--cores", "1", HISTORIES, "data/smoke/dark_room_10x10/histories.safetensors", check=False
    )
    assert "make procgen" in said and ".venv-procgen/bin/python" in said
    assert workflow.ran() == []
    # What does not run needs nothing: a plan, and other worlds.
    assert workflow.planned(HISTORIES) == ["generate procgen"]
    workflow.snakemake("--cores", "1", "data/smoke/dark_room_10x10/histories.safetensors")
    assert workflow.ran() == ["generate dark_room_10x10"]
    python = workflow.folder / ".venv-procgen/bin/python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    workflow.snakemake("--cores", "1", "--config", "hours=2000", "--", HISTORIES)
    assert workflow.ran() == ["generate procgen"]


@pytest.mark.slow
def test_a_world_that_our_own_python_plays_in_workers_needs_no_other(
    real_workflow: Callable[[str], Any], stand_in: Path
) -> None:
    workflow = dataclasses.replace(real_workflow("clean"), commands=stand_in)
    trained = "results/smoke/runs/amago_retro/amago_transformer/seed_0/policy.safetensors"
    workflow.snakemake("--cores", "1", trained)
    assert workflow.ran() == ["run amago_retro amago_transformer 0"]
