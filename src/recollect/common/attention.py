"""How the tokens of a transformer attend to those before them, and to a context: plainly, and by PyTorch's fused kernel.

`PlainAttention` is the reference: it builds all attention maps and keeps them. `FusedAttention` is what models run with.
Two more ways must equal the plain one: `recollect.common.cpu.attention`, for training on CPUs, and the key/value cache
(`recollect.common.cache`), for acting.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

KeysValues = tuple[Tensor, Tensor]
"""Keys and values of one layer, [B, H, S, Dh] each."""


class AttentionMaps(NamedTuple):
    """Attention weights before dropout, one tensor per layer; the cross map is None where there was no context."""

    self_BHTT: list[Tensor]
    cross_BHTS: list[Tensor | None]


@dataclass(frozen=True)
class Context:
    tokens_BSD: Tensor
    attend_B11S: Tensor | None
    """True where a token is real; None: all are."""
    factor_B11: Tensor | None
    """1 where a row has a context, else 0; None: all rows have one."""

    @classmethod
    def of(cls, tokens_BSD: Tensor, mask_BS: Tensor | None, has_B: Tensor | None) -> Context | None:
        """The context of a batch; None where the host knows that no row has one. Arguments as of `Transformer.forward`."""
        # Masks on the CPU are read, so that what they rule out costs nothing. Those on a device never are.
        if has_B is not None and has_B.device.type == "cpu":
            if not bool(has_B.any()):
                return None
            if bool(has_B.all()):
                has_B = None
        if mask_BS is not None and mask_BS.device.type == "cpu" and bool(mask_BS.all()):
            mask_BS = None
        device = tokens_BSD.device
        attend = None
        if mask_BS is not None:
            attend_BS = mask_BS.to(device)
            # A row without any real context token would be a softmax over nothing: it attends, and is then dropped.
            empty_B1 = ~attend_BS.any(dim=1, keepdim=True)
            filled_B = ~empty_B1[:, 0]
            has_B = filled_B if has_B is None else has_B.to(device) & filled_B
            attend = (attend_BS | empty_B1)[:, None, None, :]
        factor = None if has_B is None else has_B.to(device)[:, None, None].to(tokens_BSD.dtype)
        return cls(tokens_BSD, attend, factor)


@dataclass(frozen=True)
class ReadContext:
    """A context as keys and values, computed once and read at many steps; the masks are those of `Context`."""

    layers: list[KeysValues | None]
    """None where a layer has no cross-attention."""
    attend_B11S: Tensor | None
    factor_B11: Tensor | None

    def select(self, rows_R: Tensor) -> ReadContext:
        layers = [None if layer is None else (layer[0][rows_R], layer[1][rows_R]) for layer in self.layers]
        attend = None if self.attend_B11S is None else self.attend_B11S[rows_R]
        factor = None if self.factor_B11 is None else self.factor_B11[rows_R]
        return ReadContext(layers, attend, factor)


def causal(x_BTD: Tensor, mask_BT: Tensor | None) -> Tensor:
    """Which keys each token attends to: bool [T, T], or [B, 1, T, T] where some tokens are padding."""
    T = x_BTD.shape[1]
    attend = torch.ones(T, T, dtype=torch.bool, device=x_BTD.device).tril_()
    if mask_BT is not None:
        attend = attend & mask_BT[:, None, None, :].to(attend.device)
        attend.diagonal(dim1=-2, dim2=-1).fill_(True)  # a padded query needs a key to give a number
    return attend


def split_heads(x: Tensor, parts: int, heads: int) -> Tensor:
    """[B, T, parts*D] to a view [parts, B, H, T, Dh]."""
    B, T, width = x.shape
    return x.view(B, T, parts, heads, width // (parts * heads)).permute(2, 0, 3, 1, 4)


def join_heads(y_BHTD: Tensor) -> Tensor:
    """[B, H, T, Dh] to [B, T, D]."""
    return y_BHTD.transpose(1, 2).flatten(2)


def plain_attention(
    q: Tensor, k: Tensor, v: Tensor, attend: Tensor | None, drop: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """softmax(q k^T / sqrt(Dh)) v, written out.

    Args:
        attend: True where a query reads a key; None: everywhere.

    Returns:
        y [B, H, T, Dh], and the weights before dropout [B, H, T, S].
    """
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    if attend is not None:
        scores = scores.masked_fill(~attend, float("-inf"))
    weights = scores.softmax(-1)
    return drop(weights) @ v, weights


class Attention:
    """How the tokens of one pass through a transformer attend. One object serves one pass."""

    def __init__(self, heads: int, context: Context | ReadContext | None) -> None:
        self.heads = heads
        self.reads = context is not None
        self.factor = None if context is None else context.factor_B11

    def enter(self, x_BTD: Tensor) -> Tensor:
        """The tokens in the layout in which they are computed."""
        return x_BTD

    def leave(self, h: Tensor) -> Tensor:
        """Back from that layout to [B, T, D], zero at padding."""
        return h

    def own(self, layer: int, qkv: Tensor) -> Tensor:
        """Self-attention of a layer: each token reads itself and those before it. [..., 3D] to [..., D]."""
        raise NotImplementedError

    def context(self, layer: int, q: Tensor, keys_values: Callable[[Tensor], Tensor]) -> Tensor:
        """Cross-attention of a layer. [..., D] to [..., D].

        Args:
            keys_values: the layer's projection of context tokens, [B, S, D] to [B, S, 2D].
        """
        raise NotImplementedError


class PlainAttention(Attention):
    """As in a textbook, with every map as one matrix. It keeps them in ``maps``."""

    def __init__(
        self,
        x_BTD: Tensor,
        mask_BT: Tensor | None,
        context: Context | None,
        heads: int,
        drop: Callable[[Tensor], Tensor],
    ) -> None:
        super().__init__(heads, context)
        self._context, self._drop = context, drop
        self._mask_BT = None if mask_BT is None else mask_BT.to(x_BTD.device)
        self._attend = causal(x_BTD, mask_BT)
        self.maps = AttentionMaps([], [])

    def leave(self, h: Tensor) -> Tensor:
        return h if self._mask_BT is None else h.masked_fill(~self._mask_BT[:, :, None], 0.0)

    def own(self, layer: int, qkv: Tensor) -> Tensor:
        q, k, v = split_heads(qkv, 3, self.heads)
        y, weights = plain_attention(q, k, v, self._attend, self._drop)
        self.maps.self_BHTT.append(weights)
        self.maps.cross_BHTS.append(None)  # until the layer reads a context
        return join_heads(y)

    def context(self, layer: int, q: Tensor, keys_values: Callable[[Tensor], Tensor]) -> Tensor:
        assert self._context is not None
        k, v = split_heads(keys_values(self._context.tokens_BSD), 2, self.heads)
        y, weights = plain_attention(split_heads(q, 1, self.heads)[0], k, v, self._context.attend_B11S, self._drop)
        self.maps.cross_BHTS[layer] = weights
        return join_heads(y)


class FusedAttention(Attention):
    """PyTorch's fused kernel.

    Padding is sorted behind the real tokens: the causal mask alone then hides it, and the kernel needs no other mask.
    """

    def __init__(
        self, x_BTD: Tensor, mask_BT: Tensor | None, context: Context | None, heads: int, p: float = 0.0
    ) -> None:
        super().__init__(heads, context)
        self._context, self._p = context, p
        self._mask_BT: Tensor | None = None
        if mask_BT is not None:
            self._mask_BT = mask_BT.to(x_BTD.device)
            is_padding_BT = self._mask_BT.logical_not().to(torch.int8)
            self._order_BT1 = is_padding_BT.argsort(dim=1, stable=True)[:, :, None]

    def enter(self, x_BTD: Tensor) -> Tensor:
        return x_BTD if self._mask_BT is None else x_BTD.take_along_dim(self._order_BT1, 1)

    def leave(self, h: Tensor) -> Tensor:
        if self._mask_BT is None:
            return h
        back = torch.zeros_like(h).scatter(1, self._order_BT1.expand(h.shape), h)
        return back.masked_fill(~self._mask_BT[:, :, None], 0.0)

    def own(self, layer: int, qkv: Tensor) -> Tensor:
        return fused_self_attention(qkv, self.heads, self._p)

    def context(self, layer: int, q: Tensor, keys_values: Callable[[Tensor], Tensor]) -> Tensor:
        assert self._context is not None
        kv = keys_values(self._context.tokens_BSD)
        return fused_cross_attention(q, kv, self._context.attend_B11S, self.heads, self._p)


def fused_self_attention(qkv_BTE: Tensor, heads: int, p: float = 0.0) -> Tensor:
    """Causal self-attention, [B, T, 3D] to [B, T, D]."""
    q, k, v = split_heads(qkv_BTE, 3, heads)
    return join_heads(F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=p))


def fused_cross_attention(
    q_BTD: Tensor, kv_BSE: Tensor, attend_B11S: Tensor | None, heads: int, p: float = 0.0
) -> Tensor:
    """Attention of [B, T, D] to keys and values [B, S, 2D]."""
    (q,) = split_heads(q_BTD, 1, heads)
    k, v = split_heads(kv_BSE, 2, heads)
    return join_heads(F.scaled_dot_product_attention(q, k, v, attn_mask=attend_B11S, dropout_p=p))
