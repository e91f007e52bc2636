"""What the device itself reaches: its fastest matrix product in each precision, and how fast it copies. Measured, never listed."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from benchmarks.gpu.case import wait
from recollect.common.precision import tf32

SIDES = {"cuda": (4096, 8192), "cpu": (512,)}  # of the matrices
COPIED = {"cuda": 1 << 30, "cpu": 1 << 26}  # bytes
TIMES = 10


def peaks(device: str) -> dict[str, float]:
    """Operations per second of the fastest product in `float32`, `tf32` and `bfloat16`, and bytes per second of a `copy`."""
    found = {}
    for name, kind, allowed in (
        ("float32", torch.float32, False),
        ("tf32", torch.float32, True),
        ("bfloat16", torch.bfloat16, False),
    ):
        with tf32(allowed, "cuda"):
            found[name] = max(_product(device, side, kind) for side in SIDES[device])
    whole = torch.zeros(COPIED[device] // 4, device=device)
    other = torch.empty_like(whole)
    found["copy"] = 2 * COPIED[device] / _fastest(device, lambda: other.copy_(whole))
    return found


def _product(device: str, side: int, kind: torch.dtype) -> float:
    left, right = (torch.randn(side, side, device=device).to(kind) for _ in range(2))
    out = torch.empty_like(left)
    return 2.0 * side**3 / _fastest(device, lambda: torch.mm(left, right, out=out))


def _fastest(device: str, call: Callable[[], object]) -> float:
    """Seconds of the fastest of several calls, each waited for."""
    call()
    taken = []
    for _ in range(TIMES):
        wait(device)
        begun = time.perf_counter()
        call()
        wait(device)
        taken.append(time.perf_counter() - begun)
    return min(taken)
