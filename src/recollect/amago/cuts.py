"""Windows of trajectories, cut so that nothing is copied which is not in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

Cut = Callable[[int], tuple[int, int]]
"""(rows of a trajectory) -> the first row of a window of it, and the row behind its last."""


def cut_at(where: float, length: int) -> Cut:
    """Cuts at most `length` transitions. `where`: how far along, in [0, 1)."""
    return partial(_cut_at, where, length)


def _cut_at(where: float, length: int, rows: int) -> tuple[int, int]:
    first = int(where * max(1, rows - length))
    return first, min(first + length + 1, rows)


def everything(rows: int) -> tuple[int, int]:
    """The `Cut` that leaves a trajectory whole."""
    return 0, rows


def cut_out(trajectory: Mapping[str, np.ndarray], cut: Cut) -> dict[str, np.ndarray]:
    """A window of a trajectory, whose columns are views; the goals stay whole."""
    first, end = cut(len(trajectory["time"]))
    return {name: column if name == "goals" else column[first:end] for name, column in trajectory.items()}
