"""Processes that tests start, kill and wait for."""

import time
from collections.abc import Callable
from pathlib import Path

from recollect.artifacts.processes import stat_of


def runs(pid: int) -> bool:
    """Whether a process of this Linux runs: one that ended does not, whether its parent waited for it or not."""
    try:
        return stat_of(pid)[0] not in "ZX"
    except OSError:  # there is no such file, or it ended while the file was read
        return False


def wait_until(true: Callable[[], object], what: str, seconds: float = 30) -> None:
    """Wait until it holds, or fail and say what did not."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"{what}: not so after {seconds:g} s"
        time.sleep(0.02)


def spawned_by(pid: int) -> list[int]:
    """The processes that `multiprocessing` started for this one by `spawn`."""
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        try:
            if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(int(child))
        except OSError:
            continue
    return found
