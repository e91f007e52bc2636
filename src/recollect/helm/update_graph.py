"""Updates of PPO on a GPU as one CUDA graph: about a hundred and forty small kernels of a minibatch, launched at once.

All minibatches of a run are of one size. So one graph, captured at the fourth, is replayed for all that follow. What the host
gives it is copied to where it reads: the moments of a rollout once, and of each minibatch which moments are chosen. What
schedules change (step size, clip, weight of the entropy bonus) are scalars on the device, in float32. Weights and Adam's state
are changed where they are, and a checkpoint is loaded to there, so a graph goes on from it.

LSTM-PPO has none: its minibatches are pieces of episodes, of as many moments as they happen to have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import torch
from torch import Tensor

from recollect.common.cuda_graphs import Captured
from recollect.common.distinct_images import DistinctImages
from recollect.common.optimiser import Adam
from recollect.helm.sampled_policy import Agent

Update = Callable[[Tensor, Tensor, Tensor, Mapping[str, Tensor], Tensor, Tensor], dict[str, Tensor]]
"""(chosen moments, their log-probabilities and values, all moments, clip, entropy) -> metrics: one step of the optimiser."""


class UpdateGraph:
    """Makes the updates of an agent on a GPU whose minibatches are `graphable`; never waits for the device.

    Where a graph cannot be captured, one warning says so, and updates are made on the same tensors without.

    Args:
        optimiser: of the agent's network; its step size becomes a tensor.
        update: a function of tensors that asks the device for no number.
        batches: minibatches of a pass over a rollout.

    Attributes:
        minibatch: what is one graph; see `Captured`.
    """

    def __init__(self, agent: Agent, optimiser: Adam, update: Update, batches: int) -> None:
        self.agent, self.optimiser, self.update, self.batches = agent, optimiser, update, batches
        self._rate, self._clip, self._entropy = (torch.zeros((), device=agent.device) for _ in range(3))
        optimiser.rate = self._rate
        self.minibatch = Captured(self._minibatch, "updates are made without CUDA graphs")
        self._moments: dict[str, Tensor] = {}
        self._chosen_M = torch.zeros(0, dtype=torch.int64)
        self._names: tuple[str, ...] = ()
        self._sums_K = torch.zeros(0)  # float64, of the metrics of these names

    def learn(
        self, moments: Mapping[str, Tensor], passes: Iterable[np.random.Generator], *, clip: float, entropy: float
    ) -> dict[str, Tensor]:
        """Learn from a rollout, with the step size that the optimiser has.

        Args:
            moments: [T * E, ...] each, on the device.
            passes: for each pass, what draws the order of its moments.

        Returns:
            the sum of each metric over all minibatches, scalars float64 on the device, which no later call changes.
        """
        self._take(moments)
        self._clip.fill_(clip)
        self._entropy.fill_(entropy)
        self._sums_K.zero_()
        for draws in passes:
            for chosen_M in self.agent.order(len(moments["action"]), self.batches, draws):
                self._chosen_M.copy_(chosen_M)
                self.minibatch()
        return dict(zip(self._names, self._sums_K.clone().unbind(), strict=True))

    def _take(self, moments: Mapping[str, Tensor]) -> None:
        """Copy a rollout to where the graph reads it."""
        if not self._moments:
            self._moments = {name: torch.empty_like(value) for name, value in moments.items()}
            size = len(moments["action"]) // self.batches
            self._chosen_M = torch.zeros(size, dtype=torch.int64, device=self.agent.device)
        for name, value in moments.items():
            self._moments[name].copy_(value)

    def _minibatch(self) -> None:
        """One update: a function of tensors that stay where they are."""
        images = DistinctImages(self._moments["image"])
        log_MA, value_M = self.agent.judged(images, self._moments, self._chosen_M)
        metrics = self.update(self._chosen_M, log_MA, value_M, self._moments, self._clip, self._entropy)
        metrics |= {"learning_rate": self._rate, "ent_coef": self._entropy, "clip_range": self._clip}
        if not self._names:
            self._names = tuple(metrics)
            self._sums_K = torch.zeros(len(metrics), dtype=torch.float64, device=self.agent.device)
        self._sums_K.add_(torch.stack(list(metrics.values())))
