"""Training on many last tokens behind one shared prefix, exactly: what DPT's query steps need.

A query attends to the prefix and to itself, never to another query, so Q queries cost one pass over the prefix instead
of Q. The same numbers as Q full forwards over (prefix, query); dropout draws differ, as the prefix is drawn once.

Source: follows from causal attention; a test holds it against `Transformer.forward`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recollect.common.attention import join_heads, split_heads
from recollect.common.cpu.kernels import linear_part
from recollect.common.transformer import Transformer


def hidden_behind(
    model: Transformer, prefix_BND: Tensor, query_BQD: Tensor, *, mask_BN: Tensor | None = None
) -> Tensor:
    """Hidden states [B, Q, D] of the queries after the final LayerNorm; differentiable.

    Args:
        query_BQD: token embeddings, each at the position behind its row's prefix.
        mask_BN: True where a prefix token is real; padding may stand anywhere, also in all of a row. None: all are.
    """
    h = model.drop(prefix_BND, model.p_embedding)
    q = model.drop(query_BQD, model.p_embedding)
    padding_B11N = None
    if mask_BN is not None and not (mask_BN.device.type == "cpu" and bool(mask_BN.all())):
        # Real tokens first: then the causal mask alone hides padding from them, and queries are told what is real.
        padding_BN = mask_BN.logical_not().to(h.device)
        order_BN = padding_BN.to(torch.int8).argsort(dim=1, stable=True)
        h = h.take_along_dim(order_BN[:, :, None], 1)
        padding_B11N = padding_BN.take_along_dim(order_BN, 1)[:, None, None]
    attention = model.attention(h)
    for layer, block in enumerate(model.layers()):
        normed = block.norm_attention(h)
        own = block.qkv(block.norm_attention(q))
        if layer == len(model.blocks) - 1:  # of the prefix only what queries read is computed
            kv = linear_part(block.qkv, normed, model.width, 3 * model.width)
            k, v = split_heads(kv, 2, model.heads)
        else:
            qkv = block.qkv(normed)
            _, k, v = split_heads(qkv, 3, model.heads)
            h = model.add(h, block.attention_out(attention.own(layer, qkv)))
            h = model.add(h, block.feed_forward(h))
        own_q, own_k, own_v = split_heads(own, 3, model.heads)
        own_q = own_q * model.head_width**-0.5
        scores_BHQN = own_q @ k.transpose(-2, -1)
        if padding_B11N is not None:
            scores_BHQN = scores_BHQN.masked_fill(padding_B11N, float("-inf"))
        # Behind the prefix each query attends to itself.
        own_score_BHQ1 = (own_q * own_k).sum(-1, keepdim=True)
        weights = torch.cat([scores_BHQN, own_score_BHQ1], -1).softmax(-1)
        weights = model.drop_attention(weights).to(v.dtype)
        y = weights[..., :-1] @ v + weights[..., -1:] * own_v
        q = model.add(q, block.attention_out(join_heads(y)))
        q = model.add(q, block.feed_forward(q))
    return model.norm_final(q)
