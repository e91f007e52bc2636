"""How much work learning histories are; see `recollect.common.work`."""

from __future__ import annotations

from typing import Any

from recollect.common.work import FLOAT, LEARNING, UPDATE, Net, Shape, Work, dense
from recollect.settings.schema import EnvironmentSettings


def rows(hp: Any, tasks: int) -> float:
    kept = hp.recorded / hp.actors if hasattr(hp, "recorded") else 1
    return float(getattr(hp, "transitions", 100_000)) * tasks * kept


def network(hp: Any, shape: Shape) -> Net:
    if hasattr(hp, "units"):
        return Net(16 * hp.units**2, 8 * hp.units**2)
    if hasattr(hp, "hidden"):
        return dense(shape.observation, *hp.hidden)
    return Net(18 * (shape.pixels or 4096) * 16 * 24 + 4 * 2048 * getattr(hp, "width", 256), 1e6)


def _soft_actor_critic(hp: Any, shape: Shape, tasks: int, disk: float) -> Work:
    """One agent after the other, with as many gradient steps as steps.

    A gradient step is 18 forward passes of a network of a batch: actor and two critics learn, the actor through both, and
    two target critics judge the next actions.
    """
    steps = hp.transitions * tasks
    flop = steps * 18 * hp.batch_size * dense(shape.observation, *hp.hidden).flop
    return Work(flop, steps * (1 + 3 * UPDATE), steps, disk, hp.transitions)


def generated(hp: Any, environment: EnvironmentSettings, shape: Shape, tasks: int) -> Work:
    count = rows(hp, tasks)
    disk = count * (20 if environment.images is None else 12 * 1024 + 20)
    if hasattr(hp, "tau"):
        return _soft_actor_critic(hp, shape, tasks, disk + count * FLOAT * shape.observation)
    if not hasattr(hp, "epochs"):  # files are read, or scripts play
        return Work(0, 0, count, disk, getattr(hp, "transitions", 0))
    steps = hp.transitions * tasks
    updates = hp.transitions * hp.epochs / hp.minibatch
    flop = steps * network(hp, shape).flop * (1 + hp.epochs * LEARNING)
    return Work(flop, hp.transitions / getattr(hp, "actors", 1) + updates * UPDATE, steps, disk, hp.transitions)
