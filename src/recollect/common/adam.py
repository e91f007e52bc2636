"""Adam as one fused call, with its state as plain tensors.

`torch.optim` imports torch's compiler with the first step: over two seconds, as long as a small run itself. This is the same
kernel (`torch.optim.Adam(fused=True)`), without that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor


class Adam:
    """Adam, or AdamW where there is weight decay.

    Args:
        named: (name, parameter) pairs, e.g. `module.named_parameters()`.
        lr: step size.
        betas: decay of the first and second moment.
        eps: added to the denominator.
        weight_decay: share of the step size by which parameters shrink at each step, apart from the gradient (AdamW).
    """

    def __init__(
        self,
        named: Iterable[tuple[str, Tensor]],
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        self.lr, self.betas, self.eps, self.weight_decay = lr, betas, eps, weight_decay
        parameters = dict(named)
        self.names, self.parameters = list(parameters), list(parameters.values())
        self.first = [torch.zeros_like(p, requires_grad=False) for p in self.parameters]
        self.second = [torch.zeros_like(p, requires_grad=False) for p in self.parameters]
        self.steps = [torch.zeros((), device=p.device) for p in self.parameters]

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    def gradients(self) -> list[Tensor]:
        """Those that there are."""
        return [parameter.grad for parameter in self.parameters if parameter.grad is not None]

    @torch.no_grad()
    def step(self) -> None:
        """Update the parameters that have a gradient, in place."""
        here = [i for i, parameter in enumerate(self.parameters) if parameter.grad is not None]
        if not here:
            return
        steps = [self.steps[i] for i in here]
        torch._foreach_add_(steps, 1)
        kernel = torch._fused_adamw_ if self.weight_decay else torch._fused_adam_
        kernel(
            [self.parameters[i] for i in here],
            self.gradients(),
            [self.first[i] for i in here],
            [self.second[i] for i in here],
            [],
            steps,
            lr=self.lr,
            beta1=self.betas[0],
            beta2=self.betas[1],
            weight_decay=self.weight_decay,
            eps=self.eps,
            amsgrad=False,
            maximize=False,
        )

    def arrays(self) -> dict[str, Tensor]:
        """All state by parameter name."""
        found: dict[str, Tensor] = {}
        for key, values in (("first", self.first), ("second", self.second), ("steps", self.steps)):
            found |= {f"{key}/{name}": value for name, value in zip(self.names, values, strict=True)}
        return found

    @torch.no_grad()
    def load(self, arrays: Mapping[str, Tensor]) -> None:
        """Put back what `arrays` gave."""
        for name, value in self.arrays().items():
            value.copy_(torch.as_tensor(arrays[name]))
