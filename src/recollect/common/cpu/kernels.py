"""Operations that PyTorch does slowly on CPUs, done faster; on other devices they are PyTorch's own.

- `linear`: float32 products through oneDNN, backward too. MKL, which `F.linear` calls, runs slower code on AMD
  processors: 107 GFLOP/s at 3200 x 512 x 2048 on one core of an AVX-512 EPYC, where this has 230.
- `gelu`: the tanh form as x sigmoid(2u), which is the same function without the slow vectorised tanh; block by block, so that
  the numbers of a large batch are read from the cache.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

_onednn: Any = None  # stays None in a build without oneDNN
if torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise"):
    _onednn = torch.ops.mkldnn._linear_pointwise.default
# Below this many multiplications a call of oneDNN costs more than it saves.
_SMALL = 1 << 20


def _product(x_ND: Tensor, weight_ED: Tensor, bias_E: Tensor | None = None) -> Tensor:
    return _onednn(x_ND, weight_ED, bias_E, "none", [], "")


def _weight_gradient(grad_NE: Tensor, x_ND: Tensor) -> Tensor:
    # oneDNN copies a transposed first factor, not a second one: let the narrower one be copied.
    if grad_NE.shape[1] <= x_ND.shape[1]:
        return _product(grad_NE.t(), x_ND.t())
    return _product(x_ND.t(), grad_NE.t()).t()


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return _product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        grad_NE = grad.reshape(-1, grad.shape[-1])
        x_ND = x.reshape(-1, x.shape[-1])
        grad_x = _product(grad_NE, weight.t()).view(x.shape) if needs_x else None
        grad_weight = _weight_gradient(grad_NE, x_ND) if needs_weight else None
        grad_bias = grad_NE.sum(0) if ctx.has_bias and needs_bias else None
        return grad_x, grad_weight, grad_bias


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``F.linear``; float32 on the CPU goes through oneDNN. Differentiable once."""
    if (
        _onednn is None
        or x.device.type != "cpu"
        or x.dtype != torch.float32
        or x.numel() * weight.shape[0] < _SMALL
        or torch.is_autocast_enabled("cpu")
    ):
        return F.linear(x, weight, bias)
    if torch.is_grad_enabled():
        return _Linear.apply(x, weight, bias)
    return _product(x, weight, bias)


class Linear(nn.Linear):
    """``nn.Linear`` computed by `linear`. Weights start at zero: its owner draws them from a generator of its own."""

    def reset_parameters(self) -> None:
        """Draw nothing: PyTorch would take its global generator."""
        with torch.no_grad():
            self.weight.zero_()
            if self.bias is not None:
                self.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def linear_part(layer: nn.Linear, x: Tensor, first: int, past: int) -> Tensor:
    """Outputs ``first`` to ``past`` (not included) of a linear layer."""
    return linear(x, layer.weight[first:past], layer.bias[first:past])


_ROOT, _CUBE = 2 * math.sqrt(2 / math.pi), 0.044715
_FEW = 1 << 12  # below this many numbers one call of PyTorch's costs less than four
# Numbers that stay in a core's cache from one operation to the next. The result does not depend on it. An update of Memory-RL's GPT
# (64 windows of 51 steps, inner width 512) took 1.14 times as long without blocks.
_BLOCK = 1 << 16


def _blocks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Tensors of one shape in flat blocks; whole where that is one, or where one of them is not laid out flat."""
    if tensors[0].numel() > _BLOCK and all(tensor.is_contiguous() for tensor in tensors):
        yield from zip(*(tensor.view(-1).split(_BLOCK) for tensor in tensors), strict=True)
    else:
        yield tensors


def _sigmoid(x: Tensor, out: Tensor) -> Tensor:
    """What the tanh form of GELU multiplies x by."""
    torch.mul(x, x, out=out)
    return torch.addcmul(x, out, x, value=_CUBE, out=out).mul_(_ROOT).sigmoid_()


class _GeluTanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        sigmoid, y = torch.empty_like(x), torch.empty_like(x)
        for x_N, sigmoid_N, y_N in _blocks(x, sigmoid, y):
            torch.mul(x_N, _sigmoid(x_N, sigmoid_N), out=y_N)
        ctx.save_for_backward(x, sigmoid)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        # d/dx x s(u) = s + x s (1 - s) u',  u' = root (1 + 3 cube x^2)
        x, sigmoid = ctx.saved_tensors
        slope = torch.empty_like(x)
        for x_N, s_N, grad_N, slope_N in _blocks(x, sigmoid, grad, slope):
            torch.mul(x_N, x_N, out=slope_N).mul_(3 * _CUBE * _ROOT).add_(_ROOT).mul_(x_N)
            torch.addcmul(s_N, torch.addcmul(s_N, s_N, s_N, value=-1), slope_N, out=slope_N).mul_(grad_N)
        return slope


def gelu(x: Tensor, approximate: str) -> Tensor:
    """GELU, ``approximate`` "none" (exact) or "tanh". Differentiable once on the CPU."""
    if approximate == "tanh" and x.device.type == "cpu" and x.dtype == torch.float32:
        if x.requires_grad:
            return _GeluTanh.apply(x)
        if x.numel() >= _FEW:
            y = torch.empty_like(x)
            for x_N, y_N in _blocks(x, y):
                _sigmoid(x_N, y_N).mul_(x_N)
            return y
    return F.gelu(x, approximate=approximate)
