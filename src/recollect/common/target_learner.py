"""What off-policy learners share: networks that Adam trains, copies that follow them, and the arrays of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from recollect.artifacts.checkpoints import joined, part
from recollect.common.optimiser import Adam


class TargetLearner:
    """Networks, their optimiser, and targets that follow some of them. All that changes is in `arrays`."""

    def __init__(
        self,
        modules: Mapping[str, nn.Module],
        optimiser: Adam,
        *,
        followed: list[nn.Module],
        targets: list[nn.Module],
        polyak: float,
    ) -> None:
        self.modules, self.optimiser, self.polyak = modules, optimiser, polyak
        self._followed: list[Tensor] = [parameter for module in followed for parameter in module.parameters()]
        self._targets: list[Tensor] = [parameter for module in targets for parameter in module.parameters()]

    def compute_gradients(self, loss: Tensor, clip: float | None) -> Tensor:
        """Compute the loss's gradients and clip them, if a norm is given. Returns their norm before that."""
        self.optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = self.optimiser.gradients()
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        if clip is not None:
            torch._foreach_mul_(gradients, (clip / (norm + 1e-6)).clamp(max=1.0))
        return norm

    @torch.no_grad()
    def follow(self) -> None:
        """Move the targets a little towards what they follow."""
        torch._foreach_lerp_(self._targets, self._followed, self.polyak)

    def arrays(self) -> dict[str, Any]:
        states = {name: module.state_dict() for name, module in self.modules.items()}
        return joined(**states, adam=self.optimiser.arrays())

    def load(self, arrays: Mapping[str, Any]) -> None:
        for name, module in self.modules.items():
            module.load_state_dict({key: torch.as_tensor(value) for key, value in part(arrays, name).items()})
        self.optimiser.load(part(arrays, "adam"))
