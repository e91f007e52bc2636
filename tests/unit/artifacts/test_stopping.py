"""SIGTERM: what can be saved is saved, and the process ends with a status of its own; what cannot ends at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from recollect.artifacts.cadence import Cadence
from recollect.artifacts.lock import run_lock
from recollect.artifacts.stopping import STATUS, saves_on_sigterm

LONG = """
import time
from recollect.artifacts import stopping
from recollect.artifacts.cadence import Cadence
class Run: pass
run, cadence = Run(), Cadence(time.monotonic)
with stopping.saves_on_sigterm():
    {first}
    print(flush=True)
    for _ in range(1000):
        time.sleep(0.01)
        if stopping.asked():
            {then}
"""


def ended(first: str, then: str = "stopping.end()", again: bool = False) -> int:
    """The exit status of a process that got SIGTERM."""
    words = [sys.executable, "-c", LONG.format(first=first, then=then)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    if again:
        time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
    return process.wait(30)


def test_what_can_save_ends_with_a_status_of_its_own_and_what_cannot_at_once() -> None:
    saves = "stopping.can_save(run)"
    assert ended(saves) == STATUS == 75
    assert ended("pass") == -signal.SIGTERM
    # By two ways at once, as from SLURM and from a parent, is once; whose caller is gone ends without saving.
    assert ended(saves, then="time.sleep(0.5); stopping.end()", again=True) == STATUS
    assert ended(saves, then="stopping.end_at_once()") == -signal.SIGTERM


def test_only_work_that_has_asked_whether_to_save_is_waited_for() -> None:
    assert ended("pass") == -signal.SIGTERM, "a method that never saves has a cadence too"
    assert ended("cadence.due()") == STATUS


def test_sigterm_makes_a_save_due_which_is_the_last() -> None:
    cadence = Cadence(lambda: 0.0)
    with saves_on_sigterm():
        assert not cadence.due()
        os.kill(os.getpid(), signal.SIGTERM)
        assert cadence.due()
        with pytest.raises(SystemExit) as end:
            cadence.saved(0.0)
    assert end.value.code == STATUS
    assert not cadence.due(), "the next work of this process is not asked to end"


def test_of_several_runs_of_one_process_all_save_before_it_ends(tmp_path: Path) -> None:
    first, second = Cadence(lambda: 0.0), Cadence(lambda: 0.0)
    with saves_on_sigterm(), run_lock(tmp_path / "1"), run_lock(tmp_path / "2"):
        assert not first.due()
        os.kill(os.getpid(), signal.SIGTERM)
        assert first.due()
        first.saved(0.0)
        second.saved(0.0)
        with pytest.raises(SystemExit):
            first.due()
