"""Approximate search over the memory's keys, for memories of millions of entries: faiss IVF (lists) and HNSW (a graph).

Exact search is the default, and at the published 320 000 entries it costs less than a training step on a GPU. The index
is built from the keys of the exact one in one thread, so that it is the same on every machine with the same faiss; what it
finds is scored again exactly, so that only entries can be missed, never a score be wrong.

Source: RA-DT (arXiv 2410.07071), released options `index_key` and `nprobe`; specification 4.5.
"""

from __future__ import annotations

from typing import Any, Literal

import faiss
import numpy as np
import torch
from torch import Tensor

from recollect.common.index import exact_scores
from recollect.radt.training_memory import NOTHING, Search

NEIGHBOURS = 32  # links of an entry in the graph
LISTS_PER_ROOT = 4  # lists per square root of the number of entries


def approximate_search(keys_ND: Tensor, engine: Literal["ivf", "hnsw"], probe: int) -> Search:
    """``search(queries_QD, k) -> (scores, ids)`` as of `FlatIndex`, but entries may be missed.

    Args:
        keys_ND: keys of length one, on any device; the index itself is on the CPU.
        engine: `ivf` or `hnsw`.
        probe: lists looked at (`ivf`), or candidates kept while the graph is walked (`hnsw`). More: fewer misses, slower.
    """
    width, count = keys_ND.shape[1], len(keys_ND)
    keys = np.ascontiguousarray(keys_ND.cpu().numpy(), np.float32)
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        if engine == "hnsw":
            index: Any = faiss.IndexHNSWFlat(width, NEIGHBOURS, faiss.METRIC_INNER_PRODUCT)
        else:
            lists = max(1, min(int(LISTS_PER_ROOT * count**0.5), count // 39))  # faiss asks for 39 keys per list
            index = faiss.IndexIVFFlat(faiss.IndexFlatIP(width), width, lists, faiss.METRIC_INNER_PRODUCT)
            index.nprobe = min(probe, lists)
            index.train(keys)
        index.add(keys)
    finally:
        faiss.omp_set_num_threads(threads)

    def search(queries_QD: Tensor, k: int) -> tuple[Tensor, Tensor]:
        if engine == "hnsw":
            index.hnsw.efSearch = max(probe, k)
        _, found = index.search(np.ascontiguousarray(queries_QD.detach().cpu().numpy(), np.float32), k)
        ids = torch.from_numpy(found).to(keys_ND.device)
        queries = queries_QD.detach().to(keys_ND.device, torch.float32)
        scores = torch.stack([exact_scores(queries, keys_ND[ids[:, place].clamp_min(0)]) for place in range(k)], 1)
        scores, ids = scores.masked_fill(ids < 0, NOTHING), ids.masked_fill(ids < 0, count)
        ids, order = ids.sort(dim=1)
        scores, by_score = scores.gather(1, order).sort(dim=1, descending=True, stable=True)
        ids = ids.gather(1, by_score)
        return scores, ids.masked_fill(ids == count, -1)

    return search
