"""Exact search, 320 000 keys of width 512, 128 queries, k = 100: against a bare matrix product (oneDNN) and top-k.

Ours settles ties and rounding in float64, so that the answer is the same on every machine; the bare product does not.
That is why "within 1.5x" is the goal, and not "faster".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import faiss
import torch
from torch import Tensor

from benchmarks.harness import Comparison, Goal, Side
from recollect.common.cpu.kernels import linear
from recollect.common.index import FlatIndex, exact_scores
from recollect.radt.pooling import normalised


def comparisons(quick: bool) -> Iterator[Comparison]:
    """Against the bare product, and against faiss as it is."""
    count, width, batch, k = (5000, 32, 8, 10) if quick else (320_000, 512, 128, 100)
    index = FlatIndex(width)
    draw = torch.Generator().manual_seed(0)
    for _ in range(10):
        index.add(normalised(torch.randn(count // 10, width, generator=draw)))
    queries = normalised(torch.randn(batch, width, generator=draw))
    keys, flat = index.keys, index._index
    faiss.omp_set_num_threads(torch.get_num_threads())

    def bare() -> tuple[Tensor, Tensor]:
        found = linear(queries, keys).topk(k)
        return found.values, found.indices

    def by_faiss() -> tuple[Tensor, Tensor]:
        scores, ids = flat.search(queries.numpy(), k)
        return torch.from_numpy(scores), torch.from_numpy(ids)

    def difference(other: Tensor) -> float:
        """Of the exact scores of what was found, rank by rank (ids may swap where scores are equal in float32)."""
        return float((exact(index.search(queries, k)[1]) - exact(other)).abs().max())

    def exact(ids_QK: Tensor) -> Tensor:
        pairs = queries.repeat_interleave(k, 0), keys[ids_QK.flatten()]
        return exact_scores(*pairs).view(-1, k)

    sizes = f"{count:,} × {width}, {batch} queries, k {k}".replace(",", " ", 1)
    raw = Comparison(
        work=f"exact search, {sizes}",
        unit="",
        plain="faiss IndexFlatIP",
        ours=Side(lambda: index.search(queries, k), 1),
        against=Side(by_faiss, 1),
        difference=lambda: difference(by_faiss()[1]),
        tolerance=1e-6,
        rounds=2,
    )
    yield replace(
        raw,
        plain="bare product and top-k",
        against=Side(bare, 1),
        difference=lambda: difference(bare()[1]),
        goal=Goal(1 / 1.5, text="≤ 1.5× its time"),
        rounds=None,
    )
    yield raw
