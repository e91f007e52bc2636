"""A replay of whole episodes that lives on the training device, and windows of it with masks.

Layout (Memory-RL's "efficient" buffer): a ring of steps, one byte-compact row each. An episode of length l takes l + 1
rows; row k holds observation o_k and the action, reward and terminal flag of the transition that leaves it. The extra
last row holds the final observation (action 0, reward 0, terminal). Observations are stored once: uint8 where the
environment says so, else float32. That is 22 MB per million steps of a T-Maze, so the whole replay fits on any GPU, and
drawing a batch moves only the start rows to the device.

A window starts at one of the first max(1, l - n + 1) rows of an episode; all these starts of all stored episodes are
equally likely (with n = l: uniform over episodes, with replacement). What lies past the episode's end is masked.
An episode is forgotten as soon as one of its rows is overwritten; with n < l the released one still draws what is left.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from recollect.memory_rl.stored_episodes import StoredEpisodes
from recollect.settings.errors import UserError
from recollect.settings.seeding import generator

STORES = ("observation", "action", "reward", "terminal")


@dataclass(frozen=True)
class Batch:
    """Windows of n transitions; B windows.

    Attributes:
        observation_BTD: [B, n + 1, D], o_0 .. o_n of the window, in the stored dtype.
        action_BT: int64 [B, n], or float32 [B, n, A], the action taken at o_k.
        reward_BT: float32 [B, n], what followed it.
        terminal_BT: float32 [B, n], 1 where nothing follows (no bootstrapping).
        mask_BT: float32 [B, n], 0 past the end of the episode.
    """

    observation_BTD: Tensor
    action_BT: Tensor
    reward_BT: Tensor
    terminal_BT: Tensor
    mask_BT: Tensor


class EpisodeReplay:
    """Ring of whole episodes.

    Args:
        capacity: rows (an episode of length l takes l + 1).
        observation_dtype: numpy dtype of the environment's observations; uint8 stays uint8, all else becomes float32.

    Raises:
        UserError: the capacity holds not even one step.
    """

    def __init__(
        self,
        capacity: int,
        observation_width: int,
        observation_dtype: np.dtype | type,
        device: torch.device | str,
        *,
        action_size: int = 0,
    ) -> None:
        if capacity < 2:
            raise UserError(
                f"a replay of {capacity} rows holds no episode",
                where="replay_transitions",
                do="raise replay_transitions",
            )
        self.capacity = capacity
        self.device = torch.device(device)
        compact = torch.uint8 if np.dtype(observation_dtype) == np.uint8 else torch.float32
        self.observation = torch.zeros(capacity, observation_width, dtype=compact, device=self.device)
        kept = torch.zeros(capacity, action_size) if action_size else torch.zeros(capacity, dtype=torch.int16)
        self.action = kept.to(self.device)
        self.reward = torch.zeros(capacity, dtype=torch.float32, device=self.device)
        self.terminal = torch.zeros(capacity, dtype=torch.uint8, device=self.device)
        self._next_row = 0
        self._written = 0  # rows that were ever written
        self._stored = StoredEpisodes()

    def add(
        self,
        observation_BTD: np.ndarray,
        action_BT: np.ndarray,
        reward_BT: np.ndarray,
        terminal_BT: np.ndarray,
        length_B: np.ndarray,
    ) -> None:
        """Store B episodes of at most T transitions: observations [B, T + 1, D], the rest [B, T], lengths [B].

        Raises:
            UserError: an episode does not fit into the replay.
        """
        length_B = np.asarray(length_B, np.int64)
        if int(length_B.max(initial=0)) + 1 > self.capacity:
            raise UserError(
                f"an episode of {int(length_B.max())} steps does not fit into a replay of {self.capacity} rows",
                where="replay_transitions",
                do="raise replay_transitions (or replay_episodes) in the method's hyperparameters",
            )
        done = 0
        while done < len(length_B):  # as many episodes at once as the ring can hold without overlapping themselves
            rows_until = np.cumsum(length_B[done:] + 1)
            some = max(1, int(np.searchsorted(rows_until, self.capacity, side="right")))
            now = slice(done, done + some)
            self._add(observation_BTD[now], action_BT[now], reward_BT[now], terminal_BT[now], length_B[now])
            done += some

    def _add(
        self, observation: np.ndarray, action: np.ndarray, reward: np.ndarray, terminal: np.ndarray, length: np.ndarray
    ) -> None:
        slots = length + 1
        offsets = np.concatenate([[0], np.cumsum(slots)])
        total = int(offsets[-1])
        first = self._next_row
        # (episode, time) of every written row; the last row of an episode keeps only the final observation
        episode = np.repeat(np.arange(len(length)), slots)
        time = np.arange(total) - offsets[episode]
        last = time == length[episode]
        within = np.minimum(time, action.shape[1] - 1)
        until_turn = min(total, self.capacity - first)  # where the ring begins anew

        def put(store: Tensor, values: np.ndarray) -> None:
            given = torch.as_tensor(values)
            store[first : first + until_turn] = given[:until_turn]
            store[: total - until_turn] = given[until_turn:]

        put(self.observation, observation[episode, time])
        taken = action[episode, within]
        taken[last] = 0
        put(self.action, taken)
        put(self.reward, np.where(last, 0.0, reward[episode, within]).astype(np.float32))
        put(self.terminal, np.where(last, 1, terminal[episode, within]).astype(np.uint8))

        # Rows are written in ring order, so what is overwritten is always a run of the oldest episodes.
        starts, gone = self._stored.starts, 0
        while gone < len(starts) and (starts[gone] - first) % self.capacity < total:
            gone += 1
        self._stored.drop(gone)
        self._stored.add((first + offsets[:-1]) % self.capacity, length)
        self._written = max(self._written, min(self.capacity, first + total))
        self._next_row = (first + total) % self.capacity

    def draw(self, windows: int, n: int, *, seed: int, counter: int) -> tuple[np.ndarray, np.ndarray]:
        """Start rows [B] and remaining transitions [B] of random windows: a function of contents, seed, counter."""
        if not len(self._stored):
            raise UserError("no episode to draw from", where="replay", do="collect episodes before training")
        until_E, before = self._stored.windows(n)
        choice = before + generator("replay", seed, counter).integers(int(until_E[-1]) - before, size=windows)
        episode = np.searchsorted(until_E, choice, side="right")
        offset = choice - np.where(episode > 0, until_E[episode - 1], before)
        start_B = (self._stored.starts[episode] + offset) % self.capacity
        return start_B, self._stored.lengths[episode] - offset

    def sample(self, windows: int, n: int, *, seed: int, counter: int) -> Batch:
        """Random windows of n transitions (n + 1 observations), gathered on the device."""
        both_2B = np.stack(self.draw(windows, n, seed=seed, counter=counter))
        # One copy to the device, which does not wait for it.
        return self.gather(torch.as_tensor(both_2B).to(self.device, non_blocking=True), n)

    def gather(self, both_2B: Tensor, n: int, first_row_B1: Tensor | None = None) -> Batch:
        """The windows that `draw` chose, on the device.

        Args:
            both_2B: int64, start rows and remaining transitions.
            first_row_B1: of the ring that each window is from, where rings stand one behind the other.
        """
        offsets = torch.arange(n + 1, device=self.device)
        rows_BT = (both_2B[0, :, None] + offsets) % self.capacity
        if first_row_B1 is not None:
            rows_BT = rows_BT + first_row_B1
        transitions_BT = rows_BT[:, :-1]
        action_BT = self.action[transitions_BT]
        return Batch(
            observation_BTD=self.observation[rows_BT],
            action_BT=action_BT if action_BT.is_floating_point() else action_BT.long(),
            reward_BT=self.reward[transitions_BT],
            terminal_BT=self.terminal[transitions_BT].float(),
            mask_BT=(offsets[:-1] < both_2B[1, :, None]).float(),
        )

    def arrays(self) -> dict[str, np.ndarray]:
        """All that `load` needs; rows never written are left out."""
        arrays = {"start": self._stored.starts.copy(), "length": self._stored.lengths.copy()}
        arrays["next_row"] = np.asarray([self._next_row], np.int64)
        for name in STORES:
            store: Tensor = getattr(self, name)
            arrays[name] = store[: self._written].cpu().numpy()
        return arrays

    def load(self, arrays: dict[str, np.ndarray]) -> None:
        self._written = len(arrays["action"])
        for name in STORES:
            store: Tensor = getattr(self, name)
            store.zero_()
            store[: self._written] = torch.as_tensor(np.array(arrays[name])).to(self.device)
        self._stored = StoredEpisodes(np.array(arrays["start"]), np.array(arrays["length"]))
        self._next_row = int(arrays["next_row"][0])
