"""The whole workflow with the real commands, at smoke scale: minutes, so run by `make test-all`."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
RUN = Path("results/smoke/runs/dark_room_10x10/dt/seed_0")
CHECKPOINTS = Path("results/smoke/checkpoints/dark_room_10x10/dt/seed_0")


def test_smoke_makes_every_default_figure_and_stays_done(real_workflow: Callable[[str], Any]) -> None:
    workflow = real_workflow("smoke")
    workflow.snakemake("--cores", "2", "--show-failed-logs", "smoke")
    figures = sorted(path.name for path in (workflow.folder / "results/smoke/figures").glob("*.pdf"))
    assert figures == ["memory_rl_passive_tmaze.pdf", "radt_dark_room_10x10.pdf"]
    manifest = json.loads((workflow.folder / "results/smoke/figures/radt_dark_room_10x10.json").read_text())
    assert manifest["wiring_test"] and "SMOKE" in manifest["caption"]
    assert workflow.planned("smoke") == []

    log = (workflow.folder / "logs/smoke/dark_room_10x10/radt/seed_0/train.log").read_text()
    assert log.startswith("$ recollect train --scale smoke --env dark_room_10x10 --method radt --seed 0")

    # A damaged policy stops its evaluation with one message; nothing half-written is left.
    policy = workflow.folder / "results/smoke/runs/dark_room_10x10/ad/seed_0/policy.safetensors"
    policy.write_bytes(policy.read_bytes()[:-1] + b"x")
    said = workflow.snakemake("--cores", "1", "--show-failed-logs", "smoke", check=False)
    assert re.search(r"error: .*\n  where: .*ad/seed_0/policy\.safetensors\n  to do: ", said)
    assert "Traceback" not in said
    assert not policy.with_name("scores.parquet").exists()


def test_a_killed_scheduler_loses_nothing(real_workflow: Callable[[str], Any]) -> None:
    """SIGKILL of Snakemake in the middle of a training; the next call resumes and ends with the same bytes."""
    target = str(RUN / "policy.safetensors")
    whole = real_workflow("whole")
    whole.snakemake("--cores", "2", target)

    killed = real_workflow("killed")
    process = subprocess.Popen(
        ["snakemake", "--cores", "2", target],
        cwd=killed.folder,
        env=killed.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 300
    while not list((killed.folder / CHECKPOINTS).glob("step_*.safetensors.manifest.json")):
        assert process.poll() is None and time.monotonic() < deadline, "it ended before its first checkpoint"
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (killed.folder / target).exists(), "too late: the run had ended"
    time.sleep(3)  # its job notices that the scheduler is gone, and lets go of the run's lock

    killed.snakemake("--cores", "2", "--show-failed-logs", target)
    assert (
        "going on from the checkpoint" in (killed.folder / "logs/smoke/dark_room_10x10/dt/seed_0/train.log").read_text()
    )
    for name in ("policy.safetensors", "policy.safetensors.manifest.json", "train.parquet"):
        assert (killed.folder / RUN / name).read_bytes() == (whole.folder / RUN / name).read_bytes(), name
