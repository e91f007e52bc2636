"""The quick tests' temporary files lie in memory where there is room, and never stay there."""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ASKED = 'echo "$TMPDIR"; [ -z "$TMPDIR" ] || touch "$TMPDIR/file"; exit 3'


def said_by(memory: Path, *, gib: int = 0, **variables: str) -> subprocess.CompletedProcess[str]:
    """What a command says of its folder, beneath `tests/in_memory.sh`."""
    env = {name: value for name, value in os.environ.items() if name != "TMPDIR"}
    env |= {"MEMORY_FOLDER": str(memory), "MEMORY_GIB": str(gib), **variables}
    command = [str(ROOT / "tests/in_memory.sh"), "sh", "-c", ASKED]
    return subprocess.run(command, env=env, capture_output=True, text=True)


def test_a_command_has_a_folder_in_memory_that_is_gone_when_it_ends(tmp_path: Path) -> None:
    done = said_by(tmp_path)
    assert done.returncode == 3 and not done.stderr
    assert Path(done.stdout.strip()).parent == tmp_path and not list(tmp_path.iterdir())


def test_without_room_and_where_a_folder_was_chosen_memory_is_left_alone(tmp_path: Path) -> None:
    memory, chosen = tmp_path / "memory", tmp_path / "chosen"
    memory.mkdir()
    chosen.mkdir()
    full, own = said_by(memory, gib=10**9), said_by(memory, TMPDIR=str(chosen))
    assert full.stdout.strip() == "" and own.stdout.strip() == str(chosen)
    assert full.returncode == own.returncode == 3 and (chosen / "file").exists()
    assert said_by(tmp_path / "no folder").returncode == 3


def test_what_a_killed_run_left_is_removed_and_what_is_in_use_is_not(tmp_path: Path) -> None:
    left, used, other = tmp_path / "recollect.left", tmp_path / "recollect.used", tmp_path / "another"
    for folder in (left, used, other):
        folder.mkdir()
        (folder / "file").touch()
    descriptor = os.open(used, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    said_by(tmp_path)
    os.close(descriptor)
    assert set(tmp_path.iterdir()) == {used, other}
