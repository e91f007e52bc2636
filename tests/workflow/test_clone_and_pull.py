"""DVC and Snakemake tell the same story: the real ones, with a stand-in for `recollect`."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

GIT = ["git", "-c", "user.name=t", "-c", "user.email=t@t", "-c", "init.defaultBranch=main"]


@pytest.fixture(scope="module")
def pushed(finished_once: tuple[Any, list[str]], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A copy with finished results that was committed, and pushed to a remote of DVC."""
    folder = tmp_path_factory.mktemp("pushed")
    shutil.copytree(finished_once[0].folder, folder / "repository", symlinks=True)
    workflow = replace(finished_once[0], folder=folder / "repository")
    workflow.edit("config/config.yaml", "figures: demo_all", "figures: headlines")  # those of dvc.yaml
    workflow.snakemake("--cores", "1", "--", "claims")
    assert [command.split()[0] for command in workflow.ran()] == ["claims"]
    workflow.run(*GIT, "init", "-q")
    workflow.run(*GIT, "add", "-A")
    workflow.run(*GIT, "commit", "-qm", "start")

    workflow.run("dvc", "repro")
    assert workflow.ran() == [], "Snakemake had made it all already"
    assert "up to date" in workflow.run("dvc", "status").stdout

    workflow.run("dvc", "remote", "add", "-d", "store", str(folder / "store"))
    workflow.run("dvc", "push")
    workflow.run(*GIT, "add", "-A")
    workflow.run(*GIT, "commit", "-qm", "made")
    tracked = workflow.run(*GIT, "ls-files").stdout.split()
    assert "dvc.lock" in tracked
    assert not [name for name in tracked if name.startswith(("results/", "data/", "provenance/", "logs/"))]
    return workflow


@pytest.fixture
def clone(pushed: Any, tmp_path: Path) -> Any:
    pushed.run(*GIT, "clone", "-q", str(pushed.folder), str(tmp_path / "clone"))
    cloned = replace(pushed, folder=tmp_path / "clone")
    cloned.run("dvc", "pull")
    return cloned


@pytest.mark.slow
def test_a_clone_has_nothing_to_redo_and_both_tools_agree(clone: Any) -> None:
    assert clone.planned() == []
    assert "up to date" in clone.run("dvc", "status").stdout


@pytest.mark.slow
def test_what_one_tool_makes_anew_is_new_for_neither(clone: Any) -> None:
    # One figure is redrawn alone, and its bytes are those that DVC knows.
    (clone.folder / "results/demo/figures/radt_dark_room_10x10.png").unlink()
    clone.snakemake("--cores", "1", "results/demo/figures/radt_dark_room_10x10.png")
    assert clone.ran() == ["figure radt_dark_room_10x10"]
    assert "up to date" in clone.run("dvc", "status").stdout

    # A changed loss is stale for both, and what `dvc repro` makes is new for neither.
    with (clone.folder / "src/recollect/radt/ad.py").open("a") as file:
        file.write("\nLOSS_SCALE = 2.0\n")
    (clone.folder / "salt").write_text("other bytes")
    planned = clone.planned("all", "claims")
    assert "run dark_room_7x7 ad 0" in planned
    clone.run("dvc", "repro")
    assert sorted(clone.ran()) == planned
    assert clone.planned() == []
    assert "up to date" in clone.run("dvc", "status").stdout
