"""Attention for training on CPUs: blocks that stay in the cache, half the causal work, dropout from our own stream.

PyTorch's fused CPU kernel has no dropout; with dropout `F.scaled_dot_product_attention` falls back to whole score
matrices and `bernoulli_`. Here the batch is cut so that a block of scores fits the cache, queries are cut so that keys
in their future are not touched, and the backward needs one number per pair: the probability, negative where dropped.
Float32 only: other inputs are cast.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from recollect.common.dropout import Dropout

_CACHE_ELEMENTS = 1 << 18  # scores worked on at a time: 1 MB
_QUERY_BLOCK = 48
# Rows of like length are attended together where that spares a fifth of the padding and leaves groups worth a call.
_GROUPS, _GROUP_ROWS, _FULL = 4, 8, 0.8


def causal(x_BTD: Tensor, mask_BT: Tensor | None) -> Tensor:
    """Which keys each token attends to: bool [T, T], or [B, 1, T, T] where some tokens are padding."""
    T = x_BTD.shape[1]
    attend = torch.ones(T, T, dtype=torch.bool, device=x_BTD.device).tril_()
    if mask_BT is not None:
        attend = attend & mask_BT[:, None, None, :].to(attend.device)
        attend.diagonal(dim1=-2, dim2=-1).fill_(True)  # a padded query needs a key to give a number
    return attend


class Packing(NamedTuple):
    """Where the N real tokens of a padded batch stand. Packed tokens are row after row, each in time order."""

    shape: tuple[int, int]
    """(B, T') of the right-padded layout; T' is the longest row."""
    source_N: Tensor
    """flat positions in the caller's [B, T]"""
    target_N: Tensor
    """flat positions in [B, T']"""
    row_N: Tensor
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
        source = mask_BT.reshape(-1).nonzero().squeeze(1)
        row = torch.div(source, T, rounding_mode="floor")
        nth_BT = mask_BT.cumsum(1)
        length_B, nth = nth_BT[:, -1], nth_BT.view(-1)[source] - 1
        longest = max(1, int(length_B.max()))
        target = row * longest + nth
        if B < _GROUPS * _GROUP_ROWS or len(source) > _FULL * B * longest:
            return cls((B, longest), source, target, row, None, ((B, longest),), target)
        order_B = length_B.argsort(stable=True)
        groups = tuple((len(rows), max(1, int(length_B[rows[-1]]))) for rows in order_B.tensor_split(_GROUPS))
        longest_B = torch.cat([torch.full((rows,), most) for rows, most in groups])
        first_B = torch.empty(B, dtype=torch.int64)
        first_B[order_B] = longest_B.cumsum(0) - longest_B
        return cls((B, longest), source, target, row, order_B, groups, first_B[row] + nth)


class _Spread(torch.autograd.Function):
    """Rows [N, D] into [size, D] of zeros, or back; autograd's own backward of an index is several times slower."""

    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, index_N: Tensor, size: int) -> Tensor:
        ctx.save_for_backward(index_N)
        return x_ND.new_zeros(size, x_ND.shape[1]).index_copy_(0, index_N, x_ND)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return grad.index_select(0, ctx.saved_tensors[0]), None, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_MD: Tensor, index_N: Tensor) -> Tensor:
        ctx.save_for_backward(index_N)
        ctx.shape = x_MD.shape
        return x_MD.index_select(0, index_N)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad.new_zeros(ctx.shape).index_copy_(0, ctx.saved_tensors[0], grad), None


def pack(x_BTD: Tensor, packing: Packing) -> Tensor:
    """The real tokens ``[N, D]``."""
    return _Gather.apply(x_BTD.reshape(-1, x_BTD.shape[-1]), packing.source_N)


def unpack(h_ND: Tensor, packing: Packing, batch: int, time: int) -> Tensor:
    """Back to ``[B, T, D]``, zero at padding."""
    return _Spread.apply(h_ND, packing.source_N, batch * time).view(batch, time, -1)


def spread(x_ND: Tensor, packing: Packing) -> list[Tensor]:
    """Packed tokens as right-padded blocks ``[M, T'', D]``, one for each group of rows, zero at padding."""
    sizes = [rows * longest for rows, longest in packing.groups]
    flat = _Spread.apply(x_ND, packing.place_N, sum(sizes))
    return [part.view(*group, -1) for part, group in zip(flat.split(sizes), packing.groups, strict=True)]


def gather(blocks: list[Tensor], packing: Packing) -> Tensor:
    """The inverse of `spread`."""
    flat = [block.reshape(-1, block.shape[-1]) for block in blocks]
    return _Gather.apply(torch.cat(flat) if len(flat) > 1 else flat[0], packing.place_N)


def _blocks(T: int, causal: bool) -> list[tuple[int, int]]:
    """Query blocks (start, end), the last one first."""
    size = -(-T // max(1, T // _QUERY_BLOCK)) if causal else T
    return [(start, min(start + size, T)) for start in range(0, T, size)][::-1]


@torch.autocast("cpu", enabled=False)
def _forward(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, bias_BS: Tensor | None, p: float, dropout: Dropout, save: bool
) -> tuple[Tensor, list[Tensor]]:
    """q (already scaled), k, v: contiguous [B, H, T|S, Dh]. Returns y [B, H, T, Dh] and the signed probabilities."""
    (B, H, T, _), S = q.shape, k.shape[2]
    y, saved = torch.empty_like(q), []
    blocks = _blocks(T, causal)
    size = blocks[-1][1]
    future = torch.full((size, size), float("-inf")).triu_(1) if causal else None
    rows = max(1, _CACHE_ELEMENTS // (H * size * S))
    for b in range(0, B, rows):
        part = slice(b, b + rows)
        q_part, k_part, v_part, y_part = (t[part].flatten(0, 1) for t in (q, k, v, y))
        for start, end in blocks:
            seen = end if causal else S
            scores = torch.bmm(q_part[:, start:end], k_part[:, :seen].transpose(1, 2))
            if future is not None:
                scores[:, :, start:].add_(future[: end - start, : end - start])
            if bias_BS is not None:
                scores.view(-1, H, end - start, seen).add_(bias_BS[part, None, None, :seen])
            weights = torch.softmax(scores, -1)
            if p:
                keep = dropout.keep(weights.shape, p)
                dropped = torch.mul(weights, keep, out=scores)
                if save:
                    saved.append(torch.copysign(weights, keep.sub_(0.5), out=weights))
                torch.bmm(dropped, v_part[:, :seen], out=y_part[:, start:end])
            else:
                if save:
                    saved.append(weights)
                torch.bmm(weights, v_part[:, :seen], out=y_part[:, start:end])
    return (y.mul_(dropout.scale(p)) if p else y), saved


@torch.autocast("cpu", enabled=False)
def _backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    y: Tensor,
    dy: Tensor,
    out: tuple[Tensor, Tensor, Tensor],
    causal: bool,
    p: float,
    scale: float,
    saved: list[Tensor],
) -> None:
    """Write the gradients for the unscaled q, k, v to ``out``. ``y, dy``: [B, H, T, Dh]; dy is used up. ``scale`` is q's."""
    (B, H, T, _), S = q.shape, k.shape[2]
    inner = (dy * y).sum(-1, keepdim=True)
    if p:
        dy.mul_(Dropout.scale(p))
    dq, dk, dv = out
    blocks = _blocks(T, causal)
    rows = max(1, _CACHE_ELEMENTS // (H * blocks[-1][1] * S))
    pieces = iter(saved)
    for b in range(0, B, rows):
        part = slice(b, b + rows)
        parts = [t[part].flatten(0, 1) for t in (q, k, v, dy, inner, dq, dk, dv)]
        q_part, k_part, v_part, dy_part, inner_part, dq_part, dk_part, dv_part = parts
        for start, end in blocks:
            seen = end if causal else S
            signed, dy_block = next(pieces), dy_part[:, start:end]
            dropped, weights = (torch.clamp_min(signed, 0), signed.abs()) if p else (signed, signed)
            dscores = torch.bmm(dy_block, v_part[:, :seen].transpose(1, 2)).mul_(dropped)
            dscores.addcmul_(weights, inner_part[:, start:end], value=-1)
            torch.bmm(dscores, k_part[:, :seen], out=dq_part[:, start:end])
            if end == T:  # the first block: it sees all keys
                torch.bmm(dscores.transpose(1, 2), q_part[:, start:end], out=dk_part)
                torch.bmm(dropped.transpose(1, 2), dy_block, out=dv_part)
            else:
                dk_part[:, :seen] += torch.bmm(dscores.transpose(1, 2), q_part[:, start:end])
                dv_part[:, :seen] += torch.bmm(dropped.transpose(1, 2), dy_block)
    dq.mul_(scale)


def _to_heads(x: Tensor, parts: int, heads: int, shape: tuple[int, int], index: Tensor | None) -> Tensor:
    """[B, T, parts*D] (or packed [N, parts*D]) to a new contiguous [parts, B, H, T, Dh]."""
    B, T = shape
    if index is not None:
        x = x.new_zeros(B * T, x.shape[-1]).index_copy_(0, index, x)
    return x.reshape(B, T, parts, heads, -1).permute(2, 0, 3, 1, 4).clone(memory_format=torch.contiguous_format)


def _from_heads(x: Tensor, index: Tensor | None) -> Tensor:
    """The inverse: contiguous [parts, B, H, T, Dh] to [B, T, parts*D] or [N, parts*D]."""
    parts, B, H, T, Dh = x.shape
    x = x.permute(1, 3, 0, 2, 4).reshape(B, T, parts * H * Dh)
    return x if index is None else x.view(B * T, -1).index_select(0, index)


class _SelfAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, heads: int, p: float, dropout: Dropout, packing: Packing | None, save: bool
    ) -> Tensor:
        shape = (qkv.shape[0], qkv.shape[1]) if packing is None else packing.shape
        index = None if packing is None else packing.target_N
        stacked = _to_heads(qkv, 3, heads, shape, index)
        q, k, v = stacked
        scale = q.shape[-1] ** -0.5
        q.mul_(scale)
        y, saved = _forward(q, k, v, True, None, p, dropout, save)
        if save:
            ctx.save_for_backward(stacked, y, *saved)
            ctx.p, ctx.heads, ctx.scale, ctx.shape, ctx.index = p, heads, scale, shape, index
        return _from_heads(y[None], index)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        stacked, y, *saved = ctx.saved_tensors
        dy = _to_heads(grad, 1, ctx.heads, ctx.shape, ctx.index)[0]
        q, k, v = stacked
        grads = torch.empty_like(stacked)
        _backward(q, k, v, y, dy, (grads[0], grads[1], grads[2]), True, ctx.p, ctx.scale, saved)
        return _from_heads(grads, ctx.index), None, None, None, None, None


class _CrossAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        kv_BS: Tensor,
        bias_BS: Tensor | None,
        heads: int,
        p: float,
        dropout: Dropout,
        packing: Packing | None,
        save: bool,
    ) -> Tensor:
        shape = (q.shape[0], q.shape[1]) if packing is None else packing.shape
        index = None if packing is None else packing.target_N
        q = _to_heads(q, 1, heads, shape, index)[0]
        stacked = _to_heads(kv_BS, 2, heads, (kv_BS.shape[0], kv_BS.shape[1]), None)
        scale = q.shape[-1] ** -0.5
        q.mul_(scale)
        y, saved = _forward(q, stacked[0], stacked[1], False, bias_BS, p, dropout, save)
        if save:
            ctx.save_for_backward(q, stacked, y, *saved)
            ctx.p, ctx.heads, ctx.scale, ctx.shape, ctx.index = p, heads, scale, shape, index
        return _from_heads(y[None], index)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, stacked, y, *saved = ctx.saved_tensors
        dy = _to_heads(grad, 1, ctx.heads, ctx.shape, ctx.index)[0]
        dq, dkv = torch.empty_like(q), torch.empty_like(stacked)
        _backward(q, stacked[0], stacked[1], y, dy, (dq, dkv[0], dkv[1]), False, ctx.p, ctx.scale, saved)
        return _from_heads(dq[None], ctx.index), _from_heads(dkv, None), None, None, None, None, None, None


def self_attention(qkv: Tensor, heads: int, p: float, dropout: Dropout, packing: Packing | None = None) -> Tensor:
    """Causal self-attention on the CPU. ``qkv`` [B, T, 3D], or packed [N, 3D]; returns [B, T, D] or [N, D]."""
    qkv = qkv.float()
    return _SelfAttention.apply(qkv, heads, p, dropout, packing, torch.is_grad_enabled() and qkv.requires_grad)


def cross_attention(
    q: Tensor,
    kv_BS: Tensor,
    bias_BS: Tensor | None,
    heads: int,
    p: float,
    dropout: Dropout,
    packing: Packing | None = None,
) -> Tensor:
    """Attention to a context on the CPU. ``q`` [B, T, D] or [N, D]; ``kv_BS`` [B, S, 2D]; ``bias_BS``: 0 or -inf."""
    save = torch.is_grad_enabled() and (q.requires_grad or kv_BS.requires_grad)
    return _CrossAttention.apply(q.float(), kv_BS.float(), bias_BS, heads, p, dropout, packing, save)
