"""A Python that has imported the slow packages and forks a process for every command that a test asks for.

Such a process is as good as one that was started anew: its folder, environment, output, memory and exit status are its own.
Only the seconds in which torch, Snakemake and Recollect are imported are spent once. A command that is to run another copy
of Recollect (PYTHONPATH) imports that.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SLOW = (
    *("torch", "pandas", "pyarrow.parquet", "pydantic", "yaml", "typer.rich_utils", "gymnasium", "minigrid", "faiss"),
    *("safetensors.torch", "matplotlib.pyplot", "snakemake.cli", "recollect.cli", "recollect.stages.table"),
    *("recollect.radt.radt", "recollect.memory_rl.dqn", "recollect.amago.amago"),
)

MORE: list[str] = []
"""Further modules for the server to import; to be named before its first command."""


class Process:
    """A forked process: what a test uses of `subprocess.Popen`."""

    def __init__(
        self,
        address: str,
        module: str,
        arguments: Sequence[str],
        cwd: str,
        env: dict[str, str],
        files: Sequence[int],
        group: bool = False,
    ) -> None:
        order = {"module": module, "arguments": list(arguments), "cwd": cwd, "env": env, "group": group}
        self._line = socket.socket(socket.AF_UNIX)
        self._line.connect(address)
        socket.send_fds(self._line, [b"0"], files)
        self._line.sendall(json.dumps(order).encode() + b"\n")
        self._answers = self._line.makefile("r")
        self.pid = int(self._answers.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit status; None: it still runs."""
        if self.returncode is None and select.select([self._line], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end.

        Raises:
            subprocess.TimeoutExpired: it did not come; the process was killed.
        """
        if self.returncode is None:
            if not select.select([self._line], [], [], timeout)[0]:
                self.send_signal(signal.SIGKILL)
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            self.returncode = int(self._answers.readline())
            self._answers.close()
            self._line.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)


@functools.cache
def address() -> str:
    """The socket of this process's server, which is started at the first call and ends with this process."""
    place = tempfile.mkdtemp(prefix="preloaded-") + "/socket"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    server = subprocess.Popen([sys.executable, __file__, place, *MORE], stdin=subprocess.PIPE, env=environment)
    atexit.register(_end, server, place)
    end = time.monotonic() + 1800  # far beyond what it takes to import all on a busy machine
    while not os.path.exists(place):
        assert server.poll() is None and time.monotonic() < end, "the preloaded Python did not start"
        time.sleep(0.01)
    return place


def _end(server: subprocess.Popen[Any], place: str) -> None:
    assert server.stdin
    server.stdin.close()
    server.wait()
    os.unlink(place)
    os.rmdir(os.path.dirname(place))


def start(
    module: str, arguments: Sequence[str], *, cwd: Path, env: dict[str, str], said: Path, group: bool = False
) -> Process:
    """Start `python -m module arguments`, its stderr in the file `said` and its stdout nowhere.

    Args:
        group: the process leads a process group of its own.
    """
    with open(os.devnull) as nothing, open(os.devnull, "w") as out, said.open("w") as err:
        files = [nothing.fileno(), out.fileno(), err.fileno()]
        return Process(address(), module, arguments, str(cwd), env, files, group)


def run(
    module: str,
    arguments: Sequence[str],
    *,
    cwd: Path,
    env: dict[str, str],
    together: bool = False,
    timeout: float = 600,
) -> subprocess.CompletedProcess[str]:
    """Run `python -m module arguments` and wait for its end.

    Args:
        together: stderr goes into stdout.
    """
    with open(os.devnull) as nothing, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        files = [nothing.fileno(), out.fileno(), (out if together else err).fileno()]
        process = Process(address(), module, arguments, str(cwd), env, files)
        status = process.wait(timeout)
        said = []
        for file in (out, err):
            file.seek(0)
            said.append(file.read().decode())
    return subprocess.CompletedProcess([module, *arguments], status, *said)


def script(path: Path, module: str) -> None:
    """Write a program that runs a module in a forked process, for callers that know it by its name in PATH."""
    path.write_text(
        f"#!{sys.executable} -ES\n"
        "import os, sys\n"
        f"sys.path.insert(0, {os.path.dirname(__file__)!r})\n"
        "from preloaded import Process\n"
        f"process = Process({address()!r}, {module!r}, sys.argv[1:], os.getcwd(), dict(os.environ), [0, 1, 2])\n"
        "sys.exit(process.wait())\n"
    )
    path.chmod(0o755)


# ------------------------------------------------------------------------------------------------------------ the server


def serve(place: str, more: Sequence[str]) -> None:
    """Fork for each caller until stdin ends."""
    for name in (*SLOW, *more):
        importlib.import_module(name)
    importlib.import_module("snakemake.cli").get_argument_parser()  # finds and imports Snakemake's plug-ins
    gc.freeze()  # no process looks through all that again
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(place + ".new")
        listener.listen(16)
        os.rename(place + ".new", place)  # whoever finds the socket is answered
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that answer callers
        while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
            caller, _ = listener.accept()
            if not os.fork():
                listener.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _answer(caller)
                os._exit(0)
            caller.close()


def _answer(caller: socket.socket) -> None:
    """Run one command; it is killed when its caller is gone."""
    _, files, _, _ = socket.recv_fds(caller, 1, 3)
    with caller.makefile("r") as lines:
        order = json.loads(lines.readline())
    child = os.fork()
    if not child:
        caller.close()
        _become(order, files)
    for file in files:
        os.close(file)
    caller.sendall(f"{child}\n".encode())
    ended = os.pidfd_open(child)
    if ended not in select.select([ended, caller], [], [])[0]:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(BrokenPipeError):
        caller.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())


def _become(order: dict[str, Any], files: list[int]) -> None:
    """Turn this process into the one that was asked for."""
    if order["group"]:
        os.setpgid(0, 0)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    first = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    sys.path[:] = first + sys.path[1:]  # the first was the folder of this file
    for name in [name for name in sys.modules if name.partition(".")[0] == "recollect"]:
        # A copy of Recollect is another Recollect; and what is run as the main module may not be imported already.
        if first or name == order["module"]:
            del sys.modules[name]
    sys.argv = [order["module"], *order["arguments"]]
    status = 1
    try:
        runpy.run_module(order["module"], run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        else:
            status = end.code or 0
    except BaseException:
        traceback.print_exc()
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # without taking torch down piece by piece


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2:])
