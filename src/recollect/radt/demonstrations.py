"""Demonstrations: episodes of the evaluated tasks that stand in RA-DT's memory before anything is played.

They are the learning histories of an environment of the configuration, e.g. one with the same world, `split: eval` and a
scripted expert as its source; each task's own are found by split and index. Released: files named by hand for tasks named
by hand (specification 4.7).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from recollect.common.contract import Facts, Inputs, own_actions
from recollect.environments.base import Task
from recollect.radt.experience import Experience
from recollect.radt.supervised import open_experience
from recollect.settings.resolve import environment_mapping
from recollect.settings.schema import Settings


@dataclass(frozen=True)
class Demonstrations:
    """N whole episodes of D tasks, the last ones of each task's history.

    Attributes:
        steps: [N, T], padded on the right.
        task_N: which of the D tasks each is of, ascending.
        names: (split, index) of each task.
    """

    steps: Experience
    length_N: np.ndarray
    task_N: np.ndarray
    names: tuple[tuple[str, int], ...]

    @classmethod
    def load(cls, settings: Settings, inputs: Inputs, facts: Facts) -> Demonstrations | None:
        """Those that a method's settings name, from the input `demonstrations`; None where they name none."""
        chosen = settings.method.hyperparameters
        if chosen.acting.demonstrations is None:
            return None
        source = environment_mapping(settings.scale, chosen.acting.demonstrations).get("source") or {}
        split = str(source.get("split", "train"))
        facts = replace(facts, own_actions=own_actions(settings.environment, split, facts.action_size))
        histories, store = open_experience("demonstrations", settings, inputs, facts)
        table = histories.episodes
        past_task = np.searchsorted(table.task, table.task, side="right")
        kept = np.flatnonzero(np.arange(len(table)) >= past_task - chosen.acting.demonstration_episodes)
        length_N = table.length[kept]
        step_T = np.arange(length_N.max(initial=0))
        mask_NT = step_T < length_N[:, None]
        last_N1 = length_N[:, None] - 1
        rows_NT = table.start[kept][:, None] + np.minimum(step_T, last_N1)
        tasks, task_N = np.unique(table.task[kept], return_inverse=True)
        names = tuple((split, int(task)) for task in tasks)
        return cls(steps=store.windows(rows_NT, mask_NT), length_N=length_N, task_N=task_N, names=names)

    def rounds(self) -> Iterator[np.ndarray]:
        """The episodes in rounds, at most one of each task in a round."""
        first = np.searchsorted(self.task_N, self.task_N)
        nth = np.arange(len(self.task_N)) - first
        for round_ in range(int(nth.max()) + 1):
            yield np.flatnonzero(nth == round_)

    def of(self, tasks: Sequence[Task]) -> np.ndarray:
        """Which of the D tasks each of these is, int64 [B]; -1: none."""
        place_of = {name: place for place, name in enumerate(self.names)}
        places = [place_of.get((task.split, task.index), -1) for task in tasks]
        return np.array(places, np.int64)
