"""Lines side by side, of which one is timed at a time: its process stops those of the others, and then lets them go on.

Of the minute that a line takes most is the start of a process and torch.compile, which the host does. So several lines do that
at once. Each has a group of processes of its own, which is a file in a folder that all know (`FOLDER`). Without one, nobody waits.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

FOLDER = "RECOLLECT_GPU_TURNS"  # in the environment of a line's process
LOCK = "turn"
QUIET = 0.1  # seconds in which a GPU ends what the others gave it


@contextmanager
def alone() -> Iterator[None]:
    """While this is open, no other line computes anything. It waits until nobody else is timed."""
    folder = os.environ.get(FOLDER)
    if folder is None:
        yield
        return
    with Path(folder, LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _tell(folder, signal.SIGSTOP)
        try:
            time.sleep(QUIET)
            yield
        finally:
            _tell(folder, signal.SIGCONT)


@contextmanager
def taken_part(folder: Path, group: int) -> Iterator[None]:
    """While this is open, a group of processes is stopped while another line is timed. It has ended when this is closed.

    An error or Ctrl-C kills it.
    """
    own = folder / str(group)
    own.touch()
    try:
        yield
    except BaseException:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
        raise
    finally:
        own.unlink()
        # Where another line is timed, it lets the others go on by itself.
        with (folder / LOCK).open("w") as lock, suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _tell(folder, signal.SIGCONT)


@contextmanager
def none_left(folder: Path) -> Iterator[None]:
    """Where this is left by an error or by Ctrl-C, the groups in the folder are killed, those that are stopped, too."""
    try:
        yield
    except BaseException:
        _tell(folder, signal.SIGKILL)
        raise


def _tell(folder: str | Path, what: signal.Signals) -> None:
    """Send a signal to the groups of all other lines."""
    for file in Path(folder).iterdir():
        if file.name.isdigit() and int(file.name) != os.getpgrp():
            with suppress(ProcessLookupError):
                os.killpg(int(file.name), what)
