"""Removing near-copies from the training memory: of entries of one task whose keys are nearly parallel, one is kept.

Grid-world histories hold many almost equal windows; a memory full of them answers a query with fifty copies of itself.
By default it is greedy and keeps the first: every removed entry has a kept one nearby. The released code can remove a whole
cluster (two copies inside one batch remove each other): that is ``mode="upstream"``, which config/methods/radt.yaml sets.

Source: RA-DT (arXiv 2410.07071), regularisation of the memory (cosine above 0.98, 10 neighbours, same task).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recollect.common.index import matmul_search
from recollect.common.precision import full_precision


@dataclass(frozen=True)
class Deduplication:
    kept: NDArray[np.int64]
    total: int

    @property
    def fraction(self) -> float:
        """Kept share in 0..1 (1 for an empty memory)."""
        return len(self.kept) / self.total if self.total else 1.0


def deduplicate(
    keys_ND: Tensor,
    task_N: Tensor,
    *,
    threshold: float = 0.98,
    mode: Literal["keep_first", "upstream"] = "keep_first",
    total_return_N: Tensor | None = None,
    block: int = 512,
    neighbours: int = 10,
) -> Deduplication:
    """Which entries stay.

    Args:
        threshold: an entry is a copy if its cosine with a kept one of its task is above this.
        total_return_N: if given, an entry is only removed in favour of one whose return is at least as high.
        block: entries handled at once (keep_first: no effect on the answer; upstream: its batch size, 512).
    """
    task_N = task_N.to(keys_ND.device)
    if total_return_N is not None:
        total_return_N = total_return_N.to(keys_ND.device)
    with full_precision(keys_ND.device.type):
        if mode == "upstream":
            kept = _upstream(keys_ND.float(), task_N, threshold, total_return_N, block, neighbours)
        else:
            kept = _greedy(keys_ND.float(), task_N, threshold, total_return_N, block)
    return Deduplication(kept, len(keys_ND))


def _greedy(
    keys_ND: Tensor, task_N: Tensor, threshold: float, return_N: Tensor | None, block: int
) -> NDArray[np.int64]:
    kept: list[Tensor] = []
    for task in torch.unique(task_N):
        ids = (task_N == task).nonzero().squeeze(1)
        mine: list[Tensor] = []
        for some in ids.split(block):
            for earlier in torch.cat(mine).split(8192) if mine else ():
                removes = keys_ND[some] @ keys_ND[earlier].T > threshold
                if return_N is not None:
                    removes &= return_N[some][:, None] <= return_N[earlier]
                some = some[~removes.any(dim=1)]
            close = keys_ND[some] @ keys_ND[some].T > threshold
            if return_N is not None:
                close &= return_N[some][:, None] >= return_N[some]  # row removes column
            removes_np = close.cpu().numpy()
            alive = np.ones(len(some), dtype=bool)
            for row in range(len(some)):
                if alive[row]:
                    alive[row + 1 :] &= ~removes_np[row, row + 1 :]
            mine.append(some[torch.from_numpy(alive).to(some.device)])
        kept.extend(mine)
    if not kept:
        return np.zeros(0, dtype=np.int64)
    return torch.cat(kept).sort().values.cpu().numpy()


def _upstream(
    keys_ND: Tensor, task_N: Tensor, threshold: float, return_N: Tensor | None, block: int, neighbours: int
) -> NDArray[np.int64]:
    alive = torch.ones(len(keys_ND), dtype=torch.bool, device=keys_ND.device)
    everyone = torch.arange(len(keys_ND), device=keys_ND.device)
    for some in everyone.split(block):
        some = some[alive[some]]
        scores, ids = matmul_search(keys_ND[some], keys_ND, neighbours)
        removes = (scores > threshold) & (ids != some[:, None]) & (ids >= 0)
        removes &= task_N[ids.clamp_min(0)] == task_N[some][:, None]
        if return_N is not None:
            removes &= return_N[ids.clamp_min(0)] <= return_N[some][:, None]
        alive[ids[removes]] = False
    return everyone[alive].cpu().numpy()
