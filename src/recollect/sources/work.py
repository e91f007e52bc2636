"""How much work learning histories are: one source agent per task, all at once; see `recollect.common.work`."""

from __future__ import annotations

from typing import Any

from recollect.common.work import LEARNING, UPDATE, Net, Shape, Work, dense
from recollect.settings.schema import EnvironmentSettings


def rows(hp: Any, tasks: int) -> float:
    kept = getattr(hp, "recorded", 1) / getattr(hp, "actors", 1) if hasattr(hp, "recorded") else 1
    return float(getattr(hp, "transitions", 100_000)) * tasks * kept


def network(hp: Any, shape: Shape) -> Net:
    if hasattr(hp, "units"):
        return Net(16 * hp.units**2, 8 * hp.units**2)
    if hasattr(hp, "hidden"):
        return dense(shape.observation, *hp.hidden)
    return Net(18 * (shape.pixels or 4096) * 16 * 24 + 4 * 2048 * getattr(hp, "width", 256), 1e6)


def generated(hp: Any, environment: EnvironmentSettings, shape: Shape, tasks: int) -> Work:
    count = rows(hp, tasks)
    disk = count * (20 if environment.images is None else 12 * 1024 + 20)
    if not hasattr(hp, "epochs"):  # files are read, or scripts play
        return Work(0, 0, count, disk, getattr(hp, "transitions", 0))
    steps = hp.transitions * tasks
    updates = hp.transitions * hp.epochs / hp.minibatch
    flop = steps * network(hp, shape).flop * (1 + hp.epochs * LEARNING)
    return Work(flop, hp.transitions / getattr(hp, "actors", 1) + updates * UPDATE, steps, disk, hp.transitions)
