"""The one optimiser of the project: Adam as a fused call, with its state as plain tensors.

`torch.optim` imports torch's compiler with the first step: over two seconds, as long as a small run itself. This calls the
same kernel as `torch.optim.Adam(fused=True)` and `AdamW(fused=True)` without that; a test holds them equal to the bit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import torch
from torch import Tensor

BETAS = (0.9, 0.999)


class Adam:
    """Adam, or AdamW where there is weight decay.

    Args:
        weight_decay: share of the step size by which parameters shrink at each step, apart from the gradient (AdamW).
        decayed: names of the parameters that shrink; None: all.

    Attributes:
        lr: the step size.
        rate: where it is a tensor, steps read this (float32 scalar on the parameters' device) and not `lr`; `set_rate` sets both.
    """

    def __init__(
        self,
        named: Iterable[tuple[str, Tensor]],
        *,
        lr: float,
        betas: tuple[float, float] = BETAS,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decayed: Collection[str] | None = None,
    ) -> None:
        self.lr = lr
        self.rate: Tensor | None = None
        self.betas = betas
        self.eps = eps
        parameters = dict(named)
        self.names = list(parameters)
        self.parameters = list(parameters.values())
        self.decays = [weight_decay if decayed is None or name in decayed else 0.0 for name in self.names]
        self.first = [torch.zeros_like(parameter, requires_grad=False) for parameter in self.parameters]
        self.second = [torch.zeros_like(parameter, requires_grad=False) for parameter in self.parameters]
        self.steps = [torch.zeros((), device=parameter.device) for parameter in self.parameters]

    def set_rate(self, lr: float) -> None:
        self.lr = lr
        if self.rate is not None:
            self.rate.fill_(lr)

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def gradients(self) -> list[Tensor]:
        return [parameter.grad for parameter in self.parameters if parameter.grad is not None]

    def backward(self, loss: Tensor, *, clip: float | None = None) -> Tensor:
        """Compute the gradients of a loss (scalar), instead of those that stand, and clip them to the norm `clip`.

        Returns:
            the norm of all of them before that, scalar, on the device.
        """
        self.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = self.gradients()
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        if clip is not None:
            torch._foreach_mul_(gradients, (clip / (norm + 1e-6)).clamp(max=1.0))
        return norm

    @torch.no_grad()
    def step(self) -> None:
        for weight_decay in sorted(set(self.decays)):
            tensors = []
            for i, parameter in enumerate(self.parameters):
                if parameter.grad is not None and self.decays[i] == weight_decay:
                    tensors.append((parameter, parameter.grad, self.first[i], self.second[i], self.steps[i]))
            if not tensors:
                continue
            parameters, gradients, first, second, steps = (list(column) for column in zip(*tensors, strict=True))
            torch._foreach_add_(steps, 1)
            kernel = torch._fused_adamw_ if weight_decay else torch._fused_adam_
            kernel(
                parameters,
                gradients,
                first,
                second,
                [],
                steps,
                lr=self.lr if self.rate is None else self.rate,
                beta1=self.betas[0],
                beta2=self.betas[1],
                weight_decay=weight_decay,
                eps=self.eps,
                amsgrad=False,
                maximize=False,
            )

    def arrays(self) -> dict[str, Tensor]:
        state: dict[str, Tensor] = {}
        for i, name in enumerate(self.names):
            state[f"first/{name}"] = self.first[i]
            state[f"second/{name}"] = self.second[i]
            state[f"steps/{name}"] = self.steps[i]
        return state

    @torch.no_grad()
    def load(self, arrays: Mapping[str, Tensor]) -> None:
        for name, value in self.arrays().items():
            value.copy_(torch.as_tensor(arrays[name]))
