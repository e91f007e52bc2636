"""The episodes that have been played: what the entries of the test-time memory point into."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from recollect.common.acting_state import Device
from recollect.settings.errors import UserError


class EpisodeLog:
    """The episodes of E owners, as tensors [E, episodes, T, ...]: the rows of an evaluation, then tasks with demonstrations.

    Args:
        fields: name -> (shape of one step, dtype), e.g. ``{"observation": ((2,), torch.float32)}``.
    """

    def __init__(
        self,
        fields: Mapping[str, tuple[tuple[int, ...], torch.dtype]],
        tasks: int,
        episodes: int,
        horizon: int,
        device: str | torch.device = "cpu",
    ) -> None:
        self.fields = {}
        for name, (shape, dtype) in fields.items():
            self.fields[name] = torch.zeros((tasks, episodes, horizon, *shape), dtype=dtype, device=device)
        self.episodes = episodes
        self.horizon = horizon
        self.count_E = torch.zeros(tasks, dtype=torch.long, device=device)

    def reset(self, mask_E: Tensor) -> None:
        self.count_E[mask_E.to(self.count_E.device)] = 0

    def state_arrays(self) -> dict[str, Tensor]:
        """See `Acting`; places that no episode stands in are left out."""
        used = int(self.count_E.max())
        return {"count": self.count_E} | {name: table[:, :used] for name, table in self.fields.items()}

    def load_state(self, arrays: Mapping[str, Tensor], device: Device = None) -> None:
        self.count_E.copy_(arrays["count"])
        for name, table in self.fields.items():
            table[:, : arrays[name].shape[1]] = arrays[name].to(table.device)

    def write(self, task_M: Tensor, steps: Mapping[str, Tensor]) -> Tensor:
        """Store one finished episode [M, T' <= horizon, ...] for each of these tasks, each at most once; slots [M]."""
        task_M = task_M.to(self.count_E.device).long()
        slot_M = self.count_E[task_M]
        if len(slot_M) and int(slot_M.max()) >= self.episodes:
            raise UserError(
                f"The log has room for {self.episodes} episodes per task.",
                where="episode log",
                do="Give it as many slots as episodes are evaluated.",
            )
        for name, table in self.fields.items():
            values = steps[name].to(table.device, table.dtype)
            table[task_M, slot_M, : values.shape[1]] = values
        self.count_E[task_M] += 1
        return slot_M

    def windows(
        self, task_M: Tensor, slot_M: Tensor, first_M: Tensor, end_M: Tensor, length: int
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Windows [first, end) of stored episodes, left-padded to ``length``.

        Returns:
            name -> [M, length, ...] and, as "timestep", which steps these are; mask [M, length] (True = real). Padded
            places repeat the first step.
        """
        device = self.count_E.device
        task_M1 = task_M.to(device).long()[:, None]
        slot_M1 = slot_M.to(device).long()[:, None]
        first_M1 = first_M.to(device).long()[:, None]
        end_M1 = end_M.to(device).long()[:, None]
        step_MT = end_M1 + torch.arange(-length, 0, device=device)
        mask_MT = step_MT >= first_M1
        step_MT = torch.maximum(step_MT, first_M1).clamp_max(self.horizon - 1)
        windows = {"timestep": step_MT}
        for name, table in self.fields.items():
            windows[name] = table[task_M1, slot_M1, step_MT]
        return windows, mask_MT
