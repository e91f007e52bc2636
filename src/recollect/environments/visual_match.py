"""Visual Match: remember a color through a room of apples, and choose it among three (Memory-RL, arXiv 2307.03864).

Passive: the agent stands enclosed for 15 steps and one of the cells around it has the color. Active (released, but in
none of the paper's tasks): it must walk to where it sees the colored cell in the wall. Then come `length` steps among
apples, and 15 in a room with three colored cells: the first that is stepped on counts. Length is memory length.

- ``color_map`` says which color lies where in the last room. ``per_episode`` (the default): drawn anew each time, so
  the color must be matched. Upstream draws it once when an environment is made, without a seed, and a run has one
  environment to train in and one to be evaluated in. ``per_world`` gives that, from a seed: one map for all instances of
  a batch, so that training and evaluation differ, and an agent that learns "color -> place" is right, over many runs,
  in a third of the evaluations. What an instance plays then depends on the seed of the batch's first instance too.
- Ours: ``per_instance``: a map for each instance, from its own seed. An evaluation has as many maps as episodes.
  ``shared``: red, green, blue from the left, everywhere.

Rules, differences and options shared with Key-to-Door: :mod:`recollect.environments.three_rooms`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import Any, Literal

import numpy as np
from pydantic import Field

from recollect.environments import counter_rng
from recollect.environments.base import BaseWorld, Task
from recollect.environments.three_rooms import AGENT, CHOICES, FLOOR, WALL, RoomOptions, ThreeRooms, cell, places, room

GYMNASIUM_IDS: dict[str, dict[str, Any]] = {
    "recollect/VisualMatch-v0": {},
    "recollect/VisualMatchActive-v0": {"variant": "active"},
}
# Option -> its value -> what captions say; the first stands for the default.
REMARKS: dict[str, dict[str, str]] = {
    "color_map": {
        "per_episode": "Where the three colors lie is drawn in each episode.",
        "per_instance": "Where the three colors lie is drawn once for each actor and each episode of an evaluation.",
        "per_world": "Where the three colors lie is drawn twice, once to train with and once to be evaluated with, as released.",
        "shared": "The three colors lie in the same places in all episodes.",
    },
}
# s: where the color may be; all but one of them are wall.
FIRST = {
    "passive": (
        "           ",
        "    sss    ",
        "    s+s    ",
        "    sss    ",
        "           ",
        "           ",
        "           ",
    ),
    "active": ("  sssssss  ", "  s     s  ", "  s     s  ", "  ss   ss  ", "  s+++++s  ", "  s+++++s  ", "  sssssss  "),
}
LAST = ("###########", "#         #", "#         #", "#         #", "####   ####", "   #   #   ", "   #####   ")
START, CHOICE_CELLS_3 = cell(5, 5), np.array([cell(1, 2), cell(1, 5), cell(1, 8)])
LAST_ROOM = room(LAST)
COLORS_P3 = np.array([list(order) for order in permutations(CHOICES)], dtype=np.uint8)
IS_CHOICE_256 = np.isin(np.arange(256), list(CHOICES))
LOWER = np.uint8(ord("r") - ord("R"))


class Options(RoomOptions):
    """Options of Visual Match: those of both games, and what the head of the file says."""

    variant: Literal["passive", "active"] = "passive"
    reward_steps: int = Field(default=15, ge=1)
    color_map: Literal["per_episode", "per_instance", "per_world", "shared"] = "per_episode"


def tasks(split: str, **options: Any) -> list[Task]:
    """One task, in both splits: everything is drawn anew in every episode."""
    game = Options.parse(options, "visual_match", split)
    return [Task(0, f"{game.variant}_{game.length}", split)]


class VisualMatch(ThreeRooms):
    options: Options
    options_model = Options

    def _setup(self) -> None:
        game = self.options
        self._build(game.reward_steps)
        self._starts_N, _ = places(FIRST[game.variant], AGENT)
        self._signs_N, self._first_room = places(FIRST[game.variant], b"s")
        self._first_room[self._starts_N] = FLOOR[0]
        self._first_room[self._signs_N] = WALL[0]
        self._color_B = self._keep_zeros("color", np.uint8)
        self._map_B = self._keep_zeros("color_map", np.int8)

    def _on_device(self, worlds: Sequence[BaseWorld], device: Any) -> Any:
        # It imports torch, which no game on the host needs.
        from recollect.environments.three_rooms_on_device import VisualMatchOnDevice

        return VisualMatchOnDevice(worlds, CHOICES, CHOICE_CELLS_3, device)

    def _enter_first(self, index_N: np.ndarray) -> None:
        if self.options.color_map == "per_episode":
            self._map_B[index_N] = self._draw_integers(index_N, len(COLORS_P3))
        elif self.options.color_map != "shared":
            # A word of the instance's stream, or of the first one's, that no draw reaches.
            never = np.full(index_N.size, -1).astype(np.uint64)
            whose_N = index_N if self.options.color_map == "per_instance" else np.zeros_like(index_N)
            self._map_B[index_N] = counter_rng.integers(self._seeds_B[whose_N], never, len(COLORS_P3))
        which_N = self._draw_integers(index_N, 3)
        self._color_B[index_N] = COLORS_P3[self._map_B[index_N], which_N]
        self._board_BC[index_N] = self._first_room
        sign_N = self._signs_N[self._draw_integers(index_N, len(self._signs_N))]
        self._board_BC[index_N, sign_N] = self._color_B[index_N] + LOWER
        start_N = self._draw_integers(index_N, len(self._starts_N))
        self._position_B[index_N] = self._starts_N[start_N]

    def _enter_last(self, index_N: np.ndarray) -> None:
        self._board_BC[index_N] = LAST_ROOM
        self._board_BC[index_N[:, None], CHOICE_CELLS_3] = COLORS_P3[self._map_B[index_N]]
        self._position_B[index_N] = START

    def _decide(self, index_N: np.ndarray) -> np.ndarray:
        on_N = self._board_BC[index_N, self._position_B[index_N]]
        chose_M = index_N[IS_CHOICE_256[on_N]]
        if chose_M.size:
            self._board_BC[chose_M[:, None], CHOICE_CELLS_3] = FLOOR[0]
        return np.asarray(on_N == self._color_B[index_N])


World = VisualMatch
