"""One step of acting as CUDA graphs: about a hundred small kernels, launched at once.

`acting_step` is what a graph holds: a plain function of tensors that stay where they are, of fixed shapes, which asks the
host for nothing. Rows may stand at different steps. A graph reads a fixed number of the ring's slots, so there is one per
power of two up to the ring's length, captured when it is first needed; a rollout of 10,000 steps needs nine.

On a CPU the same function can be called as it is (tests do), and equals `TransformerEncoder.step` up to the order of sums.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from recollect.amago.network import Network
from recollect.amago.ring_cache import RingCache
from recollect.amago.sigma_reparam import SigmaLinear
from recollect.amago.timestep_encoders import Steps
from recollect.amago.trajectory_encoders import TransformerEncoder
from recollect.common.step_graphs import StepGraphs

NEAR = 1e-3  # how far what a graph gives may be from what the function gives


@torch.no_grad()
def acting_step(network: Network, steps: Steps, count_B: Tensor, state: RingCache, read: int) -> Tensor:
    """The raw outputs [B, P] of the actor that acts, after one more time step per row.

    It may be called again with the same arguments, which gives the same: it writes to the slots of these tokens, and
    counts nothing.

    Args:
        steps: [B, ...] each.
        count_B: int64, how many tokens each row has before.
        read: `state.reach()`.
    """
    place = state.place_of(count_B, read)
    x_BD = network.timestep_encoder(steps)
    encoder = network.trajectory_encoder
    assert isinstance(encoder, TransformerEncoder)
    state_BE = encoder.step_at(place, x_BD, count_B, state)
    raw: Tensor = network.actor(state_BE)[:, -1]
    return raw


class ActingGraph:
    """Steps a network whose trajectory encoder is a Transformer, with the rows of `state`, in graphs."""

    def __init__(self, network: Network, state: RingCache, device: torch.device) -> None:
        self.network, self.state, self.device = network, state, device
        self._count_B = torch.zeros(len(state.count_B), dtype=torch.int64, device=device)
        self._steps: Steps | None = None
        self._weights = [module for module in network.modules() if isinstance(module, SigmaLinear)]
        self._graphs = StepGraphs(device, near=NEAR)

    def __call__(self, steps: Steps) -> Tensor:
        """Raw outputs [B, P] on the CPU; the state counts a token per row. `steps`: on the CPU."""
        read = self.state.reach()
        self._fill(steps)
        for module in self._weights:
            module.effective()  # outside of the graph, which reads what is computed here
        raw_BP = self._graphs.run(read, partial(self._step, read)).cpu()
        self.state.count_B = self.state.count_B + 1
        return raw_BP

    def _fill(self, steps: Steps) -> None:
        """Copy what a step begins with to where graphs read it."""
        if self._steps is None:
            own: dict[str, Any] = {}
            for name, value in vars(steps).items():
                own[name] = None if value is None else torch.empty_like(value, device=self.device)
            self._steps = Steps(**own)
        for name, value in vars(steps).items():
            if value is not None:
                getattr(self._steps, name).copy_(value, non_blocking=True)
        self._count_B.copy_(torch.as_tensor(self.state.count_B), non_blocking=True)

    def _step(self, read: int) -> Tensor:
        assert self._steps is not None
        return acting_step(self.network, self._steps, self._count_B, self.state, read)
