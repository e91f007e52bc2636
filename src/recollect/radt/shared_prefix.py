"""Training on many last tokens behind one shared prefix, exactly: what DPT's query steps need.

A query attends to the prefix and to itself, never to another query, so Q queries cost one pass over the prefix instead
of Q. The same numbers as Q full forwards over (prefix, query); dropout draws differ, as the prefix is drawn once.

Source: follows from causal attention; a test holds it against `Transformer.forward`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recollect.common.kernels import gelu, linear_part
from recollect.common.transformer import Block, Transformer


def hidden_behind(
    model: Transformer, prefix_BND: Tensor, query_BQD: Tensor, *, mask_BN: Tensor | None = None
) -> Tensor:
    """Hidden states [B, Q, D] of the queries after the final LayerNorm; differentiable.

    Args:
        model: without cross-attention to a context.
        prefix_BND: token embeddings with positions already added.
        query_BQD: token embeddings, each at the position behind its row's prefix.
        mask_BN: True where a prefix token is real; padding may stand anywhere, also in all of a row. None: all are.
    """
    h, q = model._drop(prefix_BND, model.p_embedding), model._drop(query_BQD, model.p_embedding)
    hidden_B11N = None
    if mask_BN is not None and not (mask_BN.device.type == "cpu" and bool(mask_BN.all())):
        # Real tokens first: then the causal mask alone hides padding from them, and queries are told what is real.
        order_BN = mask_BN.logical_not().to(device=h.device, dtype=torch.int8).argsort(dim=1, stable=True)
        h = h.take_along_dim(order_BN[:, :, None], 1)
        hidden_B11N = mask_BN.to(h.device).take_along_dim(order_BN, 1).logical_not()[:, None, None]
    for block in model.blocks:
        assert isinstance(block, Block)
        normed, own = block.norm_attention(h), block.qkv(block.norm_attention(q))
        if block is model.blocks[-1]:  # of the prefix only what queries read is computed
            k, v = model.split_heads(linear_part(block.qkv, normed, model.width, 3 * model.width), 2)
        else:
            qkv = block.qkv(normed)
            _, k, v = model.split_heads(qkv, 3)
            h = model._add(h, block.attention_out(model._self_attention(qkv, None)))
            h = model._add(h, block.mlp_out(gelu(block.mlp_in(block.norm_mlp(h)), model._gelu)))
        own_q, own_k, own_v = model.split_heads(own, 3)
        own_q = own_q * model.head_width**-0.5
        scores_BHQN = own_q @ k.transpose(-2, -1)
        if hidden_B11N is not None:
            scores_BHQN = scores_BHQN.masked_fill(hidden_B11N, float("-inf"))
        weights = torch.cat([scores_BHQN, (own_q * own_k).sum(-1, keepdim=True)], -1).softmax(-1)
        weights = model._drop(weights, model.p_attention).to(v.dtype)
        y = weights[..., :-1] @ v + weights[..., -1:] * own_v
        q = model._add(q, block.attention_out(y.transpose(1, 2).flatten(2)))
        q = model._add(q, block.mlp_out(gelu(block.mlp_in(block.norm_mlp(q)), model._gelu)))
    return model.norm_final(q)
