"""Goal sequences as numbers: K slots of G numbers, NaN behind the last goal, to be completed in order (AMAGO, spec 1.12).

An observation shows a sequence with completed goals as -3 and padding as -1; the padding stands in front, so that the
last goal is always in the last slot. Worlds show sequences so, hindsight shows others in their place, and networks embed
what is shown. Plain numpy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

COMPLETED, PADDING = -3.0, -1.0
Shown = Literal["after", "before"]  # the step that led to an observation
CLOSE = 1e-3  # goals are the same where all their numbers differ by less


@dataclass(frozen=True)
class GoalPart:
    """Where and how the flat observations of a world show the goal sequence; a world's `goal_part`.

    Attributes:
        where: entries of the observation, K * G of them.
        count, size: K and G.
        offset: added to all that is shown; worlds whose observations are bytes add 128, as AMAGO's token embedding does.
        hide_future: goals after the current one are not shown (AMAGO's `hide_full_plan`).
        before: an observation shows the sequence as it was before the step that led to it, as AMAGO's seed code does
            (envs/amago_env.py, `step`), and not as it is after it.
    """

    where: slice
    count: int
    size: int
    offset: float = 0.0
    hide_future: bool = False
    before: bool = False

    def show(self, goals_BKG: np.ndarray, reached_B: np.ndarray) -> np.ndarray:
        """What stands in the observations of sequences of which so many goals are completed, float32 [B, K * G]."""
        shown = shown_goals(goals_BKG, reached_B, hide_future=self.hide_future) + np.float32(self.offset)
        return shown.reshape(len(shown), -1)


def shown_goals(goals_BKG: np.ndarray, reached_B: np.ndarray, *, hide_future: bool = False) -> np.ndarray:
    """What observations show of goal sequences of which so many goals are completed, float32 [B, K, G]."""
    K = goals_BKG.shape[1]
    slot_K = np.arange(K)
    shown_B = (~np.isnan(goals_BKG[..., 0])).sum(1)
    if hide_future:
        shown_B = np.minimum(shown_B, reached_B + 1)
    completed_BK = slot_K < reached_B[:, None]
    marked_BKG = np.where(completed_BK[..., None], COMPLETED, goals_BKG)
    # The shown goals move to the last slots; slots in front of them are padded.
    source_BK = slot_K - (K - shown_B)[:, None]
    moved_BKG = np.take_along_axis(marked_BKG, np.maximum(source_BK, 0)[..., None], axis=1)
    return np.where((source_BK >= 0)[..., None], moved_BKG, PADDING).astype(np.float32)


def replay_goals(goals_KG: np.ndarray, achieved_TMG: np.ndarray) -> np.ndarray:
    """Goals of a sequence completed up to and with each row, int64 [T]; at most one a row, none in row 0.

    `achieved_TMG` is what each row achieved, NaN where nothing.
    """
    k = int((~np.isnan(goals_KG[:, 0])).sum())
    hit_TK = (np.abs(achieved_TMG[:, :, None] - goals_KG[:k]) < CLOSE).all(axis=-1).any(axis=1)
    reached_T, reached, row = np.zeros(len(achieved_TMG), np.int64), 0, 1
    while reached < k:
        later = np.flatnonzero(hit_TK[row:, reached])
        if not later.size:
            break
        reached, row = reached + 1, row + int(later[0]) + 1
        reached_T[row - 1 :] = reached
    return reached_T
