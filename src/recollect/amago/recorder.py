"""Cuts the rollouts of B actors into trajectories of :mod:`recollect.amago.trajectory_files` (specification 2.3).

A trajectory ends where its rollout ends, or after so many steps that it has reached the length drawn for it; the next
one then begins with the same row (one step of overlap). Lengths are `save_length`, or, where the context is shorter and
`stagger` is on, uniform in save_length ± context, so that cuts do not always fall on the same steps.

- A length is drawn for every trajectory, as in newer upstream versions; older ones draw it once per rollout.
- Rows are written for all actors at once into arrays of fixed size; only finished trajectories are copied out.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from recollect.amago.trajectory_files import Trajectory
from recollect.artifacts.checkpoints import joined, part
from recollect.settings.seeding import seed_of


class Recorder:
    """The unfinished trajectories of B actors.

    Args:
        save_length: steps of a trajectory at most, give or take the context.
        context: steps of the training windows, at most `save_length`.
        stagger: see the head of this file.
    """

    def __init__(self, actors: int, save_length: int, context: int, *, stagger: bool = True, seed: int = 0) -> None:
        self.actors, self.save_length, self.seed = actors, save_length, seed
        self._slack = context if stagger and context < save_length else 0
        self._columns: dict[str, np.ndarray] = {}
        self._goals_BKG: np.ndarray | None = None
        self._last_B = np.zeros(actors, np.int64)  # row that was written last
        self._time_B = np.zeros(actors, np.int32)
        self._count_B = np.zeros(actors, np.int64)  # trajectories begun
        self._length_B = np.zeros(actors, np.int64)
        self._everyone = np.arange(actors)

    @property
    def shortest(self) -> int:
        """Steps after which a trajectory may be cut although its rollout goes on."""
        return self.save_length - self._slack

    def begin(self, mask_B: np.ndarray, observation_BD: np.ndarray, goals_BKG: np.ndarray | None = None) -> None:
        """A rollout begins for the actors of the mask, with these first observations [B, ...] (and goals, NaN: none)."""
        which_N = np.flatnonzero(mask_B)
        if goals_BKG is not None:
            if self._goals_BKG is None:
                self._goals_BKG = np.zeros(goals_BKG.shape, np.float32)
            self._goals_BKG[which_N] = goals_BKG[which_N]
        self._last_B[which_N], self._time_B[which_N] = 0, 0
        for name, column in self._columns.items():
            column[which_N, 0] = self._blank(name, column)
        self._column("observation", observation_BD)[which_N, 0] = observation_BD[which_N]
        self._draw_lengths(which_N)

    def append(
        self,
        action_B: np.ndarray,
        reward_B: np.ndarray,
        observation_BD: np.ndarray,
        done_B: np.ndarray,
        achieved_BMG: np.ndarray | None = None,
        terminal_B: np.ndarray | None = None,
    ) -> list[Trajectory]:
        """One step of every actor. Where `done`, the observation is the last one, and `begin` comes before the next step.

        Args:
            achieved_BMG: goals that the step achieved, NaN: none.
            terminal_B: bool, what stands in the column `done`: nothing follows the row (default: `done_B`).

        Returns:
            The trajectories that this step finished, in the order of actors.
        """
        self._last_B += 1
        self._time_B += 1
        discrete = action_B.dtype.kind in "iub"
        values = {
            "observation": observation_BD,
            "previous_action": action_B.astype(np.int16 if discrete else np.float32),
            "reward": np.asarray(reward_B, np.float32),
            "done": np.asarray(done_B if terminal_B is None else terminal_B, bool),
            "time": self._time_B,
        }
        if achieved_BMG is not None:
            values["achieved"] = np.asarray(achieved_BMG, np.float32)
        for name, value_B in values.items():
            self._column(name, value_B)[self._everyone, self._last_B] = value_B
        is_full_B = self._last_B >= self._length_B
        which_N = np.flatnonzero(done_B | is_full_B)
        if not which_N.size:
            return []
        finished = [self._cut(b) for b in which_N.tolist()]
        going_N = np.flatnonzero(is_full_B & ~done_B)
        for column in self._columns.values():
            column[going_N, 0] = column[going_N, self._last_B[going_N]]
        self._last_B[going_N] = 0
        self._draw_lengths(going_N)
        return finished

    def arrays(self) -> dict[str, np.ndarray]:
        rows = int(self._last_B.max()) + 1
        columns = {name: column[:, :rows].copy() for name, column in self._columns.items()}
        goals = {} if self._goals_BKG is None else {"goals": self._goals_BKG.copy()}
        return {
            **joined(column=columns),
            **goals,
            "last": self._last_B.copy(),
            "time": self._time_B.copy(),
            "count": self._count_B.copy(),
            "length": self._length_B.copy(),
        }

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        for name, rows_BT in part(arrays, "column").items():
            like_B = np.empty((self.actors, *rows_BT.shape[2:]), rows_BT.dtype)
            self._column(name, like_B)[:, : rows_BT.shape[1]] = rows_BT
        self._goals_BKG = np.array(arrays["goals"]) if "goals" in arrays else None
        self._last_B[:] = arrays["last"]
        self._time_B[:] = arrays["time"]
        self._count_B[:] = arrays["count"]
        self._length_B[:] = arrays["length"]

    def _column(self, name: str, like_B: np.ndarray) -> np.ndarray:
        if name not in self._columns:
            longest = self.save_length + self._slack
            new = np.zeros((self.actors, longest + 1, *like_B.shape[1:]), like_B.dtype)
            new[:, 0] = self._blank(name, new)
            self._columns[name] = new
        return self._columns[name]

    @staticmethod
    def _blank(name: str, column: np.ndarray) -> float:
        if name == "previous_action":
            return -2.0 if column.dtype.kind == "f" else -1
        return np.nan if name == "achieved" else 0

    def _draw_lengths(self, which_N: np.ndarray) -> None:
        for b in which_N.tolist():
            drawn = seed_of("trajectory length", self.seed, b, int(self._count_B[b])) % (2 * self._slack + 1)
            self._length_B[b] = self.save_length - self._slack + drawn
        self._count_B[which_N] += 1

    def _cut(self, b: int) -> Trajectory:
        rows = int(self._last_B[b]) + 1
        found = {name: column[b, :rows].copy() for name, column in self._columns.items()}
        return found if self._goals_BKG is None else {**found, "goals": self._goals_BKG[b].copy()}
