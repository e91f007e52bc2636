"""From the hidden states of a window to one key: which tokens are averaged, and the query dropout.

Both embedders (a decision transformer, or FrozenHopfield + a language model) give one hidden state per token; a memory
needs one vector per window. Source: RA-DT (arXiv 2410.07071), section 3 and the pooling ablation.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from recollect.common.transfer import sent

Pooling = Literal["s", "rtg", "a", "r", "all", "last"]


def normalised(vectors_ND: Tensor) -> Tensor:
    """Rows of length one (a zero row stays zero), so that an inner product is a cosine."""
    return vectors_ND / vectors_ND.norm(dim=-1, keepdim=True).clamp_min(1e-12)


def pooled(
    hidden_BTKD: Tensor,
    mask_BT: Tensor,
    *,
    tokens: tuple[str, ...] = ("s", "rtg", "a", "r"),
    kind: Pooling = "s",
    steps: int = 25,
    dropout: float = 0.0,
    generator: torch.Generator | None = None,
    normalise: bool = True,
) -> Tensor:
    """One vector per window: the masked mean of the hidden states at one kind of token over the last steps.

    Args:
        hidden_BTKD: hidden states by timestep (left-padded) and by token within the timestep.
        tokens: the K token names, in the order in which they stand in a timestep.
        kind: the token that is averaged; ``all``: all tokens; ``last``: no mean, the state that predicts the action
            (the token before ``a``) at the last timestep.
        dropout: probability that a token's vector is zeroed, **without** rescaling and without leaving the
            denominator (query dropout, 0.2 while training; 0 for memory keys and at test time). Not used by ``last``.
        generator: where dropout draws from; its device may differ from that of the hidden states.

    Returns:
        [B, D] in float32. A window with no real step gives zeros.
    """
    width = hidden_BTKD.shape[2]
    if width != len(tokens):
        raise ValueError(f"hidden states have {width} tokens per timestep, but tokens are {tokens}")
    if kind == "last":
        before_action = tokens.index("a") - 1
        pooled_BD = hidden_BTKD[:, -1, before_action].float() * mask_BT[:, -1:].float()
        return normalised(pooled_BD) if normalise else pooled_BD
    hidden_BTKD, mask_BT = hidden_BTKD[:, -steps:], mask_BT[:, -steps:]
    if kind != "all":
        place = tokens.index(kind)
        hidden_BTKD = hidden_BTKD[:, :, place : place + 1]
    weight_BTK = mask_BT[:, :, None].expand(hidden_BTKD.shape[:3]).float()
    count_B1 = weight_BTK.sum((1, 2)).clamp_min(1.0)[:, None]
    if dropout > 0:
        if generator is None:
            raise ValueError("query dropout needs an explicit generator")
        kept_BTK = torch.rand(weight_BTK.shape, generator=generator, device=generator.device) >= dropout
        weight_BTK = weight_BTK * sent(kept_BTK, weight_BTK.device)
    pooled_BD = (hidden_BTKD.float() * weight_BTK[..., None]).sum((1, 2)) / count_B1
    return normalised(pooled_BD) if normalise else pooled_BD
