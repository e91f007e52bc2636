"""HELM's history vectors: Transformer-XL with keys and values kept, against all projected anew at every step (as published).

The published width and batch; two of the eighteen layers, which are all alike. Both use the same fast kernels.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.harness import Comparison, Goal, Side
from benchmarks.plain_transformer_xl import PlainXL
from recollect.helm.language.transformer_xl import TransformerXL, TransformerXLSettings, XLCache


def comparisons(quick: bool) -> Iterator[Comparison]:
    """16 environments, memory 511."""
    rows, memory, width = (2, 31, 64) if quick else (16, 511, 1024)
    settings = TransformerXLSettings(
        vocabulary=100, cutoffs=(50,), width=width, layers=2, heads=width // 64, inner=4 * width
    )
    model = TransformerXL(settings, seed=0).eval().requires_grad_(False)
    inputs = torch.randn(40, rows, 1, width, generator=torch.Generator().manual_seed(0))
    ours, plain = XLCache(model, rows, memory), PlainXL(model, rows, memory)

    def difference() -> float:
        done = torch.arange(rows) == 1
        apart = 0.0
        for step, x_B1D in enumerate(inputs if quick else inputs[:3]):
            apart = max(apart, float((ours.read(x_B1D) - plain.read(x_B1D)).abs().max()))
            if step % 7 == 1:
                ours.reset(done)
                plain.reset(done)
        return apart

    yield Comparison(
        work=f"history vectors, memory {memory}, 2 layers of width {width}, {rows} environments",
        unit="steps",
        plain="full forward per step",
        ours=Side(lambda: ours.read(inputs[0]), rows),
        against=Side(lambda: plain.read(inputs[0]), rows),
        difference=difference,
        tolerance=1e-4,
        goal=None if quick else Goal(30),
        rounds=3,
    )
