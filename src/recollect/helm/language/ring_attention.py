"""Whether a Transformer-XL's attention is one kernel on a device (`attention_kernel`); and the same written out, its judge."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

log = logging.getLogger(__name__)
NEAR = {torch.float32: 1e-4, torch.bfloat16: 1e-2}
"""How far a kernel's numbers may be from those written out, where the largest is 1: bfloat16 rounds at 4e-3."""

Attended = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, float], Tensor]
"""See `attention_kernel.attended`."""


def plain(
    qkv_BK3HE: Tensor, biases_2HE: Tensor, ring_2BHSE: Tensor, codes_HME: Tensor, count: Tensor, scale: float
) -> Tensor:
    """See `attention_kernel.attended`; in float32 to the end."""
    B, K, _, H, E = qkv_BK3HE.shape
    slots, length = ring_2BHSE.shape[3], codes_HME.shape[1]
    device = codes_HME.device
    newest_K = count + torch.arange(K, device=device)
    place_KS = (torch.arange(slots, device=device) - newest_K[:, None] - 1) % slots - (slots - length)
    keys_BHSE, values_BHSE = ring_2BHSE.float()
    of_content, of_distance = qkv_BK3HE[:, :, 0].float() * scale + biases_2HE[:, None, None]
    by_place_BHKM = torch.einsum("bkhe,hme->bhkm", of_distance, codes_HME)
    by_slot = by_place_BHKM.gather(3, place_KS.clamp(min=0).expand(B, H, K, slots))
    scores = torch.einsum("bkhe,bhse->bhks", of_content, keys_BHSE) + by_slot
    weights = scores.masked_fill(place_KS < 0, -math.inf).softmax(-1)
    y_BKHE = torch.einsum("bhks,bhse->bkhe", weights, values_BHSE)
    return y_BKHE.reshape(B, K, H * E).to(ring_2BHSE.dtype)


@cache
def kernel(device: torch.device, dtype: torch.dtype, heads: int, width: int) -> Attended | None:
    """The kernel, where it works on a device; None: attention is written out. Asked once, never while a graph is captured.

    Args:
        dtype: of the ring.
        heads, width: H and E.
    """
    if device.type != "cuda" or width & (width - 1) or width < 16:
        return None
    try:
        from recollect.helm.language.attention_kernel import attended
    except ImportError as error:
        log.debug("attention of a Transformer-XL is written out: %s", error)
        return None
    return attended if works(attended, device, dtype, heads, width) else None


@torch.no_grad()
def works(attended: Attended, device: torch.device, dtype: torch.dtype, heads: int, width: int) -> bool:
    """Whether a kernel gives what `plain` gives: of a ring that has gone round and of one that has not, of one token and two."""
    draws = torch.Generator().manual_seed(0)
    rows, length = 3, 150

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draws).to(device)

    try:
        for tokens, count in ((1, 7), (2, 1000)):
            ring = drawn(2, rows, heads, length + tokens - 1, width).to(dtype)
            qkv = drawn(rows, tokens, 3, heads, width).to(dtype)
            at, biases, codes = torch.tensor(count, device=device), drawn(2, heads, width), drawn(heads, length, width)
            given = qkv, biases, ring, codes, at, width**-0.5
            found, right = attended(*given).float(), plain(*given).float()
            if not float((found - right).abs().max() / right.abs().max()) < NEAR[dtype]:
                log.warning("the kernel of attention gives other numbers on this device; it is written out, slower")
                return False
    except Exception as error:  # a compiler may fail in its own ways
        said = str(error).strip().partition("\n")[0]
        log.warning("the kernel of attention does not work on this device: %s; it is written out, slower", said)
        return False
    return True
