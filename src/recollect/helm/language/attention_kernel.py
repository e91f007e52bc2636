"""One layer's attention to a ring of keys and values on a GPU, as one kernel: few new tokens, many that are remembered.

A Transformer-XL adds to the product of a query and a key the product of the query and what their distance is (`transformer_xl`).
Written out, that is a dozen kernels, and batches of products with one query are slow. Here a block of the GPU goes once through
the keys and values of a row and a head, with the distances beside them. It keeps the softmax's sums as it goes (Milakov and
Gimelshein 2018, arXiv 1805.02867). All sums are float32.

Triton comes with PyTorch for GPUs. Where it is missing or gives other numbers, `transformer_xl` goes on without.

Shapes: B rows, K new tokens, H heads, E numbers of a head, S slots of the ring, M tokens that are attended to.
"""

# mypy: allow-untyped-defs

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

SLOTS = 64  # that a block reads at a time
LEAST = tl.constexpr(-1e30)  # of scores: no number, but one that may be subtracted from itself


@triton.jit
def _attend(
    qkv,
    biases,
    ring,
    codes,
    count,
    out,
    scale,
    slots,
    length,
    values,
    K: tl.constexpr,
    H: tl.constexpr,
    E: tl.constexpr,
    SLOTS: tl.constexpr,
):
    row_head, k = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row, head = row_head // H, row_head % H
    at = tl.arange(0, E)
    query = tl.load(qkv + ((row * K + k) * 3 * H + head) * E + at).to(tl.float32) * scale
    of_content = query + tl.load(biases + head * E + at)
    of_distance = query + tl.load(biases + (H + head) * E + at)
    newest = ((tl.load(count) + k) % slots).to(tl.int32)
    ring += row_head * slots * E
    codes += head * length * E
    largest, total = LEAST, 0.0
    mean = tl.zeros([E], tl.float32)
    for first in range(0, slots, SLOTS):
        slot = first + tl.arange(0, SLOTS)
        age = slot - newest - 1  # 0 is the oldest
        place = tl.where(age < 0, age + slots, age) - (slots - length)
        is_there = slot < slots
        is_seen = is_there & (place >= 0)
        cells = slot[:, None] * E + at[None, :]
        key = tl.load(ring + cells, mask=is_there[:, None], other=0.0).to(tl.float32)
        code = tl.load(codes + place[:, None] * E + at[None, :], mask=is_seen[:, None], other=0.0)
        score = tl.sum(key * of_content[None, :] + code * of_distance[None, :], 1)
        score = tl.where(is_seen, score, LEAST)
        before = largest
        largest = tl.maximum(largest, tl.max(score, 0))
        share, kept = tl.exp(score - largest), tl.exp(before - largest)
        value = tl.load(ring + values + cells, mask=is_there[:, None], other=0.0).to(tl.float32)
        mean = mean * kept + tl.sum(share[:, None] * value, 0)
        total = total * kept + tl.sum(share, 0)
    tl.store(out + ((row * K + k) * H + head) * E + at, (mean / total).to(out.dtype.element_ty))


def attended(
    qkv_BK3HE: Tensor, biases_2HE: Tensor, ring_2BHSE: Tensor, codes_HME: Tensor, count: Tensor, scale: float
) -> Tensor:
    """What K new tokens read from a ring in which their own keys and values stand already: [B, K, H * E], in the ring's precision.

    Args:
        qkv_BK3HE: their queries, keys and values, of which the queries are read; contiguous.
        biases_2HE: added to scaled queries of contents, and of distances; float32.
        codes_HME: what each distance is, from M - 1 to 0; float32.
        count: tokens before these since the ring began, an int64 on the device.
        scale: of queries.
    """
    B, K, _, H, E = qkv_BK3HE.shape
    S, M = ring_2BHSE.shape[3], codes_HME.shape[1]
    out = torch.empty(B, K, H * E, device=qkv_BK3HE.device, dtype=ring_2BHSE.dtype)
    tensors = qkv_BK3HE, biases_2HE, ring_2BHSE, codes_HME, count, out
    _attend[B * H, K](*tensors, scale, S, M, B * H * S * E, K=K, H=H, E=E, SLOTS=SLOTS)
    return out
