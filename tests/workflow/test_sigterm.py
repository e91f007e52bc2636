"""SIGTERM ends Snakemake at any instant, also while its loop holds the lock that its own handler waits for."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SNAKEFILE = f"""
import os
import sys
import time

sys.path.insert(0, "{ROOT}/workflow")
import snakemake_internals
from snakemake.scheduling.job_scheduler import JobScheduler

inside = JobScheduler._finish_jobs


def slow(self):  # Snakemake calls it while it holds the lock
    if not os.path.exists("inside"):
        with open("inside", "w"):
            pass
        while not os.path.exists("sent"):
            time.sleep(0.05)
    inside(self)


JobScheduler._finish_jobs = slow


onstart:
    if "{{mended}}":
        snakemake_internals.stop_from_a_thread()


rule second:
    input: "first"
    output: "second"
    shell: "touch {{output}}"


rule first:
    output: "first"
    shell: "touch {{output}}"
"""


@pytest.mark.parametrize("mended", ["yes", pytest.param("", marks=pytest.mark.slow)])
def test_sigterm_while_the_loop_holds_its_lock_ends_snakemake(tmp_path: Path, mended: str) -> None:
    """Without the thread the same signal leaves a process that never ends: should that case end, drop the thread."""
    (tmp_path / "Snakefile").write_text(SNAKEFILE.replace("{mended}", mended), encoding="utf-8")
    command = [sys.executable, "-m", "snakemake", "--cores", "1", "--quiet", "all"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        end = time.monotonic() + 60
        while not (tmp_path / "inside").exists() and time.monotonic() < end:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)  # in the first round of the loop
        (tmp_path / "sent").touch()
        if mended:
            assert process.wait(60) != 0
        else:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(20)
        assert not (tmp_path / "second").exists()
    finally:
        process.kill()
