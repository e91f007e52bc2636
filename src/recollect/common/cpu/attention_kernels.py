"""Attention with dropout on CPUs: blocks that stay in the cache, half the causal work, dropout from our own stream.

PyTorch's fused CPU kernel has no dropout; with dropout `F.scaled_dot_product_attention` falls back to whole score
matrices and `bernoulli_`. Here the batch is cut so that a block of scores fits the cache, queries are cut so that keys
in their future are not touched, and the backward needs one number per pair: the probability, negative where dropped.
Float32 only: other inputs are cast. The plain version is `recollect.common.attention.plain_attention`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from recollect.common.cpu.dropout import Dropout
from recollect.common.cpu.packing import Packing, gathered_rows, spread_rows

_CACHE_ELEMENTS = 1 << 18  # scores worked on at a time: 1 MB
_QUERY_BLOCK = 48


def _query_blocks(T: int, causal: bool) -> list[tuple[int, int]]:
    """Query blocks (start, end), the last one first."""
    size = -(-T // max(1, T // _QUERY_BLOCK)) if causal else T
    blocks = [(start, min(start + size, T)) for start in range(0, T, size)]
    return blocks[::-1]


def _row_blocks(q: Tensor, keys: int, queries: int) -> Iterator[slice]:
    """Rows of the batch whose scores [rows, H, queries, keys] fit the cache."""
    B, H = q.shape[:2]
    rows = max(1, _CACHE_ELEMENTS // (H * queries * keys))
    for start in range(0, B, rows):
        yield slice(start, start + rows)


@torch.autocast("cpu", enabled=False)
def _forward(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, bias_BS: Tensor | None, p: float, dropout: Dropout, save: bool
) -> tuple[Tensor, list[Tensor]]:
    """q (already scaled), k, v: contiguous [B, H, T|S, Dh]. Returns y [B, H, T, Dh] and the signed probabilities."""
    H, T, S = q.shape[1], q.shape[2], k.shape[2]
    y = torch.empty_like(q)
    saved: list[Tensor] = []
    blocks = _query_blocks(T, causal)
    size = blocks[-1][1]
    future = torch.full((size, size), float("-inf")).triu_(1) if causal else None
    for rows in _row_blocks(q, S, size):
        q_rows, k_rows, v_rows, y_rows = (t[rows].flatten(0, 1) for t in (q, k, v, y))
        for start, end in blocks:
            seen = end if causal else S
            scores = torch.bmm(q_rows[:, start:end], k_rows[:, :seen].transpose(1, 2))
            if future is not None:
                scores[:, :, start:].add_(future[: end - start, : end - start])
            if bias_BS is not None:
                scores.view(-1, H, end - start, seen).add_(bias_BS[rows, None, None, :seen])
            weights = torch.softmax(scores, -1)
            dropped = weights
            if p:
                keep = dropout.keep(weights.shape, p)
                dropped = torch.mul(weights, keep, out=scores)
            torch.bmm(dropped, v_rows[:, :seen], out=y_rows[:, start:end])
            if save and p:
                weights = torch.copysign(weights, keep.sub_(0.5), out=weights)
            if save:
                saved.append(weights)
    if p:
        y.mul_(dropout.scale(p))
    return y, saved


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
    T, S = q.shape[2], k.shape[2]
    inner = (dy * y).sum(-1, keepdim=True)
    if p:
        dy.mul_(Dropout.scale(p))
    dq, dk, dv = out
    blocks = _query_blocks(T, causal)
    pieces = iter(saved)
    for rows in _row_blocks(q, S, blocks[-1][1]):
        q_rows, k_rows, v_rows, dy_rows, inner_rows = (t[rows].flatten(0, 1) for t in (q, k, v, dy, inner))
        dq_rows, dk_rows, dv_rows = (t[rows].flatten(0, 1) for t in (dq, dk, dv))
        for start, end in blocks:
            seen = end if causal else S
            q_block, dy_block = q_rows[:, start:end], dy_rows[:, start:end]
            dropped = weights = next(pieces)
            if p:  # the sign says what was dropped
                dropped, weights = torch.clamp_min(weights, 0), weights.abs()
            # The softmax: dscores = dropped * (dy v^T) - weights * <dy, y>
            dscores = torch.bmm(dy_block, v_rows[:, :seen].transpose(1, 2)).mul_(dropped)
            dscores.addcmul_(weights, inner_rows[:, start:end], value=-1)
            torch.bmm(dscores, k_rows[:, :seen], out=dq_rows[:, start:end])
            if end == T:  # the first block: it sees all keys
                torch.bmm(dscores.transpose(1, 2), q_block, out=dk_rows)
                torch.bmm(dropped.transpose(1, 2), dy_block, out=dv_rows)
            else:
                dk_rows[:, :seen] += torch.bmm(dscores.transpose(1, 2), q_block)
                dv_rows[:, :seen] += torch.bmm(dropped.transpose(1, 2), dy_block)
    dq.mul_(scale)


def _to_heads(x: Tensor, parts: int, heads: int, shape: tuple[int, int], index: Tensor | None) -> Tensor:
    """[B, T, parts*D] (or packed [F, parts*D]) to a new contiguous [parts, B, H, T, Dh]."""
    B, T = shape
    if index is not None:
        x = spread_rows(x, index, B * T)
    return x.reshape(B, T, parts, heads, -1).permute(2, 0, 3, 1, 4).clone(memory_format=torch.contiguous_format)


def _from_heads(x: Tensor, index: Tensor | None) -> Tensor:
    """The inverse: contiguous [parts, B, H, T, Dh] to [B, T, parts*D] or [F, parts*D]."""
    parts, B, H, T, Dh = x.shape
    x = x.permute(1, 3, 0, 2, 4).reshape(B, T, parts * H * Dh)
    return x if index is None else gathered_rows(x.view(B * T, -1), index)


class _Attention(torch.autograd.Function):
    """Causal self-attention of ``x`` [B, T, 3D] where ``kv`` is None, else attention of ``x`` [B, T, D] to ``kv`` [B, S, 2D]."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        kv: Tensor | None,
        bias_BS: Tensor | None,
        heads: int,
        p: float,
        dropout: Dropout,
        packing: Packing | None,
        save: bool,
    ) -> Tensor:
        shape = (x.shape[0], x.shape[1]) if packing is None else packing.shape
        index = None if packing is None else packing.target_N
        causal = kv is None
        x_heads = _to_heads(x, 3 if causal else 1, heads, shape, index)
        kv_heads = x_heads[1:] if kv is None else _to_heads(kv, 2, heads, (kv.shape[0], kv.shape[1]), None)
        q = x_heads[0]
        scale = q.shape[-1] ** -0.5
        q.mul_(scale)
        y, saved = _forward(q, kv_heads[0], kv_heads[1], causal, bias_BS, p, dropout, save)
        if save:
            ctx.save_for_backward(x_heads, kv_heads, y, *saved)
            ctx.causal, ctx.p, ctx.heads, ctx.scale = causal, p, heads, scale
            ctx.shape, ctx.index = shape, index
        return _from_heads(y[None], index)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x_heads, kv_heads, y, *saved = ctx.saved_tensors
        dy = _to_heads(grad, 1, ctx.heads, ctx.shape, ctx.index)[0]
        dx_heads = torch.empty_like(x_heads)
        dkv_heads = dx_heads[1:] if ctx.causal else torch.empty_like(kv_heads)
        out = (dx_heads[0], dkv_heads[0], dkv_heads[1])
        _backward(x_heads[0], kv_heads[0], kv_heads[1], y, dy, out, ctx.causal, ctx.p, ctx.scale, saved)
        dx = _from_heads(dx_heads, ctx.index)
        dkv = None if ctx.causal else _from_heads(dkv_heads, None)
        return dx, dkv, None, None, None, None, None, None


def self_attention(qkv: Tensor, heads: int, p: float, dropout: Dropout, packing: Packing | None = None) -> Tensor:
    """Causal self-attention on the CPU. ``qkv`` [B, T, 3D], or packed [F, 3D]; returns [B, T, D] or [F, D]."""
    save = torch.is_grad_enabled() and qkv.requires_grad
    return _Attention.apply(qkv.float(), None, None, heads, p, dropout, packing, save)


def cross_attention(
    q: Tensor,
    kv_BS: Tensor,
    bias_BS: Tensor | None,
    heads: int,
    p: float,
    dropout: Dropout,
    packing: Packing | None = None,
) -> Tensor:
    """Attention to a context on the CPU. ``q`` [B, T, D] or [F, D]; ``kv_BS`` [B, S, 2D]; ``bias_BS``: 0 or -inf."""
    save = torch.is_grad_enabled() and (q.requires_grad or kv_BS.requires_grad)
    return _Attention.apply(q.float(), kv_BS.float(), bias_BS, heads, p, dropout, packing, save)
