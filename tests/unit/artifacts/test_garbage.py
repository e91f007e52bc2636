"""Garbage is looked for rarely while a command imports and plans, and as before as soon as a loop works."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from recollect.artifacts.garbage import collect_as_before, collect_rarely
from recollect.artifacts.progress import Progress

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def usual() -> Iterator[tuple[int, int, int]]:
    """Thresholds that someone chose, in a process that will be as it was."""
    before = gc.get_threshold()
    gc.set_threshold(123, 4, 5)
    yield gc.get_threshold()
    collect_as_before()
    gc.set_threshold(*before)


def test_a_loop_collects_as_before(usual: tuple[int, int, int]) -> None:
    for _ in range(2):  # a process that makes two things
        collect_rarely()
        collect_rarely()
        assert gc.get_threshold() == (50_000, *usual[1:])
        with Progress(3, "work"):
            assert gc.get_threshold() == usual
        assert gc.get_threshold() == usual


def test_who_never_asked_keeps_what_they_chose(usual: tuple[int, int, int]) -> None:
    with Progress(3, "work"):
        assert gc.get_threshold() == usual


def test_what_stood_is_not_looked_through_again() -> None:
    """In a process of its own: what is frozen stays so."""
    code = "import gc; from recollect.artifacts.garbage import collect_rarely as rarely; rarely(); print(gc.get_freeze_count())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 1000


def test_a_command_is_imported_so(tmp_path: Path) -> None:
    said = (
        "import atexit, gc, sys; atexit.register(lambda: print('at its end', *gc.get_threshold(), file=sys.stderr))\n"
    )
    (tmp_path / "sitecustomize.py").write_text(said)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT / "src")])}
    command = [sys.executable, "-c", "from recollect.launch import main; main()", "--version"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "at its end 50000 " in done.stderr, done.stderr
