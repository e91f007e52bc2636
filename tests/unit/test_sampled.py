"""`python -m benchmarks.sampled` says in which functions a command's time goes."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # benchmarks is no part of the package

from benchmarks.sampled import Sampler  # noqa: E402


def test_the_thread_that_made_it_is_watched_and_no_other() -> None:
    other = threading.Event()
    beside = threading.Thread(target=other.wait)
    beside.start()
    sampler = Sampler(every=0.001)
    until = time.monotonic() + 10
    while sampler.samples < 5 and time.monotonic() < until:
        sum(range(1000))
    said = sampler.stop()
    other.set()
    beside.join()
    assert int(said.split()[0]) >= 5
    assert sampler.lines.total() == sampler.samples
    assert "wait" not in said


@pytest.mark.slow
def test_a_command_is_run_and_its_time_told() -> None:
    command = [sys.executable, "-m", "benchmarks.sampled", "--after", "0", "list", "worlds"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "tmaze" in done.stdout and "recollect/launch.py main" in done.stdout.partition("share within")[2]
