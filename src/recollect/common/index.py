"""Exact inner-product search over the memory's keys: a faiss Flat index, and the same thing as a torch matmul.

A fast product finds the candidates; the candidates are then scored again in float64, one pair at a time, and sorted by
(score descending, id ascending). So the answer does not depend on the library, on the number of queries in a call or on
where BLAS happened to round, and equal keys come back lowest id first. Ties that reach past the candidates are looked
up in full.

Source: RA-DT (arXiv 2410.07071): Flat index, inner product, keys of length one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import faiss
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recollect.common.cpu.kernels import linear
from recollect.common.precision import full_precision
from recollect.settings.errors import UserError

MARGIN = 16  # candidates beyond k, so that a tie at the k-th place is usually settled without a second pass
SLACK = 1e-5  # more than a float32 product of unit vectors can be off (measured: below 2e-6 at width 768)
BLOCK_SCORES = {"cpu": 1 << 25, "cuda": 1 << 26}  # scores held at once
BLOCK_PAIRS = {"cpu": 1 << 17, "cuda": 1 << 24}  # numbers held at once by the float64 scoring


def _block(sizes: dict[str, int], on: Tensor) -> int:
    return sizes["cpu" if on.device.type == "cpu" else "cuda"]


def exact_scores(left_PD: Tensor, right_PD: Tensor) -> Tensor:
    """Inner products [P] of pairs of rows, summed in float64 and rounded once to float32."""
    return (left_PD.double() * right_PD.double()).sum(-1).float()


def _scored(queries_QD: Tensor, keys_ND: Tensor, query_P: Tensor, key_P: Tensor) -> Tensor:
    size = max(1, _block(BLOCK_PAIRS, keys_ND) // keys_ND.shape[1])
    scores_P = queries_QD.new_zeros(len(query_P))
    for at in range(0, len(query_P), size):
        block = slice(at, at + size)
        scores_P[block] = exact_scores(queries_QD[query_P[block]], keys_ND[key_P[block]])
    return scores_P


def _in_order(scores_QM: Tensor, ids_QM: Tensor) -> tuple[Tensor, Tensor]:
    ids_QM, by_id = ids_QM.sort(dim=1)
    scores_QM, by_score = scores_QM.gather(1, by_id).sort(dim=1, descending=True, stable=True)
    return scores_QM, ids_QM.gather(1, by_score)


def _tied(queries_QD: Tensor, keys_ND: Tensor, lowest_Q: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The full answer for queries whose ties reach past the candidates: all that scores at least ``lowest_Q``."""
    size = max(1, _block(BLOCK_SCORES, keys_ND) // len(queries_QD))
    query_parts, key_parts = [], []
    for at in range(0, len(keys_ND), size):
        hits = (queries_QD @ keys_ND[at : at + size].T >= lowest_Q[:, None]).nonzero()
        query_parts.append(hits[:, 0])
        key_parts.append(hits[:, 1] + at)
    query_P, key_P = torch.cat(query_parts), torch.cat(key_parts)
    score_P = _scored(queries_QD, keys_ND, query_P, key_P)
    # By query, then score descending, then id: stable sorts, the last criterion first.
    order = key_P.argsort(stable=True)
    order = order[score_P[order].argsort(descending=True, stable=True)]
    order = order[query_P[order].argsort(stable=True)]
    # Each query's first k pairs.
    query_numbers = torch.arange(len(queries_QD), device=query_P.device)
    first_Q = torch.searchsorted(query_P[order], query_numbers)
    taken_QK = order[first_Q[:, None] + torch.arange(k, device=query_P.device)]
    return score_P[taken_QK], key_P[taken_QK]


def _settled(
    queries_QD: Tensor, keys_ND: Tensor, found_QM: Tensor, ids_QM: Tensor, k: int, largest: float
) -> tuple[Tensor, Tensor]:
    """Turn candidates (fast scores and ids, at least k of them) into the exact first k."""
    query_P = torch.arange(len(queries_QD), device=ids_QM.device).repeat_interleave(ids_QM.shape[1])
    scores_QM = _scored(queries_QD, keys_ND, query_P, ids_QM.flatten()).view(ids_QM.shape)
    scores_QM, sorted_QM = _in_order(scores_QM, ids_QM)
    scores_QK = scores_QM[:, :k].clone()
    ids_QK = sorted_QM[:, :k].clone()
    if ids_QM.shape[1] == len(keys_ND):
        return scores_QK, ids_QK
    # A key that is no candidate may still score as much as the last one taken, where the candidates end so near to it.
    slack_Q = SLACK * largest * queries_QD.norm(dim=1)
    lowest_Q = scores_QK[:, -1] - slack_Q
    open_Q = found_QM.min(dim=1).values >= lowest_Q
    if bool(open_Q.any()):
        tied_scores, tied_ids = _tied(queries_QD[open_Q], keys_ND, lowest_Q[open_Q], k)
        scores_QK[open_Q] = tied_scores
        ids_QK[open_Q] = tied_ids
    return scores_QK, ids_QK


def _padded(scores_QK: Tensor, ids_QK: Tensor, k: int) -> tuple[Tensor, Tensor]:
    missing = k - ids_QK.shape[1]
    if missing <= 0:
        return scores_QK, ids_QK
    pad = torch.nn.functional.pad
    return pad(scores_QK, (0, missing), value=float("-inf")), pad(ids_QK, (0, missing), value=-1)


def matmul_search(
    queries_QD: Tensor, keys_ND: Tensor, k: int, *, largest: float | None = None
) -> tuple[Tensor, Tensor]:
    """The k keys with the largest inner product for each query, on whatever device the keys are.

    Args:
        queries_QD, keys_ND: float32.
        k: how many; beyond N the answer is filled with score -inf and id -1.
        largest: the largest norm of a key, where it is known (1 for normalised keys); else it is computed.

    Returns:
        scores [Q, k] float32 and ids [Q, k] int64, sorted by (score descending, id ascending).
    """
    wanted = min(k, len(keys_ND))
    if wanted == 0 or len(queries_QD) == 0:
        empty = queries_QD.new_zeros((len(queries_QD), 0))
        return _padded(empty, empty.long(), k)
    with full_precision(queries_QD.device.type):
        queries_QD, keys_ND = queries_QD.detach().float(), keys_ND.float()
        size = max(1, _block(BLOCK_SCORES, keys_ND) // len(queries_QD))
        candidates = min(wanted + MARGIN, len(keys_ND))
        found, ids = [], []
        for at in range(0, len(keys_ND), size):
            block_QN = linear(queries_QD, keys_ND[at : at + size])
            scores, places = block_QN.topk(min(candidates, block_QN.shape[1]), dim=1)
            found.append(scores)
            ids.append(places + at)
        found_QM, ids_QM = torch.cat(found, dim=1), torch.cat(ids, dim=1)
        if ids_QM.shape[1] > candidates:
            found_QM, places = found_QM.topk(candidates, dim=1)
            ids_QM = ids_QM.gather(1, places)
        if largest is None:
            largest = float(keys_ND.norm(dim=1).max())
        return _padded(*_settled(queries_QD, keys_ND, found_QM, ids_QM, wanted, largest), k)


class _Stored:
    """The keys of a faiss index as numpy reads them: an array of this keeps the index alive."""

    def __init__(self, index: faiss.IndexFlat) -> None:
        self.index = index
        data, shape = (int(index.get_xb()), False), (index.ntotal, index.d)
        self.__array_interface__ = {"version": 3, "typestr": "<f4", "shape": shape, "data": data}


class FlatIndex:
    """An exact inner-product index that can be written to a file and read back.

    Args:
        engine: ``faiss``; ``torch`` (``matmul_search`` over the same memory); ``auto``: faiss-gpu on ``cuda`` where the
            installed faiss has it, else torch (measured, 320 000 x 512, 128 queries, one thread: torch 0.64 s of CPU time, a
            bare product and top-k 0.62 s). All give the same answer.

    Raises:
        UserError: faiss is asked for on ``cuda`` and the installed one has no GPU support.
    """

    def __init__(self, width: int, device: str = "cpu", engine: Literal["auto", "faiss", "torch"] = "auto") -> None:
        self.width = width
        self.device = torch.device(device)
        has_gpu = hasattr(faiss, "StandardGpuResources")
        if engine == "faiss" and self.device.type == "cuda" and not has_gpu:
            raise UserError(
                "The installed faiss has no GPU support.", where="index", do="Install faiss-gpu, or use engine torch."
            )
        self._uses_faiss = engine == "faiss" or (engine == "auto" and self.device.type == "cuda" and has_gpu)
        self._index: faiss.IndexFlat = faiss.IndexFlatIP(width)
        self._on_device: faiss.Index | None = None
        self._keys: Tensor | None = None
        self._largest = 0.0

    def __len__(self) -> int:
        return int(self._index.ntotal)

    @property
    def backend(self) -> str:
        """``faiss-cpu``, ``faiss-gpu`` or ``torch``: what answers a search."""
        if not self._uses_faiss:
            return "torch"
        return "faiss-cpu" if self.device.type == "cpu" else "faiss-gpu"

    @property
    def keys(self) -> Tensor:
        """All keys [N, D] on the index's device. On the CPU a view of faiss's own memory: it keeps this alive, is not to be
        written to, and is of no use once keys are added."""
        if self._keys is None:
            stored = np.asarray(_Stored(self._index)) if len(self) else np.zeros((0, self.width), np.float32)
            self._keys = torch.from_numpy(stored).to(self.device)
            self._largest = float(self._keys.norm(dim=1).max()) if len(self) else 0.0
        return self._keys

    def add(self, keys_ND: NDArray[np.floating] | Tensor) -> None:
        """Append keys; their ids go on from ``len(index)``.

        Raises:
            UserError: the width differs, or a key is not finite.
        """
        keys = np.ascontiguousarray(torch.as_tensor(keys_ND).detach().cpu().numpy(), dtype=np.float32)
        self._check(keys.shape, "keys")
        if not np.isfinite(keys).all():
            raise UserError("A key is not finite.", where="index", do="Check the embedder: its output has NaN or inf.")
        self._index.add(keys)
        self._on_device = self._keys = None

    def search(self, queries_QD: NDArray[np.floating] | Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Scores [Q, k] float32 and ids [Q, k] int64 on the index's device; filled with -inf and -1 where k > N.

        Raises:
            UserError: the index is empty, or the width differs.
        """
        queries = torch.as_tensor(queries_QD).detach().to(self.device, torch.float32)
        self._check(tuple(queries.shape), "queries")
        if len(self) == 0:
            raise UserError("The index is empty.", where="index", do="Add keys before searching; check the histories.")
        keys = self.keys
        if self.backend == "torch" or len(queries) == 0:
            return matmul_search(queries, keys, k, largest=self._largest)
        wanted = min(k, len(self))
        found, ids = self._searcher().search(queries.cpu().numpy(), min(wanted + MARGIN, len(self)))
        with full_precision(self.device.type):
            settled = _settled(
                queries,
                keys,
                torch.from_numpy(found).to(self.device),
                torch.from_numpy(ids).to(self.device),
                wanted,
                self._largest,
            )
        return _padded(*settled, k)

    def _searcher(self) -> faiss.Index:
        if self.backend == "faiss-cpu":
            return self._index
        if self._on_device is None:
            self._resources = faiss.StandardGpuResources()
            self._on_device = faiss.index_cpu_to_gpu(self._resources, self.device.index or 0, self._index)
        return self._on_device

    def _check(self, shape: tuple[int, ...], what: str) -> None:
        if len(shape) != 2 or shape[1] != self.width:
            raise UserError(
                f"The {what} have shape {shape}, but the index holds keys of width {self.width}.",
                where="index",
                do="Use the embedder that the index was built with, or build the index again.",
            )

    def save(self, path: Path) -> None:
        """Write to a path, piece by piece; the caller seals it (``with sealing(target) as path: index.save(path)``).

        The same keys in the same order give the same bytes.

        Raises:
            OSError: it cannot be written there.
        """
        with Path(path).open("wb") as file:
            faiss.write_index(self._index, faiss.PyCallbackIOWriter(file.write))  # type: ignore[attr-defined]

    @classmethod
    def load(cls, path: Path, device: str = "cpu", engine: Literal["auto", "faiss", "torch"] = "auto") -> FlatIndex:
        """Read an index back (it is searched from memory).

        Raises:
            UserError: no such file, not a faiss file, or not a Flat inner-product index.
        """
        again = "Delete it and run the same `recollect index` command again."
        try:
            stored = np.frombuffer(Path(path).read_bytes(), dtype=np.uint8)
        except FileNotFoundError:
            raise UserError("There is no such index.", where=path, do="Run `recollect index` first.") from None
        try:
            index = faiss.deserialize_index(stored)
        except (RuntimeError, AssertionError, MemoryError) as error:
            raise UserError("This is not a readable faiss index.", where=path, do=again) from error
        if not isinstance(index, faiss.IndexFlat) or index.metric_type != faiss.METRIC_INNER_PRODUCT:
            raise UserError("This faiss index is not a Flat index of inner products.", where=path, do=again)
        loaded = cls(index.d, device, engine)
        loaded._index = index
        return loaded
