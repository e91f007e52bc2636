"""What a world looks like from above, for figures and pages; agents never see it.

A world's file may have a function ``scene(task, **options) -> Scene``. Without one its runs can be traced, but not drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Mark:
    """Something that stands in a cell: ``goal``, ``key``, ``door``, ..."""

    name: str
    row: int
    column: int


@dataclass(frozen=True)
class Scene:
    """A grid of cells, what stands in it, and where an observation is made.

    Attributes:
        height, width: cells.
        marks: what the agent must find, in the order in which it must.
        actions: names of the actions, in their order.
        cells_of: observations [N, D] to the cells (row, column) where they are made, integers [N, 2].
        walls: cells (row, column) that cannot be entered.
        by_actions: observations do not tell where they are made: `cells_of` reads the N actions of one episode instead, and
            gives the cells before each.
    """

    height: int
    width: int
    marks: tuple[Mark, ...]
    actions: tuple[str, ...]
    cells_of: Callable[[np.ndarray], np.ndarray]
    walls: tuple[tuple[int, int], ...] = ()
    by_actions: bool = False

    def cells_along(self, observation_ND: np.ndarray, action_N: np.ndarray, episode_N: np.ndarray) -> np.ndarray:
        """The cells of steps in their order, integers [N, 2]; `episode_N` says which are of one episode."""
        if not self.by_actions:
            return self.cells_of(observation_ND)
        cuts = np.flatnonzero(np.diff(episode_N)) + 1
        return np.concatenate([self.cells_of(actions) for actions in np.split(action_N, cuts)])

    def described(self) -> dict[str, Any]:
        """Everything but the function, as JSON has it."""
        return {
            "height": self.height,
            "width": self.width,
            "marks": [[mark.name, mark.row, mark.column] for mark in self.marks],
            "actions": list(self.actions),
            "walls": [list(cell) for cell in self.walls],
        }


def rows_and_columns(observation_ND: np.ndarray) -> np.ndarray:
    """The cells of observations that begin with (row, column)."""
    return observation_ND[:, :2].astype(np.int64)
