"""Rounds and evaluations without a word between the GPU and the host within an episode.

The worlds are tensors there, as T-Mazes can be (`World.on_device`), and what exploration draws is drawn before the episode. So a
step is one CUDA graph: the network's (`acting_graph.acting_step`), the choice of an action, the world's, and a note of all that
happened. The host launches as many as an episode has, and reads the notes at the end. With actions and observations going to and
fro, a step of three seeds took the host of an H200 0.3 ms, of which it waited 0.1 for the GPU.

Of each seed are played the episodes that it would play by itself, but for rounding.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from recollect.common.cache import KeyValueCache
from recollect.common.rollout import Episodes
from recollect.common.transfer import sent
from recollect.memory_rl.acting_graph import StepGraphs, acting_step, slots_read
from recollect.memory_rl.history_policy import HistoryNetwork
from recollect.memory_rl.transformer_sequence import TransformerState


class WorldsOnDevice(Protocol):
    """Some worlds with the same options, one behind the other: B instances in all, in lockstep, as all episodes have T steps.

    Attributes:
        rows, horizon, size: B, T, and of an observation.
        time: int64 [1], steps of this episode so far.
        state: the tensors that a step changes.
    """

    rows: int
    horizon: int
    size: int
    time: Tensor

    @property
    def state(self) -> tuple[Tensor, ...]: ...

    def begin(self) -> np.ndarray:
        """Begin an episode in all instances: observations float32 [B, D], on the host."""

    def step(self, action_B: Tensor) -> tuple[Tensor, Tensor]:
        """Observations float32 [B, D] and rewards float32 [B] of actions int64 [B]; asks the host for nothing."""

    def end(self) -> None:
        """Tell the worlds where their episodes ended."""


def remembers_whole(network: Any, horizon: int) -> bool:
    """Whether a network's steps are functions of tensors for as long as an episode."""
    state = network.encoder.sequence.initial_state(1, "cpu")
    if isinstance(state, TransformerState):
        return state.recent_BLD is None and state.cache.length > horizon
    return state is None or isinstance(state, tuple)


class RoundsOnDevice:
    """Plays one episode in each instance of some worlds."""

    def __init__(self, network: HistoryNetwork, worlds: WorldsOnDevice, device: torch.device) -> None:
        self.network, self.device, self.worlds = network, device, worlds
        rows, T, size = worlds.rows, worlds.horizon, worlds.size
        embedder, state = network.encoder.embedder, network.encoder.sequence.initial_state(rows, device)
        self.none_B = embedder.no_action(rows, device)
        self.cache: KeyValueCache | None = None
        self.before: tuple[Tensor, ...] = state or () if not isinstance(state, TransformerState) else ()
        if isinstance(state, TransformerState):
            self.cache, self.before = state.cache, (state.cache.lengths_B,)
        self.token = self.none_B.clone(), torch.zeros(rows, device=device), torch.zeros(rows, size, device=device)
        # What is drawn beforehand, and what happens: of each step.
        self.drawn_TB = torch.full((T, rows), -1, dtype=torch.int64, device=device)  # -1: the greedy action
        self.action_TB = torch.zeros(T, rows, dtype=torch.int64, device=device)
        self.reward_TB = torch.zeros(T, rows, device=device)
        self.observation_TBD = torch.zeros(T, rows, size, device=device)
        self._graphs = StepGraphs(device)

    def play(self, drawn_TB: np.ndarray | None = None) -> Episodes:
        """One episode of each instance, in the network's mode.

        Args:
            drawn_TB: int64, actions that are taken in the place of the greedy ones; -1: none. None: all are greedy.
        """
        T, rows = self.drawn_TB.shape
        first_BD = self.worlds.begin()
        action_B, reward_B, observation_BD = self.token
        action_B.copy_(self.none_B)
        reward_B.zero_()
        observation_BD.copy_(sent(first_BD, self.device))
        for tensor in self.before:
            tensor.zero_()
        if drawn_TB is None:
            self.drawn_TB.fill_(-1)
        else:
            self.drawn_TB.copy_(sent(drawn_TB, self.device))
        changed = (*self.token, *self.before, *self.worlds.state)
        for t in range(T):
            end = 0 if self.cache is None else slots_read(t, self.cache)
            self._graphs.run((self.network.training, end), partial(self._step, end), changed)
        terminal_BT = np.zeros((rows, T), np.uint8)
        terminal_BT[:, -1] = 1
        rest_TBD = self.observation_TBD.cpu().numpy()  # here the host waits
        action_BT, reward_BT = (table.cpu().numpy().T.copy() for table in (self.action_TB, self.reward_TB))
        self.worlds.end()
        observation_BTD = np.concatenate([first_BD[:, None], rest_TBD.swapaxes(0, 1)], 1)
        return Episodes(
            observation_BTD, action_BT, reward_BT, terminal_BT, np.full(rows, T, np.int64), np.full(rows, np.nan)
        )

    @torch.no_grad()
    def _step(self, end: int) -> None:
        """A step of all instances: a function of tensors that stay where they are, which asks the host for nothing."""
        t = self.worlds.time.clone()
        greedy_B = acting_step(self.network, self.token, self.before, self.cache, end).argmax(-1)
        drawn_B = self.drawn_TB.index_select(0, t)[0]
        action_B = torch.where(drawn_B < 0, greedy_B, drawn_B)
        observation_BD, reward_B = self.worlds.step(action_B)
        happened = (action_B, reward_B, observation_BD)
        tables = (self.action_TB, self.reward_TB, self.observation_TBD)
        for own, table, one in zip(self.token, tables, happened, strict=True):
            own.copy_(one)
            table.index_copy_(0, t, one[None])
