"""gymnasium's environments in processes, for a job that may be stopped at any moment.

What stops a job is sent to its processes, too. These go on until this one has saved, and end with it. One that has died is
reported as what it is.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.util import Finalize
from typing import Any

from gymnasium.vector import AutoresetMode
from gymnasium.vector.async_vector_env import AsyncState, AsyncVectorEnv

from recollect.environments.worker import ignore_stops, stops_blocked
from recollect.settings.errors import UserError


class AsyncVector(AsyncVectorEnv):
    """Each environment in a process of its own; nothing resets by itself.

    Raises:
        UserError: a process has ended, here or in any later call.
    """

    def __init__(self, makers: Sequence[Callable[[], Any]]) -> None:
        # At the end of this process multiprocessing would wait for those that its SIGTERM does not end.
        Finalize(self, _end, args=(vars(self),), exitpriority=0)
        resource_tracker.ensure_running()  # which lifts the block when it starts
        with stops_blocked(), _deaths_reported():
            apart = [partial(_made, maker, os.getpid()) for maker in makers]
            # Processes are started anew, not forked: a fork of one that has threads (torch) can hang.
            super().__init__(apart, context="spawn", autoreset_mode=AutoresetMode.DISABLED)

    def reset(self, **said: Any) -> Any:
        with _deaths_reported():
            return super().reset(**said)

    def step(self, actions: Any) -> Any:
        with _deaths_reported():
            return super().step(actions)

    def call(self, name: str, *arguments: Any, **named: Any) -> Any:
        with _deaths_reported():
            return super().call(name, *arguments, **named)

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Let the environments close, unless they are to end at once or are in the middle of something; then end all processes."""
        with contextlib.suppress(EOFError, OSError):  # of one that has died
            if not terminate and self._state is AsyncState.DEFAULT:
                super().close_extras(timeout)
        _end(vars(self))


def _made(make: Callable[[], Any], owner: int) -> Any:
    """An environment; gymnasium makes a first one in the owner's process, to look at its spaces."""
    if os.getpid() != owner:
        ignore_stops()
    return make()


def _end(held: Mapping[str, Any]) -> None:
    """End the processes of one of these, whose attributes are given: it may be gone, or not whole."""
    for process in held.get("processes", ()):
        if process.is_alive():
            process.kill()
            process.join()


@contextlib.contextmanager
def _deaths_reported() -> Iterator[None]:
    try:
        yield
    except (EOFError, BrokenPipeError, ConnectionResetError) as error:
        raise UserError(
            "a process that plays an environment has ended",
            where="options of the world: processes",
            do="look at what it said above, and run the command again; without `processes` all are played in one process",
        ) from error
