"""What is known of other processes."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from processes import wait_until

from recollect.artifacts.processes import stat_of

LETTERS = "a) (bc defghij"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no Linux")
def test_a_process_with_a_name_that_linux_cuts_within_a_character_is_read(tmp_path: Path) -> None:
    program = shutil.which("sleep")
    assert program is not None and len(LETTERS.encode()) == 14
    named = tmp_path / f"{LETTERS}é"
    shutil.copy(program, named)
    process = subprocess.Popen([named, "60"], executable=named)
    try:
        name = f"{LETTERS}é".encode()[:15] + b"\n"
        wait_until(lambda: Path(f"/proc/{process.pid}/comm").read_bytes() == name, "the process has its name")
        assert int(stat_of(process.pid)[1]) == os.getpid()
    finally:
        process.kill()
        process.wait()
