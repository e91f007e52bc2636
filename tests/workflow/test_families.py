"""Which packages a job gets: the environment's family decides, with the real Snakemake and a stand-in for conda."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CONDA = """#!/bin/sh
case "$*" in
    *info*) echo '{"conda_prefix": "/nowhere", "platform": "linux-64"}' ;;
    *config*) echo '{"get": {"channel_priority": "strict"}}' ;;
    *) echo "conda 24.7.1" ;;
esac
"""


def with_conda(workflow: Any, commands: Path) -> Any:
    """The workflow where there is such a conda."""
    commands.mkdir()
    (commands / "conda").write_text(CONDA)
    (commands / "conda").chmod(0o755)
    return type(workflow)(workflow.folder, commands)


def environments(workflow: Any, *targets: str) -> set[str]:
    said = workflow.snakemake("--cores", "1", "--list-conda-envs", *targets, "--sdm", "conda")
    return set(re.findall(r"^envs/(\w+)\.yaml", said, re.MULTILINE))


@pytest.mark.slow
def test_jobs_get_the_packages_of_their_environments_family(
    real_workflow: Callable[[str], Any], tmp_path: Path
) -> None:
    workflow = with_conda(real_workflow("repository"), tmp_path / "commands")
    run = "results/smoke/runs/{}/dt/seed_0/scores.parquet"
    assert environments(workflow, run.format("dark_room_10x10")) == {"base"}
    assert environments(workflow, run.format("meta_world")) == {"control"}
    assert environments(workflow, "data/paper/dm_control/histories.safetensors") == {"sac"}  # its source asks for more


@pytest.mark.slow
def test_packages_for_gpus_stand_in_for_the_base_ones_where_they_are_asked_for(
    real_workflow: Callable[[str], Any], tmp_path: Path
) -> None:
    workflow = with_conda(real_workflow("repository"), tmp_path / "commands")
    made_of = ["data/smoke/dark_room_10x10/radt/memory.faiss", "--config", "packages=gpu"]
    assert environments(workflow, *made_of) == {"gpu"}
    assert environments(workflow, *made_of[:1]) == {"base"}
    said = workflow.snakemake("--dry-run", "--config", "packages=cuda", check=False)
    assert "packages" in said and "'gpu'" in said
