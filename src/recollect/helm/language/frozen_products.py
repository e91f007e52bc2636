"""Products of frozen networks, whose weights may be held in half precision.

Only weights of products are: sums along a network, norms and softmaxes stay float32, as does what is never multiplied by a
matrix. So half the memory is read, and a processor with half-precision units computes twice as fast or faster.

On a GPU, few rows in float32 make few blocks, each of which walks along the whole sum while most of the GPU waits. There the
sum is computed in shares side by side, which are then added.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from recollect.common.cpu.kernels import linear

TILE = 64  # rows, and columns, of a block of a product in float32
MANY = 64  # blocks that need no shares: what is gained is lost again to adding them
BUSY = 128  # blocks that make use of the processors of a GPU (an H200 has 132)
LONG = 1024  # sums shorter than this are not worth it
SHARE = 128, 256  # numbers of a sum in one share: never fewer, nor more if they can be halved


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x W^T + b`` in the precision of the weights, and in that.

    On a CPU, float32 weights give the bytes of `kernels.linear`. On a GPU few rows in float32 may differ from it in rounding.
    """
    x = x.to(weight.dtype)
    if x.is_cuda and weight.dtype == torch.float32:
        shares = shares_of(x.numel() // x.shape[-1], *weight.shape)
        if shares > 1:
            return _in_shares(x, weight, bias, shares)
    return linear(x, weight, bias)


def shares_of(rows: int, columns: int, length: int) -> int:
    """In how many shares a GPU computes the sums over `length` numbers of a float32 product; 1, 2, 4 ..."""
    blocks = -(-rows // TILE) * -(-columns // TILE)
    if rows == 1 or blocks >= MANY or length < LONG:  # one row: a product with a vector has kernels of its own
        return 1
    (least, most), shares = SHARE, 1
    while blocks * shares < BUSY or length // shares > most:
        if length % (2 * shares) or length // (2 * shares) < least:
            break
        shares *= 2
    return shares


def _in_shares(x: Tensor, weight_ED: Tensor, bias_E: Tensor | None, shares: int) -> Tensor:
    x_SNK = x.reshape(-1, shares, x.shape[-1] // shares).transpose(0, 1)
    weight_SKE = weight_ED.unflatten(1, (shares, -1)).permute(1, 2, 0)  # a view, as that of x: nothing is copied
    y_NE = torch.bmm(x_SNK, weight_SKE).sum(0)
    if bias_E is not None:
        y_NE = y_NE.add_(bias_E)
    return y_NE.view(*x.shape[:-1], -1)


def hold_products(module: nn.Module, dtype: torch.dtype) -> None:
    """Hold the weights and biases of all linear layers, convolutions and attentions within a module so."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Conv2d):
            part.to(dtype)
        elif isinstance(part, nn.MultiheadAttention):
            part.in_proj_weight.data = part.in_proj_weight.data.to(dtype)
            part.in_proj_bias.data = part.in_proj_bias.data.to(dtype)
