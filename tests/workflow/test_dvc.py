"""DVC and Snakemake tell the same story: the real ones, with a stand-in for `recollect`."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from recollect.settings.loading import read_yaml
from recollect.stages import dependencies, paths

ROOT = Path(__file__).resolve().parents[2]
GIT = ["git", "-c", "user.name=t", "-c", "user.email=t@t", "-c", "init.defaultBranch=main"]


def outs_of_pipeline() -> dict[str, str]:
    """Every out of dvc.yaml -> its stage."""
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    return {next(iter(out)): name for name, stage in stages.items() for out in stage["outs"]}


def test_every_default_artifact_at_demo_scale_is_in_an_out_and_no_out_is_idle() -> None:
    figures = read_yaml(ROOT / "config" / "config.yaml")["figures"]
    made = [path for stage in dependencies.STAGES for path in dependencies.artifacts(stage, "demo", figures)]
    made += [paths.manifest(path) for path in made]
    made += [paths.rows(p.parts[1], p.parts[2], p.parts[3]) for p in dependencies.artifacts("index", "demo", figures)]
    outs = {Path(out) for out in outs_of_pipeline()} - {Path("provenance")}
    missing = [path.as_posix() for path in made if not any(out == path or out in path.parents for out in outs)]
    assert not missing, (
        f"add to the outs in dvc.yaml (a run's folder {{env}}/{{method}} or {{env}} is enough): {missing}"
    )
    covered = {*made, *(parent for path in made for parent in path.parents)}
    covered |= {paths.manifest(path) for path in covered if path.name == "memory_rows.safetensors"}
    idle = [out.as_posix() for out in outs if out not in covered]
    assert not idle, f"remove from the outs in dvc.yaml: {idle}"


def test_outs_of_a_stage_are_deps_of_the_next() -> None:
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    runs = [next(iter(out)) for name in ("embedders", "runs") for out in stages[name]["outs"]]
    assert set(runs) <= set(stages["figures"]["deps"])
    for name, stage in stages.items():
        assert all(next(iter(out.values())) == {"persist": True} for out in stage["outs"]), name


def test_a_clone_has_nothing_to_redo_and_both_tools_agree(finished: Any, tmp_path: Path) -> None:
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
    with (clone.folder / "src/recollect/methods/ad.py").open("a") as file:
        file.write("\nLOSS_SCALE = 2.0\n")
    (clone.folder / "salt").write_text("other bytes")
    planned = clone.planned()
    assert "train dark_room_10x10 ad 0" in planned
    clone.run("dvc", "repro")
    assert sorted(clone.ran()) == planned
    assert clone.planned() == []
    assert "up to date" in clone.run("dvc", "status").stdout
