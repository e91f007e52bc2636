"""Linear layers with sigma-reparametrisation: the weight is (gamma / sigma) W, sigma the largest singular value of W.

Source: Zhai et al. 2023; AMAGO (arXiv 2310.09971), specification 1.3. gamma is a trained scalar. sigma = u^T W v, where
u and v follow W by one step of power iteration per forward pass in training and get no gradient.

Difference: u and v begin where power iteration converges; the released code begins with random ones, so that before
its first update the weights are multiplied by arbitrary numbers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from recollect.common.cpu.kernels import linear
from recollect.common.feedforward import default_init

_FIRST_STEPS = 50


class SigmaLinear(nn.Linear):
    """``gamma / sigma W x + b``."""

    u: Tensor
    v: Tensor

    def __init__(
        self, inputs: int, outputs: int, *, bias: bool = True, generator: torch.Generator | None = None
    ) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = inputs, outputs
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.register_parameter("bias", nn.Parameter(torch.empty(outputs)) if bias else None)
        self.gamma = nn.Parameter(torch.ones(1))
        default_init(self, generator)
        u = functional.normalize(torch.randn(outputs, generator=generator), dim=0)
        v = functional.normalize(torch.randn(inputs, generator=generator), dim=0)
        self.register_buffer("u", u)
        self.register_buffer("v", v)
        self._effective: Tensor | None = None
        self._stale = True
        self.register_load_state_dict_post_hook(_forget)
        for _ in range(_FIRST_STEPS):
            self.iterate()

    @torch.no_grad()
    def iterate(self) -> None:
        with self._whole():
            self.u.copy_(functional.normalize(self.weight @ self.v, dim=0))
            self.v.copy_(functional.normalize(self.weight.T @ self.u, dim=0))

    def _whole(self) -> torch.autocast:
        # The singular value scales the whole weight: it is float32 also where products are not.
        return torch.autocast(self.weight.device.type, enabled=False)

    def scaled(self) -> Tensor:
        # Clones: the buffers move on at the next pass, and the gradient still needs these.
        with self._whole():
            return self.weight * (self.gamma / (self.u.clone() @ self.weight @ self.v.clone()))

    @torch.no_grad()
    def effective(self) -> Tensor:
        """The scaled weight for acting, computed where it may have changed, always in the same memory (CUDA graphs read it)."""
        if self._effective is None or self._effective.device != self.weight.device:
            self._effective = self.scaled()
        elif self._stale:
            self._effective.copy_(self.scaled())
        self._stale = False
        return self._effective

    def train(self, mode: bool = True) -> SigmaLinear:
        """Besides what it always does: the weight that was kept for acting is computed anew at its next use."""
        self._stale = True
        super().train(mode)
        return self

    def forward(self, x: Tensor) -> Tensor:
        """See the class. In eval mode without gradient the scaled weight is computed once and kept."""
        if self.training:
            self.iterate()
        elif not torch.is_grad_enabled():
            return linear(x, self.effective(), self.bias)
        return linear(x, self.scaled(), self.bias)


def _forget(module: Any, _: Any) -> None:
    module._stale = True
