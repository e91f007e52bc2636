"""Three rooms in a row: learn something, gather apples for long, act on what was learned (Memory-RL, arXiv 2307.03864).

What Visual Match and Key-to-Door share: rooms of 7 x 11 cells drawn with letters, the clock that leads from one to the
next, the room of apples, and the images. Recorded episodes of the released games (Pycolab, from DeepMind's TVT) are
replayed to the bit in the tests. What differs from the released code, and why:

- All draws come from the instance's own stream; upstream uses numpy's global generator and unseeded ones, so its seeds
  do not determine an episode.
- Rooms are letters in one array per batch, and no game engine runs; upstream builds six engines per episode.
- ``crop: false`` has a space of 3 x 7 x 11; upstream announces 3 x 5 x 5 there.
- With an apple reward that is fixed per episode and may be 0, upstream draws until it is not 0; ours is drawn once.
- Its ``default_reward`` never takes effect and is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from pydantic import Field

from recollect.environments.base import BaseWorld, Outcome, WorldOptions
from recollect.settings.errors import UserError

ROWS, COLUMNS, VIEW = 7, 11, 5
MARGIN = VIEW // 2  # cells around each room that an agent at its edge sees
WIDTH = COLUMNS + 2 * MARGIN
MOVES_A = np.array([-WIDTH, WIDTH, -1, 1], dtype=np.int32)  # north, south, west, east; there is no way to stay

# Upper-case colors can be walked on and chosen, lower-case ones are part of the wall.
FLOOR, OUTSIDE, WALL, AGENT, APPLE = b" ", b".", b"#", b"+", b"a"
KEY, SIGNAL, SHUT_DOOR, OPEN_DOOR = b"k", b"i", b"D", b"d"
CHOICES = b"RGB"
IN_1000THS = {  # as upstream writes them
    AGENT: (898, 584, 430),
    WALL: (100, 100, 100),
    FLOOR + OUTSIDE: (800, 800, 800),
    KEY: (627, 321, 176),
    SHUT_DOOR + OPEN_DOOR: (529, 808, 922),
    APPLE: (550, 700, 0),
    SIGNAL: (1000, 1000, 1000),
    b"Rr": (1000, 0, 0),
    b"Gg": (0, 1000, 0),
    b"Bb": (0, 0, 1000),
}


def _tables() -> tuple[np.ndarray, np.ndarray]:
    """Of each letter: whether it stops the agent, bool [256], and its color, uint8 [3, 256]."""
    solid_256, color_3256 = np.zeros(256, dtype=bool), np.zeros((3, 256), dtype=np.uint8)
    solid_256[list(OUTSIDE + WALL + SIGNAL + SHUT_DOOR + CHOICES.lower())] = True
    for letters, thousandths in IN_1000THS.items():
        for letter in letters:
            color_3256[:, letter] = [part * 255 // 1000 for part in thousandths]
    return solid_256, color_3256


SOLID_256, COLOR_3256 = _tables()
WINDOW_K = (np.arange(-MARGIN, MARGIN + 1)[:, None] * WIDTH + np.arange(-MARGIN, MARGIN + 1)).ravel()


def cell(row: int, column: int) -> int:
    """The place of a cell in a room of :func:`room`."""
    return (row + MARGIN) * WIDTH + column + MARGIN


def room(drawing: Sequence[str]) -> np.ndarray:
    """A drawn room with its margin, uint8 [cells]."""
    framed = np.full((ROWS + 2 * MARGIN, WIDTH), OUTSIDE[0], dtype=np.uint8)
    framed[MARGIN:-MARGIN, MARGIN:-MARGIN] = [list(line.encode()) for line in drawing]
    return framed.ravel()


def places(drawing: Sequence[str], letter: bytes) -> tuple[np.ndarray, np.ndarray]:
    """The cells of a letter, int32 [N], and the drawn room with floor in their stead."""
    drawn = room(drawing)
    found_N = np.flatnonzero(drawn == letter[0]).astype(np.int32)
    drawn[found_N] = FLOOR[0]
    return found_N, drawn


ORCHARD = ("###########", "#a a a a a#", "# a a a a #", "#a a a a a#", "# a a a a #", "#a a   a a#", "###########")
APPLES_N, ORCHARD_ROOM = places(ORCHARD, APPLE)
ORCHARD_START = cell(5, 5)


class RoomOptions(WorldOptions):
    """length: steps in the room of apples, the length knob of the paper's figures.
    explore_steps: steps in the first room.
    final_reward: paid once in the last room, for the right choice or the opened door.
    apples: how many of the 22 places have an apple; which is drawn in each episode.
    apple_reward: of one apple.
    apple_reward_high: null: all apples give `apple_reward`. Else rewards are drawn between the two.
    fixed_apple_reward: such a reward is one of the two ends, drawn once per episode; false: each apple's is drawn
        anew, uniformly between them.
    respawn: an apple is back after more than so many steps; null: never.
    crop: the agent sees the 5 x 5 cells around it; false: the whole room.
    flat: images are vectors (channels first), as in the released configuration.
    one_hot_actions: actions are vectors of four numbers of which the largest counts.
    """

    length: int = Field(default=60, ge=1, le=2**24)
    explore_steps: int = Field(default=15, ge=1)
    final_reward: float = 5.0
    apples: int = Field(default=10, ge=0, le=len(APPLES_N))
    apple_reward: float = 1.0
    apple_reward_high: float | None = None
    fixed_apple_reward: bool = True
    respawn: int | None = Field(default=20, ge=1)
    crop: bool = True
    flat: bool = False
    one_hot_actions: bool = False


class ThreeRooms(BaseWorld):
    """Both games in a batch; a game says what stands in the first and the last room and what happens there.

    Observations: uint8 [B, 3, 5, 5] in 0..255, the cells around the agent, which is in the middle. Actions: 0 north,
    1 south, 2 west, 3 east; what cannot be entered leaves the agent where it is.
    Where episodes end, ``info["success"]`` (bool [B]) says which of them earned something in the last room.
    """

    horizon_terminates = True
    options: RoomOptions

    def _build(self, reward_steps: int) -> None:
        """What both games have; `reward_steps` is the length of the last part."""
        options, batch = self.options, self.num_envs
        self._shape = (3, VIEW, VIEW) if options.crop else (3, ROWS, COLUMNS)
        shown = (int(np.prod(self._shape)),) if options.flat else self._shape
        self.horizon = options.explore_steps + options.length + reward_steps
        self.single_observation_space = Box(0, 255, shown, np.uint8)
        self.single_action_space = Box(0.0, 1.0, (4,), np.float32) if options.one_hot_actions else Discrete(4)

        floor_BC = np.full((batch, ORCHARD_ROOM.size), FLOOR[0], dtype=np.uint8)
        self._board_BC = self._keep("board", floor_BC)
        self._position_B = self._keep_zeros("position", np.int32)
        self._succeeded_B = self._keep_zeros("succeeded", bool)
        reward_B = np.full(batch, options.apple_reward, dtype=np.float32)
        self._apple_reward_B = self._keep("apple_reward", reward_B)
        # Where an apple was eaten at each of the last steps, as a ring; 0: nowhere.
        again = options.respawn or 0
        if again >= options.length:
            again = 0  # no apple comes back within the time
        self._eaten_BR = self._keep_zeros("eaten", np.int16, again + 1)
        # All rooms in one row: cell c of instance b is number origin[b] + c. (A view: the state is written in place.)
        self._cells = self._board_BC.reshape(-1)
        self._origin_B = np.arange(batch) * self._board_BC.shape[1]

    # ---- what a game writes; index_N are the instances that are meant

    def _enter_first(self, index_N: np.ndarray) -> None:
        """Furnish the first room and put the agent there."""
        raise NotImplementedError

    def _explore(self, index_N: np.ndarray) -> None:
        """What a step in the first room changes."""

    def _enter_last(self, index_N: np.ndarray) -> None:
        """Furnish the last room and put the agent there."""
        raise NotImplementedError

    def _decide(self, index_N: np.ndarray) -> np.ndarray:
        """What a step in the last room changes: which instances earn the final reward, bool [N]."""
        raise NotImplementedError

    def _on_device(self, worlds: Sequence[BaseWorld], device: Any) -> Any:
        """Such games as tensors, see `three_rooms_on_device`."""
        raise NotImplementedError

    # ---- episodes that others play

    def on_device(self, worlds: Sequence[BaseWorld], device: Any) -> Any:
        """Not where what is drawn depends on what is played, or actions are vectors."""
        rules = self.options
        when_eaten = rules.apple_reward_high is not None and not rules.fixed_apple_reward
        return None if when_eaten or rules.one_hot_actions else self._on_device(worlds, device)

    def draw_ahead(self) -> tuple[np.ndarray, np.ndarray]:
        """Draw all that the episodes that have just begun have yet to draw, for who plays them to their ends.

        Returns:
            the first room, the orchard and the last room as they are entered, uint8 [3, B, cells], in Key-to-Door without the
            key; and the cell where the agent enters each, int64 [3, B].
        """
        boards_BC, entries_B = [self._board_BC.copy()], [self._position_B.copy()]
        for enter in (self._enter_orchard, self._enter_last):
            enter(self._row_B)
            boards_BC.append(self._board_BC.copy())
            entries_B.append(self._position_B.copy())
        return np.stack(boards_BC), np.stack(entries_B).astype(np.int64)

    # ---- the clock

    def _check_actions(self, actions: np.ndarray) -> np.ndarray:
        given = np.asarray(actions)
        if not self.options.one_hot_actions:
            return super()._check_actions(given)
        if given.shape != (self.num_envs, 4):
            what = f"actions must be of shape ({self.num_envs}, 4), not {given.shape}"
            do = "give four numbers per instance, or leave out the option one_hot_actions"
            raise UserError(what, where=f"{type(self).__name__}.step", do=do)
        return given.argmax(1)

    def _begin(self, index_N: np.ndarray) -> None:
        self._succeeded_B[index_N] = False
        self._enter_first(index_N)

    def _advance(self, actions_B: np.ndarray, last_B: np.ndarray | None) -> Outcome:
        target_B = self._position_B + MOVES_A.take(actions_B)
        stopped_B = SOLID_256.take(self._cells.take(self._origin_B + target_B))
        np.copyto(self._position_B, target_B, where=~stopped_B)

        rewards_B = np.zeros(self.num_envs, dtype=np.float32)
        # Steps gone in the room of apples: at 0 and at `length` the next room is shown at once, in the same step.
        frame_B = self._timestep_B - self.options.explore_steps
        exploring_N = np.flatnonzero(frame_B <= 0)
        deciding_N = np.flatnonzero(frame_B > self.options.length)
        if exploring_N.size:
            self._explore(exploring_N)
            self._enter_orchard(exploring_N[frame_B[exploring_N] == 0])
        if exploring_N.size + deciding_N.size < self.num_envs:
            gathering_N = np.flatnonzero((frame_B > 0) & (frame_B <= self.options.length))
            self._gather(gathering_N, frame_B[gathering_N], rewards_B)
            over_N = gathering_N[frame_B[gathering_N] == self.options.length]
            if over_N.size:
                self._enter_last(over_N)
        if deciding_N.size:
            earned_N = deciding_N[self._decide(deciding_N)]
            rewards_B[earned_N] = self.options.final_reward
            self._succeeded_B[earned_N] = self.options.final_reward > 0
        if last_B is not None:
            self._success_B = self._succeeded_B & last_B
        return rewards_B, None

    # ---- apples

    def _enter_orchard(self, index_N: np.ndarray) -> None:
        if not index_N.size:
            return
        rules = self.options
        self._board_BC[index_N] = ORCHARD_ROOM
        self._position_B[index_N] = ORCHARD_START
        self._eaten_BR[index_N] = 0
        places_NA, rows_N = np.tile(APPLES_N, (index_N.size, 1)), np.arange(index_N.size)
        for k in range(rules.apples):  # the first steps of a Fisher-Yates shuffle
            drawn_N = k + self._draw_integers(index_N, len(APPLES_N) - k)
            taken_N = places_NA[rows_N, drawn_N]
            places_NA[rows_N, drawn_N] = places_NA[:, k]
            places_NA[:, k] = taken_N
        self._board_BC[index_N[:, None], places_NA[:, : rules.apples]] = APPLE[0]
        if rules.apple_reward_high is not None and rules.fixed_apple_reward:
            ends = np.array([rules.apple_reward, rules.apple_reward_high], dtype=np.float32)
            self._apple_reward_B[index_N] = ends[self._draw_integers(index_N, 2)]

    def _gather(self, index_N: np.ndarray, frame_N: np.ndarray, rewards_B: np.ndarray) -> None:
        """Eat, then let apples grow again: one that grows under the agent is eaten a step later."""
        rules = self.options
        position_N, origin_N = self._position_B[index_N], self._origin_B[index_N]
        here_N = origin_N + position_N
        eats_N = self._cells[here_N] == APPLE[0]
        eater_M = index_N[eats_N]
        self._cells[here_N[eats_N]] = FLOOR[0]
        rewards_B[eater_M] = self._apple_reward_B[eater_M]
        if rules.apple_reward_high is not None and not rules.fixed_apple_reward:
            part_M = self._draw_integers(eater_M, 2**31) / 2**31
            rewards_B[eater_M] += ((rules.apple_reward_high - rules.apple_reward) * part_M).astype(np.float32)
        if self._eaten_BR.shape[1] > 1:
            slot_N = frame_N % self._eaten_BR.shape[1]
            again_N = self._eaten_BR[index_N, slot_N]
            self._cells[(origin_N + again_N)[again_N > 0]] = APPLE[0]
            self._eaten_BR[index_N, slot_N] = position_N * eats_N

    # ---- images

    def _observe(self) -> np.ndarray:
        here_B = self._origin_B + self._position_B
        covered_B = self._cells.take(here_B)
        # The agent stands in front of everything but a door.
        self._cells[here_B] = np.where(covered_B == OPEN_DOOR[0], covered_B, AGENT[0])
        if self.options.crop:
            seen_BK = self._cells.take(here_B[:, None] + WINDOW_K)
        else:
            framed_BYX = self._board_BC.reshape(self.num_envs, -1, WIDTH)
            seen_BK = framed_BYX[:, MARGIN:-MARGIN, MARGIN:-MARGIN].reshape(self.num_envs, -1)
        self._cells[here_B] = covered_B
        letters_BK = seen_BK.astype(np.intp)  # once; `take` would do it for each channel
        images_B3K = np.stack([color_256.take(letters_BK) for color_256 in COLOR_3256], axis=1)
        return images_B3K.reshape(self.num_envs, *((-1,) if self.options.flat else self._shape))

    def picture(self, b: int) -> dict:
        board_YX = self._board_BC[b].reshape(-1, WIDTH)[MARGIN:-MARGIN, MARGIN:-MARGIN]
        row, column = divmod(int(self._position_B[b]), WIDTH)
        colors = COLOR_3256[:, board_YX].transpose(1, 2, 0)
        return {"cells": (ROWS, COLUMNS), "agent": (row - MARGIN, column - MARGIN), "colors": colors}
