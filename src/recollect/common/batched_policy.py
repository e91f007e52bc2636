"""What every batched policy keeps of its rows: their seeds, how much they have drawn, and which of them begin anew."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from recollect.common.draws import ACTION_STREAM, uniform


class BatchedPolicy(ABC):
    """Plays B rows at once, see `contract.Policy`. A subclass says what it remembers and how it acts.

    Attributes:
        seeds_B: uint64. What a row draws is a function of its own seed and of how often it has drawn.
        draws_B: uint64, how many actions each row has drawn.
        fresh_B: bool, the rows that have not acted since they were started or reset.
        horizon, episodes: see `start`.
        rows_at_once: how many episodes an episodic evaluation plays side by side; None: all. What a network makes of a row
            can differ in the last bit with the rows beside it, so only settings may say this.
    """

    rows_at_once: int | None = None

    seeds_B: np.ndarray
    draws_B: np.ndarray
    fresh_B: np.ndarray
    horizon: int
    episodes: int

    def start(self, seeds_B: np.ndarray, horizon: int = 0, episodes: int = 1) -> None:
        rows = len(seeds_B)
        self.seeds_B = np.asarray(seeds_B, np.uint64)
        self.draws_B = np.zeros(rows, np.uint64)
        self.fresh_B = np.ones(rows, bool)
        self.horizon, self.episodes = horizon, episodes
        self.begin(rows)

    def reset(self, mask_B: np.ndarray) -> None:
        mask_B = np.asarray(mask_B, bool)
        if mask_B.any():
            self.fresh_B = self.fresh_B | mask_B
            self.forget(mask_B)

    def next_step(self, done_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Every row takes one more step; from now on none is fresh.

        Returns:
            The rows whose last episode ended just before, and the rows that begin an episode: these, and the fresh ones.
        """
        ended_B = np.asarray(done_B, bool) & ~self.fresh_B
        begun_B = ended_B | self.fresh_B
        self.fresh_B = np.zeros_like(self.fresh_B)
        return ended_B, begun_B

    def action_chances(self, numbers: int = 1) -> np.ndarray:
        """Numbers in (0, 1) from which each row's next action is drawn, float64 [B, numbers]."""
        first_B = self.draws_B * np.uint64(numbers)
        columns = [uniform(self.seeds_B, first_B + np.uint64(n), ACTION_STREAM) for n in range(numbers)]
        self.draws_B = self.draws_B + np.uint64(1)
        return np.stack(columns, 1)

    @abstractmethod
    def begin(self, rows: int) -> None:
        """Make room for rows that remember nothing."""

    @abstractmethod
    def forget(self, mask_B: np.ndarray) -> None:
        """Drop what is remembered of the rows of the mask."""

    @abstractmethod
    def act(self, observation_BD: np.ndarray, reward_B: np.ndarray, done_B: np.ndarray) -> np.ndarray:
        """See `contract.Policy.act`."""

    @abstractmethod
    def arrays(self) -> dict[str, np.ndarray]:
        """See `contract.Policy.arrays`."""
