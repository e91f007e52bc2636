"""Many small actor-critic networks, one pair per task, evaluated and trained as one batch of matrix products.

Forward, backward and Adam are written out over preallocated buffers, without autograd: at 64 × 64 numbers per
product, what surrounds the arithmetic would cost more than the arithmetic. What one task computes does not depend, to
the bit, on how many others are in the ensemble (a test holds this). The tests hold each against an ordinary module.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import numpy as np
import torch

from recollect.common.optimiser import Adam
from recollect.settings.errors import UserError


class ActorCritics:
    """The N = 2E networks (of each task: actor, critic), their gradients and Adam, in one flat buffer each.

    The critic's head has as many outputs as the actor's, of which only the first is used: that makes every layer of all
    networks one product. Heads are kept [A, H], because products with a short side last are slow in BLAS.

    Args:
        draws: one generator per task, for initial weights: orthogonal with gain √2, heads 0.01 (actor) and 1 (critic).
        features, actions, hidden: widths of the input, of the actor's output, and of the layers between.
        activation: between layers.
        device: where all of it lives.
        learning_rate, epsilon: of Adam.
        front: shapes (of one network) of further parameters, of what computes the inputs (`recurrent_actor_critics`).

    Attributes:
        parameters: for every hidden layer a weight [N, in, out] and a bias [N, 1, out]; then the head [N, A, H] and its
            bias [N, A, 1]. Networks 2e and 2e + 1 are actor and critic of task e.
        gradients: of the same shapes, written by `backward`.
        front, front_gradients: the further parameters [N, ...], zero at first, and their gradients.
    """

    def __init__(
        self,
        draws: Sequence[np.random.Generator],
        features: int,
        actions: int,
        hidden: Sequence[int],
        activation: Literal["tanh", "relu"],
        device: torch.device | str = "cpu",
        *,
        learning_rate: float = 0.0,
        epsilon: float = 1e-8,
        front: Sequence[tuple[int, ...]] = (),
    ) -> None:
        self.device, self.count, self.activation = torch.device(device), len(draws), activation
        widths = (features, *hidden)
        shapes: list[tuple[int, ...]] = list(front)
        for before, after in pairwise(widths):
            shapes += [(before, after), (1, after)]
        shapes += [(actions, widths[-1]), (actions, 1)]
        sizes = [2 * self.count * int(np.prod(shape)) for shape in shapes]
        # Blocks start at multiples of 64 numbers: each lies alike in vector registers whatever the ensemble's size.
        starts = np.concatenate([[0], np.cumsum([-(-size // 64) * 64 for size in sizes])])
        self.flat = torch.zeros(int(starts[-1]), device=device)
        self.flat.grad = torch.zeros_like(self.flat)
        self.adam = Adam([("parameters", self.flat)], lr=learning_rate, eps=epsilon)
        self._buffers: dict[tuple[str, tuple[int, ...]], torch.Tensor] = {}
        parameters, gradients = [], []
        for start, size, shape in zip(starts[:-1], sizes, shapes, strict=True):
            parameters.append(self.flat[start : start + size].view(2 * self.count, *shape))
            gradients.append(self.flat.grad[start : start + size].view(2 * self.count, *shape))
        self.front, self.parameters = parameters[: len(front)], parameters[len(front) :]
        self.front_gradients, self.gradients = gradients[: len(front)], gradients[len(front) :]
        for e, draw in enumerate(draws):
            for n, head_gain in ((2 * e, 0.01), (2 * e + 1, 1.0)):
                for weight in self.parameters[:-2:2]:
                    weight[n] = torch.from_numpy(orthogonal(draw, weight.shape[1], weight.shape[2], 2**0.5))
                outputs = actions if n == 2 * e else 1
                head = orthogonal(draw, widths[-1], outputs, head_gain).T
                self.parameters[-2][n, :outputs] = torch.from_numpy(head.copy())

    def arrays(self) -> dict[str, np.ndarray]:
        return {name: tensor.cpu().numpy().copy() for name, tensor in self._named().items()}

    def load(self, arrays: dict[str, np.ndarray]) -> None:
        """Take over weights and moments; UserError if they are of other networks."""
        for name, tensor in self._named().items():
            if name not in arrays or arrays[name].shape != tuple(tensor.shape):
                found = arrays[name].shape if name in arrays else "nothing"
                raise UserError(
                    f"The checkpoint has {found} for {name}, this ensemble needs {tuple(tensor.shape)}.",
                    where="checkpoint of the source agents",
                    do="delete the checkpoint folder of this run and start it again.",
                )
            tensor.copy_(torch.from_numpy(arrays[name].copy()))

    def _named(self) -> dict[str, torch.Tensor]:
        first, second, steps = self.adam.first[0], self.adam.second[0], self.adam.steps[0].view(1)
        return {"parameters": self.flat, "first": first, "second": second, "steps": steps}

    def put(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

    def rows(self, table_RD: np.ndarray) -> torch.Tensor:
        """The same inputs for every network: [R, D] -> [N, R, D]."""
        return self.put(table_RD).expand(2 * self.count, *table_RD.shape).contiguous()

    def rows_per_task(self, features_ERD: np.ndarray) -> torch.Tensor:
        """Each task's inputs for its actor and its critic: [E, R, D] -> [N, R, D]."""
        return self.put(features_ERD).repeat_interleave(2, dim=0)

    def forward(self, x_NRD: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
        """The inputs and every layer's activations, [N, R, H] each and valid until the next call; outputs [N, A, R]."""
        hidden = [x_NRD]
        for weight, bias in zip(self.parameters[:-2:2], self.parameters[1:-2:2], strict=True):
            shape = (len(weight), hidden[-1].shape[1], weight.shape[2])
            h_NRH = torch.baddbmm(bias, hidden[-1], weight, out=self._scratch(f"hidden {len(hidden)}", shape))
            hidden.append(tanh_(h_NRH) if self.activation == "tanh" else h_NRH.relu_())
        return hidden, torch.baddbmm(self.parameters[-1], self.parameters[-2], hidden[-1].transpose(1, 2))

    def backward(self, hidden: list[torch.Tensor], d_out_NAR: torch.Tensor, *, to_inputs: bool = False) -> torch.Tensor:
        """Write the gradients of the parameters, from those of the outputs; `hidden` is from `forward`.

        Gives the gradient [N, R, D] at the inputs where asked for `to_inputs` (else that of an inner layer).
        """
        torch.bmm(d_out_NAR, hidden[-1], out=self.gradients[-2])
        torch.sum(d_out_NAR, 2, keepdim=True, out=self.gradients[-1])
        out = self._scratch(f"gradient {len(hidden) - 1}", hidden[-1].shape)
        d_NRH = torch.bmm(d_out_NAR.transpose(1, 2), self.parameters[-2], out=out)
        for layer in range(len(hidden) - 2, -1, -1):
            h_NRH = hidden[layer + 1]
            if self.activation == "tanh":
                torch.ops.aten.tanh_backward.grad_input(d_NRH, h_NRH, grad_input=d_NRH)
            else:
                d_NRH.mul_(h_NRH > 0)
            torch.bmm(hidden[layer].transpose(1, 2), d_NRH, out=self.gradients[2 * layer])
            torch.sum(d_NRH, 1, keepdim=True, out=self.gradients[2 * layer + 1])
            if layer or to_inputs:
                out = self._scratch(f"gradient {layer}", hidden[layer].shape)
                d_NRH = torch.bmm(d_NRH, self.parameters[2 * layer].transpose(1, 2), out=out)
        return d_NRH

    def descend(self, gradient_norm: float) -> None:
        """Scale each task's gradient (actor and critic together) to at most `gradient_norm`; then a step of Adam."""
        blocks_EP = [gradient.view(self.count, -1) for gradient in (*self.front_gradients, *self.gradients)]
        # Added one after the other: torch's sum over a short axis would add in another order in a larger ensemble.
        square_E = torch.zeros(self.count, device=self.device)
        for block_EP in blocks_EP:
            square_E += (block_EP * block_EP).sum(1)
        factor_E1 = (gradient_norm / (square_E.sqrt() + 1e-6)).clamp_(max=1.0)[:, None]
        for block_EP in blocks_EP:
            block_EP.mul_(factor_E1)
        self.adam.step()

    def _scratch(self, name: str, shape: Sequence[int]) -> torch.Tensor:
        """A buffer that is used again at every step: fresh megabytes cost as much as the arithmetic on them."""
        key = (name, tuple(shape))
        if key not in self._buffers:
            self._buffers[key] = torch.empty(key[1], device=self.device)
        return self._buffers[key]


def orthogonal(draw: np.random.Generator, inputs: int, outputs: int, gain: float) -> np.ndarray:
    """A (semi-)orthogonal float32 matrix [inputs, outputs] times `gain` (Saxe et al. 2014)."""
    tall = (max(inputs, outputs), min(inputs, outputs))
    q, r = np.linalg.qr(draw.standard_normal(tall))
    q = q * np.sign(np.diag(r))
    return np.ascontiguousarray(gain * (q if inputs >= outputs else q.T), dtype=np.float32)


def tanh_(x: torch.Tensor) -> torch.Tensor:
    """In place. On the CPU by numpy, whose float32 tanh and exp are many times faster than torch's."""
    if x.device.type != "cpu":
        return x.tanh_()
    array = x.numpy()
    np.tanh(array, out=array)
    return x
