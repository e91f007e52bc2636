"""How a command starts as a fork of a process that has imported everything.

To import torch and pandas takes a job over two seconds of CPU, as long as many jobs of scale `demo` work, and that
target has a hundred jobs. `recollect warm COMMAND` imports them once, runs the command (Snakemake), and lets every `recollect`
command beneath it fork from there: the same code on the same files with the same threads, so the same bytes.

- A job forks only where nothing can differ from a start of its own: same interpreter, same package whose files are
  unchanged since they were imported, one thread (thread pools do not survive a fork). Otherwise it starts on its own.
- The caller stays, holds the terminal and the exit status, passes on signals; when it is killed, the job ends too.
- Snakemake's benchmark files then see the caller, not the job: their wall time holds, their memory and CPU time do not.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

ADDRESS = "RECOLLECT_WARM"
"""Environment variable: the socket of the process that forks jobs."""
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PATIENCE = 10.0
_PRELOADED = (
    "recollect.cli",
    "recollect.artifacts.run",
    "recollect.evaluation.score_table",
    "recollect.evaluation.episodic",
    "recollect.evaluation.in_context",
    "recollect.memory_rl.dqn",
    "recollect.radt.radt",
    "recollect.radt.ad",
)


def one_thread(argv: Sequence[str]) -> bool:
    return ("--threads", "1") in itertools.pairwise(argv)


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
            pid = json.loads(answers.readline())["pid"]
        except (OSError, ValueError):
            return None
        if pid is None:
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
    with tempfile.TemporaryDirectory(prefix="recollect-") as folder:
        address = str(Path(folder) / "socket")
        threads = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
        server = subprocess.Popen(
            [sys.executable, "-c", "import sys; from recollect.warm import serve; serve(sys.argv[1])", address],
            env=os.environ | threads,
            stdin=subprocess.DEVNULL,
        )
        earlier = signal.signal(signal.SIGINT, lambda received, frame: None)  # the command has it from the terminal
        try:
            running = subprocess.Popen(list(command), env=os.environ | {ADDRESS: address})
            for number in (signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, lambda received, frame: running.send_signal(received))
            return running.wait()
        finally:
            signal.signal(signal.SIGINT, earlier)
            server.terminate()
            server.wait()


def serve(address: str) -> NoReturn:
    """Import everything, then fork a job for each caller of this socket until SIGTERM."""
    from recollect.artifacts.lock import dies_with_parent

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's; the command that is run decides when to end
    dies_with_parent()
    mine = identity()
    for name in _PRELOADED:
        importlib.import_module(name)
    listener = socket.socket(socket.AF_UNIX)
    with _short(address) as path:
        listener.bind(path)
    listener.listen(64)
    waiting = selectors.DefaultSelector()
    waiting.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in waiting.select():
            if key.fileobj is listener:
                line, _ = listener.accept()
                with suppress(OSError, ValueError):
                    _fork(line, mine, waiting)
            else:
                line, pid = key.data
                waiting.unregister(key.fileobj)
                os.close(key.fd)
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with line, suppress(OSError):
                    _send(line, {"status": status})


def _fork(line: socket.socket, mine: list[Any], waiting: selectors.BaseSelector) -> None:
    line.settimeout(_PATIENCE)
    _, descriptors, _, _ = socket.recv_fds(line, 1, 3)
    with line.makefile() as said:
        request = json.loads(said.readline())
    line.settimeout(None)
    if request["identity"] != mine:
        _send(line, {"pid": None})
        line.close()
        for descriptor in descriptors:
            os.close(descriptor)
        return
    pid = os.fork()
    if pid == 0:
        for key in list(waiting.get_map().values()):  # what belongs to the others
            os.close(key.fd)
            if key.data is not None:
                key.data[0].close()
        _work(line, request, descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    waiting.register(os.pidfd_open(pid), selectors.EVENT_READ, (line, pid))
    _send(line, {"pid": pid})


def _work(line: socket.socket, request: dict[str, Any], descriptors: list[int]) -> NoReturn:
    status = 1
    try:
        for target, descriptor in enumerate(descriptors):
            os.dup2(descriptor, target)
            os.close(descriptor)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.clear()
        os.environ.update(request["env"])
        os.chdir(request["cwd"])
        sys.argv = request["argv"]
        threading.Thread(target=_end_with_caller, args=(os.dup(line.fileno()),), daemon=True).start()
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
    while os.read(descriptor, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


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
