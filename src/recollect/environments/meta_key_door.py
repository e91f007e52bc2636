"""Dark Key-To-Door: many short episodes of one hidden key and door in a row, in one rollout (AMAGO, specification 4.3).

A room of N x N. Start, key and door are drawn for each rollout and stay for all its episodes; they may coincide. A step
that ends on the key without having it pays 1 and takes it; a step that ends on the door with it pays 1 and ends the
episode. So at most 2 an episode. The agent sees (x, y, has key, time of the episode), and nothing of key and door.

Two timings, of the two published versions of the code:

- `timing: seed`: an episode that is not won lasts one step more than `episode_steps` (the limit is looked at before the
  step is counted). The next one begins within the step that ends the last: its last observation is never seen.
- `timing: head`: episodes last `episode_steps` at most, their last observation is seen, and the step after it begins the
  next one: its action is ignored, and it pays nothing.

What differs from upstream: coordinates are over N as there, so they end below 1; the end of a rollout is `terminated`
(as there in both versions); Algorithm Distillation's fixed start is `start: [x, y]`. With `rollout_steps: null` an
episode of the world is one episode, for protocols that reset by themselves; tasks are then fixed by `listed_tasks`.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from gymnasium.spaces import Box, Discrete
from pydantic import Field, model_validator

from recollect.environments.base import BaseWorld, Outcome, Task, WorldOptions
from recollect.settings.errors import UserError
from recollect.settings.seeding import generator

GYMNASIUM_IDS: dict[str, dict] = {"recollect/DarkKeyToDoor-v0": {}}
# Actions 0..4 as changes of (x, y); upstream's x is a row.
MOVES_A2 = np.array([(0, -1), (-1, 0), (0, 1), (1, 0), (0, 0)], np.int16)
PLACES = ("start", "key", "door")


class Options(WorldOptions):
    """size: N.
    episode_steps: H, the limit of an episode.
    rollout_steps: steps of a rollout; null: a rollout is one episode.
    timing: see the head of the file.
    dark: key and door are not shown; else they are, as (door, key) over N.
    start: where every episode begins; null: drawn like key and door.
    randomize_actions: the five actions are shuffled for each rollout.
    show_reset: one more entry, 1 at the first observation of each episode (in the seed timing, where time is 0).
    listed_tasks: tasks of each split that are drawn once and for all; 0: one that is drawn anew for every rollout.
    """

    size: int = Field(default=9, ge=1, le=180)
    episode_steps: int = Field(default=50, ge=1)
    rollout_steps: int | None = Field(default=500, ge=1)
    timing: Literal["seed", "head"] = "seed"
    dark: bool = True
    start: list[int] | None = Field(default=None, min_length=2, max_length=2)
    randomize_actions: bool = False
    show_reset: bool = False
    listed_tasks: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _start_inside(self) -> Options:
        if self.start is not None and not all(0 <= at < self.size for at in self.start):
            raise ValueError(f"start {self.start} is not inside the room of {self.size} x {self.size}")
        if self.rollout_steps is None and not self.listed_tasks:
            raise ValueError("rollout_steps null needs listed_tasks, or every episode would have another task")
        return self

    @property
    def longest(self) -> int:
        """Steps of an episode that is not won."""
        return self.episode_steps + (self.timing == "seed")


def tasks(split: str, **options: Any) -> list[Task]:
    """One task that is drawn anew for every rollout, or `listed_tasks` with fixed places, others for each split."""
    room = Options.parse(options, "meta_key_door", split)
    if not room.listed_tasks:
        return [Task(0, f"any_{room.size}x{room.size}", split)]
    cells = room.size**2
    there = cells ** (2 if room.start else 3)  # key and door, and the start where it is drawn, too
    if 2 * room.listed_tasks > there:
        do = f"list at most {there // 2} (`listed_tasks`), or take a larger room"
        raise UserError(f"the room has {there} tasks, too few for both splits", where="world meta_key_door", do=do)
    # Both splits are of one drawing without repeats, so they share no task.
    drawn = generator("tasks of meta_key_door", room.size, str(room.start)).choice(
        there, 2 * room.listed_tasks, replace=False
    )
    found = []
    for i, number in enumerate(drawn[split == "eval" :: 2].tolist()):
        of_each = [list(divmod(number // cells**k % cells, room.size)) for k in (2, 1, 0)]
        places = dict(zip(PLACES, [room.start or of_each[0], *of_each[1:]], strict=True))
        name = "_".join(f"{place}_x{x}_y{y}" for place, (x, y) in places.items())
        found.append(Task(i, name, split, places))
    return found


def scene(task: Task, **options: Any) -> Any:
    """The room; key and door are marked where the task has them, else they are drawn for each rollout."""
    from recollect.environments.scene import Mark, Scene

    room = Options.parse(options, "meta_key_door")
    marks = tuple(Mark(name, *task.data[name]) for name in ("key", "door") if name in task.data)
    actions: tuple[str, ...] = ("west", "north", "east", "south", "stay")
    if room.randomize_actions:
        actions = tuple(f"action {action}" for action in range(5))

    def cells_of(seen_ND: np.ndarray) -> np.ndarray:
        return np.rint(seen_ND[:, :2] * room.size).astype(np.int64)

    return Scene(room.size, room.size, marks, actions, cells_of)


class MetaKeyDoor(BaseWorld):
    """Observations: float32 [B, 4 + shown entries]: x, y over N, has key, steps of the episode over H; then, in the light,
    door and key over N; then, where asked for, whether an episode begins. Actions: see `MOVES_A2`.
    """

    horizon_terminates = True
    options: Options
    options_model = Options

    def _setup(self) -> None:
        room = self.options
        self.horizon = room.rollout_steps or room.longest
        self.single_observation_space = Box(0.0, 1.0, (4 + 4 * (not room.dark) + room.show_reset,), np.float32)
        self.single_action_space = Discrete(5)
        # Entry of the observation that tells agents of soft resets, as the seed code does (the newer one does not).
        self.episode_clock = 3 if room.timing == "seed" and room.rollout_steps is not None else None
        whole = (room.rollout_steps or 0) % room.episode_steps == 0
        self.parts = (room.rollout_steps or 0) // room.episode_steps if whole else 0  # scored one by one
        self._cell_B2 = self._keep_zeros("position", np.int16, 2)
        self._place_B32 = self._keep_zeros("places", np.int16, 3, 2)  # start, key, door
        self._has_key_B = self._keep_zeros("has_key", bool)
        self._step_B = self._keep_zeros("episode_step", np.int32)
        self._due_B = self._keep_zeros("reset_due", bool)  # head timing: the next step resets
        self._action_BA = self._keep("actions", np.tile(np.arange(5), (self.num_envs, 1)))
        for task in self.tasks:
            cells = [task.data.get(place, (-1, -1)) for place in PLACES]
            if task.data and not all(0 <= at < room.size for cell in cells for at in cell):
                self._refuse_task(task, f"has no start, key and door inside the room of {room.size} x {room.size}")

    def _begin(self, index_N: np.ndarray) -> None:
        room = self.options
        for place, name in enumerate(PLACES):
            for axis in (0, 1):
                self._place_B32[index_N, place, axis] = self._draw_integers(index_N, room.size)
            for b in index_N:
                if name in self.tasks[b].data:
                    self._place_B32[b, place] = self.tasks[b].data[name]
        if room.start is not None:
            self._place_B32[index_N, 0] = room.start
        if room.randomize_actions:
            self._shuffle_rows(self._action_BA, index_N)
        self._begin_episode(index_N)

    def _begin_episode(self, index: np.ndarray) -> None:
        self._cell_B2[index] = self._place_B32[index, 0]
        self._has_key_B[index] = self._due_B[index] = False
        self._step_B[index] = 0

    def _advance(self, actions_B: np.ndarray, last_B: np.ndarray | None) -> Outcome:
        room = self.options
        again_B = self._due_B.copy()
        moves_B2 = MOVES_A2[self._action_BA[self._row_B, actions_B]] * ~again_B[:, None]
        np.clip(self._cell_B2 + moves_B2, 0, room.size - 1, out=self._cell_B2)
        # Pairs of int16 compared as one int32.
        at_B, place_B3 = self._cell_B2.view(np.int32)[:, 0], self._place_B32.view(np.int32)[..., 0]
        at_key_B, at_door_B = at_B == place_B3[:, 1], at_B == place_B3[:, 2]
        won_B = self._has_key_B & at_door_B & ~again_B
        taken_B = ~self._has_key_B & at_key_B & ~again_B
        self._has_key_B |= taken_B
        self._step_B += 1
        over_B = (won_B | (self._step_B >= room.longest)) & ~again_B
        rewards_B = (won_B | taken_B).astype(np.float32)
        if room.rollout_steps is None:
            return rewards_B, won_B
        if room.timing == "seed":
            self._begin_episode(over_B)
        else:
            self._begin_episode(again_B)
            self._due_B |= over_B
        return rewards_B, None

    def _observe(self) -> np.ndarray:
        room = self.options
        parts = [
            self._cell_B2 / room.size,
            self._has_key_B[:, None],
            np.minimum(self._step_B / room.episode_steps, 1.0)[:, None],
        ]
        if not room.dark:
            parts += [self._place_B32[:, 2] / room.size, self._place_B32[:, 1] / room.size]
        if room.show_reset:
            parts.append((self._step_B == 0)[:, None])
        return np.concatenate(parts, axis=1, dtype=np.float32)

    def picture(self, b: int) -> dict[str, Any]:
        _, key, door = (tuple(cell) for cell in self._place_B32[b].tolist())
        taken = bool(self._has_key_B[b])
        return {
            "cells": (self.options.size, self.options.size),
            "agent": self._cell_B2[b],
            "marks": [("door", *door)] if taken else [("door", *door), ("key", *key)],
            "faint": [("key", *key)] if taken else [],
        }


World = MetaKeyDoor
