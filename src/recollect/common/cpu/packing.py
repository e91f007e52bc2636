"""Padding costs nothing on CPUs: the real tokens of a batch as one list of rows, and the way back."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

# Rows of like length are attended together where that spares a fifth of the padding and leaves groups worth a call.
_GROUPS, _GROUP_ROWS, _FULL = 4, 8, 0.8


def filled(count: int) -> int:
    """The next of sixteen sizes between two powers of two: oneDNN prepares a product for each size anew, for a millisecond."""
    grain = 1 << max(0, count.bit_length() - 5)
    return -(-count // grain) * grain


class Packing(NamedTuple):
    """Where the N real tokens of a padded batch stand.

    Packed tokens [F, ...] are row after row, each in time order. Behind the N real ones stand zeros, so that few sizes F occur.
    """

    padded: tuple[int, int]
    """(B, T) of the caller's batch"""
    shape: tuple[int, int]
    """(B, T') of the right-padded layout; T' is the longest row."""
    source_N: Tensor
    """flat positions in the caller's [B, T]"""
    target_N: Tensor
    """flat positions in [B, T']"""
    row_F: Tensor
    order_B: Tensor | None
    """rows by length where they are attended in groups of like length; None: all at once"""
    groups: tuple[tuple[int, int], ...]
    """(rows, longest row) of each group"""
    place_N: Tensor
    """flat positions in the groups' right-padded blocks, one behind the other"""

    @classmethod
    def of(cls, mask_BT: Tensor) -> Packing:
        """Pack the tokens where the (CPU) mask is True."""
        B, T = mask_BT.shape
        source_N = mask_BT.reshape(-1).nonzero().squeeze(1)
        row_N = torch.div(source_N, T, rounding_mode="floor")
        nth_BT = mask_BT.cumsum(1)
        length_B = nth_BT[:, -1]
        nth_N = nth_BT.view(-1)[source_N] - 1
        row_F = F.pad(row_N, (0, filled(len(row_N)) - len(row_N)))
        longest = max(1, int(length_B.max()))
        target_N = row_N * longest + nth_N
        if B < _GROUPS * _GROUP_ROWS or len(source_N) > _FULL * B * longest:
            return cls((B, T), (B, longest), source_N, target_N, row_F, None, ((B, longest),), target_N)
        # Groups of like length: each is padded to its own longest row only.
        order_B = length_B.argsort(stable=True)
        groups = []
        for rows in order_B.tensor_split(_GROUPS):
            groups.append((len(rows), max(1, int(length_B[rows[-1]]))))
        longest_B = torch.cat([torch.full((rows,), most) for rows, most in groups])
        first_B = torch.empty(B, dtype=torch.int64)
        first_B[order_B] = longest_B.cumsum(0) - longest_B
        place_N = first_B[row_N] + nth_N
        return cls((B, T), (B, longest), source_N, target_N, row_F, order_B, tuple(groups), place_N)


def spread_rows(x_FD: Tensor, index_N: Tensor, size: int) -> Tensor:
    """The first N rows at their places in [size, D] of zeros."""
    return x_FD.new_zeros(size, x_FD.shape[1]).index_copy_(0, index_N, x_FD[: len(index_N)])


def gathered_rows(x_MD: Tensor, index_N: Tensor) -> Tensor:
    """The inverse, [F, D]: these rows, and zeros behind them."""
    N, D = len(index_N), x_MD.shape[1]
    found = x_MD.new_empty(filled(N), D)
    torch.index_select(x_MD, 0, index_N, out=found[:N])
    found[N:] = 0
    return found


class _Spread(torch.autograd.Function):
    """`spread_rows`; autograd's own backward of an index is several times slower."""

    @staticmethod
    def forward(ctx: Any, x_FD: Tensor, index_N: Tensor, size: int) -> Tensor:
        ctx.save_for_backward(index_N)
        return spread_rows(x_FD, index_N, size)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return gathered_rows(grad, ctx.saved_tensors[0]), None, None


class _Gather(torch.autograd.Function):
    """`gathered_rows`."""

    @staticmethod
    def forward(ctx: Any, x_MD: Tensor, index_N: Tensor) -> Tensor:
        ctx.save_for_backward(index_N)
        ctx.size = len(x_MD)
        return gathered_rows(x_MD, index_N)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return spread_rows(grad, ctx.saved_tensors[0], ctx.size), None


def pack(x_BTD: Tensor, packing: Packing) -> Tensor:
    return _Gather.apply(x_BTD.reshape(-1, x_BTD.shape[-1]), packing.source_N)


def unpack(h_FD: Tensor, packing: Packing) -> Tensor:
    """Back to ``[B, T, D]``, zero at padding."""
    B, T = packing.padded
    return _Spread.apply(h_FD, packing.source_N, B * T).view(B, T, -1)


def spread(x_FD: Tensor, packing: Packing) -> list[Tensor]:
    """Packed tokens as right-padded blocks ``[M, T'', D]``, one for each group of rows, zero at padding."""
    sizes = [rows * longest for rows, longest in packing.groups]
    flat = _Spread.apply(x_FD, packing.place_N, sum(sizes))
    return [block.view(*group, -1) for block, group in zip(flat.split(sizes), packing.groups, strict=True)]


def gather(blocks: list[Tensor], packing: Packing) -> Tensor:
    flat = [block.reshape(-1, block.shape[-1]) for block in blocks]
    return _Gather.apply(torch.cat(flat) if len(flat) > 1 else flat[0], packing.place_N)
