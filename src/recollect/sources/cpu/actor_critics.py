"""Many small actor-critic networks, one pair per task, evaluated and trained as one batch of matrix products.

Forward, backward and Adam are written out over preallocated buffers, without autograd: at 64 × 64 numbers per
product, what surrounds the arithmetic would cost more than the arithmetic. What one task computes does not depend, to
the bit, on how many others are in the ensemble (a test holds this). The tests hold each against an ordinary module.
"""

from __future__ import annotations

import math
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
        *,
        learning_rate: float = 0.0,
        epsilon: float = 1e-8,
        front: Sequence[tuple[int, ...]] = (),
    ) -> None:
        self.count = len(draws)
        self.activation = activation
        widths = (features, *hidden)
        shapes: list[tuple[int, ...]] = list(front)
        for before, after in pairwise(widths):
            shapes += [(before, after), (1, after)]
        shapes += [(actions, widths[-1]), (actions, 1)]
        blocks = []
        end = 0
        for shape in shapes:
            size = 2 * self.count * math.prod(shape)
            blocks.append((slice(end, end + size), (2 * self.count, *shape)))
            # Blocks start at multiples of 64 numbers: each lies alike in vector registers whatever the ensemble's size.
            end += math.ceil(size / 64) * 64
        self.flat = torch.zeros(end)
        self.flat.grad = torch.zeros_like(self.flat)
        self.adam = Adam([("parameters", self.flat)], lr=learning_rate, eps=epsilon)
        self._buffers: dict[tuple[str, tuple[int, ...]], torch.Tensor] = {}
        parameters = [self.flat[block].view(shape) for block, shape in blocks]
        gradients = [self.flat.grad[block].view(shape) for block, shape in blocks]
        self.front = parameters[: len(front)]
        self.front_gradients = gradients[: len(front)]
        self.parameters = parameters[len(front) :]
        self.gradients = gradients[len(front) :]
        for e, draw in enumerate(draws):
            self._draw_weights(draw, 2 * e, actions, 0.01)
            self._draw_weights(draw, 2 * e + 1, 1, 1.0)

    def _draw_weights(self, draw: np.random.Generator, number: int, outputs: int, head_gain: float) -> None:
        for weight in self.parameters[:-2:2]:
            _, inputs, width = weight.shape
            weight[number] = torch.from_numpy(orthogonal(draw, inputs, width, 2**0.5))
        head_NAH = self.parameters[-2]
        drawn_HA = orthogonal(draw, head_NAH.shape[2], outputs, head_gain)
        head_NAH[number, :outputs] = torch.from_numpy(drawn_HA.T.copy())

    def arrays(self) -> dict[str, np.ndarray]:
        return {name: tensor.numpy().copy() for name, tensor in self._named().items()}

    def load(self, arrays: dict[str, np.ndarray]) -> None:
        """Take over weights and moments; UserError if they are of other networks."""
        for name, tensor in self._named().items():
            if name not in arrays or arrays[name].shape != tuple(tensor.shape):
                found = arrays[name].shape if name in arrays else "nothing"
                raise unfit(f"The checkpoint has {found} for {name}, this ensemble needs {tuple(tensor.shape)}.")
            tensor.copy_(torch.from_numpy(arrays[name].copy()))

    def _named(self) -> dict[str, torch.Tensor]:
        first, second, steps = self.adam.first[0], self.adam.second[0], self.adam.steps[0].view(1)
        return {"parameters": self.flat, "first": first, "second": second, "steps": steps}

    def put(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array))

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
            hidden.append(tanh(h_NRH, h_NRH) if self.activation == "tanh" else h_NRH.relu_())
        return hidden, torch.baddbmm(self.parameters[-1], self.parameters[-2], hidden[-1].transpose(1, 2))

    def backward(self, hidden: list[torch.Tensor], d_out_NAR: torch.Tensor, *, to_inputs: bool = False) -> torch.Tensor:
        """Write the gradients of the parameters, from those of the outputs; `hidden` is from `forward`.

        Gives the gradient [N, R, D] at the inputs where asked for `to_inputs` (else that of an inner layer).
        """
        torch.bmm(d_out_NAR, hidden[-1], out=self.gradients[-2])
        torch.sum(d_out_NAR, 2, keepdim=True, out=self.gradients[-1])
        out = self._scratch(f"gradient {len(hidden) - 1}", hidden[-1].shape)
        d_NRH = torch.bmm(d_out_NAR.transpose(1, 2), self.parameters[-2], out=out)
        for layer in reversed(range(len(hidden) - 1)):
            below_NRI, above_NRH = hidden[layer], hidden[layer + 1]
            # Through the activation, whose slope follows from its value.
            if self.activation == "tanh":
                torch.ops.aten.tanh_backward.grad_input(d_NRH, above_NRH, grad_input=d_NRH)
            else:
                d_NRH.mul_(above_NRH > 0)
            torch.bmm(below_NRI.transpose(1, 2), d_NRH, out=self.gradients[2 * layer])
            torch.sum(d_NRH, 1, keepdim=True, out=self.gradients[2 * layer + 1])
            if layer > 0 or to_inputs:
                weight_NIH = self.parameters[2 * layer]
                out = self._scratch(f"gradient {layer}", below_NRI.shape)
                d_NRH = torch.bmm(d_NRH, weight_NIH.transpose(1, 2), out=out)
        return d_NRH

    def descend(self, gradient_norm: float) -> None:
        """Scale each task's gradient (actor and critic together) to at most `gradient_norm`; then a step of Adam."""
        blocks_EP = [gradient.view(self.count, -1) for gradient in (*self.front_gradients, *self.gradients)]
        # Added one after the other: torch's sum over a short axis would add in another order in a larger ensemble.
        square_E = torch.zeros(self.count)
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
            self._buffers[key] = torch.empty(key[1])
        return self._buffers[key]


def unfit(message: str) -> UserError:
    do = "delete the checkpoint folder of this run and start it again."
    return UserError(message, where="checkpoint of the source agents", do=do)


def orthogonal(draw: np.random.Generator, inputs: int, outputs: int, gain: float) -> np.ndarray:
    """A (semi-)orthogonal float32 matrix [inputs, outputs] times `gain` (Saxe et al. 2014)."""
    tall = (max(inputs, outputs), min(inputs, outputs))
    q, r = np.linalg.qr(draw.standard_normal(tall))
    q = q * np.sign(np.diag(r))
    return np.ascontiguousarray(gain * (q if inputs >= outputs else q.T), dtype=np.float32)


def tanh(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Hyperbolic tangent into `out`, which may be `x`. By numpy, whose float32 tanh is many times faster than torch's."""
    np.tanh(x.numpy(), out=out.numpy())
    return out
