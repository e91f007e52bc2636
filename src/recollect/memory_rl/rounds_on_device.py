"""Rounds and evaluations without a word between the GPU and the host within an episode.

The worlds are tensors there, as T-Mazes and the room games can be (`World.on_device`), and what exploration draws is drawn before
the episode. So a step is one CUDA graph: the network's (`acting_graph.acting_step`), the choice of an action, the world's, and a
note of all that happened. The host launches as many as an episode has, and reads the notes at the end. With actions and
observations going to and fro, a step of three seeds took the host of an H200 0.3 ms, of which it waited 0.1 for the GPU.

Of each seed are played the episodes that it would play by itself, but for rounding.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from recollect.common.cache import KeyValueCache
from recollect.common.rollout import Episodes
from recollect.common.step_graphs import StepGraphs
from recollect.common.transfer import sent
from recollect.memory_rl.acting_graph import acting_step, slots_read
from recollect.memory_rl.history_policy import HistoryNetwork
from recollect.memory_rl.learner import Learner
from recollect.memory_rl.transformer_sequence import TransformerState


class WorldsOnDevice(Protocol):
    """Some worlds with the same options, one behind the other: B instances in all, in lockstep, as all episodes have T steps.

    Attributes:
        rows, horizon, size: B, T, and of an observation, as a vector.
        observation_dtype: of its numbers.
        time: int64 [1], steps of this episode so far.
        state: the tensors that a step changes.
    """

    rows: int
    horizon: int
    size: int
    observation_dtype: torch.dtype
    time: Tensor

    @property
    def state(self) -> tuple[Tensor, ...]: ...

    def begin(self) -> np.ndarray:
        """Begin an episode in all instances: observations [B, ...], on the host."""

    def kind(self, t: int) -> Hashable:
        """Of step t (from 0): what the host knows of it. Steps of one kind are one function of tensors."""

    def step(self, action_B: Tensor, kind: Any) -> tuple[Tensor, Tensor]:
        """Observations [B, D] and rewards float32 [B] of actions int64 [B]; asks the host for nothing."""

    def end(self) -> np.ndarray | None:
        """Tell the worlds where their episodes ended: their success, bool [B]. None: they say nothing of it."""


def remembers_whole(network: Any, horizon: int) -> bool:
    """Whether a network's steps are functions of tensors for as long as an episode."""
    state = network.encoder.sequence.initial_state(1, "cpu")
    if isinstance(state, TransformerState):
        return state.recent_BLD is None and state.cache.length > horizon
    return state is None or isinstance(state, tuple)


class RoundsOnDevice:
    """Plays one episode in each instance of some worlds.

    Args:
        explores: whose behaviour policy chooses the actions (`Learner.explored`); None: all are greedy.
    """

    def __init__(
        self, network: HistoryNetwork, worlds: WorldsOnDevice, device: torch.device, explores: Learner | None = None
    ) -> None:
        self.network, self.device, self.worlds, self.explores = network, device, worlds, explores
        rows, T, size = worlds.rows, worlds.horizon, worlds.size
        embedder, state = network.encoder.embedder, network.encoder.sequence.initial_state(rows, device)
        self.none_B = embedder.no_action(rows, device)
        self.cache: KeyValueCache | None = None
        self.before: tuple[Tensor, ...] = state or () if not isinstance(state, TransformerState) else ()
        if isinstance(state, TransformerState):
            self.cache, self.before = state.cache, (state.cache.lengths_B,)
        # What is drawn beforehand, and what happens: of each step.
        self.drawn_TB: Tensor | None = None
        self.action_TB = torch.zeros(T, rows, dtype=torch.int64, device=device)
        self.reward_TB = torch.zeros(T, rows, device=device)
        self.observation_TBD = torch.zeros(T, rows, size, dtype=worlds.observation_dtype, device=device)
        self.token = self.none_B.clone(), torch.zeros(rows, device=device), torch.zeros_like(self.observation_TBD[0])
        self._graphs = StepGraphs(device)

    def play(self, drawn_TB: np.ndarray | None = None) -> Episodes:
        """One episode of each instance, in the network's mode.

        Args:
            drawn_TB: what exploration draws (`Learner.drawn_before`), where it chooses the actions.
        """
        assert (drawn_TB is None) == (self.explores is None)
        T, rows = self.action_TB.shape
        first_BD = self.worlds.begin()
        action_B, reward_B, observation_BD = self.token
        action_B.copy_(self.none_B)
        reward_B.zero_()
        observation_BD.copy_(sent(first_BD.reshape(rows, -1), self.device))
        for tensor in self.before:
            tensor.zero_()
        if drawn_TB is not None:
            if self.drawn_TB is None:
                self.drawn_TB = torch.empty(drawn_TB.shape, dtype=torch.from_numpy(drawn_TB).dtype, device=self.device)
            self.drawn_TB.copy_(sent(drawn_TB, self.device))
        changed = (*self.token, *self.before, *self.worlds.state)
        for t in range(T):
            end, kind = 0 if self.cache is None else slots_read(t, self.cache), self.worlds.kind(t)
            self._graphs.run((self.network.training, end, kind), partial(self._step, end, kind), changed)
        terminal_BT = np.zeros((rows, T), np.uint8)
        terminal_BT[:, -1] = 1
        rest_TBD = self.observation_TBD.cpu().numpy()  # here the host waits
        action_BT, reward_BT = (table.cpu().numpy().T.copy() for table in (self.action_TB, self.reward_TB))
        success_B = self.worlds.end()
        rest_BTD = rest_TBD.swapaxes(0, 1).reshape(rows, T, *first_BD.shape[1:])
        return Episodes(
            np.concatenate([first_BD[:, None], rest_BTD], 1),
            action_BT,
            reward_BT,
            terminal_BT,
            np.full(rows, T, np.int64),
            np.full(rows, np.nan) if success_B is None else success_B.astype(np.float64),
        )

    @torch.no_grad()
    def _step(self, end: int, kind: Any) -> None:
        """A step of all instances: a function of tensors that stay where they are, which asks the host for nothing."""
        t = self.worlds.time.clone()
        outputs_BA = acting_step(self.network, self.token, self.before, self.cache, end)
        if self.explores is None or self.drawn_TB is None:
            action_B = self.network.greedy(outputs_BA)
        else:
            action_B = self.explores.explored(outputs_BA, self.drawn_TB.index_select(0, t)[0])
        observation_BD, reward_B = self.worlds.step(action_B, kind)
        happened = (action_B, reward_B, observation_BD)
        tables = (self.action_TB, self.reward_TB, self.observation_TBD)
        for own, table, one in zip(self.token, tables, happened, strict=True):
            own.copy_(one)
            table.index_copy_(0, t, one[None])
