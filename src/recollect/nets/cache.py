"""Static key/value cache: one allocation per layer, rows of different lengths, no host synchronisation while stepping."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from recollect.settings.errors import UserError

if TYPE_CHECKING:
    from recollect.nets.transformer import Block, Transformer


class KeyValueCache:
    """Keys and values ``[2, B, H, L+1, Dh]`` per layer; ``lengths_B`` tokens of each row are valid.

    Slot L is never read: padding and rows that do not take part write there (or to the slot after their last valid one).
    """

    def __init__(self, model: Transformer, batch: int, length: int, device: torch.device, dtype: torch.dtype) -> None:
        self.model, self.batch, self.length = model, batch, length
        shape = (2, batch, model.heads, length + 1, model.head_width)
        self.layers = [torch.zeros(shape, device=device, dtype=dtype) for _ in model.blocks]
        self.lengths_B = torch.zeros(batch, dtype=torch.int64, device=device)
        self._rows_B = torch.arange(batch, device=device)
        self._slots = torch.arange(length + 1, device=device)
        self._shortest = self._longest = 0  # host-side bounds of lengths_B
        self.contexts: list[tuple[Tensor, Tensor] | None] = [None] * len(model.blocks)
        self._context_attend: Tensor | None = None
        self._context_factor: Tensor | None = None

    def reset(self, mask_B: Tensor | np.ndarray | None = None) -> None:
        """Forget all tokens of the rows where the mask is True (None: of all rows). Contexts stay."""
        if mask_B is None:
            self.lengths_B = torch.zeros_like(self.lengths_B)
            self._shortest = self._longest = 0
            return
        mask = torch.as_tensor(mask_B, device=self.lengths_B.device)
        self.lengths_B = self.lengths_B.masked_fill(mask, 0)
        self._measure()

    def _measure(self) -> None:
        bounds = torch.stack(torch.aminmax(self.lengths_B)).tolist()
        self._shortest, self._longest = int(bounds[0]), int(bounds[1])

    @torch.no_grad()
    def set_context(
        self, context_BSD: Tensor | None, mask_BS: Tensor | None = None, has_context_B: Tensor | None = None
    ) -> None:
        """What the cross-attention layers read from now on; its keys and values are computed here, once. None: no context."""
        model = self.model
        context, self._context_attend, self._context_factor = model.prepare_context(context_BSD, mask_BS, has_context_B)
        self.contexts = [
            tuple(model._heads(block.cross_kv(context), 2)) if context is not None and block.cross else None
            for block in model.blocks
        ]

    @torch.no_grad()
    def run(self, x_BTD: Tensor, mask_BT: Tensor | None) -> Tensor:
        """Append the (real) tokens and give their hidden states; see `Transformer.step` and `Transformer.extend`."""
        model, L = self.model, self.length
        B, T, D = x_BTD.shape
        n = self._longest + T
        before_B = self.lengths_B
        if mask_BT is None:
            counts_B: Tensor | int = T
            position_BT = before_B[:, None] + torch.arange(T, device=before_B.device)
        else:
            mask_BT = mask_BT.to(before_B.device)
            nth_BT = mask_BT.cumsum(1)
            counts_B = nth_BT[:, -1]
            position_BT = before_B[:, None] + nth_BT - 1
        if n > L:
            n = int((before_B + counts_B).max())
            if n > L:
                raise UserError(
                    f"a row of the key/value cache would hold {n} tokens, but it was made for {L}",
                    where="KeyValueCache",
                    do="make the cache longer, or reset the rows whose episode is over",
                )
        write_BT = position_BT if mask_BT is None else torch.where(mask_BT, position_BT, L)
        attend = self._slots[:n] <= position_BT.clamp(min=0)[:, None, :, None]
        rows = self._rows_B[:, None]
        h = model._drop(x_BTD, model.p_embedding)
        for kv, context, block in zip(self.layers, self.contexts, model.blocks, strict=True):
            qkv = block.qkv(block.norm_attention(h)).view(B, T, 3, model.heads, model.head_width)
            kv[:, rows, :, write_BT] = qkv[:, :, 1:].to(kv.dtype)
            q = qkv[:, :, 0].transpose(1, 2).to(kv.dtype)
            y = F.scaled_dot_product_attention(q, kv[0, :, :, :n], kv[1, :, :, :n], attn_mask=attend)
            h = h + model._drop(block.attention_out(y.transpose(1, 2).reshape(B, T, D)), model.p_residual)
            if context is not None:
                q = block.cross_q(block.norm_cross(h)).view(B, T, model.heads, model.head_width).transpose(1, 2)
                y = F.scaled_dot_product_attention(q, *context, attn_mask=self._context_attend)
                y = block.cross_out(y.transpose(1, 2).reshape(B, T, D))
                h = h + model._drop(model._gate(block, y, self._context_factor), model.p_residual)
            y = F.gelu(block.mlp_in(block.norm_mlp(h)), approximate=model._gelu)
            h = h + model._drop(block.mlp_out(y), model.p_residual)
        self.lengths_B = before_B + counts_B
        self._longest = n
        self._shortest += T if mask_BT is None else 0
        return model.norm_final(h)
