"""Plain policies for `in_context`: one task, batch 1, the whole context encoded anew at every step.

They read a recorded run (observations, actions, rewards) and say what a policy would compute at a step of it, with
nothing kept between steps but the raw episodes (and, for RA-DT, the keys of its memory). The network is the same object
that our batched policies use, with the same fast kernels: what is compared is how it is used.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from recollect.radt.decision_transformer import DecisionTransformer, Experience
from recollect.radt.embedders import DomainSpecificEmbedder
from recollect.radt.memory_settings import MemorySettings
from recollect.radt.radt import Hyperparameters


@dataclass
class Trace:
    """A recorded run of B tasks: arrays [B, episodes, T, ...], and the target return of each episode."""

    observation: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    target: np.ndarray

    @classmethod
    def empty(cls, rows: int, episodes: int, horizon: int) -> Trace:
        """Room for a run."""
        shape = (rows, episodes, horizon)
        return cls(
            np.zeros((*shape, 2), np.int64), np.zeros(shape, np.int64), np.zeros(shape, np.float32), np.zeros(shape[:2])
        )


def episode(trace: Trace, row: int, number: int, steps: int, no_action: int, *, finished: bool) -> Experience:
    """The first steps of one episode, batch 1; of the last one, action and reward are unknown unless it is finished."""
    observation = torch.from_numpy(trace.observation[row, number, :steps])
    reward = torch.from_numpy(trace.reward[row, number, :steps].copy())
    action = torch.from_numpy(trace.action[row, number, :steps].copy())
    if finished:
        to_go = reward.flip(0).cumsum(0).flip(0)
    else:
        reward[-1], action[-1] = 0.0, no_action
        to_go = torch.full((steps,), float(trace.target[row, number])) - (reward.cumsum(0) - reward)
    return Experience(
        observation=observation[None],
        return_to_go=to_go[None],
        action=action[None],
        reward=reward[None],
        timestep=torch.arange(steps)[None],
        mask=torch.ones(1, steps, dtype=torch.bool),
    )


def joined(first: Experience, second: Experience) -> Experience:
    """Two windows, one behind the other."""
    fields = Experience.__dataclass_fields__
    return Experience(*(torch.cat([getattr(first, name), getattr(second, name)], 1) for name in fields))


def cut(window: Experience, first: int, end: int) -> Experience:
    """Some timesteps of a window."""
    return Experience(*(getattr(window, name)[:, first:end] for name in Experience.__dataclass_fields__))


class PlainDistillation:
    """AD: the last complete episode and the current one so far, all of it encoded at every step."""

    def __init__(self, network: DecisionTransformer, trace: Trace) -> None:
        self.network, self.trace, self.no_action = network, trace, network.settings.actions

    @torch.no_grad()
    def logits(self, row: int, number: int, step: int) -> Tensor:
        """Action logits [A] at a step of an episode after the first."""
        before = episode(self.trace, row, number - 1, self.trace.action.shape[2], self.no_action, finished=True)
        now = episode(self.trace, row, number, step + 1, self.no_action, finished=False)
        return self.network(joined(before, now))[0][0, -1]


class PlainRetrieval:
    """RA-DT: at every step embed the window, search the task's memory, read the best entry, encode everything.

    Args:
        network, embedder, chosen, memory: as of the policy that it stands beside.
        trace: the recorded run.
        number: the episode that is played; all before it are in the memory.
    """

    def __init__(
        self,
        network: DecisionTransformer,
        embedder: DomainSpecificEmbedder,
        chosen: Hyperparameters,
        memory: MemorySettings,
        trace: Trace,
        number: int,
    ) -> None:
        self.network, self.embedder, self.chosen, self.memory = network, embedder, chosen, memory
        self.trace, self.number, self.no_action = trace, number, network.settings.actions
        self.entries: dict[int, list[tuple[np.ndarray, float, Experience]]] = {}

    def fill(self, row: int) -> None:
        """Cut the task's earlier episodes into keys and values (not timed: it is done once per episode)."""
        memory, horizon = self.memory, self.trace.action.shape[2]
        self.entries[row] = []
        for number in range(self.number):
            whole = episode(self.trace, row, number, horizon, self.no_action, finished=True)
            for at in range(0, horizon, memory.stride):
                end = min(max(at, 2), horizon)
                key = self.embedder.keys(cut(whole, max(end - memory.key_context, 0), end))[0].double().numpy()
                value = cut(whole, max(at - memory.past, 0), min(at + memory.future, horizon))
                self.entries[row].append((key, float(self.trace.reward[row, number].sum()), value))

    def retrieved(self, row: int, window: Experience) -> Experience:
        """What is read: the best by similarity and return among the most similar."""
        entries, acting = self.entries[row], self.chosen.acting
        key = self.embedder.keys(window.last(self.memory.key_context))[0].double().numpy()
        similarity = np.array([entry[0] @ key for entry in entries])
        nearest = np.argsort(-similarity, kind="stable")[: acting.candidates]
        returns = np.array([entries[i][1] for i in nearest])
        score = acting.similarity_weight * spread(similarity[nearest]) + acting.return_weight * spread(returns)
        best = min(int(i) for i in nearest[score >= score.max() - 1e-6])
        return entries[best][2]

    @torch.no_grad()
    def logits(self, row: int, step: int) -> Tensor:
        """Action logits [A] at a step of the episode."""
        now = episode(self.trace, row, self.number, step + 1, self.no_action, finished=False)
        context = self.retrieved(row, now)
        return self.network(now.last(self.chosen.context), context, torch.ones(1, dtype=torch.bool))[0][0, -1]


def spread(values: np.ndarray) -> np.ndarray:
    """To [0, 1]; zeros where all are equal."""
    width = values.max() - values.min()
    return (values - values.min()) / width if width > 0 else np.zeros(len(values))
