"""One writer per run folder, and no orphans.

`run_lock` holds an flock on ``folder/.lock``: the kernel lets it go when the holder dies, however it dies, so there is
no stale lock to remove by hand. A process that works for the holder is given a `SharedLock`. `dies_with_parent` and
`dies_with_scheduler` end a job whose scheduler was killed.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from recollect.artifacts import stopping
from recollect.artifacts.processes import began, lives, stat_of
from recollect.settings.errors import UserError, unwritable

_PR_SET_PDEATHSIG = 1
_POLL_SECONDS = 0.05
_WATCH_SECONDS = 0.5
_ORPHANS_SECONDS = 30.0  # that processes of a killed holder get to notice; one may be importing torch at that moment
_descriptors: dict[Path, int] = {}  # of the locks that this process holds, by folder


@contextmanager
def run_lock(folder: str | Path) -> Iterator[None]:
    """Hold the run folder for as long as the block lasts.

    Args:
        folder: made when missing. The lock is the file ``.lock`` in it, which stays (else two could come to hold it).

    The file names the holder until it lets go, and is empty then. Where the holder is dead already, what it left behind is
    waited for.

    Raises:
        UserError: another process holds it (named by pid and host), or the file system cannot lock or takes no file.
    """
    path = Path(folder) / ".lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise unwritable(error, folder) from error
    try:
        asked = time.monotonic()
        while not take(descriptor, path):
            if not _holder_is_gone(path) or time.monotonic() - asked >= _ORPHANS_SECONDS:
                raise _held(path)
            time.sleep(_POLL_SECONDS)
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps({"host": platform.node(), "pid": os.getpid()}).encode(), 0)
        except OSError as error:
            raise unwritable(error, folder) from error
        held_as = path.parent.resolve()
        _descriptors[held_as] = descriptor
        try:
            yield
        finally:
            del _descriptors[held_as]
            with suppress(OSError):  # this process may live on, and works here no more
                os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def held() -> int:
    """How many folders this process holds."""
    return len(_descriptors)


class SharedLock:
    """The lock on a folder for another process: given to it as an argument, it is held until both have ended.

    Args:
        folder: one that this process holds; else there is nothing to share.
    """

    def __init__(self, folder: str | Path) -> None:
        self.descriptor = _descriptors.get(Path(folder).resolve())

    def __reduce__(self) -> tuple[Any, ...]:
        if self.descriptor is None:
            return _received, (None,)
        from multiprocessing.reduction import DupFd

        return _received, (DupFd(self.descriptor),)


def _received(descriptor: Any) -> int | None:
    """What the other process gets: the number of a descriptor that stays open until it ends."""
    if descriptor is None:
        return None
    number: int = descriptor.detach()
    os.set_inheritable(number, False)
    return number


def take(descriptor: int, path: Path, operation: int = fcntl.LOCK_EX) -> bool:
    """Try to flock an open file without waiting; False when another holds it. Raises UserError: no locks there."""
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        what = f"this file system cannot lock files ({error.strerror})"
        do = "put the folder on one that can (most local disks, NFS v4, Lustre mounted with -o flock)"
        raise UserError(what, where=path, do=do) from error
    return True


def dies_with_parent(number: int = signal.SIGTERM, *, parent: int | None = None) -> None:
    """Ask the kernel for a signal when the parent process ends (Linux; elsewhere nothing is done).

    Only for processes that a scheduler starts directly: a run started by hand with nohup should outlive its shell.

    Args:
        parent: its pid, by which one that has ended already is noticed; None: as `multiprocessing` knows it.
    """
    if not sys.platform.startswith("linux"):
        return
    if parent is None:
        from multiprocessing import parent_process

        started_by = parent_process()
        parent = os.getppid() if started_by is None else started_by.pid
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0) == 0 and os.getppid() != parent:
        os.kill(os.getpid(), number)


def dies_with_scheduler(name: str = "snakemake") -> None:
    """End this process (SIGTERM) when the nearest ancestor that runs the program `name` ends.

    Snakemake starts a job through a shell, which outlives a killed Snakemake and would keep `dies_with_parent` from
    seeing it. Where there is no such ancestor (a command pasted into a shell) nothing is done.
    """
    pid = _ancestor(name)
    since = _lives_since(pid) if pid is not None else None
    if pid is None or since is None:
        return
    try:
        watched = os.pidfd_open(pid)
    except (AttributeError, OSError):  # old Python, old kernel, or a container that refuses it
        watched = None

    def wait() -> None:
        import select

        if watched is not None:
            select.select([watched], [], [])
        while _lives_since(pid) == since:  # the same process: another may get its pid
            time.sleep(_WATCH_SECONDS)
        stopping.end_at_once()

    threading.Thread(target=wait, name="dies_with_scheduler", daemon=True).start()


def _lives_since(pid: int) -> str | None:
    """When a process started, in the kernel's ticks; None when it has ended."""
    try:
        facts = stat_of(pid)
    except OSError:
        return None
    return None if facts[0] in "ZX" else facts[19]


def _ancestor(name: str) -> int | None:
    pid = os.getppid()
    while pid > 1:
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            parent = int(stat_of(pid)[1])
        except (OSError, ValueError):
            return None
        if any(Path(os.fsdecode(word)).name == name for word in words[:3]):
            return pid
        pid = parent
    return None


def _holder(path: Path) -> tuple[Any, Any]:
    """Pid and host of who wrote its name last."""
    try:
        holder = json.loads(path.read_bytes())
        return holder["pid"], holder["host"]
    except (OSError, ValueError, KeyError, TypeError):
        return "unknown", "unknown"


def _holder_is_gone(path: Path) -> bool:
    """Whether who wrote its name last has ended, or has let go; what it left behind may still hold the lock."""
    with suppress(OSError):
        if path.stat().st_size == 0:  # or the next holder is about to write its name
            return True
    pid, host = _holder(path)
    return host == platform.node() and isinstance(pid, int) and not lives(pid)


def worker(folder: str | Path) -> str:
    """The host of the process that works in a folder, as its lock says; "" where there is none.

    Nothing is locked to find that out. Of another host it is not known whether the process has ended.
    """
    path = Path(folder) / ".lock"
    pid, host = _holder(path)
    if host == "unknown" or _holder_is_gone(path):
        return ""
    if host == platform.node() and sys.platform.startswith("linux"):
        try:
            if began(pid) > path.stat().st_mtime + 1:  # another process has got its number
                return ""
        except OSError:
            return ""
    return str(host)


def _held(path: Path) -> UserError:
    time.sleep(_POLL_SECONDS)  # a holder writes its name just after it takes the lock
    pid, host = _holder(path)
    return UserError(
        f"another process is working in this folder (pid {pid} on host {host})",
        where=path.parent,
        do=f"wait for it to end, or stop it (on {host}: kill {pid}) and run the same command again",
    )
