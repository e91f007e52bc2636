"""Plays the first episode of every published file in our own world, which must answer with the same observations.

Policies are trained on published rows and judged in our worlds. Another order of coordinates, another meaning of an
action, another size or another maze would train without a complaint and fail at evaluation; here it stops before any
work. All files are played at once, an instance of the world each, so this takes as many steps as one episode.

Tasks whose episodes start at random cannot be played again and are passed over; so are worlds of images, whose levels
are not known, and of continuous actions. What is paid at the last step of an episode is not compared: that is an option
of the environment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recollect.environments import registry
from recollect.environments.base import Task
from recollect.settings.errors import UserError
from recollect.settings.seeding import seed_of
from recollect.sources.columns import Rows
from recollect.sources.published import ROUNDING

RESETS = 4  # starts that must be the same for a task to count as one with a fixed start


@dataclass(frozen=True)
class Replay:
    """How the first episodes went in our world.

    Attributes:
        world: its name.
        paths: the file of each task.
        compared: how many tasks were compared.
        ways, rewards: task's place -> the first step at which observations or the end, or rewards, are others.
    """

    world: str
    paths: Sequence[Path]
    compared: int
    ways: Mapping[int, str]
    rewards: Mapping[int, str]

    def check_ways(self) -> None:
        """Raise a UserError unless observations and ends are those of our world."""
        self._check(self.ways)

    def check_rewards(self) -> None:
        """Raise a UserError unless rewards are those of our world."""
        self._check(self.rewards)

    def _check(self, differs: Mapping[int, str]) -> None:
        if differs:
            first = min(differs)
            raise UserError(
                f"the first episode of {len(differs)} of {self.compared} files does not go as in the world "
                f"'{self.world}': {differs[first]}",
                where=self.paths[first],
                do="name the files of this environment, or correct its options; "
                "`replay: false` reads the files as they are",
            )


def replay(
    world: str, options: Mapping[str, Any], tasks: Sequence[Task], firsts: Sequence[Rows], paths: Sequence[Path]
) -> Replay:
    """Play one episode per task.

    Args:
        world, options: of the environment.
        tasks, firsts, paths: the tasks, the rows of one whole episode of each, and the file of each.
    """
    seeds_RB = np.array(
        [[seed_of("published-replay", r, task.index) for task in tasks] for r in range(RESETS)], np.uint64
    )
    starts_RBD = [registry.make_world(world, options, tasks, seeds_RB[r]).reset()[0] for r in range(1, RESETS)]
    played = registry.make_world(world, options, tasks, seeds_RB[0])
    observation_BD, _ = played.reset()
    fixed_B = np.all([(start_BD == observation_BD).all(axis=1) for start_BD in starts_RBD], axis=0)
    seen_TBD, action_TB, reward_TB, done_TB, live_TB = _side_by_side(firsts)
    live_TB &= fixed_B
    ways: dict[int, str] = {}
    rewards: dict[int, str] = {}
    for t in range(int(live_TB.any(axis=1).sum())):
        other_B = live_TB[t] & (np.abs(seen_TBD[t] - observation_BD) > ROUNDING).any(axis=1)
        for b in np.flatnonzero(other_B).tolist():
            before = f" after action {action_TB[t - 1, b]}" if t else ""
            seen = f"the file sees {_shown(firsts[b].observation[t])}, our world {_shown(observation_BD[b])}"
            ways.setdefault(b, f"at step {t}{before} {seen}")
        observation_BD, reward_B, terminated_B, truncated_B, _ = played.step(action_TB[t])
        ended_B = terminated_B | truncated_B
        for b in np.flatnonzero(live_TB[t] & (done_TB[t] != ended_B)).tolist():
            ends = "the file's episode ends, our world's does not", "our world's episode ends, the file's does not"
            ways.setdefault(b, f"at step {t} {ends[int(ended_B[b])]}")
        for b in np.flatnonzero(live_TB[t] & ~ended_B & (np.abs(reward_TB[t] - reward_B) > ROUNDING)).tolist():
            rewards.setdefault(b, f"at step {t} the file pays {reward_TB[t, b]:g}, our world {reward_B[b]:g}")
        if ended_B.any():
            observation_BD, _ = played.reset(options={"reset_mask": ended_B})
    return Replay(world, paths, int(fixed_B.sum()), ways, rewards)


def _side_by_side(firsts: Sequence[Rows]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Episodes as columns, padded at their ends: observation float64 [T, B, D], action, reward, done, live [T, B]."""
    steps, count = max(len(rows) for rows in firsts), len(firsts)
    seen_TBD = np.zeros((steps, count, firsts[0].observation.shape[1]))
    action_TB, reward_TB = np.zeros((steps, count), np.int64), np.zeros((steps, count))
    done_TB, live_TB = np.zeros((steps, count), bool), np.zeros((steps, count), bool)
    for b, rows in enumerate(firsts):
        within = slice(0, len(rows))
        seen_TBD[within, b], action_TB[within, b] = rows.observation, rows.action
        reward_TB[within, b], done_TB[within, b], live_TB[within, b] = rows.reward, rows.done, True
    return seen_TBD, action_TB, reward_TB, done_TB, live_TB


def _shown(values_D: np.ndarray) -> str:
    return np.array2string(values_D, precision=4, separator=", ", threshold=12)
