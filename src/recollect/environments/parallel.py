"""Worlds whose steps take long, played by several processes at once; every instance plays what it would in one process.

What an instance does depends on its task, its random stream and its actions alone. So the instances of a world are dealt out to
processes (`parallel_worker.py`), each of which has a world of its share. One request goes to all of them before the first answer is
read. The processes are shared by all worlds of this process, as a job that trains many seeds has many.

They are as many as the job has threads, or as RECOLLECT_WORLD_PROCESSES says. A world says with `slow` that it pays: a step of an
instance takes a tenth of a millisecond or more, where a request takes 0.1 to 0.2.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from recollect.artifacts import threads
from recollect.environments import counter_rng, registry
from recollect.environments.base import Task, World
from recollect.environments.worker import end, how_it_ended, stops_blocked
from recollect.settings.errors import UserError

VARIABLE = "RECOLLECT_WORLD_PROCESSES"
WORKER = "recollect.environments.parallel_worker"
PATIENCE = 900  # seconds that an answer may take


def make_world(name: str, options: Mapping[str, Any], tasks: Sequence[Task], seeds: np.ndarray) -> World:
    """As `registry.make_world`; a slow world of several instances is played by several processes, where the job has threads.

    One that keeps numbers of all its instances at once (`metrics` of packaged worlds) is played in this process.
    """
    processes = min(how_many(), len(tasks))
    if processes < 2 or not (kind := registry.world_class(name)).slow or hasattr(kind, "metrics"):
        return registry.make_world(name, options, tasks, seeds)
    return ParallelWorld(name, options, tasks, seeds, processes)


def how_many() -> int:
    """How many processes play a slow world here.

    Raises:
        UserError: the variable is no number.
    """
    said = os.environ.get(VARIABLE, "")
    if said and not said.isdigit():
        raise UserError(f"'{said}' is not a number of processes", where=VARIABLE, do=f"set {VARIABLE}=4, or unset it")
    return int(said) if said else threads.used()


class Pool:
    """Processes that play worlds, and the connections to them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._owner = os.getpid()
        self._worlds = 0
        self._closed: list[
            tuple[int, int]
        ] = []  # worlds that nobody needs any more, and in how many processes they are
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

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def new(self, processes: int) -> int:
        """A number for a world, by which its requests name it; so many processes are there then.

        Raises:
            UserError: one cannot be started.
        """
        with self.lock:
            while len(self._processes) < processes:
                self._start()
            self._worlds += 1
            return self._worlds

    def ask(self, what: str, world: int, shares: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Send a request to the first processes, one for each of these, and read what all of them answer.

        Raises:
            UserError: what a world has raised; or a process has died, or not answered in time.
        """
        if os.getpid() != self._owner:
            raise RuntimeError("a forked process cannot play the worlds of the one that it was forked from")
        with self.lock:
            try:
                while self._closed:
                    closed, parts = self._closed.pop()
                    self._exchange("close", closed, [()] * parts)
                answers = self._exchange(what, world, shares)
            except BaseException:  # an answer may be on its way, which nobody must take for another's
                self.close()
                raise
        for is_error, answer in answers:
            if is_error:
                raise answer
        return [answer for _, answer in answers]

    def forget(self, world: int, parts: int) -> None:
        """Close a world, with the next request: Python may collect one in the middle of another's."""
        self._closed.append((world, parts))

    def _exchange(self, what: str, world: int, shares: Sequence[tuple[Any, ...]]) -> list[tuple[bool, Any]]:
        if not self.close.alive:
            raise UserError("the processes that play worlds have ended", where=VARIABLE, do=DO)
        used = self._connections[: len(shares)]
        for connection, share in zip(used, shares, strict=True):
            try:
                connection.send((what, world, share))
            except OSError:
                self._died(connection)
        return [self._answer(connection) for connection in used]

    def _answer(self, connection: Connection) -> tuple[bool, Any]:
        # Whole seconds are counted, not the clock: where all were stopped for an hour, nobody was slow.
        for _ in range(PATIENCE):
            if connection.poll(1.0):
                break
        else:
            raise UserError(f"a process that plays a world did not answer for {PATIENCE} s", where=VARIABLE, do=DO)
        try:
            answered: tuple[bool, Any] = connection.recv()
        except (EOFError, OSError):
            self._died(connection)
        return answered

    def _died(self, connection: Connection) -> NoReturn:
        how = how_it_ended(self._processes[self._connections.index(connection)])
        raise UserError(f"a process that plays a world {how}", where=VARIABLE, do=DO)


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


class ParallelWorld(World):
    """A world whose instances are dealt out to processes; see the head of the file and `base.World`."""

    def __init__(
        self,
        name: str,
        options: Mapping[str, Any],
        tasks: Sequence[Task],
        seeds: np.ndarray,
        processes: int,
    ) -> None:
        self.name = name
        self.tasks = tuple(tasks)
        self.num_envs = len(self.tasks)
        self.autoreset_mode = AutoresetMode.DISABLED
        self.metadata = {"autoreset_mode": self.autoreset_mode, "render_modes": []}
        self._parts = np.array_split(np.arange(self.num_envs), min(processes, self.num_envs))
        self._pool = pool()
        self._number = self._pool.new(len(self._parts))
        self._facts: dict[str, Any] = {}
        self._closing = weakref.finalize(self, self._pool.forget, self._number, len(self._parts))
        made = ((name, dict(options), [self.tasks[b] for b in part], np.asarray(seeds)[part]) for part in self._parts)
        about = self._pool.ask("make", self._number, list(made))[0]
        self.options, self.horizon = about["options"], about["horizon"]
        self.single_observation_space = about["single_observation_space"]
        self.single_action_space = about["single_action_space"]
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        vars(self)["horizon_terminates"] = about["horizon_terminates"]  # of the class that is played
        self._written_in: str = about["written_in"]

    def __getattr__(self, name: str) -> Any:
        """What else the world says of itself (`goal_part`, `observation_parts`, ...), the same in all processes."""
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in self._facts:
            self._facts[name] = self._pool.ask("say", self._number, [(name,)])[0]
        has, value = self._facts[name]
        if not has:
            raise AttributeError(f"the world '{self.name}' has no attribute '{name}'")
        return value

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        mask_B = self._reset_mask(options)
        mask_B = np.ones(self.num_envs, bool) if mask_B is None else mask_B
        seeds_B = None if seed is None else counter_rng.instance_seeds(seed, self.num_envs)
        shares = [(mask_B[part], None if seeds_B is None else seeds_B[part]) for part in self._parts]
        return np.concatenate(self._pool.ask("reset", self._number, shares)), {}

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        actions_B = self._check_actions(actions)
        stepped = self._pool.ask("step", self._number, [(actions_B[part],) for part in self._parts])
        observations_BD, rewards_B, terminated_B, truncated_B = (
            np.concatenate([answer[place] for answer in stepped]) for place in range(4)
        )
        return observations_BD, rewards_B, terminated_B, truncated_B, self._said([answer[4] for answer in stepped])

    def _said(self, infos: Sequence[dict[str, np.ndarray]]) -> dict[str, Any]:
        """What all say; zeros where a process says nothing of a name, as none of its instances has ended."""
        joined = {}
        for name in dict.fromkeys(name for info in infos for name in info):
            like = next(info[name] for info in infos if name in info)
            said = (
                info.get(name, np.zeros((len(part), *like.shape[1:]), like.dtype))
                for info, part in zip(infos, self._parts, strict=True)
            )
            joined[name] = np.concatenate(list(said))
        return joined

    def get_state(self) -> dict[str, np.ndarray]:
        states = self._pool.ask("get_state", self._number, [()] * len(self._parts))
        return {name: np.concatenate([state[name] for state in states]) for name in states[0]}

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        for name, array in state.items():
            if np.shape(array)[:1] != (self.num_envs,):
                what = f"'{name}' is of {np.shape(array)[:1]} instances, expected {self.num_envs}"
                do = "use a state of a world with the same number of instances"
                raise UserError(what, where=f"state of the world {self.name}", do=do)
        shares = [({name: np.asarray(array)[part] for name, array in state.items()},) for part in self._parts]
        self._pool.ask("set_state", self._number, shares)

    def goals(self) -> np.ndarray:
        """What its instances are told to reach, of a world that tells goals: [B, K, ...]."""
        return np.concatenate(self._pool.ask("goals", self._number, [()] * len(self._parts)))

    @property
    def timesteps(self) -> np.ndarray:
        return np.concatenate(self._pool.ask("timesteps", self._number, [()] * len(self._parts)))

    def written_in(self) -> str:
        return self._written_in

    def picture(self, b: int) -> Any:
        shares = [(int(b - part[0]) if b in part else None,) for part in self._parts]
        pictures = self._pool.ask("picture", self._number, shares)
        return next(answer for part, answer in zip(self._parts, pictures, strict=True) if b in part)

    def close_extras(self, **kwargs: Any) -> None:
        self._closing()
