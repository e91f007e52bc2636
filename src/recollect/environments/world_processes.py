"""Processes that play worlds (`parallel_worker.py`), and what goes between them and this one.

Requests of several worlds to one process go out as one, when the first answer is awaited; so a step of ten worlds is one message to
each process and one back. What a world raises is raised where its own answer is read.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from recollect.environments.worker import end, how_it_ended, stops_blocked
from recollect.settings.errors import UserError

VARIABLE = "RECOLLECT_WORLD_PROCESSES"
WORKER = "recollect.environments.parallel_worker"
PATIENCE = 900  # seconds that an answer may take

Answer = tuple[bool, Any]
"""Whether a request failed, and the error or what was asked for."""


class Pool:
    """Processes that play worlds, and the connections to them. Worlds have numbers, by which requests name them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._owner = os.getpid()
        self._made = 0
        self._places: dict[int, list[int]] = {}  # of each world, the processes that play its parts
        self._closed: list[int] = []  # worlds that nobody needs any more
        # Of each process: requests that go to it together, with the next answer that somebody waits for; and of those that it
        # has not answered, their worlds. By world and process, answers that were read before their time.
        self._requests: list[list[tuple[str, int, tuple[Any, ...]]]] = []
        self._owed: list[deque[list[int]]] = []
        self._read: dict[tuple[int, int], Answer] = {}
        self._connections: list[Connection] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self.close = weakref.finalize(self, _end_all, self._connections, self._processes, os.getpid())

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", WORKER, str(theirs.fileno()), str(os.getpid())]
        alone = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", VARIABLE: "1"}
        try:
            with stops_blocked():
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    env=alone,
                )
        except OSError as error:
            ours.close()
            raise UserError(f"a process that plays a world cannot be started: {error}", where=VARIABLE, do=DO) from None
        finally:
            theirs.close()
        self._connections.append(Connection(ours.detach()))
        self._processes.append(process)
        self._requests.append([])
        self._owed.append(deque())

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def new(self, parts: int, processes: int) -> int:
        """A new world of so many parts, dealt out to as many of so many processes, which are there then.

        Raises:
            UserError: one cannot be started.
        """
        with self.lock:
            while len(self._processes) < processes:
                self._start()
            self._made += 1
            self._places[self._made] = [(self._made + part) % processes for part in range(parts)]
            return self._made

    def ask(self, what: str, world: int, shares: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Send a request to the processes that play a world, one for each part, and read what all of them answer.

        What they still had to answer of this world is dropped.

        Raises:
            UserError: what a world has raised; or a process has died, or not answered in time.
        """
        with self._talking():
            # A process that waits until its large answer is read does not read a large request.
            self._send_all()
            for place, owed in enumerate(self._owed):
                while owed:
                    self._read_next(place)
            while self._closed:
                closed = self._closed.pop()
                self._note("close", closed, [()] * len(self._places[closed]))
                self._receive(closed)
                del self._places[closed]
            self._note(what, world, shares)
            answers = self._receive(world)
        return _told(answers)

    def send(self, what: str, world: int, shares: Sequence[tuple[Any, ...]]) -> None:
        """Make a small request, of which `receive` gives the answer. Those of several worlds go out together, when one is awaited.

        Raises:
            UserError: the processes have ended.
        """
        with self._talking():
            self._note(what, world, shares)

    def receive(self, world: int) -> list[Any]:
        """What is answered to the request that was made. Raises: as `ask`."""
        with self._talking():
            answers = self._receive(world)
        return _told(answers)

    def forget(self, world: int) -> None:
        """Close a world, with the next request: Python may collect one in the middle of another's."""
        self._closed.append(world)

    @contextmanager
    def _talking(self) -> Iterator[None]:
        if os.getpid() != self._owner:
            raise RuntimeError("a forked process cannot play the worlds of the one that it was forked from")
        with self.lock:
            try:
                if not self.close.alive:
                    raise UserError("the processes that play worlds have ended", where=VARIABLE, do=DO)
                yield
            except BaseException:  # an answer may be half read, which nobody must take for another's
                self.close()
                raise

    def _note(self, what: str, world: int, shares: Sequence[tuple[Any, ...]]) -> None:
        for place, share in zip(self._places[world], shares, strict=True):
            self._read.pop((world, place), None)
            self._requests[place].append((what, world, share))

    def _send_all(self) -> None:
        for place, requests in enumerate(self._requests):
            if not requests:
                continue
            try:
                self._connections[place].send(requests)
            except OSError:
                self._died(self._connections[place])
            self._owed[place].append([world for _, world, _ in requests])
            self._requests[place] = []

    def _receive(self, world: int) -> list[Answer]:
        self._send_all()
        answers = []
        for place in self._places[world]:
            while (world, place) not in self._read:
                self._read_next(place)
            answers.append(self._read.pop((world, place)))
        return answers

    def _read_next(self, place: int) -> None:
        answers = self._answers(self._connections[place])
        for world, answer in zip(self._owed[place].popleft(), answers, strict=True):
            self._read[world, place] = answer

    def _answers(self, connection: Connection) -> list[Answer]:
        # Whole seconds are counted, not the clock: where all were stopped for an hour, nobody was slow.
        for _ in range(PATIENCE):
            if connection.poll(1.0):
                break
        else:
            raise UserError(f"a process that plays a world did not answer for {PATIENCE} s", where=VARIABLE, do=DO)
        try:
            answers: list[Answer] = connection.recv()
        except (EOFError, OSError):
            self._died(connection)
        return answers

    def _died(self, connection: Connection) -> NoReturn:
        how = how_it_ended(self._processes[self._connections.index(connection)])
        raise UserError(f"a process that plays a world {how}", where=VARIABLE, do=DO)


def _told(answers: Sequence[Answer]) -> list[Any]:
    for is_error, answer in answers:
        if is_error:
            raise answer
    return [answer for _, answer in answers]


DO = "look at what it said above, and run the command again; with the variable 1 worlds are played in one process"


def _end_all(connections: list[Connection], processes: list[subprocess.Popen[bytes]], owner: int) -> None:
    for connection, process in zip(connections, processes, strict=True):
        end(connection, process, owner)


_pools: dict[int, Pool] = {}
_making = threading.Lock()


def pool() -> Pool:
    """The processes of this process, not of one that it was forked from; of a pool whose processes died, new ones."""
    with _making:
        found = _pools.get(os.getpid())
        if found is None or not found.close.alive:
            found = _pools[os.getpid()] = Pool()
        return found
