"""Seeds of one command in processes of their own: as they would be alone, whatever stops them or one of them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import preloaded
import pytest

from recollect.artifacts.lock import run_lock
from recollect.artifacts.stopping import STATUS

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
SEEDS = (0, 1, 2)
SCALE = """
extends: smoke
description: A run has time to be stopped.
seeds: [0, 1, 2]
methods: {dqn_ff: {hyperparameters: {checkpoint_every: 5}}}
"""
RUN = "results/longer/runs/tmaze_passive_5/dqn_ff"


def command(at_a_time: int) -> list[str]:
    words = ["run", "--scale", "longer", "--env", "tmaze_passive_5", "--method", "dqn_ff", "--device", "cpu"]
    words += [word for seed in SEEDS for word in ("--seed", str(seed))]
    return [*words, "--at-a-time", str(at_a_time), "--threads", str(at_a_time)]


def run(folder: Path, at_a_time: int) -> subprocess.CompletedProcess[str]:
    return preloaded.run("recollect.cli", command(at_a_time), cwd=folder, env={**os.environ}, timeout=300)


def outputs(folder: Path) -> dict[str, bytes]:
    found = [path for path in sorted((folder / RUN).rglob("*")) if path.is_file() and not path.name.startswith(".")]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def log_of(folder: Path, seed: int) -> str:
    return (folder / f"logs/longer/tmaze_passive_5/dqn_ff/seed_{seed}/run.log").read_text()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "config", tmp_path / "work/config")
    (tmp_path / "work/config/scales/longer.yaml").write_text(SCALE)
    return tmp_path / "work"


def test_seeds_side_by_side_are_stopped_and_go_on_with_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    shutil.copytree(folder, whole)
    assert run(whole, at_a_time=1).returncode == 0  # one after the other, each with one thread as below
    assert len(outputs(whole)) == 2 * 3 * len(SEEDS)

    process = preloaded.start("recollect.cli", command(2), cwd=folder, env={**os.environ}, said=folder / "said")
    checkpoints = folder / "results/longer/checkpoints"
    while process.poll() is None and not list(checkpoints.rglob("step_*.safetensors.manifest.json")):
        time.sleep(0.002)
    process.send_signal(signal.SIGTERM)
    said = folder / "said"
    assert process.wait(timeout=60) == STATUS, said.read_text()
    assert "has saved where it stood and ended" in said.read_text()
    assert not list(folder.glob(f"{RUN}/seed_2/*")), "another seed began after the signal"

    again = run(folder, at_a_time=2)
    assert again.returncode == 0, again.stderr
    assert "going on from the checkpoint" in log_of(folder, 0) + log_of(folder, 1)
    assert again.stderr.count("has ended well") == 3 and again.stderr.count("kept, it is of today") == 2 * len(SEEDS)
    assert outputs(folder) == outputs(whole)
    assert not list(checkpoints.rglob("step_*")), "checkpoints of a job that has ended well go"


def test_a_seed_that_fails_leaves_the_others_alone_and_is_tried_once_more(folder: Path) -> None:
    with run_lock(folder / "results/longer/checkpoints/tmaze_passive_5/dqn_ff/seed_1"):
        done = run(folder, at_a_time=3)
    assert done.returncode == 2
    assert "seed 1 ended with status 2" in done.stderr and "seed 1 failed: another process" in done.stderr
    assert "another process is working in this folder" in log_of(folder, 1)
    assert sorted(path.parent.name for path in (folder / RUN).rglob("scores.parquet")) == ["seed_0", "seed_2"]
