"""dvc.yaml names what the default target makes at demo scale."""

from __future__ import annotations

from pathlib import Path

import yaml

from recollect.settings.loading import read_yaml
from recollect.stages import dependencies, paths

ROOT = Path(__file__).resolve().parents[2]


def outs_of_pipeline() -> dict[str, str]:
    """Every out of dvc.yaml -> its stage."""
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    return {next(iter(out)): name for name, stage in stages.items() for out in stage.get("outs", ())}


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
        assert all(next(iter(out.values())) == {"persist": True} for out in stage.get("outs", ())), name
