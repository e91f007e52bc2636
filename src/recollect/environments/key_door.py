"""Dark Key-Door: find an unseen key, then an unseen door, and stay on the door (RA-DT, arXiv 2410.07071, section 4.1).

A Dark-Room with two cells: stepping on the key pays 1 once, and from the next step on every step on the door pays 1.
Without the key the door pays nothing. What differs from upstream (``MiniHack-KeyDoor-Dark-Dense-*``),
and why:

- ``key_reset: per_episode`` (the default) is the paper's text: each episode needs the key anew. Upstream's reward
  manager is never rewound, so once the key was taken, all later episodes of that environment object pay at the
  door without it and the key pays nothing: ``sticky`` gives that. Published numbers are those of ``sticky`` with
  ``final_step_reward: zero``.
- Upstream does not look at rewards at the last step, so with ``final_step_reward: zero`` a key first reached there is
  not counted as taken either.
- A key in the start cell is taken at the first step, wherever that step goes (upstream's autopickup).
- Where the door is the start cell, see ``start_when_goal_is_start`` in :mod:`recollect.environments.dark_room`.
- The released 40 x 20 tasks hold one whose key and door are the same cell; it is kept: the first visit takes the key,
  the steps after it are paid by the door.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np

from recollect.environments.base import Outcome, Task
from recollect.environments.dark_room import ACTIONS, GOAL_SEED, DarkRoom, Options, packed, published_cells, split_range
from recollect.environments.scene import Mark, Scene, rows_and_columns

GYMNASIUM_IDS: dict[str, dict] = {"recollect/DarkKeyDoor-v0": {}}
REMARKS: dict[str, dict[str, str]] = {
    "key_reset": {
        "per_episode": "In Key-Door each episode needs the key anew.",
        "sticky": "In Key-Door a key that was taken opens the door in all later episodes, too: as the world remembers, "
        "an agent without memory can improve.",
    },
}
KEY_SEED = 42  # seed of the published key lists


class KeyDoorOptions(Options):
    """Options of Dark Key-Door: those of Dark-Room (`goal_seed` is then of the doors; keys stay the published ones), and
    `key_reset`: "per_episode", or "sticky" as upstream.
    """

    key_reset: Literal["per_episode", "sticky"] = "per_episode"


def tasks(split: str, **options: Any) -> list[Task]:
    """The tasks of a split: key and door as (column, row) in `data`; doors are the goals of Dark-Room, in order."""
    room = KeyDoorOptions.parse(options, "key_door", split)
    doors = published_cells(room.goal_seed, room.width, room.height)
    keys = published_cells(KEY_SEED, room.width, room.height)
    if (room.width, room.height, room.goal_seed) == (10, 10, GOAL_SEED):
        keys[81] = (3, 1)  # the release's one exception: evaluation key 1 fell on its door, (8, 4)
    found = []
    for i, n in enumerate(split_range(split, len(doors))):
        (key_x, key_y), (door_x, door_y) = keys[n], doors[n]
        name = f"key_x{key_x}_y{key_y}_door_x{door_x}_y{door_y}"
        found.append(Task(i, name, split, {"key": keys[n], "door": doors[n]}))
    return found


def scene(task: Task, **options: Any) -> Scene:
    room = KeyDoorOptions.parse(options, "key_door")
    marks = tuple(Mark(name, task.data[name][1], task.data[name][0]) for name in ("key", "door"))
    return Scene(room.height, room.width, marks, ACTIONS, rows_and_columns)


class KeyDoor(DarkRoom):
    """Dark Key-Door in a batch. Observations and actions are those of Dark-Room: the key in hand is not shown."""

    _goal_key: ClassVar[str] = "door"
    options: KeyDoorOptions
    options_model = KeyDoorOptions

    def _setup(self) -> None:
        super()._setup()
        self._key_B2 = self._cells_B2("key")
        self._packed_key_B = packed(self._key_B2)
        self._has_key_B = self._keep_zeros("has_key", bool)

    def _begin(self, index_N: np.ndarray) -> None:
        super()._begin(index_N)
        if self.options.key_reset == "per_episode":
            self._has_key_B[index_N] = False

    def _advance(self, actions_B: np.ndarray, last_B: np.ndarray | None) -> Outcome:
        # Only at the first step can an agent without the key have stood on its cell before moving.
        at_key_B = self._packed_B == self._packed_key_B
        self._move(actions_B)
        at_key_B |= self._packed_B == self._packed_key_B
        paid_B = self._packed_B == self._packed_goal_B
        paid_B &= self._has_key_B
        if last_B is not None and self.options.final_step_reward == "zero":
            paid_B &= ~last_B
            at_key_B &= ~last_B
        at_key_B &= ~self._has_key_B  # from here on: takes the key at this step
        paid_B |= at_key_B
        self._has_key_B |= at_key_B
        return paid_B.astype(np.float32), None

    def picture(self, b: int) -> dict[str, Any]:
        key, door = ("key", *self._key_B2[b].tolist()), ("door", *self._goal_B2[b].tolist())
        taken = bool(self._has_key_B[b])
        return super().picture(b) | {"marks": [door] if taken else [door, key], "faint": [key] if taken else []}

    def _best_from(self, start_M2: np.ndarray, b: int) -> np.ndarray:
        """The way over the key. Sticky: of an episode with the key in hand, as all are after the first."""
        if self.options.key_reset == "sticky":
            return super()._best_from(start_M2, b)
        paid_steps = self.options.paid_steps
        to_key_M = np.abs(start_M2 - self._key_B2[b]).sum(axis=1)
        to_door = int(np.abs(self._key_B2[b] - self._goal_B2[b]).sum())
        # A key in the start cell is taken at step 1 whichever way that step goes, so the step also nears the door.
        door_from_M = np.where(to_key_M > 0, to_key_M + max(to_door, 1), max(to_door, 2))
        key_M = np.maximum(to_key_M, 1) <= paid_steps
        return key_M + np.maximum(0, paid_steps - door_from_M + 1)


World = KeyDoor
