"""Take away the lock that a killed Snakemake left, so that the same command goes on and nobody has to know `--unlock`.

Snakemake locks a folder by files, which a SIGKILL or a power loss leaves behind. The Snakefile calls `clear` while it is
parsed: every Snakemake of this workflow holds an flock for as long as it lives, which the kernel lets go however it dies.
Where nobody holds it, nobody runs, and the files are stale.

- flock may not reach other machines. So a host clears only files that its own Snakemake made: each says in ALIVE which
  they are (`sign`), by name and time. Elsewhere they stay, and Snakemake says what to do.
- A job that outlived its Snakemake is no danger: it ends by itself, and until then it holds its run's own lock.
"""

from __future__ import annotations

import fcntl
import os
import platform
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from recollect.settings.errors import UserError
from recollect.stages.snakemake_records import ALIVE

LOCKS = ALIVE.parent / "locks"


def clear() -> int:
    """Remove stale lock files, and say for as long as this process lives that it lives.

    Returns:
        The open file that holds the flock; it must not be closed.

    Raises:
        UserError: this folder cannot be written.
    """
    try:
        ALIVE.parent.mkdir(exist_ok=True)
        alive = os.open(ALIVE, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise UserError(
            f"this folder cannot be written, and Snakemake writes into it even to plan: {error}",
            where=str(ALIVE.parent.absolute()),
            do="work in a clone of your own; `recollect claims` and `recollect finished` only read, and work here",
        ) from None
    try:
        fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        pass  # another one lives, or this file system cannot lock
    else:
        signed = set(ALIVE.read_text().splitlines())
        for lock in LOCKS.glob("*.lock"):
            signature = _signature(lock)
            if signature and signature in signed:
                lock.unlink(missing_ok=True)
        if not any(LOCKS.glob("*.lock")):
            os.ftruncate(alive, 0)
    with suppress(OSError):
        fcntl.flock(alive, fcntl.LOCK_SH)
    return alive


def sign(alive: int, locks: Iterable[str | Path]) -> None:
    """Say that these lock files are this host's; `alive` is what `clear` returned."""
    for lock in map(Path, locks):
        os.write(alive, f"{_signature(lock)}\n".encode())


def _signature(lock: Path) -> str:
    """Host, time and name of a lock file; empty where a Snakemake of another host has just removed it."""
    try:
        return f"{platform.node()} {lock.stat().st_mtime_ns} {lock.name}"
    except OSError:
        return ""
