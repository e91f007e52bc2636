"""The seeds of one command as an ensemble: killed, they go on; what one seed lacks, the others do not."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import preloaded
import pytest

from recollect.artifacts.stopping import STATUS

ROOT = Path(__file__).resolve().parents[2]
SEEDS = (0, 1, 2)
SCALE = """
extends: smoke
description: Seeds of one command are trained together.
seeds: [0, 1, 2]
ensembles: [dqn_ff, helm]
methods:
  dqn_ff: {hyperparameters: {checkpoint_every: 5}}
  helm: {hyperparameters: {checkpoint_every: 64, language_model: random-transfo-xl}}
"""
MAZE, FRAMES = ("tmaze_passive_5", "dqn_ff"), ("mini_grid_MemoryS7", "helm")


def command(seeds: tuple[int, ...] = SEEDS, pair: tuple[str, str] = MAZE) -> list[str]:
    env, method = pair
    words = ["run", "--scale", "ensemble", "--env", env, "--method", method, "--device", "cpu"]
    return [*words, "--threads", "1", *(word for seed in seeds for word in ("--seed", str(seed)))]


def run(folder: Path, seeds: tuple[int, ...] = SEEDS, pair: tuple[str, str] = MAZE) -> subprocess.CompletedProcess[str]:
    return preloaded.run("recollect.cli", command(seeds, pair), cwd=folder, env={**os.environ}, timeout=300)


def runs(folder: Path, pair: tuple[str, str] = MAZE) -> Path:
    return folder.joinpath("results/ensemble/runs", *pair)


def outputs(folder: Path, pair: tuple[str, str] = MAZE) -> dict[str, bytes]:
    found = [path for path in sorted(runs(folder, pair).rglob("*")) if path.is_file() and not path.name.startswith(".")]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "config", tmp_path / "config")
    (tmp_path / "config/scales/ensemble.yaml").write_text(SCALE)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("pair", [MAZE, FRAMES])
@pytest.mark.parametrize(("number", "status"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, STATUS)])
def test_a_killed_ensemble_goes_on_and_ends_with_the_same_bytes(
    number: int, status: int, pair: tuple[str, str], folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    whole = tmp_path_factory.mktemp("whole") / "run"
    shutil.copytree(folder, whole)
    done = run(whole, pair=pair)
    assert done.returncode == 0, done.stderr
    assert "training 3 seeds together" in done.stderr
    assert len(outputs(whole, pair)) == 2 * 3 * len(SEEDS)
    assert len(list((whole / "logs").rglob("train.json"))) == len(SEEDS)  # a record of each run

    process = preloaded.start("recollect.cli", command(pair=pair), cwd=folder, env={**os.environ}, said=folder / "said")
    checkpoints = folder / "results/ensemble/checkpoints"
    while process.poll() is None and not list(checkpoints.rglob("seed_2/step_*.safetensors.manifest.json")):
        time.sleep(0.002)
    process.send_signal(number)
    process.wait(timeout=60)
    assert process.returncode == status, (folder / "said").read_text()
    again = run(folder, pair=pair)
    assert again.returncode == 0, again.stderr
    assert again.stderr.count("going on from the checkpoint") == len(SEEDS)
    assert outputs(folder, pair) == outputs(whole, pair)


@pytest.mark.slow
def test_a_seed_that_another_process_trains_is_left_to_it_and_the_others_are_trained(folder: Path) -> None:
    from recollect.artifacts.lock import run_lock

    with run_lock(folder / "results/ensemble/checkpoints/tmaze_passive_5/dqn_ff/seed_1"):
        done = run(folder)
    assert done.returncode == 2 and "seed 1" in done.stderr
    assert "training 2 seeds together" in done.stderr
    assert [path.parent.name for path in sorted(runs(folder).rglob("scores.parquet"))] == ["seed_0", "seed_2"]
