"""Updates of PPO on a GPU as CUDA graphs: about a hundred and forty small kernels of a minibatch, launched at once.

Minibatches of a run have one size, LSTM-PPO's pieces of episodes one of four. A graph of each, captured at the fourth, is replayed
for all that follow. What the host gives it is copied to where it reads: the moments of a rollout once, and of each minibatch
which moments are chosen. What schedules change (step size, clip, weight of the entropy bonus) are float32 scalars on the device.
Weights and Adam's state are changed where they are, and a checkpoint is loaded to there, so a graph goes on from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from recollect.common.distinct_images import DistinctImages
from recollect.common.masked_mean import Kept
from recollect.common.optimiser import Adam
from recollect.helm.graphs_by_shape import GraphsByShape
from recollect.helm.sampled_policy import Agent, Minibatch

Update = Callable[[Tensor, Tensor, Tensor, Mapping[str, Tensor], Tensor, Tensor, Kept], dict[str, Tensor]]
"""(chosen moments, their log-probabilities and values, all moments, clip, entropy, which of the chosen count) -> metrics: one
step of the optimiser."""


class Learned(NamedTuple):
    sums: dict[str, Tensor]
    """Of each metric over all minibatches, scalars float64 on the device, which no later call changes."""
    minibatches: int


class UpdateGraph:
    """Makes the updates of an agent on a GPU; never waits for the device.

    Where a graph cannot be captured, one warning says so, and updates are made on the same tensors without.

    Args:
        optimiser: of the agent's network; its step size becomes a tensor.
        update: a function of tensors that asks the device for no number.
        batches: minibatches of a pass over a rollout, where the agent does not choose them itself.

    Attributes:
        minibatch: what becomes graphs.
    """

    def __init__(self, agent: Agent, optimiser: Adam, update: Update, batches: int) -> None:
        self.agent, self.optimiser, self.update, self.batches = agent, optimiser, update, batches
        self._rate, self._clip, self._entropy = (torch.zeros((), device=agent.device) for _ in range(3))
        optimiser.rate = self._rate
        self.minibatch = GraphsByShape(self._minibatch, "updates are made without CUDA graphs")
        self._moments: dict[str, Tensor] = {}
        self._names: tuple[str, ...] = ()
        self._sums_K = torch.zeros(0)  # float64, of the metrics of these names

    def learn(
        self,
        moments: Mapping[str, Tensor],
        done_TE: np.ndarray,
        passes: Iterable[np.random.Generator],
        *,
        clip: float,
        entropy: float,
    ) -> Learned:
        """Learn from a rollout, with the step size that the optimiser has.

        Args:
            moments: [T * E, ...] each, on the device.
            done_TE: where episodes ended.
            passes: for each pass, what draws the order of its moments.
        """
        self._take(moments)
        self._clip.fill_(clip)
        self._entropy.fill_(entropy)
        self._sums_K.zero_()
        made = 0
        for draws in passes:
            for minibatch in self.agent.minibatches(done_TE, self.batches, draws):
                self.minibatch(*(tensor for tensor in minibatch if tensor is not None))
                made += 1
        return Learned(dict(zip(self._names, self._sums_K.clone().unbind(), strict=True)), made)

    def _take(self, moments: Mapping[str, Tensor]) -> None:
        """Copy a rollout to where the graph reads it."""
        if not self._moments:
            self._moments = {name: torch.empty_like(value) for name, value in moments.items()}
        for name, value in moments.items():
            self._moments[name].copy_(value)

    def _minibatch(self, *tensors: Tensor) -> None:
        """One update: a function of tensors that stay where they are."""
        minibatch = Minibatch(*tensors)
        images = DistinctImages(self._moments["image"])
        log_MA, value_M = self.agent.of_minibatch(images, self._moments, minibatch)
        kept = Kept(None if minibatch.there is None else minibatch.there.flatten())
        chosen_M = minibatch.moment.flatten()
        metrics = self.update(chosen_M, log_MA, value_M, self._moments, self._clip, self._entropy, kept)
        metrics |= {"learning_rate": self._rate, "ent_coef": self._entropy, "clip_range": self._clip}
        if not self._names:
            self._names = tuple(metrics)
            self._sums_K = torch.zeros(len(metrics), dtype=torch.float64, device=self.agent.device)
        self._sums_K.add_(torch.stack(list(metrics.values())))
