"""Worlds that a package plays: one of its environments per instance, stepped one after the other.

An episode is a function of its task, one random word and the actions, which therefore are the state: `set_state` plays
them again, without looking, and needs to know nothing of an environment's inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from recollect.environments.base import BaseWorld, Outcome


class Player(Protocol):
    """One environment. The same word and actions must give the same episode, whatever was played before."""

    def begin(self, word: int) -> None:
        """Start an episode whose random draws follow from the word."""

    def step(self, action: Any) -> tuple[float, bool]:
        """Reward, and whether the episode ended by itself."""

    def look(self) -> np.ndarray:
        """What is seen now, [D]. It may be asked for several times or never: that changes neither it nor the episode."""


class ReplayedWorld(BaseWorld):
    """A world's `_setup` ends with `_play`.

    Where episodes end, ``info["success"]`` (bool [B]) says which of them ended by themselves, with a reward at their end.
    Where that is no success, a world sets `knows_success` to False, and there is none.
    What is seen of an instance that was never reset is the episode of the word 0.
    """

    knows_success: bool = True

    players: list[Any]

    def _play(self, players: Sequence[Player]) -> None:
        """Take the players, one per task; horizon and spaces must be set."""
        self.players = list(players)
        acts = self.single_action_space
        self._word_B = self._keep_zeros("word", np.int64)
        self._action_BT = self._keep_zeros("actions", acts.dtype, self.horizon, *(acts.shape or ()))
        for player in self.players:
            player.begin(0)

    def set_state(self, state: Any) -> None:
        """Continue where `get_state` was called: the present episodes are played again."""
        super().set_state(state)
        for b, player in enumerate(self.players):
            player.begin(int(self._word_B[b]))
            for action in self._action_BT[b, : self._timestep_B[b]]:
                player.step(action)

    def _begin(self, index_N: np.ndarray) -> None:
        self._word_B[index_N] = self._words(index_N)
        for b in index_N:
            self.players[b].begin(int(self._word_B[b]))

    def _words(self, index_N: np.ndarray) -> np.ndarray:
        return self._draw_integers(index_N, 2**31)

    def _advance(self, actions_B: np.ndarray, last_B: np.ndarray | None) -> Outcome:
        self._action_BT[self._row_B, self._timestep_B - 1] = actions_B
        actions = actions_B.tolist() if actions_B.ndim == 1 else actions_B
        outcomes = [player.step(action) for player, action in zip(self.players, actions, strict=True)]
        rewards, over = zip(*outcomes, strict=True)
        rewards_B, over_B = np.array(rewards, np.float32), np.array(over, bool)
        if self.knows_success:
            self._success_B = over_B & (rewards_B > 0)
        return rewards_B, over_B

    def picture(self, b: int) -> Any:
        """That of its player, if it has a method `render`."""
        render = getattr(self.players[b], "render", None)
        return None if render is None else render()

    def _observe(self) -> np.ndarray:
        return np.stack([player.look() for player in self.players])
