"""Exact search among the keys of RA-DT's memory in Dark-Room 10x10: 320,000 of width 512, for a batch of 128 queries."""

from __future__ import annotations

import numpy as np
import torch

from benchmarks.gpu.case import Case, Part, Subject
from recollect.common.index import FlatIndex
from recollect.common.work import FLOAT

FEW = 8  # queries on which two devices are compared


def searching(case: Case) -> Subject:
    count, width, batch, k = (2_000, 32, 8, 10) if case.scale == "smoke" else (320_000, 512, 128, 100)
    draws = np.random.default_rng(0)
    keys = draws.standard_normal((count, width), np.float32)
    keys /= np.linalg.norm(keys, axis=1, keepdims=True)
    queries = torch.from_numpy(keys[draws.integers(0, count, batch)]).to(case.device)
    index = FlatIndex(width, case.device)
    index.add(keys)
    part = Part(
        "",
        "batches",
        lambda: case.rate(lambda: index.search(queries, k), 1),
        2.0 * batch * count * width,
        FLOAT * count * width,
    )
    return Subject((part,), lambda: index.search(queries[:FEW], k)[1].double().cpu().numpy().ravel())
