"""Plays the first episode of every published file in our own world, which must answer with the same observations.

Policies are trained on published rows and judged in our worlds. Another order of coordinates, another meaning of an
action, another size or another maze would train without a complaint and fail at evaluation; here it stops before any work.

Tasks whose episodes start at random are passed over; so are worlds of images, whose levels are not known, and of
continuous actions. What is paid at an episode's last step is not compared: that is an option of the environment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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


@dataclass
class Replay:
    """How the first episodes went in our world: of how many tasks, and of which (by place) the first difference in
    observations and ends (`ways`), and in `rewards`."""

    world: str
    paths: Sequence[Path]
    compared: int = 0
    ways: dict[int, str] = field(default_factory=dict)
    rewards: dict[int, str] = field(default_factory=dict)

    def check(self, differences: Mapping[int, str]) -> None:
        if differences:
            first = min(differences)
            message = (
                f"the first episode of {len(differences)} of {self.compared} files does not go as in the world "
                f"'{self.world}': {differences[first]}"
            )
            do = "name the files of this environment, or correct its options; `replay: false` reads the files as they are"
            raise UserError(message, where=self.paths[first], do=do)


def replay(
    world: str, options: Mapping[str, Any], tasks: Sequence[Task], firsts: Sequence[Rows], paths: Sequence[Path]
) -> Replay:
    """Play one episode per task: `firsts` are the rows of one whole episode of each, `paths` their files."""
    starts_BD = []
    for r in range(RESETS - 1, -1, -1):
        seeds_B = np.array([seed_of("published-replay", r, task.index) for task in tasks], np.uint64)
        played = registry.make_world(world, options, tasks, seeds_B)
        observation_BD, _ = played.reset()
        starts_BD.append(observation_BD)
    live_B = np.all([(start_BD == observation_BD).all(axis=1) for start_BD in starts_BD], axis=0)
    found = Replay(world, paths, compared=int(live_B.sum()))
    t = 0
    while live_B.any():
        action_B = np.zeros(len(tasks), np.int64)
        for b in np.flatnonzero(live_B).tolist():
            rows = firsts[b]
            action_B[b] = rows.action[t]
            if (np.abs(rows.observation[t] - observation_BD[b].astype(np.float64)) > ROUNDING).any():
                before = f" after action {rows.action[t - 1]}" if t else ""
                seen, ours = _shown(rows.observation[t]), _shown(observation_BD[b])
                found.ways.setdefault(b, f"at step {t}{before} the file sees {seen}, our world {ours}")
        observation_BD, reward_B, terminated_B, truncated_B, _ = played.step(action_B)
        ended_B = terminated_B | truncated_B
        for b in np.flatnonzero(live_B).tolist():
            paid, ended = firsts[b].reward[t], bool(firsts[b].done[t])
            if ended != ended_B[b]:
                ends, goes_on = ("the file", "our world") if ended else ("our world", "the file")
                found.ways.setdefault(b, f"at step {t} {ends}'s episode ends, {goes_on}'s does not")
            if not ended_B[b] and abs(paid - reward_B[b]) > ROUNDING:
                found.rewards.setdefault(b, f"at step {t} the file pays {paid:g}, our world {reward_B[b]:g}")
            live_B[b] = not ended
        if ended_B.any():
            observation_BD, _ = played.reset(options={"reset_mask": ended_B})
        t += 1
    return found


def _shown(values_D: np.ndarray) -> str:
    return np.array2string(values_D, precision=4, separator=", ", threshold=12)
