"""Visual Match as a gym environment is usually written: one instance, integers, an array per image."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from recollect.environments.three_rooms import APPLE, APPLES_N, COLOR_3256, ORCHARD_ROOM, ORCHARD_START, WIDTH
from recollect.environments.visual_match import CHOICE_CELLS_3, LAST_ROOM, START

MOVES = {0: -WIDTH, 1: WIDTH, 2: -1, 3: 1}
SOLID, FLOOR, AGENT = frozenset(b"#.rgb"), ord(" "), ord("+")
FIRST_POSITION = 4 * WIDTH + 7


class PlainMatch:
    """One passive Visual Match. `rooms` (letters [3, cells], see `three_rooms`) are played instead of drawn ones."""

    def __init__(self, length: int = 60) -> None:
        self.length, self.horizon = length, length + 30

    def reset(self, rooms: np.ndarray | None = None) -> np.ndarray:
        """Start an episode."""
        if rooms is None:
            colors = random.sample(b"RGB", 3)
            first, orchard, last = np.full_like(LAST_ROOM, FLOOR), ORCHARD_ROOM.copy(), LAST_ROOM.copy()
            around = [FIRST_POSITION + dy * WIDTH + dx for dy in (-1, 0, 1) for dx in (-1, 0, 1) if dy or dx]
            first[around] = ord("#")
            first[random.choice(around)] = ord(chr(random.choice(colors)).lower())
            orchard[random.sample(APPLES_N.tolist(), 10)] = APPLE[0]
            last[CHOICE_CELLS_3] = colors
            rooms = np.stack([first, orchard, last])
        self.rooms = [room.copy() for room in rooms]
        self.color = next(letter - 32 for letter in rooms[0].tolist() if letter in b"rgb")
        self.t = self.won = 0
        self.enter(0, FIRST_POSITION)
        return self.image()

    def enter(self, number: int, position: int) -> None:
        """Go to a room."""
        self.number, self.room, self.position, self.frame = number, self.rooms[number], position, 0
        self.eaten: dict[int, int] = {}

    def image(self) -> np.ndarray:
        """The 5 x 5 cells around the agent, uint8 [3, 5, 5]."""
        y, x = divmod(self.position, WIDTH)
        window = self.room.reshape(-1, WIDTH)[y - 2 : y + 3, x - 2 : x + 3].copy()
        window[2, 2] = AGENT
        return COLOR_3256[:, window]

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Walk, eat, choose."""
        target = self.position + MOVES[action]
        if self.room[target] not in SOLID:
            self.position = target
        self.t += 1
        self.frame += 1
        here, reward = int(self.room[self.position]), 0.0
        if self.number == 1:
            if here == APPLE[0]:
                reward = 1.0
                self.room[self.position], self.eaten[self.position] = FLOOR, self.frame
            for cell, frame in list(self.eaten.items()):
                if self.frame > frame + 20:
                    self.room[cell] = APPLE[0]
                    del self.eaten[cell]
        elif self.number == 2 and here in b"RGB":
            reward = 5.0 if here == self.color else 0.0
            self.won = int(reward > 0)
            self.room[CHOICE_CELLS_3] = FLOOR
        if self.t == 15:
            self.enter(1, ORCHARD_START)
        elif self.t == 15 + self.length:
            self.enter(2, START)
        ended = self.t == self.horizon
        return self.image(), reward, ended, False, {"success": bool(self.won)} if ended else {}
