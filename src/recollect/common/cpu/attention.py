"""`PlainAttention` for training and padded batches on CPUs: only real tokens are computed, and dropout is cheap."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from recollect.common.attention import Attention, Context, fused_cross_attention, fused_self_attention
from recollect.common.cpu.attention_kernels import cross_attention, self_attention
from recollect.common.cpu.dropout import Dropout
from recollect.common.cpu.packing import Packing, gather, pack, spread, unpack


class CPUAttention(Attention):
    """Attention on the CPU over packed tokens: our own kernels where weights are dropped, else PyTorch's.

    Args:
        mask_BT: True where a token is real; None: all are, and nothing is packed.
    """

    def __init__(self, mask_BT: Tensor | None, context: Context | None, heads: int, p: float, dropout: Dropout) -> None:
        super().__init__(heads, context)
        self._packing = None if mask_BT is None else Packing.of(mask_BT)
        self._context, self._p, self._dropout = context, p, dropout
        if self._packing is None or context is None:
            return
        if self.factor is not None:
            self.factor = self.factor[self._packing.row_F, 0]  # of each packed token
        if self._packing.order_B is not None and not p:
            self._context = _reordered(context, self._packing.order_B)

    def enter(self, x_BTD: Tensor) -> Tensor:
        return x_BTD if self._packing is None else pack(x_BTD, self._packing)

    def leave(self, h: Tensor) -> Tensor:
        return h if self._packing is None else unpack(h, self._packing)

    def own(self, layer: int, qkv: Tensor) -> Tensor:
        if self._p:
            return self._dropout.each(
                lambda rows, dropout: self_attention(rows, self.heads, self._p, dropout, self._packing), qkv
            )
        assert self._packing is not None, "without dropout and padding FusedAttention is as fast"
        blocks = [fused_self_attention(block, self.heads) for block in spread(qkv, self._packing)]
        return gather(blocks, self._packing)

    def context(self, layer: int, q: Tensor, keys_values: Callable[[Tensor], Tensor]) -> Tensor:
        assert self._context is not None
        kv, attend = keys_values(self._context.tokens_BSD), self._context.attend_B11S
        if self._p:
            bias_BS = None
            if attend is not None:
                bias_BS = torch.zeros(kv.shape[:2]).masked_fill_(~attend[:, 0, 0], float("-inf"))
            return cross_attention(q, kv, bias_BS, self.heads, self._p, self._dropout, self._packing)
        assert self._packing is not None, "without dropout and padding FusedAttention is as fast"
        rows = [rows for rows, _ in self._packing.groups]
        masks = [None] * len(rows) if attend is None else attend.split(rows)
        blocks = []
        for q_block, kv_block, mask in zip(spread(q, self._packing), kv.split(rows), masks, strict=True):
            blocks.append(fused_cross_attention(q_block, kv_block, mask, self.heads))
        return gather(blocks, self._packing)


def _reordered(context: Context, order_B: Tensor) -> Context:
    attend = None if context.attend_B11S is None else context.attend_B11S[order_B]
    return replace(context, tokens_BSD=context.tokens_BSD[order_B], attend_B11S=attend)
