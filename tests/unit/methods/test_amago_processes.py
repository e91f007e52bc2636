"""AMAGO with two processes: both end cleanly, a killed one is noticed, no file is torn."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from tiny_amago import run_in, settings_of

from recollect.artifacts.run import Run
from recollect.artifacts.sealed import verify
from recollect.methods import amago, amago_processes
from recollect.methods.contract import Inputs
from recollect.settings.errors import UserError


def test_two_processes_train_and_end_cleanly(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    settings = settings_of(processes=2, epochs=3, steps_per_epoch=24)
    policy = amago.train(settings, Inputs(), run)
    table = run.table()
    assert table[table["metric"] == "updates"]["value"].max() == 9
    assert not amago_processes.running()
    files = sorted((tmp_path / "checkpoints" / "buffer" / "fifo").glob("*.safetensors"))
    assert files
    for path in files:
        verify(path, kind="trajectories")
    assert amago.load_policy(settings, policy.arrays(), Inputs()).arrays().keys() == policy.arrays().keys()


def test_a_killed_collector_is_noticed_and_tears_no_file(tmp_path: Path) -> None:
    settings = settings_of(processes=2, epochs=100_000, updates_per_epoch=1, steps_per_epoch=12, evaluate_every=100_000)
    folder = tmp_path / "checkpoints" / "buffer" / "fifo"

    class KillingRun(Run):
        killed = False

        def log(self, step: int, **metrics: float) -> None:
            super().log(step, **metrics)
            if not self.killed and len(list(folder.glob("*.json"))) >= 3:
                KillingRun.killed = True
                (process,) = amago_processes.running()
                os.kill(int(process.pid or 0), signal.SIGKILL)

    began = time.monotonic()
    with pytest.raises(UserError, match="collector"):
        amago.train(settings, Inputs(), run_in(tmp_path, KillingRun))
    assert KillingRun.killed
    assert time.monotonic() - began < 60
    assert not amago_processes.running()
    whole = [path for path in folder.glob("*.safetensors") if path.with_name(path.name + ".manifest.json").exists()]
    assert len(whole) >= 3
    for path in whole:
        verify(path, kind="trajectories")
    # What the kill left can be gone on from.
    checkpoint = run_in(tmp_path).resume()
    assert checkpoint is not None
    more = {"processes": 2, "updates_per_epoch": 1, "steps_per_epoch": 12, "epochs": checkpoint.step + 3}
    run = run_in(tmp_path)
    amago.train(settings_of(**more), Inputs(), run)
    table = run.table()
    assert table[table["metric"] == "updates"]["value"].max() > checkpoint.state["at"]["updates"]
