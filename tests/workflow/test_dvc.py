"""dvc.yaml is what the stages say, and names what the default target makes at demo scale."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import fast_yaml
import pytest

from recollect.artifacts.sealed import manifest_path, sealing
from recollect.figures.registry import kinds
from recollect.stages import paths
from recollect.stages.pipeline import pipeline
from recollect.stages.plan import plan
from recollect.stages.selection import default_selection
from recollect.stages.table import STAGES

ROOT = Path(__file__).resolve().parents[2]


def outs_of_pipeline() -> dict[str, str]:
    """Every out of dvc.yaml -> its stage."""
    stages = fast_yaml.load((ROOT / "dvc.yaml").read_text())["stages"]
    return {next(iter(out)): name for name, stage in stages.items() for out in stage.get("outs", ())}


def test_the_file_is_what_the_stages_say() -> None:
    assert (ROOT / "dvc.yaml").read_text() == pipeline(), "run `recollect dvc > dvc.yaml`"


def test_rules_of_runs_are_those_that_the_configuration_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    few = default_selection().model_copy(update={"seeds_together": 2})
    monkeypatch.setattr("recollect.stages.pipeline.default_selection", lambda: few)
    allowed = next(line for line in pipeline().splitlines() if "evaluated inspected measured" in line).split()
    assert {word for word in allowed if word.startswith("run")} >= {"run", "run_demo_2_seeds_from_0"}
    assert "run_demo_5_seeds_from_0" not in allowed


def test_every_default_artifact_at_demo_scale_is_in_an_out_and_no_out_is_idle() -> None:
    whole = plan("demo", default_selection().figures_at())
    made = [path for stage in STAGES for path in whole.files(stage)]
    made.append(paths.claims("demo"))
    made += [manifest_path(path) for path in made]
    outs = {Path(out) for out in outs_of_pipeline()} - {Path("provenance")}
    assert len(made) > 100
    missing = [path.as_posix() for path in made if not any(out == path or out in path.parents for out in outs)]
    assert not missing
    covered = {*made, *(parent for path in made for parent in path.parents)}
    assert not [out.as_posix() for out in outs if out not in covered]


def test_outs_of_a_stage_are_deps_of_the_next() -> None:
    stages = fast_yaml.load((ROOT / "dvc.yaml").read_text())["stages"]
    runs = [next(iter(out)) for name in ("embedders", "runs") for out in stages[name]["outs"]]
    assert set(runs) <= set(stages["figures"]["deps"])
    for name, stage in stages.items():
        assert all(next(iter(out.values())) == {"persist": True} for out in stage.get("outs", ())), name


@pytest.mark.slow
def test_what_is_half_written_is_no_part_of_an_out(tmp_path: Path) -> None:
    shutil.copy(ROOT / ".dvcignore", tmp_path)
    dvc = (sys.executable, "-m", "dvc")
    subprocess.run([*dvc, "init", "--quiet", "--no-scm"], cwd=tmp_path, check=True)
    folder, half = tmp_path / "results/demo", list[str]()
    for name in ("policy.safetensors", "scores.parquet.manifest.json", "plain"):
        with sealing(folder / name, kind="test") as temporary:
            temporary.touch()
            half.append(temporary.relative_to(tmp_path).as_posix())
    whole = [path.relative_to(tmp_path).as_posix() for path in folder.iterdir()]
    command = [*dvc, "check-ignore", *half, *whole]
    ignored = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.split()
    assert len(whole) == 6 and ignored == half


def numbers_of(folder: Path) -> dict[str, Any]:
    """The numbers that workflow/metrics.py writes of the figures and claims in a folder, with our configuration."""
    command = [sys.executable, str(ROOT / "workflow/metrics.py"), "demo"]
    subprocess.run(command, cwd=folder, check=True, env={**os.environ, "RECOLLECT_CONFIG": str(ROOT / "config")})
    return {path.stem: json.loads(path.read_text()) for path in (folder / "metrics").iterdir()}


def test_the_numbers_of_figures_are_scores_and_no_pixels_and_of_what_is_selected(tmp_path: Path) -> None:
    figures = tmp_path / "results/demo/figures"
    figures.mkdir(parents=True)
    curves, bars, *pictures = default_selection().figures_at("demo")
    kinds_of = {curves: "curve_panels", bars: "bars"} | dict(zip(pictures, ("tokens", "score_rows"), strict=False))
    for name, kind in {
        **kinds_of,
        "radt_ablations": "bars",
        "mine": "bars",
    }.items():  # the last two: drawn once, by hand
        rows = [f"room,{name},{x},{y},,,1,1" for name, x, y in (("a", 2, 0.75), ("a", 1, 0.5), ("published:a", 2, 9))]
        text = "\n".join(["panel,method,x,y,low,high,seeds,tasks", *rows]) + "\n"
        (figures / f"{name}.csv").write_text(text)
        (figures / f"{name}.json").write_text(json.dumps({"kind": kind}))
    (figures / f"{pictures[-1]}.csv").write_text("panel,row,column,value\nfirst,1,2,0.5\n")  # no curve and no bar
    (figures / f"{pictures[-1]}.json").write_text(json.dumps({"kind": "attention_maps"}))
    (tmp_path / "results/demo/claims.json").write_text(json.dumps({"scale": "demo", "claims": []}))
    assert numbers_of(tmp_path)["demo"] == {name: {"room": {"a": 0.75}} for name in (curves, bars)}


def test_the_kinds_that_show_scores_are_there() -> None:
    """`SCORES` is written in a script, which finds its neighbour only where it runs."""
    tree = ast.parse((ROOT / "workflow/metrics.py").read_text())
    chosen = next(
        node for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "SCORES"
    )
    assert ast.literal_eval(chosen.value) < set(kinds())


def test_verdicts_are_numbers_that_dvc_shows(tmp_path: Path) -> None:
    """DVC shows numbers in mappings, and nothing in a list."""
    judged = [
        {"name": name, "verdict": verdict, "contrasts": [{"says": "a minus b", "value": 2.0, "low": 1.0, "high": 3.0}]}
        for name, verdict in (("one", "holds"), ("two", "contradicted"), ("three", "undecided"))
    ]
    judged.append({"name": "four", "verdict": "not run", "contrasts": [{"says": "a minus b", "why": "no runs"}]})
    (tmp_path / "results/demo").mkdir(parents=True)
    (tmp_path / "results/demo/claims.json").write_text(json.dumps({"scale": "demo", "claims": judged}))
    found = numbers_of(tmp_path)["demo_claims"]
    assert {name: claim["verdict"] for name, claim in found.items()} == {"one": 1, "two": -1, "three": 0, "four": None}
    assert found["one"]["a minus b"] == {"effect": 2.0, "low": 1.0, "high": 3.0}
    assert found["four"]["a minus b"] == {"effect": None, "low": None, "high": None}
    shown = fast_yaml.load((ROOT / "dvc.yaml").read_text())["stages"]["metrics"]["metrics"]
    assert [next(iter(one)) for one in shown] == ["metrics/demo.json", "metrics/demo_claims.json"]
