"""How much arithmetic a piece of work is, counted while it runs: matrix products, convolutions, attention, recurrent layers.

Multiplications and additions count one each. All else (sums, softmax, dropout) counts nothing, so a share of the peak says how near
the whole is to the rate of its products. Work outside of PyTorch (numpy, another process) is not seen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry


def _linear(x: Tensor, weight: Tensor, *rest: Any, **options: Any) -> int:
    return 2 * x.numel() * weight.shape[0]


def _product(x: Tensor, y: Tensor, *, out_val: Tensor, **options: Any) -> int:
    return 2 * out_val.numel() * x.shape[-1]


def _matrix_vector(matrix: Tensor, vector: Tensor, **options: Any) -> int:
    return 2 * matrix.numel()


def _attention(q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0, is_causal: bool = False, **options: Any) -> int:
    pairs = q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2]
    products = 2 * pairs * (q.shape[3] + v.shape[3])
    return products // 2 if is_causal else products  # what lies in the future is left out


def _attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, dropout: float, is_causal: bool, **options: Any
) -> int:  # fmt: skip
    return 5 * _attention(q, k, v, dropout, is_causal) // 2  # the scores again, and the gradients of four factors


def _recurrent(x: Tensor, input_weight: Tensor, hidden_weight: Tensor, *rest: Any, **options: Any) -> int:
    return 2 * (x.numel() // x.shape[-1]) * (input_weight.numel() + hidden_weight.numel())


def _recurrent_backward(*arguments: Any, **options: Any) -> int:
    return 2 * _recurrent(*arguments)


def _costs() -> dict[Any, Callable[..., int]]:
    """Operation -> the arithmetic of a call. Operations that a build of PyTorch lacks are left out."""
    aten = torch.ops.aten
    in_place = {aten.addmm_: flop_registry[aten.addmm], aten.baddbmm_: flop_registry[aten.baddbmm]}
    own = {
        (torch.ops.mkldnn, "_linear_pointwise"): _linear,
        (aten, "linear"): _linear,  # these two stay whole in inference mode
        (aten, "matmul"): _product,
        (aten, "mv"): _matrix_vector,
        (aten, "addmv"): lambda bias, *factors, **options: _matrix_vector(*factors),
        (aten, "_scaled_dot_product_flash_attention_for_cpu"): _attention,
        (aten, "_scaled_dot_product_flash_attention_for_cpu_backward"): _attention_backward,
        (aten, "mkldnn_rnn_layer"): _recurrent,
        (aten, "mkldnn_rnn_layer_backward"): _recurrent_backward,
    }
    there = {getattr(space, name): cost for (space, name), cost in own.items() if hasattr(space, name)}
    return {**flop_registry, **in_place, **there}


class Arithmetic(TorchDispatchMode):
    """Inside, `flop` grows by what is computed; results are as without it."""

    def __init__(self) -> None:
        super().__init__()
        self.flop = 0
        self._costs = _costs()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        cost = self._costs.get(function.overloadpacket)
        if cost is not None:
            options = {name: value for name, value in (kwargs or {}).items() if name != "out"}
            self.flop += cost(*args, **options, out_val=found)
        return found
