"""Worlds that need another Python than ours: a worker process of that Python plays them, and this is our side of it.

The worker is a script beside the world, `<world>_worker.py` (`procgen_worker.py` says the protocol). The world imports it,
so that its code counts as the world's own. Requests are small messages over a socket pair; actions, rewards and frames
stand in memory that both have mapped, from a file without a name. Nothing of it can be left behind: the worker ends when
its parent closes the socket or dies, and the memory goes with the last process that has it. One that dies, hangs or
speaks another protocol is reported in one message, with the last that it said.
"""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import os
import signal
import socket
import subprocess
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

import numpy as np

from recollect.settings.errors import UserError

PROTOCOL = 1
ALIGNED = 64  # bytes at whose multiples the shared arrays begin
SHOWN = 12  # lines of what a worker said that died
STOPS = (signal.SIGINT, signal.SIGTERM)  # what stops a job


def find_python(world: str) -> Path:
    """The Python that plays a world: of RECOLLECT_<WORLD>_PYTHON, else of `.venv-<world>`; a UserError without any."""
    variable, made = f"RECOLLECT_{world.upper()}_PYTHON", Path(f".venv-{world}") / "bin" / "python"
    do = f"run `make {world}`, which makes .venv-{world}; or name a Python that has {world} in {variable}"
    named = os.environ.get(variable)
    python = Path(named).expanduser() if named else made
    if not os.access(python, os.X_OK) or python.is_dir():
        what = f"the world '{world}' needs a Python of its own, which was not found"
        raise UserError(what, where=f"{variable}={named}" if named else made, do=do)
    return python.absolute()  # not resolved: a venv's python is a link whose place matters


class Worker:
    """A process that plays one batch of a world.

    Args:
        world: its name, for messages.
        python, script: what is run.
        fields: name -> (dtype, shape) of the arrays that both sides see.
        options: of the world, as JSON has them.
        patience: seconds that an answer may take (in which this process is not stopped).
        do: what its user can do where it fails; None: make its Python anew.

    Attributes:
        arrays: the shared arrays, zeros at first. A request's answer is in them when `ask` returns.

    Raises:
        UserError: the worker cannot be started, or says that its package is missing.
    """

    def __init__(
        self,
        world: str,
        python: Path,
        script: Path,
        fields: Mapping[str, tuple[str, tuple[int, ...]]],
        options: Mapping[str, Any],
        *,
        patience: int = 900,
        do: str | None = None,
    ) -> None:
        self.world = world
        self._do = do or f"look at what it says; `make {world}` makes its Python anew"
        self.python = python
        self.patience = patience
        placed = {}
        size = 0
        for name, (dtype, shape) in fields.items():
            placed[name] = (dtype, list(shape), size)
            length = np.dtype(dtype).itemsize * math.prod(shape)
            size += -(-length // ALIGNED) * ALIGNED
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the worker)
        ours, theirs = socket.socketpair()
        with tempfile.TemporaryFile() as file, theirs:
            file.truncate(max(size, 1))
            memory = mmap.mmap(file.fileno(), 0)
            handles = (theirs.fileno(), file.fileno())
            # -I: neither the script's folder nor PYTHONPATH is looked into, where modules have the names of packages.
            command = [str(python), "-I", str(script), *map(str, handles), str(os.getpid())]
            try:
                with stops_blocked():
                    process = subprocess.Popen(
                        command, stdin=subprocess.DEVNULL, stdout=self._said, stderr=self._said, pass_fds=handles
                    )
            except OSError as error:
                ours.close()
                raise UserError(f"the worker cannot be started: {error}", where=python, do=self._do) from None
        self._socket = ours
        self._process = process
        self.close = weakref.finalize(self, end, ours, process, os.getpid())
        self.arrays: dict[str, np.ndarray] = {}
        for name, (kind, sizes, offset) in placed.items():
            self.arrays[name] = np.ndarray(sizes, kind, buffer=memory, offset=offset)
        about, _ = self.answer("start")
        if about.get("protocol") != PROTOCOL:
            self.close()
            what = f"the worker speaks protocol {about.get('protocol')}, not {PROTOCOL}"
            raise UserError(what, where=script, do="use the worker script that belongs to this version")
        self.version: str = about["version"]
        self.ask("open", fields=placed, options=dict(options))

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, what: str, data: bytes = b"", **said: Any) -> tuple[dict[str, Any], bytes]:
        """Have the worker do something, and wait. Raises UserError: it failed, died, or took longer than `patience`."""
        self.send(what, data, **said)
        return self.answer(what)

    def send(self, what: str, data: bytes = b"", **said: Any) -> None:
        """Have the worker do something, whose `answer` must be taken before it is asked anything else.

        Raises UserError: it has ended.
        """
        if not self.close.alive:
            raise UserError(f"the worker of '{self.world}' has ended", where=self.python, do="run the command again")
        head = json.dumps({"do": what, **said, "bytes": len(data)}).encode()
        self._socket.settimeout(self.patience)
        with contextlib.suppress(OSError):  # of one that died; the answer says how
            self._socket.sendall(head + b"\n" + data)

    def answer(self, what: str) -> tuple[dict[str, Any], bytes]:
        """Wait for what the worker says to what was sent. Raises UserError: it failed, died, or was too slow."""
        self._socket.settimeout(1.0)
        received = bytearray()
        while (line := received.find(b"\n")) < 0:
            received += self._receive(what)
        told: dict[str, Any] = json.loads(received[:line])
        del received[: line + 1]
        while len(received) < told["bytes"]:
            received += self._receive(what)
        if "error" in told:
            self._fail(f"cannot {what}: {told['error']}")
        return told, bytes(received)

    def _receive(self, what: str) -> bytes:
        # Whole seconds are counted, not the clock: where both processes were stopped for an hour, nobody was slow.
        for _ in range(self.patience):
            try:
                part = self._socket.recv(1 << 20)
            except TimeoutError:
                continue
            except OSError:
                part = b""
            return part or self._died(what)
        return self._fail(f"did not answer '{what}' within {self.patience} s, and was ended")

    def _died(self, what: str) -> bytes:
        return self._fail(f"{how_it_ended(self._process)} at '{what}'")

    def _fail(self, what: str) -> bytes:
        self.close()
        self._said.seek(0)
        last = self._said.read().decode(errors="replace").strip().splitlines()[-SHOWN:]
        said = "".join(f"\n    {line}" for line in last)
        more = f"; the last that it said:{said}" if last else ""
        raise UserError(f"the worker of '{self.world}' {what}{more}", where=self.python, do=self._do)


@contextlib.contextmanager
def stops_blocked() -> Iterator[None]:
    """What stops a job is sent to its processes, too. Those that begin here get none of it before they `ignore_stops`, so that
    they go on until this one has saved.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_stops() -> None:
    """Leave what stops a job to the process that began this one; see `stops_blocked`."""
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)


def how_it_ended(process: subprocess.Popen[bytes]) -> str:
    """What became of a process that answers no more."""
    try:
        status = process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        return "has closed its connection"
    return f"ended by signal {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


def end(channel: socket.socket | Connection, process: subprocess.Popen[bytes], owner: int) -> None:
    """Close the connection and end the worker. A forked copy of its owner leaves it alone."""
    channel.close()
    if os.getpid() == owner:
        process.kill()
        process.wait()
