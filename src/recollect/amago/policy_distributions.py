"""Distributions of actions as AMAGO's actor gives them: from raw outputs [..., P] to probabilities, samples, densities.

- `ClippedSoftmax`: probabilities kept in [0.001, 0.99] and divided by their sum, through which gradients pass: the released code
  keeps them out of one division, but torch's `Categorical` divides by the sum once more.
- `SquashedNormal`: a Gaussian through tanh, its log standard deviation kept in [-5, 2] by another tanh.
- `TanhMixture`: five such Gaussians with weights. No gradient through samples, so only for `online_coefficient: 0`.
- `Binary`: independent bits; densities are averaged over bits. No gradient through samples either.
- `Beta`: on [-1, 1].

Source: AMAGO (arXiv 2310.09971), specification 1.4. Difference: the seed code's mixture spreads its log standard deviation
over the same interval but does not bound it (no tanh), gives the mean before tanh as its mode, and reads actions of the
buffer up to 0.995; ours does so only with `upstream=True`.

`drawn` takes uniform numbers [..., `uniforms`] and not a generator, so that every row of a batch can have a stream of its own.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from recollect.amago.share import Numbers, own, uniform
from recollect.common.draws import categorical_from_weights
from recollect.common.transfer import sent

LOG_STD_LOW, LOG_STD_HIGH = -5.0, 2.0
BORDER = 0.99  # actions of the buffer are kept this far inside before tanh is inverted
MIXTURE_BORDER = 0.995  # those of the seed code's mixture

Kind = Literal["discrete", "continuous", "binary"]


class Distribution:
    """A kind of distribution; what it is of stands in the raw outputs.

    Attributes:
        kind: of actions: int64 [...], float [..., A] in [-1, 1], or int64 [..., A] of 0 and 1.
        size: number of discrete actions, else A.
        reparameterises: whether `reparameterised` passes gradients to the raw outputs.
        on_host: whether something is drawn on the host that cannot be drawn beforehand.
    """

    kind: Kind = "continuous"
    reparameterises = True
    on_host = False

    def __init__(self, size: int, parameters: int, uniforms: int) -> None:
        self.size, self.parameters, self.uniforms = size, parameters, uniforms

    def drawn(self, raw: Tensor, uniform: Tensor) -> Tensor:
        """Actions, a function of the uniform numbers."""
        raise NotImplementedError

    def several(self, raw: Tensor, count: int, draws: Numbers) -> list[Tensor]:
        """So many draws of actions, where rows need no streams of their own. No gradient passes through them."""
        numbers = sent(uniform(draws, (count, *raw.shape[:-1], self.uniforms), rows=1), raw.device)
        return [self.drawn(raw, uniform_N) for uniform_N in numbers]

    def mode(self, raw: Tensor) -> Tensor:
        """The likeliest actions (continuous: the means)."""
        raise NotImplementedError

    def log_prob(self, raw: Tensor, action: Tensor) -> Tensor:
        """Log probabilities or densities [...] of actions."""
        raise NotImplementedError

    def reparameterised(self, raw: Tensor, draws: Numbers) -> Tensor:
        """What critics read [..., A]: probabilities of discrete actions, or a draw through which gradients pass."""
        numbers = sent(uniform(draws, (*raw.shape[:-1], self.uniforms)), raw.device)
        return self.drawn(raw, numbers).to(raw.dtype)


class ClippedSoftmax(Distribution):
    kind: Kind = "discrete"

    def __init__(self, size: int, *, low: float = 0.001, high: float = 0.99) -> None:
        super().__init__(size, size, 1)
        self.low, self.high = low, high

    def clipped(self, probability: Tensor) -> Tensor:
        """Probabilities [..., A] kept inside the bounds, summing to 1."""
        kept = probability.clamp(self.low, self.high)
        return kept / kept.sum(-1, keepdim=True)

    def probabilities(self, raw: Tensor) -> Tensor:
        return self.clipped(raw.softmax(-1))

    def drawn(self, raw: Tensor, uniform: Tensor) -> Tensor:
        return categorical_from_weights(self.probabilities(raw).double(), uniform[..., 0].double())

    def mode(self, raw: Tensor) -> Tensor:
        return raw.argmax(-1)

    def log_prob(self, raw: Tensor, action: Tensor) -> Tensor:
        return self.probabilities(raw).gather(-1, action[..., None].long())[..., 0].log()

    def reparameterised(self, raw: Tensor, draws: Numbers) -> Tensor:
        """The probabilities: nothing is drawn."""
        return self.probabilities(raw)


def spread_std(share: Tensor) -> Tensor:
    """Standard deviations: -1 is the least, 1 the largest, unless more is asked for."""
    return (LOG_STD_LOW + 0.5 * (LOG_STD_HIGH - LOG_STD_LOW) * (share + 1.0)).exp()


def bounded_std(raw: Tensor) -> Tensor:
    return spread_std(raw.tanh())


def normal_log_density(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    return -0.5 * ((x - mean) / std) ** 2 - std.log() - 0.5 * math.log(2 * math.pi)


def standard_normal(uniform: Tensor) -> Tensor:
    return torch.special.ndtri(uniform.double().clamp(1e-12, 1 - 1e-12)).float()


class SquashedNormal(Distribution):
    def __init__(self, size: int) -> None:
        super().__init__(size, 2 * size, size)

    def drawn(self, raw: Tensor, uniform: Tensor) -> Tensor:
        mean, std = raw.chunk(2, -1)
        return (mean + bounded_std(std) * standard_normal(uniform)).tanh()

    def mode(self, raw: Tensor) -> Tensor:
        return raw[..., : self.size].tanh()

    def log_prob(self, raw: Tensor, action: Tensor) -> Tensor:
        mean, std = raw.chunk(2, -1)
        action = action.clamp(-BORDER, BORDER)
        slope = (1.0 - action**2).log()
        return (normal_log_density(action.atanh(), mean, bounded_std(std)) - slope).sum(-1)


class TanhMixture(Distribution):
    reparameterises = False

    def __init__(self, size: int, *, modes: int = 5, upstream: bool = False) -> None:
        super().__init__(size, modes * (2 * size + 1), size + 1)
        self.modes, self.upstream = modes, upstream

    def _parts(self, raw: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log weights [..., M], means and standard deviations [..., M, A]."""
        weight, rest = raw[..., : self.modes].log_softmax(-1), raw[..., self.modes :]
        mean, std = rest.unflatten(-1, (self.modes, 2 * self.size)).chunk(2, -1)
        return weight, mean, spread_std(std) if self.upstream else bounded_std(std)

    @torch.no_grad()
    def drawn(self, raw: Tensor, uniform: Tensor) -> Tensor:
        weight, mean, std = self._parts(raw)
        mode = categorical_from_weights(weight.double().exp(), uniform[..., 0].double())
        index = mode[..., None, None].expand(*mode.shape, 1, self.size)
        mean_of_mode = mean.gather(-2, index)[..., 0, :]
        std_of_mode = std.gather(-2, index)[..., 0, :]
        return (mean_of_mode + std_of_mode * standard_normal(uniform[..., 1:])).tanh()

    def mode(self, raw: Tensor) -> Tensor:
        weight, mean, _ = self._parts(raw)
        mean = mean if self.upstream else mean.tanh()
        return (weight.exp()[..., None] * mean).sum(-2)

    def log_prob(self, raw: Tensor, action: Tensor) -> Tensor:
        weight, mean, std = self._parts(raw)
        border = MIXTURE_BORDER if self.upstream else BORDER
        action = action.clamp(-border, border)
        slope = (1.0 - action**2).log().sum(-1)
        density = normal_log_density(action.atanh()[..., None, :], mean, std).sum(-1)
        return (weight + density).logsumexp(-1) - slope


class Binary(Distribution):
    kind: Kind = "binary"
    reparameterises = False

    def __init__(self, size: int) -> None:
        super().__init__(size, size, size)

    @torch.no_grad()
    def drawn(self, raw: Tensor, uniform: Tensor) -> Tensor:
        return (uniform < raw.sigmoid()).long()

    def mode(self, raw: Tensor) -> Tensor:
        return (raw > 0).long()

    def log_prob(self, raw: Tensor, action: Tensor) -> Tensor:
        return -functional.binary_cross_entropy_with_logits(raw, action.to(raw.dtype), reduction="none").mean(-1)


class Beta(Distribution):
    on_host = True

    def __init__(self, size: int) -> None:
        super().__init__(size, 2 * size, 1)

    def _parts(self, raw: Tensor) -> tuple[Tensor, Tensor]:
        first, second = (functional.softplus(raw) + 1.0001).chunk(2, -1)
        return first, second

    @torch.no_grad()
    def drawn(self, raw: Tensor, uniform: Tensor) -> Tensor:
        """See `Distribution`. Each row's uniform number seeds a generator of its own."""
        first, second = self._parts(raw)
        first_NA = first.double().cpu().numpy().reshape(-1, self.size)
        second_NA = second.double().cpu().numpy().reshape(-1, self.size)
        seeds_N = (uniform.double() * 2**52).long().reshape(-1).tolist()
        shares_NA = np.zeros_like(first_NA)
        for n, seed in enumerate(seeds_N):
            shares_NA[n] = np.random.default_rng(seed).beta(first_NA[n], second_NA[n])
        return torch.as_tensor(2.0 * shares_NA - 1.0).to(raw).view(*raw.shape[:-1], self.size)

    @torch.no_grad()
    def several(self, raw: Tensor, count: int, draws: Numbers) -> list[Tensor]:
        return [self.reparameterised(raw, draws) for _ in range(count)]

    def mode(self, raw: Tensor) -> Tensor:
        first, second = self._parts(raw)
        return 2.0 * first / (first + second) - 1.0

    def log_prob(self, raw: Tensor, action: Tensor) -> Tensor:
        first, second = self._parts(raw)
        x = ((action + 1.0) / 2.0).clamp((1 - BORDER) / 2, (1 + BORDER) / 2)
        scale = torch.lgamma(first + second) - torch.lgamma(first) - torch.lgamma(second)
        return ((first - 1) * x.log() + (second - 1) * (1 - x).log() + scale - math.log(2.0)).sum(-1)

    def reparameterised(self, raw: Tensor, draws: Numbers) -> Tensor:
        """Two gamma numbers, whose share has the distribution. Drawn on the CPU."""
        first, second = (torch._standard_gamma(part.cpu(), own(draws)).to(raw.device) for part in self._parts(raw))
        return 2.0 * first / (first + second).clamp(min=1e-30) - 1.0


def make_distribution(kind: Kind, size: int, continuous: str, *, low: float, high: float) -> Distribution:
    """The distribution for a kind of actions.

    Args:
        continuous: `normal`, `mixture`, `mixture_upstream` or `beta`; for continuous actions.
        low, high: bounds of probabilities; for discrete actions.
    """
    if kind == "discrete":
        return ClippedSoftmax(size, low=low, high=high)
    if kind == "binary":
        return Binary(size)
    if continuous.startswith("mixture"):
        return TanhMixture(size, upstream=continuous == "mixture_upstream")
    return Beta(size) if continuous == "beta" else SquashedNormal(size)
