"""What acting remembers where the last steps are encoded anew at each step (`slow_inference`, specification 3).

A ring of keys and values gives the same and costs far less while a rollout fits the context. Beyond it, keys of deeper
layers still hold what they read of forgotten steps; here nothing is left of them, as in a training window.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

import numpy as np
import torch
from torch import Tensor

from recollect.amago.network import Network
from recollect.amago.timestep_encoders import Steps
from recollect.artifacts.checkpoints import joined, part


class RecentSteps:
    """The last L time steps of B rows, each as the network reads it."""

    def __init__(self, network: Network, batch: int, length: int) -> None:
        self.network, self.length = network, length
        self.count_B = np.zeros(batch, np.int64)  # steps that are remembered
        self._kept: dict[str, Tensor] = {}  # [B, L, ...], oldest first

    def reset(self, mask_B: np.ndarray) -> None:
        self.count_B = np.where(mask_B, 0, self.count_B)

    @torch.no_grad()
    def state(self, steps: Steps) -> Tensor:
        """State [B, E] after one more time step [B, ...] per row."""
        full_B = torch.as_tensor(self.count_B == self.length)
        self.count_B = np.minimum(self.count_B + 1, self.length)
        rows = torch.arange(len(self.count_B))
        last_B = torch.as_tensor(self.count_B - 1)
        for field in fields(Steps):
            name, value = field.name, getattr(steps, field.name)
            if value is None:
                continue
            if name not in self._kept:
                self._kept[name] = value.new_zeros((len(value), self.length, *value.shape[1:]))
            kept = self._kept[name]
            kept[full_B, :-1] = kept[full_B, 1:]
            kept[rows, last_B] = value
        longest = int(self.count_B.max())
        seen = {name: kept[:, :longest] for name, kept in self._kept.items()}
        window = Steps(seen.get("vector"), seen["rl2"], seen["time"], seen.get("image"), seen.get("goals"))
        # Rows that remember less are padded on the right, which a causal encoder does not see.
        x_BLD = self.network.timestep_encoder(window)
        state: Tensor = self.network.trajectory_encoder(x_BLD, window.time)[rows, last_B]
        return state

    def arrays(self) -> dict[str, np.ndarray]:
        longest = int(self.count_B.max(initial=0))
        steps = {name: kept[:, :longest].cpu().numpy() for name, kept in self._kept.items()}
        return joined(steps=steps) | {"count": self.count_B.copy()}

    def load(self, arrays: Mapping[str, np.ndarray], device: torch.device) -> None:
        self.count_B, self._kept = np.array(arrays["count"]), {}
        for name, array in part(arrays, "steps").items():
            stored = torch.as_tensor(np.array(array)).to(device)
            kept = stored.new_zeros((len(stored), self.length, *stored.shape[2:]))
            kept[:, : stored.shape[1]] = stored
            self._kept[name] = kept
