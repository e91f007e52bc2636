"""Transformer-XL as it is published: the inputs of every layer are kept, and projected anew at every step.

Slow and short; the fast one is tested against it, and timed against it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recollect.common.cpu.kernels import linear
from recollect.helm.language.transformer_xl import TransformerXL


class PlainXL:
    """Reads K tokens per row and step; `mems_LBMD` are the inputs of each layer at the last M of them."""

    def __init__(self, model: TransformerXL, batch: int, length: int) -> None:
        self.model, self.length = model, length
        self.mems_LBMD = torch.zeros(len(model.layers), batch, length, model.settings.width)

    def reset(self, mask_B: Tensor) -> None:
        """Forget these rows."""
        self.mems_LBMD[:, mask_B] = 0.0

    @torch.no_grad()
    def read(self, x_BKD: Tensor, *, remember: bool = True) -> Tensor:
        """The last layer's state [B, D] at the last new token."""
        s, M = self.model.settings, self.length
        B, K, _ = x_BKD.shape
        split = (s.heads, s.head_width)
        query, key = torch.arange(M, M + K)[:, None], torch.arange(M + K)
        attended_KS = (key > query - M) & (key <= query)
        distance = torch.arange(M + K).clamp(max=s.clamp).double()
        angle = distance[:, None] / 10000.0 ** (torch.arange(0, s.width, 2).double() / s.width)
        code_SD = torch.cat([angle.sin(), angle.cos()], 1).float()
        h, mems = x_BKD, []
        for layer, mem_BMD in zip(self.model.layers, self.mems_LBMD, strict=True):
            both = torch.cat([mem_BMD, h], 1)
            mems.append(both[:, K:])
            q, k, v = linear(both, layer.qkv.weight).unflatten(2, (3, *split)).unbind(2)
            q = q[:, M:]
            r_SHE = linear(code_SD, layer.positions.weight).unflatten(1, split)
            by_content = torch.einsum("bihe,bjhe->bhij", q + layer.content_bias, k)
            by_distance = torch.einsum("bihe,dhe->bhid", q + layer.position_bias, r_SHE)
            by_distance = by_distance.gather(3, (query - key).clamp(min=0).expand(B, s.heads, K, M + K))
            scores = (by_content + by_distance) / s.head_width**0.5
            weights = scores.masked_fill(~attended_KS, float("-inf")).softmax(-1)
            y = torch.einsum("bhij,bjhe->bihe", weights, v).flatten(2)
            h = layer.norm_attention(h + linear(y, layer.attention_out.weight))
            h = layer.norm_mlp(h + layer.mlp_out(torch.relu(layer.mlp_in(h))))
        if remember:
            self.mems_LBMD = torch.stack(mems)
        return h[:, -1]
