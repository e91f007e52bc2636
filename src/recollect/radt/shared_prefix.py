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
    h = model._drop(prefix_BND, model.p_embedding)
    q = model._drop(query_BQD, model.p_embedding)
    padding_B11N = None
    all_real = mask_BN is None or (mask_BN.device.type == "cpu" and bool(mask_BN.all()))
    if mask_BN is not None and not all_real:
        # Real tokens first: then the causal mask alone hides padding from them, and queries are told what is real.
        padding_BN = mask_BN.logical_not().to(h.device)
        order_BN = padding_BN.to(torch.int8).argsort(dim=1, stable=True)
        h = h.take_along_dim(order_BN[:, :, None], 1)
        padding_B11N = padding_BN.take_along_dim(order_BN, 1)[:, None, None]
    for block in model.blocks:
        assert isinstance(block, Block)
        normed = block.norm_attention(h)
        own = block.qkv(block.norm_attention(q))
        if block is model.blocks[-1]:  # of the prefix only what queries read is computed
            kv = linear_part(block.qkv, normed, model.width, 3 * model.width)
            k, v = model.split_heads(kv, 2)
        else:
            qkv = block.qkv(normed)
            _, k, v = model.split_heads(qkv, 3)
            h = model._add(h, block.attention_out(model._self_attention(qkv, None)))
            inner = block.mlp_in(block.norm_mlp(h))
            h = model._add(h, block.mlp_out(gelu(inner, model._gelu)))
        own_q, own_k, own_v = model.split_heads(own, 3)
        own_q = own_q * model.head_width**-0.5
        scores_BHQN = own_q @ k.transpose(-2, -1)
        if padding_B11N is not None:
            scores_BHQN = scores_BHQN.masked_fill(padding_B11N, float("-inf"))
        # Behind the prefix each query attends to itself.
        own_score_BHQ1 = (own_q * own_k).sum(-1, keepdim=True)
        weights = torch.cat([scores_BHQN, own_score_BHQ1], -1).softmax(-1)
        weights = model._drop(weights, model.p_attention).to(v.dtype)
        y = weights[..., :-1] @ v + weights[..., -1:] * own_v
        q = model._add(q, block.attention_out(y.transpose(1, 2).flatten(2)))
        inner = block.mlp_in(block.norm_mlp(q))
        q = model._add(q, block.mlp_out(gelu(inner, model._gelu)))
    return model.norm_final(q)
