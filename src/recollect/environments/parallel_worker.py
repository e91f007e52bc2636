"""`python -m recollect.environments.parallel_worker SOCKET OWNER`: a process that plays shares of worlds; see `parallel.py`.

It ends when its owner closes the connection or dies. What would stop a job is left to the owner, which has to save first.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np

from recollect.environments import registry
from recollect.environments.base import World
from recollect.environments.drawing import is_image
from recollect.environments.worker import ignore_stops
from recollect.settings.errors import UserError

LOOK = 5.0  # seconds between looks at whether the owner lives
ABOUT = ("options", "horizon", "single_observation_space", "single_action_space", "horizon_terminates")

worlds: dict[int, World] = {}


def make(number: int, name: str, options: dict[str, Any], tasks: Any, seeds: np.ndarray) -> dict[str, Any]:
    worlds[number] = world = registry.make_world(name, options, tasks, seeds)
    return {fact: getattr(world, fact) for fact in ABOUT} | {"written_in": world.written_in()}


def say(number: int, name: str) -> tuple[bool, Any]:
    """Whether a world has an attribute, and what it is.

    Raises TypeError: it is a method, which would answer for one share alone, and as it is now.
    """
    world = worlds[number]
    if not hasattr(world, name):
        return False, None
    said = getattr(world, name)
    if callable(said):
        raise TypeError(f"`{name}` of the world is a method, which needs a request of its own in parallel_worker.py")
    return True, said


def reset(number: int, mask_B: np.ndarray, seeds_B: np.ndarray | None = None) -> np.ndarray:
    """Start episodes where the mask says so, there with new random streams if any are given."""
    world = worlds[number]
    if seeds_B is not None:
        world.begin_streams(np.flatnonzero(mask_B), seeds_B)
    return world.reset(options={"reset_mask": mask_B})[0]


def picture(number: int, b: int | None) -> Any:
    """What instance b looks like; where its world does not say and is seen as images, what is seen."""
    if b is None:
        return None
    world = worlds[number]
    shown = world.picture(b)
    return world._observe()[b] if shown is None and is_image(world.single_observation_space) else shown


def goals(number: int) -> np.ndarray:
    """Of a world that tells its goals; see `docs/adding.md`."""
    world: Any = worlds[number]
    found: np.ndarray = world.goals()
    return found


def close(number: int) -> None:
    world = worlds.pop(number, None)
    if world is not None:
        world.close()


DOES: dict[str, Callable[..., Any]] = {
    "make": make,
    "say": say,
    "reset": reset,
    "step": lambda number, actions_B: worlds[number].step(actions_B),
    "get_state": lambda number: worlds[number].get_state(),
    "set_state": lambda number, state: worlds[number].set_state(state),
    "goals": goals,
    "optimal_return": lambda number: worlds[number].optimal_return(),
    "timesteps": lambda number: worlds[number].timesteps,
    "picture": picture,
    "close": close,
}


def answered(what: str, number: int, share: tuple[Any, ...]) -> tuple[bool, Any]:
    """Whether it failed, and the error or the answer."""
    try:
        return False, DOES[what](number, *share)
    except UserError as error:
        return True, error
    except Exception as error:
        return True, failed(error)


def failed(error: Exception) -> RuntimeError:
    return RuntimeError(f"a process that plays a world failed: {error}\n{traceback.format_exc()}")


def as_far_as_it_goes(answer: tuple[bool, Any]) -> tuple[bool, Any]:
    """The answer, or why it cannot be sent."""
    try:
        ForkingPickler.dumps(answer)
    except (TypeError, AttributeError, ValueError) as error:
        return True, failed(error)
    return answer


def serve(connection: Connection, owner: int) -> None:
    """Answer until the owner is gone."""
    while True:
        while not connection.poll(LOOK):
            if os.getppid() != owner:
                return
        try:
            answers = [answered(*request) for request in connection.recv()]
            try:
                connection.send(answers)
            except (TypeError, AttributeError, ValueError):  # one cannot be sent, so nothing was
                connection.send([as_far_as_it_goes(answer) for answer in answers])
        except (EOFError, OSError):
            return


if __name__ == "__main__":
    ignore_stops()
    serve(Connection(int(sys.argv[1])), int(sys.argv[2]))
