"""A sweep with the real Snakemake: killed on the way it goes on, and when all is there it makes nothing."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

pytestmark = pytest.mark.slow
RUNS = Path("results/smoke/runs/tmaze_passive_5")
WORDS = ["--scale", "smoke", "--env", "tmaze_passive_5", "--method", "dqn_lstm", "--seed", "0"]


def test_a_killed_sweep_goes_on_and_a_finished_one_makes_nothing(real_workflow: Callable[[str], Any]) -> None:
    workflow = real_workflow("sweep")
    command = ["recollect", "sweep", *WORDS, "--set", "learning_rate=1e-3,3e-4,default", "--", "--cores", "1"]
    killed = subprocess.Popen(command, cwd=workflow.folder, env=workflow.environment, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 300
    while not (made := list((workflow.folder / RUNS).rglob("scores.parquet"))):
        assert killed.poll() is None and time.monotonic() < until
        time.sleep(0.1)
    killed.send_signal(signal.SIGTERM)
    killed.wait(120)
    first = {path: path.stat().st_mtime_ns for path in made}

    said = workflow.run(*command).stdout
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in first.items())
    (place,) = (workflow.folder / "results/smoke/sweeps/tmaze_passive_5").glob("*.csv")
    table = pd.read_csv(place)
    assert list(table["learning_rate"]) == ["0.001", "0.0003", "default"] and table["return"].notna().all()
    assert said.rstrip().endswith(str(place.relative_to(workflow.folder)))
    assert "Nothing to be done" in workflow.run(*command).stdout
