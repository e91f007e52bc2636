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
        queries = np.ascontiguousarray(queries_QD.detach().cpu().numpy(), np.float32)
        _, found = index.search(queries, k)
        id_QK = torch.from_numpy(found).to(keys_ND.device)
        queries_QD = queries_QD.detach().to(keys_ND.device, torch.float32)
        scores = []
        for place in range(k):
            key_QD = keys_ND[id_QK[:, place].clamp_min(0)]
            scores.append(exact_scores(queries_QD, key_QD))
        score_QK = torch.stack(scores, 1).masked_fill(id_QK < 0, NOTHING)
        # By score, equal ones by id: sorted by id first. What was not found comes last.
        id_QK, by_id = id_QK.masked_fill(id_QK < 0, count).sort(dim=1)
        score_QK, by_score = score_QK.gather(1, by_id).sort(dim=1, descending=True, stable=True)
        id_QK = id_QK.gather(1, by_score)
        return score_QK, id_QK.masked_fill(id_QK == count, -1)

    return search
