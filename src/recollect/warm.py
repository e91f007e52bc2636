"""How a command starts as a fork of a process that has imported everything.

To import torch and pandas takes a job over two seconds of CPU, and what draws one more. Many of the hundred jobs of scale
`demo` work no longer than that. `recollect warm COMMAND` imports them once and runs the command (Snakemake). Every `recollect`
command beneath it forks from there: the same code on the same files with the same threads, so the same bytes.

- A job forks only where nothing can differ from a start of its own: same interpreter, same package whose files are
  unchanged since they were imported, one thread (thread pools do not survive a fork) or one of `_DRAWN`, which are made
  without threads. Otherwise it starts on its own.
- It is the job that says its pid. A caller that is hung up on before it has heard one starts the job itself: nothing has
  begun. So a job is done once, whatever happens to the process that forks.
- The caller stays, holds the terminal and the exit status, passes on signals; when it is killed, the job ends too.
- Snakemake's benchmark files then see the caller, not the job: their wall time holds, their memory and CPU time do not.
"""

from __future__ import annotations

import fcntl
import importlib
import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

ADDRESS = "RECOLLECT_WARM"
"""Environment variable: the socket of the process that forks jobs."""
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PATIENCE = 10.0
_GRACE = 5
"""Seconds for tidying up after Ctrl-C."""
_PREFIX = "recollect-warm-"
_SERVER = "import sys; from recollect.warm import serve; serve(sys.argv[1], parent=int(sys.argv[2]))"
_PRELOADED = (
    "recollect.cli",
    "recollect.artifacts.run",
    "recollect.evaluation.score_table",
    "recollect.evaluation.episodic",
    "recollect.evaluation.in_context",
    "recollect.memory_rl.dqn",
    "recollect.radt.radt",
    "recollect.radt.ad",
    "recollect.figures.writing",
    "recollect.helm.language.rotary_file",
    "recollect.environments.mini_grid",
    "torch.fx.experimental.symbolic_shapes",  # of the first tensor without storage
)
_DRAWN = ("figure", "page", "claims", "report")
"""The stages that are `local` and fetch nothing (a test holds it to that): no threads are asked for, and none change a byte."""


def interrupted(number: int, frame: FrameType | None) -> None:
    """Ctrl-C, which must end a command: where an import swallows the KeyboardInterrupt, an alarm ends it soon after."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second one would tear the tidying up
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(_GRACE)
    raise KeyboardInterrupt


def can_fork(argv: Sequence[str]) -> bool:
    """Whether a command (its name is the second word) works on one thread."""
    return ("--threads", "1") in itertools.pairwise(argv) or any(name in _DRAWN for name in argv[1:2])


def identity() -> list[Any]:
    """What must agree between the caller and the process that forks: interpreter, package, and its files as they are now."""
    package = Path(__file__).resolve().parent
    files = sorted((str(f), f.stat().st_mtime_ns, f.stat().st_size) for f in package.rglob("*.py"))
    return [sys.executable, sys.prefix, str(package), [list(entry) for entry in files]]


# ---- the caller ------------------------------------------------------------------------------------------------------


def ask(address: str, argv: Sequence[str]) -> int | None:
    """Have a command run as a fork of the process at `address` and wait for it.

    Returns:
        Its exit status; None where it must start on its own.
    """
    with socket.socket(socket.AF_UNIX) as line, line.makefile() as answers:
        try:
            with _short(address) as path:
                line.connect(path)
            socket.send_fds(line, [b"\n"], (0, 1, 2))
            _send(line, {"argv": list(argv), "cwd": os.getcwd(), "env": dict(os.environ), "identity": identity()})
            pid = json.loads(answers.readline()).get("pid")
        except (OSError, ValueError):
            return None
        if pid is None:  # it ended before it could say so
            return None
        for number in _PASSED_ON:
            signal.signal(number, lambda received, frame: _signal(pid, received))
        from recollect.artifacts.lock import dies_with_scheduler

        dies_with_scheduler()
        try:
            status = int(json.loads(answers.readline())["status"])
        except (OSError, ValueError):
            print("error: the process that `recollect warm` started was killed", file=sys.stderr)
            return 1
    return status if status >= 0 else 128 - status


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


# ---- the process that forks ------------------------------------------------------------------------------------------


def warm(command: Sequence[str]) -> int:
    """Run a command whose `recollect` jobs fork from a process that has imported everything; returns its exit status."""
    if not sys.platform.startswith("linux"):  # elsewhere a fork after such imports is not safe
        return subprocess.call(list(command))
    earlier = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    signal.signal(signal.SIGINT, lambda received, frame: None)  # the command has it from the terminal
    with _private_folder() as folder:
        address = str(folder / "socket")
        threads = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
        server = subprocess.Popen(
            [sys.executable, "-c", _SERVER, address, str(os.getpid())],
            env=os.environ | threads,
            stdin=subprocess.DEVNULL,
        )
        try:
            running = subprocess.Popen(list(command), env=os.environ | {ADDRESS: address})
            for number in (signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, lambda received, frame: running.send_signal(received))
            return running.wait()
        finally:
            server.terminate()
            server.wait()
            for number, handler in earlier.items():
                signal.signal(number, handler)


@contextmanager
def _private_folder() -> Iterator[Path]:
    """A folder of this user alone, held by an flock and removed at the end; those of killed ones are removed first."""
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError), _opened(left) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # an error where its maker lives
            _remove(left)
    folder = Path(tempfile.mkdtemp(prefix="recollect-new-"))
    with _opened(folder) as descriptor:
        with suppress(OSError):  # without locks there, nobody sweeps either
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        folder = folder.rename(folder.with_name(_PREFIX + folder.name.removeprefix("recollect-new-")))  # held by now
        try:
            yield folder
        finally:
            with suppress(OSError):
                _remove(folder)


def _remove(folder: Path) -> None:
    for name in ("socket", "socket.new"):
        (folder / name).unlink(missing_ok=True)
    folder.rmdir()


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def serve(address: str, parent: int) -> NoReturn:
    """Import everything, then fork a job for each caller of this socket until SIGTERM, or the end of the parent (a pid)."""
    from recollect.artifacts.garbage import collect_rarely
    from recollect.artifacts.lock import dies_with_parent

    collect_rarely()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's; the command that is run decides when to end
    dies_with_parent(parent=parent)
    mine = identity()
    for name in _PRELOADED:
        importlib.import_module(name)
    collect_rarely()  # what was imported, which jobs then share as it lies in memory
    # The end of a job is known by SIGCHLD, which there is everywhere; pidfd_open is refused in some containers.
    ended, ends = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(ends)
    signal.signal(signal.SIGCHLD, lambda received, frame: None)
    listener = socket.socket(socket.AF_UNIX)
    with _short(address) as path:
        listener.bind(path + ".new")
        listener.listen(64)
        os.rename(path + ".new", path)  # whoever finds the socket is answered
    sources: list[Any] = [listener, ended]
    jobs: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select(sources, [], [])
        if listener in ready:
            line, _ = listener.accept()
            try:
                jobs[_fork(line, mine, [listener, *jobs.values()])] = line
            except Exception:  # whatever it said, nothing has begun: it starts its job itself
                line.close()
        if ended in ready:
            os.read(ended, 4096)
            for pid in list(jobs):
                gone, status = os.waitpid(pid, os.WNOHANG)
                if gone:
                    with jobs.pop(pid) as line, suppress(OSError):
                        _send(line, {"status": os.waitstatus_to_exitcode(status)})


def _fork(line: socket.socket, mine: list[Any], of_others: list[socket.socket]) -> int:
    """Fork what a caller asks for and return its pid; an error of any type means that nothing has begun."""
    line.settimeout(_PATIENCE)
    _, descriptors, _, _ = socket.recv_fds(line, 1, 3)
    try:
        with line.makefile() as said:
            request = json.loads(said.readline())
        line.settimeout(None)
        if request["identity"] != mine:
            raise ValueError("the code is not the one that was imported")
        pid = os.fork()
        if pid == 0:
            _work(line, request, descriptors, of_others)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    return pid


def _work(
    line: socket.socket, request: dict[str, Any], descriptors: list[int], of_others: list[socket.socket]
) -> NoReturn:
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for other in of_others:
            other.close()
        for target, descriptor in enumerate(descriptors):
            os.dup2(descriptor, target)
            os.close(descriptor)
        signal.signal(signal.SIGINT, interrupted)
        os.environ.clear()
        os.environ.update(request["env"])
        os.chdir(request["cwd"])
        sys.argv = request["argv"]
        threading.Thread(target=_end_with_caller, args=(os.dup(line.fileno()),), daemon=True).start()
        _send(line, {"pid": os.getpid()})
        importlib.import_module("recollect.cli").main()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _end_with_caller(descriptor: int) -> None:
    from recollect.artifacts.stopping import end_at_once

    with suppress(OSError):  # of a caller that died with our pid unread
        while os.read(descriptor, 1):
            pass
    end_at_once()


@contextmanager
def _short(address: str) -> Iterator[str]:
    """The same socket by a short path: the kernel takes about a hundred characters, and folders have long names."""
    folder = os.open(os.path.dirname(address), os.O_PATH | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{os.path.basename(address)}"
    finally:
        os.close(folder)


def _send(line: socket.socket, message: dict[str, Any]) -> None:
    """One message is one line of JSON."""
    line.sendall(json.dumps(message).encode() + b"\n")
