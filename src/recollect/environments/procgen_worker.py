"""Plays Procgen for a process of another Python: a script of its own, for the interpreter that `worker.find_python` finds.

Procgen's newest package, 0.10.7, has wheels up to Python 3.10 only. This file needs the standard library (3.8 to 3.10),
numpy and procgen, and imports nothing of the project.

Protocol (version 1). Argument 1 is a connected socket, 2 a file of shared memory, 3 the parent's process number. The
worker begins with one message, then answers each message with one. A message is a line of JSON; `bytes` says how many
bytes follow it. Arrays (actions, frames, ...) stand in the shared memory, never in messages. An answer with `error` is
the last one but for more of them. The worker ends where the socket closes, which it does when the parent dies.

- `open`: `fields` {name: [dtype, shape, offset]}, `options` of the world. Once, first.
- `begin`: `which`, a list of instances to make anew: {"place": b, "seed": ..., and what the world wants}.
- `step`: plays what `action` [B] says: -1 forces a new episode, -2 leaves the instance as it is.
- `get_state`, `set_state`: `sizes` [B] and the states' bytes, one behind the other; size 0: none.
"""

from __future__ import annotations

import json
import mmap
import os
import select
import signal
import socket
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any

import numpy as np

PROTOCOL = 1
LEAVE = -2


class Games:
    """B games, each a Procgen environment of one instance: no game depends on another, and each can be reset alone.

    Sixteen environments of one play half as many steps a second as one of sixteen (coinrun: 15 000 instead of 28 000).
    """

    def __init__(self, arrays: dict[str, np.ndarray], options: dict[str, Any]) -> None:
        self.arrays, self.options = arrays, options
        self.games: list[Any] = [None] * len(arrays["action"])

    def begin(self, which: list[dict[str, Any]]) -> None:
        """Make some games anew; what they show at first stands in `frame`."""
        from procgen import ProcgenGym3Env

        for new in which:
            self.games[new["place"]] = ProcgenGym3Env(
                num=1,
                env_name=new["game"],
                num_levels=new["num_levels"],
                start_level=new["start_level"],
                rand_seed=new["seed"],
                num_threads=0,
                **self.options,
            )
            self._look(new["place"])

    def step(self) -> None:
        """Play `action`; where an episode ends, `first` is true and `frame` already shows the next one."""
        for place, action in enumerate(self.arrays["action"].tolist()):
            if action != LEAVE:
                self.games[place].act(np.array([action]))
                self._look(place)

    def get_state(self) -> list[bytes]:
        """One state per game, empty where there is none yet."""
        return [b"" if game is None else game.get_state()[0] for game in self.games]

    def set_state(self, states: list[bytes]) -> None:
        for place, state in enumerate(states):
            if state:
                self.games[place].set_state([state])
                self._look(place)

    def _look(self, place: int) -> None:
        reward, seen, first = self.games[place].observe()
        self.arrays["reward"][place], self.arrays["first"][place] = reward[0], first[0]
        self.arrays["frame"][place] = seen["rgb"][0].transpose(2, 0, 1)


def load_procgen() -> str:
    """Import procgen without the package gym, which it registers its games with: unmaintained, and not needed here."""
    stand_in: Any = types.ModuleType("procgen.gym_registration")
    stand_in.register_environments = lambda: None
    sys.modules[stand_in.__name__] = stand_in
    import procgen

    return str(procgen.__version__).strip()


class Server:
    """Answers the parent until it closes the socket.

    Args:
        world: (arrays, options) -> something with the methods of `Games`.
        load: called first; returns the world's version, or raises where its package is missing.
        protocol: what this worker says that it speaks.
    """

    def __init__(self, world: Callable[..., Any], load: Callable[[], str], protocol: int = PROTOCOL) -> None:
        self.make, self.load, self.protocol = world, load, protocol
        self.channel = socket.socket(fileno=int(sys.argv[1]))
        self.shared, self.parent = int(sys.argv[2]), int(sys.argv[3])
        self.stream = self.channel.makefile("rwb")
        self.world: Any = None

    def run(self) -> None:
        # What stops a job is the parent's to answer, which saves first. It has blocked both until here.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))
        self._answer({"do": "start"}, b"")
        while True:
            # A socket that a child of the parent's has inherited outlives the parent: so its number is watched, too.
            while not select.select([self.channel], [], [], 2.0)[0]:
                if os.getppid() != self.parent:
                    return
            line = self.stream.readline()
            if not line:
                return
            asked = json.loads(line)
            self._answer(asked, self.stream.read(asked["bytes"]))

    def _answer(self, asked: dict[str, Any], data: bytes) -> None:
        try:
            told, back = self._do(asked, data)
        except Exception as error:
            traceback.print_exc()
            told, back = {"error": f"{type(error).__name__}: {error}"}, b""
        self.stream.write(json.dumps({**told, "bytes": len(back)}).encode() + b"\n" + back)
        self.stream.flush()

    def _do(self, asked: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
        what = asked["do"]
        if what == "start":
            return {"protocol": self.protocol, "version": self.load()}, b""
        if what == "open":
            memory = mmap.mmap(self.shared, 0)
            arrays = {
                name: np.ndarray(shape, dtype, buffer=memory, offset=offset)
                for name, (dtype, shape, offset) in asked["fields"].items()
            }
            self.world = self.make(arrays, asked["options"])
        elif what == "begin":
            self.world.begin(asked["which"])
        elif what == "step":
            self.world.step()
        elif what == "get_state":
            states = self.world.get_state()
            return {"sizes": [len(state) for state in states]}, b"".join(states)
        elif what == "set_state":
            ends = np.cumsum(asked["sizes"])
            self.world.set_state([data[end - size : end] for end, size in zip(ends, asked["sizes"])])  # noqa: B905
        else:
            raise ValueError(f"unknown request '{what}'")
        return {}, b""


if __name__ == "__main__":
    Server(Games, load_procgen).run()
