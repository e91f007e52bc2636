"""`make gpu` starts and compiles several lines at once, and times one at a time: real processes that are stopped and go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.gpu import turns

BUSY = "import sys, time\nwhile True:\n    open(sys.argv[1], 'a').write('x')\n    time.sleep(0.002)"


def begun(code: str, *words: object, turns_of: Path) -> subprocess.Popen[bytes]:
    own = {turns.FOLDER: str(turns_of), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-S", "-c", code, *map(str, words)]
    return subprocess.Popen(command, start_new_session=True, env=os.environ | own)


def until(holds: Callable[[], object]) -> None:
    ends = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < ends
        time.sleep(0.005)


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def grows(path: Path) -> bool:
    before = size(path)
    until(lambda: size(path) > before)
    return True


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "turns").mkdir()
    return tmp_path / "turns"


def test_while_one_is_timed_all_others_are_stopped_and_then_they_go_on(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = tmp_path / "busy"
    monkeypatch.setenv(turns.FOLDER, str(folder))
    process = begun(BUSY, written, turns_of=folder)
    with turns.taken_part(folder, process.pid):
        assert grows(written)
        with turns.alone():
            before = size(written)
            time.sleep(0.1)
            assert size(written) == before
        assert grows(written)
        process.kill()
        process.wait()
    assert [path.name for path in folder.iterdir()] == [turns.LOCK]


def test_only_one_is_timed_at_a_time(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import sys, time\nfrom benchmarks.gpu.turns import alone\nwith alone():\n    open(sys.argv[1], 'w')\n    time.sleep(60)"
    first, second = tmp_path / "first", tmp_path / "second"
    processes = [begun(code, path, turns_of=folder) for path in (first, second)]
    until(lambda: first.exists() or second.exists())
    time.sleep(0.3)
    assert first.exists() != second.exists()
    timed = processes[0] if first.exists() else processes[1]
    timed.kill()
    until(lambda: first.exists() and second.exists())
    for process in processes:
        process.kill()
        process.wait()


def test_others_go_on_when_the_one_that_was_timed_is_killed(folder: Path, tmp_path: Path) -> None:
    written, begins = tmp_path / "busy", tmp_path / "begins"
    code = "import sys, time\nfrom benchmarks.gpu.turns import alone\nwith alone():\n    open(sys.argv[1], 'w')\n    time.sleep(60)"
    busy = begun(BUSY, written, turns_of=folder)
    with turns.taken_part(folder, busy.pid):
        assert grows(written)
        timed = begun(code, begins, turns_of=folder)
        with turns.taken_part(folder, timed.pid):
            until(begins.exists)
            before = size(written)
            time.sleep(0.1)
            assert size(written) == before
            os.killpg(timed.pid, signal.SIGKILL)
            timed.wait()
        assert grows(written)
        busy.kill()
        busy.wait()


def test_ctrl_c_leaves_no_process_not_even_one_that_is_stopped(folder: Path, tmp_path: Path) -> None:
    processes = [begun(BUSY, tmp_path / name, turns_of=folder) for name in ("runs", "stopped")]
    for process in processes:
        (folder / str(process.pid)).touch()
    os.killpg(processes[1].pid, signal.SIGSTOP)
    with pytest.raises(KeyboardInterrupt), turns.none_left(folder):
        raise KeyboardInterrupt
    assert [process.wait(20) for process in processes] == [-signal.SIGKILL] * 2
    waited_for = begun(BUSY, tmp_path / "waited for", turns_of=folder)
    with pytest.raises(KeyboardInterrupt), turns.taken_part(folder, waited_for.pid):
        raise KeyboardInterrupt
    assert waited_for.wait(20) == -signal.SIGKILL


def test_who_is_by_itself_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(turns.FOLDER, raising=False)
    with turns.alone(), turns.alone():
        pass
