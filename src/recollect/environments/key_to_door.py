"""Key-to-Door: take a key, gather apples for long, and open a door with it (Memory-RL, arXiv 2307.03864).

Not Dark Key-Door, which is :mod:`recollect.environments.key_door`. The key is worth nothing where it lies; 15 steps in
its room are followed by `length` steps among apples, and only then does the door pay. Length is credit assignment
length. That the key was taken shows in one image only: a white cell in the wall.

- ``reward_room: cca`` is a larger last room with the door and the start drawn, released but in none of the paper's tasks.

Rules, differences and options shared with Visual Match: :mod:`recollect.environments.three_rooms`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from pydantic import Field

from recollect.environments.base import BaseWorld, Task
from recollect.environments.three_rooms import (
    AGENT,
    FLOOR,
    KEY,
    OPEN_DOOR,
    SHUT_DOOR,
    SIGNAL,
    WALL,
    RoomOptions,
    ThreeRooms,
    cell,
    places,
)

GYMNASIUM_IDS: dict[str, dict[str, Any]] = {"recollect/KeyToDoor-v0": {}}
FIRST = ("  #######  ", "  #kkkkk#  ", "  #kkkkk#  ", "  ##   ##  ", "  #+++++#  ", "  #+++++#  ", "  #######  ")
LAST = {
    "sr": ("           ", "   ##d##   ", "   #   #   ", "   # + #   ", "   #   #   ", "   #####   ", "           "),
    "cca": ("  #######  ", "  #+++++#  ", "  #+++++#  ", "  ##   ##  ", "  #ddddd#  ", "  #ddddd#  ", "  #######  "),
}
REWARD_STEPS = {"sr": 10, "cca": 15}
SIGNAL_CELL = cell(0, 5)


class Options(RoomOptions):
    """Options of Key-to-Door: those of both games, and the last room ("sr": published; 10 steps, "cca" 15)."""

    reward_room: Literal["sr", "cca"] = "sr"
    reward_steps: int | None = Field(default=None, ge=1)


def tasks(split: str, **options: Any) -> list[Task]:
    """One task, in both splits: everything is drawn anew in every episode."""
    game = Options.parse(options, "key_to_door", split)
    return [Task(0, f"{game.reward_room}_{game.length}", split)]


class KeyToDoor(ThreeRooms):
    options: Options
    options_model = Options

    def _setup(self) -> None:
        game = self.options
        self._build(game.reward_steps or REWARD_STEPS[game.reward_room])
        self._keys_N, self._first_room = places(FIRST, KEY)
        self._starts_N, _ = places(FIRST, AGENT)
        self._first_room[self._starts_N] = FLOOR[0]
        self._doors_N, self._last_room = places(LAST[game.reward_room], OPEN_DOOR)
        self._last_starts_N, _ = places(LAST[game.reward_room], AGENT)
        self._last_room[self._last_starts_N] = FLOOR[0]
        self._has_key_B = self._keep_zeros("has_key", bool)

    def _on_device(self, worlds: Sequence[BaseWorld], device: Any) -> Any:
        # It imports torch, which no game on the host needs.
        from recollect.environments.three_rooms_on_device import KeyToDoorOnDevice

        return KeyToDoorOnDevice(worlds, SIGNAL_CELL, device)

    def _enter_first(self, index_N: np.ndarray) -> None:
        self._has_key_B[index_N] = False
        self._board_BC[index_N] = self._first_room
        self._board_BC[index_N, self._keys_N[self._draw_integers(index_N, len(self._keys_N))]] = KEY[0]
        self._position_B[index_N] = self._starts_N[self._draw_integers(index_N, len(self._starts_N))]

    def _explore(self, index_N: np.ndarray) -> None:
        position_N = self._position_B[index_N]
        takes_N = self._board_BC[index_N, position_N] == KEY[0]
        self._board_BC[index_N[takes_N], position_N[takes_N]] = FLOOR[0]
        self._has_key_B[index_N] |= takes_N
        self._board_BC[index_N, SIGNAL_CELL] = np.where(takes_N, SIGNAL[0], WALL[0])  # for this image only

    def _enter_last(self, index_N: np.ndarray) -> None:
        self._board_BC[index_N] = self._last_room
        door_N = self._doors_N[self._draw_integers(index_N, len(self._doors_N))]
        # With the key, the door lets the agent through to the end of the episode, though it pays only once.
        self._board_BC[index_N, door_N] = np.where(self._has_key_B[index_N], OPEN_DOOR[0], SHUT_DOOR[0])
        self._position_B[index_N] = self._last_starts_N[self._draw_integers(index_N, len(self._last_starts_N))]

    def _decide(self, index_N: np.ndarray) -> np.ndarray:
        on_N = self._board_BC[index_N, self._position_B[index_N]]
        opens_N = (on_N == OPEN_DOOR[0]) & self._has_key_B[index_N]
        self._has_key_B[index_N] &= ~opens_N
        return np.asarray(opens_N)


World = KeyToDoor
