"""AMAGO's heads: an actor for all discounts at once, and an ensemble of critics computed as one batched product.

Source: AMAGO (arXiv 2310.09971), specification 1.4 to 1.6. G discounts, C critics, A actions (or numbers of one).

- The actor gives the parameters of a policy per discount.
- `DiscreteCritics` read the state only and give a value per discount and action.
- `ActionCritics` read (state, discount, action) and give a value per discount, or the logits of bins of values (AMAGO-2,
  where discrete actions come as one-hot vectors). What does not differ between discounts is computed once.

With ``frozen=True`` critics are read as constants: gradients reach what they are given, not their parameters. That is
what the released code's third copy of the critics is for; nothing is copied here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from recollect.amago.trajectory_encoders import ACTIVATIONS, Activation, plain_linear
from recollect.common.cpu.kernels import linear

ACTION_LIMIT = 0.999  # actions that critics read are kept inside, so that none is pushed to the border


class MultiGammaActor(nn.Module):
    """States [..., E] -> raw outputs [..., G, P]. `discounts`, `parameters`: G and P."""

    def __init__(
        self,
        width: int,
        discounts: int,
        parameters: int,
        hidden: Sequence[int],
        activation: Activation,
        draws: torch.Generator,
    ) -> None:
        super().__init__()
        widths = [width, *hidden, discounts * parameters]
        self.layers = nn.ModuleList(plain_linear(a, b, draws) for a, b in pairwise(widths))
        self.shape, self.act = (discounts, parameters), ACTIVATIONS[activation]

    def forward(self, state: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            state = self.act(layer(state))
        return self.layers[-1](state).unflatten(-1, self.shape)


class _Ensemble(nn.Module):
    """C perceptrons. The first layer's weight is [C * H, inputs], so that inputs which all share are read once."""

    def __init__(
        self,
        critics: int,
        inputs: int,
        hidden: Sequence[int],
        outputs: int,
        activation: Activation,
        draws: torch.Generator,
    ) -> None:
        super().__init__()
        self.critics, self.act = critics, ACTIVATIONS[activation]
        first = hidden[0]

        def uniform(variance: float, *shape: int) -> nn.Parameter:
            bound = math.sqrt(3.0 * variance)
            return nn.Parameter(torch.empty(*shape).uniform_(-bound, bound, generator=draws))

        # As einops' EinMix begins, which the released code uses: weights of variance 1 / inputs, biases of a third of that.
        self.first_weight = uniform(1 / inputs, critics * first, inputs)
        self.first_bias = uniform(1 / (3 * inputs), critics * first)
        self.weights = nn.ParameterList()
        self.biases = nn.ParameterList()
        for a, b in pairwise([*hidden, outputs]):
            self.weights.append(uniform(1 / a, critics, a, b))
            self.biases.append(uniform(1 / (3 * a), critics, 1, b))

    def first(self, frozen: bool) -> tuple[Tensor, Tensor]:
        weight, bias = self.first_weight, self.first_bias
        return (weight.detach(), bias.detach()) if frozen else (weight, bias)

    def rest(self, h_CNH: Tensor, frozen: bool) -> Tensor:
        """From the first layer's sums to the outputs [C, N, O]."""
        for weight, bias in zip(self.weights, self.biases, strict=True):
            weight, bias = (weight.detach(), bias.detach()) if frozen else (weight, bias)
            h_CNH = torch.baddbmm(bias, self.act(h_CNH), weight)
        return h_CNH


class DiscreteCritics(_Ensemble):
    """States [B, T, E] -> values [C, B, T, G, A]."""

    def __init__(
        self,
        width: int,
        discounts: int,
        actions: int,
        *,
        critics: int,
        hidden: Sequence[int],
        activation: Activation,
        draws: torch.Generator,
    ) -> None:
        super().__init__(critics, width, hidden, discounts * actions, activation, draws)
        self.shape = (discounts, actions)

    def forward(self, state_BTE: Tensor, *, frozen: bool = False) -> Tensor:
        weight, bias = self.first(frozen)
        h_NX = linear(state_BTE.flatten(0, 1), weight, bias)  # X: all critics' hidden units, one behind the other
        h_CNH = h_NX.unflatten(-1, (self.critics, -1)).transpose(0, 1)
        out = self.rest(h_CNH, frozen)
        return out.unflatten(1, state_BTE.shape[:2]).unflatten(-1, self.shape)


class ActionCritics(_Ensemble):
    """(state [B, T, E], action [..., B, T, G or 1, A]) -> values [C, ..., B, T, G], or logits [C, ..., B, T, G, bins].

    Args:
        feature: what stands for a discount: `seed` 10 ln(discount), `head` symlog(1 / (1 - discount)).
        bins: None: one value.
    """

    discount_G: Tensor

    def __init__(
        self,
        width: int,
        discounts: Sequence[float],
        size: int,
        *,
        critics: int,
        hidden: Sequence[int],
        activation: Activation,
        draws: torch.Generator,
        feature: Literal["seed", "head"] = "seed",
        bins: int | None = None,
    ) -> None:
        super().__init__(critics, width + 1 + size, hidden, bins or 1, activation, draws)
        self.width, self.bins = width, bins
        if feature == "seed":
            numbers = [10.0 * math.log(discount) for discount in discounts]
        else:
            numbers = [math.log1p(1.0 / (1.0 - discount)) for discount in discounts]
        self.register_buffer("discount_G", torch.tensor(numbers), persistent=False)

    def forward(self, state_BTE: Tensor, action: Tensor, *, frozen: bool = False) -> Tensor:
        weight, bias = self.first(frozen)
        E = self.width
        # A matrix for the state, a vector for the discount, a matrix for the action: their sums are one product.
        state_weight = weight[:, :E].contiguous()
        discount_weight = weight[:, E]
        action_weight = weight[:, E + 1 :].contiguous()
        of_state = linear(state_BTE, state_weight, bias)[..., None, :]
        of_discount = self.discount_G[:, None] * discount_weight
        inside = action.clamp(-ACTION_LIMIT, ACTION_LIMIT)
        h = of_state + of_discount + linear(inside, action_weight)
        h_CNH = h.flatten(0, -2).unflatten(-1, (self.critics, -1)).transpose(0, 1)
        out = self.rest(h_CNH, frozen).unflatten(1, h.shape[:-1])
        return out if self.bins else out[..., 0]
