"""DVC and Snakemake tell the same story: the real ones, with a stand-in for `recollect`."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

GIT = ["git", "-c", "user.name=t", "-c", "user.email=t@t", "-c", "init.defaultBranch=main"]


def test_a_clone_has_nothing_to_redo_and_both_tools_agree(finished: Any, tmp_path: Path) -> None:
    finished.edit("config/config.yaml", "figures: demo_all", "figures: headlines")  # those of dvc.yaml
    finished.snakemake("--cores", "1", "--", "claims")
    assert [command.split()[0] for command in finished.ran()] == ["claims"]
    finished.run(*GIT, "init", "-q")
    finished.run(*GIT, "add", "-A")
    finished.run(*GIT, "commit", "-qm", "start")

    finished.run("dvc", "repro")
    assert finished.ran() == [], "Snakemake had made it all already"
    assert "up to date" in finished.run("dvc", "status").stdout

    store = tmp_path / "store"
    finished.run("dvc", "remote", "add", "-d", "store", str(store))
    finished.run("dvc", "push")
    finished.run(*GIT, "add", "-A")
    finished.run(*GIT, "commit", "-qm", "made")
    tracked = finished.run(*GIT, "ls-files").stdout.split()
    assert "dvc.lock" in tracked
    assert not [name for name in tracked if name.startswith(("results/", "data/", "provenance/", "logs/"))]

    shutil.rmtree(tmp_path / "clone", ignore_errors=True)
    finished.run(*GIT, "clone", "-q", str(finished.folder), str(tmp_path / "clone"))
    clone = replace(finished, folder=tmp_path / "clone")
    clone.run("dvc", "pull")
    assert clone.planned() == []
    assert "up to date" in clone.run("dvc", "status").stdout

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
