"""Visual Match and Key-to-Door as tensors on the device that plays in them: a step asks the host for nothing, and can be captured.

The games themselves begin each episode and draw all that it has (`ThreeRooms.draw_ahead`): what stands in the three rooms, and
where the agent enters each. At the end they are told where their episodes ended. What is seen and paid is the same to the bit.

All instances are one batch, in lockstep: an episode lasts to its horizon. So which part of it a step is of (`kind`) is known
without asking, and a step computes no other part's rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recollect.environments.three_rooms import (
    AGENT,
    APPLE,
    COLOR_3256,
    FLOOR,
    KEY,
    MARGIN,
    MOVES_A,
    OPEN_DOOR,
    SHUT_DOOR,
    SIGNAL,
    SOLID_256,
    WALL,
    WIDTH,
    WINDOW_K,
)

FIRST, ORCHARD, LAST = range(3)


class ThreeRoomsOnDevice:
    """Some games with the same options, one behind the other: B instances in all. A game adds what happens in its rooms."""

    def __init__(self, games: Sequence[Any], device: torch.device) -> None:
        self.games, self.options, self.horizon = games, games[0].options, games[0].horizon
        self.rows = sum(game.num_envs for game in games)
        self.size = int(np.prod(games[0].single_observation_space.shape))
        self.observation_dtype = torch.uint8

        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        shapes = {name: array.shape for name, array in games[0].get_state().items()}
        B, cells, slots = self.rows, shapes["board"][1], shapes["eaten"][1]
        self.time = zeros(1)
        self.rooms_3BC, self.entries_3B = zeros(3, B, cells, dtype=torch.uint8), zeros(3, B)
        self.apple_reward_B = zeros(B, dtype=torch.float32)
        self.board_BC, self.position_B = zeros(B, cells, dtype=torch.uint8), zeros(B)
        self.eaten_RB = zeros(slots, B)  # see `ThreeRooms`
        self.succeeded_B = zeros(B, dtype=torch.bool)
        self._cells = self.board_BC.view(-1)
        self._origin_B = torch.arange(B, device=device) * cells
        self._moves_A = torch.from_numpy(MOVES_A.astype(np.int64)).to(device)
        self._solid_256 = torch.from_numpy(SOLID_256).to(device)
        self._color_2563 = torch.from_numpy(np.ascontiguousarray(COLOR_3256.T)).to(device)
        self._seen_K = torch.from_numpy(self._looked_at(cells)).to(device)

    def _looked_at(self, cells: int) -> np.ndarray:
        """The cells of an image, int64 [K]: counted from the agent's, or of a whole room."""
        if self.options.crop:
            return WINDOW_K.astype(np.int64)
        room_YX = np.arange(cells).reshape(-1, WIDTH)
        return room_YX[MARGIN:-MARGIN, MARGIN:-MARGIN].ravel()

    @property
    def state(self) -> tuple[Tensor, ...]:
        """What a step changes."""
        return self.time, self.board_BC, self.position_B, self.eaten_RB, self.succeeded_B

    def begin(self) -> np.ndarray:
        """Begin an episode in all instances: observations uint8 [B, *shape], on the host."""
        observations = [game.reset()[0] for game in self.games]
        drawn = [game.draw_ahead() for game in self.games]
        self.rooms_3BC.copy_(torch.from_numpy(np.concatenate([rooms_3BC for rooms_3BC, _ in drawn], 1)))
        self.entries_3B.copy_(torch.from_numpy(np.concatenate([entries_3B for _, entries_3B in drawn], 1)))
        self._read("apple_reward", self.apple_reward_B)
        for tensor in (self.time, self.eaten_RB, self.succeeded_B):
            tensor.zero_()
        self._enter(FIRST)
        return np.concatenate(observations)

    def kind(self, t: int) -> tuple[int, int]:
        """Step t of an episode (from 0) is in the first of these rooms, and shows the second."""
        gone = t + 1 - self.options.explore_steps
        before = FIRST if gone <= 0 else ORCHARD if gone <= self.options.length else LAST
        after = FIRST if gone < 0 else ORCHARD if gone < self.options.length else LAST
        return before, after

    def step(self, action_B: Tensor, kind: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Observations uint8 [B, D] and rewards float32 [B] of actions int64 [B], as `ThreeRooms.step` gives them."""
        before, after = kind
        self.time += 1
        target_B = self.position_B + self._moves_A[action_B]
        stopped_B = self._solid_256[self._at(target_B).long()]
        self.position_B.copy_(torch.where(stopped_B, self.position_B, target_B))
        reward_B = torch.zeros_like(self.apple_reward_B)
        if before == FIRST:
            self._explore()
        elif before == ORCHARD:
            reward_B = torch.where(self._eat(), self.apple_reward_B, reward_B)
        else:
            earned_B = self._decide()
            reward_B.masked_fill_(earned_B, np.float32(self.options.final_reward).item())
            if self.options.final_reward > 0:
                self.succeeded_B |= earned_B
        if after != before:
            self._enter(after)
        return self._observe(), reward_B

    def end(self) -> np.ndarray:
        """Tell the games where their episodes ended: whether each earned something in the last room, bool [B]."""
        known = {name: of_all_B.cpu().numpy() for name, of_all_B in self._told().items()}
        first = 0
        for game in self.games:
            state, own = game.get_state(), slice(first, first + game.num_envs)
            first = own.stop
            for name, of_all_B in known.items():
                state[name][:] = of_all_B[own]
            state["timestep"][:], state["ended"][:] = self.horizon, True
            game.set_state(state)
        return known["succeeded"]

    def _told(self) -> dict[str, Tensor]:
        """What the games keep, by their names of it, [B, ...] each."""
        return {
            "board": self.board_BC,
            "position": self.position_B,
            "eaten": self.eaten_RB.T,
            "succeeded": self.succeeded_B,
        }

    def _read(self, name: str, there_B: Tensor) -> None:
        """Bring what the games keep to the device."""
        there_B.copy_(torch.from_numpy(np.concatenate([game.get_state()[name] for game in self.games])))

    # ---- what a game writes

    def _explore(self) -> None:
        """What a step in the first room changes."""

    def _decide(self) -> Tensor:
        """What a step in the last room changes: which instances earn the final reward, bool [B]."""
        raise NotImplementedError

    # ---- shared by both

    def _at(self, cell_B: Tensor) -> Tensor:
        """The letters of one cell of each instance, uint8 [B]."""
        return self._cells[self._origin_B + cell_B]

    def _put(self, cell_B: Tensor, letter_B: Tensor) -> None:
        self._cells.scatter_(0, self._origin_B + cell_B, letter_B)

    def _enter(self, room: int) -> None:
        self.board_BC.copy_(self.rooms_3BC[room])
        self.position_B.copy_(self.entries_3B[room])

    def _eat(self) -> Tensor:
        """Eat, then let apples grow again: one that grows under the agent is eaten a step later. Where one was eaten, bool [B]."""
        on_B = self._at(self.position_B)
        eats_B = on_B == APPLE[0]
        self._put(self.position_B, on_B.masked_fill(eats_B, FLOOR[0]))
        if len(self.eaten_RB) > 1:
            slot_1 = (self.time - self.options.explore_steps) % len(self.eaten_RB)
            again_B = self.eaten_RB.index_select(0, slot_1)[0]  # 0, a cell behind the wall: nowhere
            self._put(again_B, self._at(again_B).masked_fill(again_B > 0, APPLE[0]))
            self.eaten_RB.index_copy_(0, slot_1, (self.position_B * eats_B)[None])
        return eats_B

    def _observe(self) -> Tensor:
        covered_B = self._at(self.position_B)
        # The agent stands in front of everything but a door.
        agent_B = torch.full_like(covered_B, AGENT[0])
        self._put(self.position_B, torch.where(covered_B == OPEN_DOOR[0], covered_B, agent_B))
        begin_B = self._origin_B + self.position_B if self.options.crop else self._origin_B
        letters_BK = self._cells[begin_B[:, None] + self._seen_K].long()
        self._put(self.position_B, covered_B)
        return self._color_2563[letters_BK].transpose(1, 2).reshape(self.rows, self.size)


class VisualMatchOnDevice(ThreeRoomsOnDevice):
    """`choices` are the letters that can be chosen, `cells_3` where they lie in the last room."""

    def __init__(self, games: Sequence[Any], choices: bytes, cells_3: np.ndarray, device: torch.device) -> None:
        super().__init__(games, device)
        self.color_B = torch.zeros(self.rows, dtype=torch.uint8, device=device)
        self._is_choice_256 = torch.from_numpy(np.isin(np.arange(256), list(choices))).to(device)
        self._cells_3 = torch.from_numpy(cells_3).to(device)

    def begin(self) -> np.ndarray:
        observations = super().begin()
        self._read("color", self.color_B)
        return observations

    def _decide(self) -> Tensor:
        on_B = self._at(self.position_B)
        chose_B1 = self._is_choice_256[on_B.long()][:, None]
        self.board_BC[:, self._cells_3] = self.board_BC[:, self._cells_3].masked_fill(chose_B1, FLOOR[0])
        return on_B == self.color_B


class KeyToDoorOnDevice(ThreeRoomsOnDevice):
    """`signal` is the cell that tells in one image that the key was taken."""

    def __init__(self, games: Sequence[Any], signal: int, device: torch.device) -> None:
        super().__init__(games, device)
        self.signal = signal
        self.has_key_B = torch.zeros(self.rows, dtype=torch.bool, device=device)

    @property
    def state(self) -> tuple[Tensor, ...]:
        return (*super().state, self.has_key_B)

    def begin(self) -> np.ndarray:
        self.has_key_B.zero_()
        return super().begin()

    def _told(self) -> dict[str, Tensor]:
        return super()._told() | {"has_key": self.has_key_B}

    def _explore(self) -> None:
        on_B = self._at(self.position_B)
        takes_B = on_B == KEY[0]
        self._put(self.position_B, on_B.masked_fill(takes_B, FLOOR[0]))
        self.has_key_B |= takes_B
        self.board_BC[:, self.signal] = torch.full_like(on_B, WALL[0]).masked_fill(takes_B, SIGNAL[0])

    def _enter(self, room: int) -> None:
        super()._enter(room)
        if room == LAST:
            opens_BC = (self.board_BC == SHUT_DOOR[0]) & self.has_key_B[:, None]
            self.board_BC.masked_fill_(opens_BC, OPEN_DOOR[0])

    def _decide(self) -> Tensor:
        opens_B = (self._at(self.position_B) == OPEN_DOOR[0]) & self.has_key_B
        self.has_key_B &= ~opens_B
        return opens_B
