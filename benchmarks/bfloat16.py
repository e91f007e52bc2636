"""The same work in bfloat16 and in float32, on processors that multiply in bfloat16 (AVX-512 BF16, AMX).

On others nothing is timed. RA-DT's released code trains in float16
on a GPU, and CLIP's runs so; on a CPU both are float32, as ours are unless a setting says otherwise (`optimisation.precision`,
`precision` of a CLIP, `mixture_precision` and `language_precision` of HELM).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from benchmarks import training
from benchmarks.frozen_models import clip, sizes_of, transformer_xl
from benchmarks.harness import Comparison, Side
from recollect.common.frozen_hopfield import FrozenHopfield
from recollect.helm.language.frozen_products import hold_products
from recollect.helm.language.transformer_xl import XLCache
from recollect.stages.circumstances import first_core

UNITS = {"avx512_bf16", "amx_bf16"}


def has_units() -> bool:
    """Whether the processor says that it multiplies in bfloat16."""
    return bool(UNITS & set(first_core().get("flags", "").split()))


def apart(half: Tensor, full: Tensor) -> float:
    """How far a result is from that in float32, of its length."""
    return float((half.float() - full).norm() / full.norm())


def side_by_side(
    work: str, half: Callable[[], object], full: Callable[[], object], units: int, difference: Callable[[], float], tolerance: float
) -> Comparison:  # fmt: skip
    return Comparison(
        work=f"{work}, bfloat16",
        unit="samples" if units > 1 else "",
        plain="float32",
        ours=Side(half, units),
        against=Side(full, units),
        difference=difference,
        tolerance=tolerance,
        rounds=3,
        float32=False,
    )


def of_training(case: training.Case) -> Comparison:
    """A training step with dropout. The difference is that of the loss of a first step without."""
    half = replace(case, bfloat16=True)

    def difference() -> float:
        exact = replace(case, dropout=1e-12, batch=min(case.batch, 4))
        losses = [training.trainer(training.network_of(of), of)() for of in (replace(exact, bfloat16=True), exact)]
        return apart(*losses)

    steps = [training.trainer(training.network_of(of), of) for of in (half, case)]
    return side_by_side(case.text, *steps, case.batch, difference, 2e-2)


def of_frozen_models(quick: bool) -> Iterator[Comparison]:
    rows, width, layers, words = sizes = sizes_of(quick)
    draw = torch.Generator().manual_seed(0)
    full, frames = clip(quick, rows, draw)
    half = deepcopy(full)
    hold_products(half, torch.bfloat16)
    calls = [partial(network, frames) for network in (half, full)]
    yield side_by_side(f"CLIP ViT-B/16, {rows} frames", *calls, 1, lambda: apart(half(frames), full(frames)), 1e-2)

    embeddings_VD, observations = torch.randn(words, width, generator=draw), torch.rand(rows, 147, generator=draw)
    mixtures = [FrozenHopfield(embeddings_VD, 147, dtype=dtype) for dtype in (torch.bfloat16, torch.float32)]
    calls = [partial(mixture, observations) for mixture in mixtures]
    work = f"FrozenHopfield, {rows} × {words:,} words"
    yield side_by_side(work, *calls, 1, lambda of=calls: apart(*(mix() for mix in of)), 1e-2)  # type: ignore[misc]
    del mixtures, calls, embeddings_VD

    model = transformer_xl(sizes)
    held = deepcopy(model)
    held.hold_products(torch.bfloat16)
    x_B1D = torch.randn(rows, 1, width, generator=draw)
    for memory in (511, 15):
        caches = [XLCache(held, rows, memory, dtype=torch.bfloat16), XLCache(model, rows, memory)]
        work = f"history vectors, memory {memory}, {layers} layers of width {width}, {rows} games"
        reads = [partial(cache.read, x_B1D) for cache in caches]
        yield side_by_side(work, *reads, 1, lambda of=reads: apart(*(read() for read in of)), 3e-2)  # type: ignore[misc]


def comparisons(quick: bool) -> Iterator[Comparison]:
    """What RA-DT and HELM compute most of; nothing where the processor has no units for it."""
    if not quick and not has_units():
        return
    for case in training.QUICK if quick else training.FULL:
        if quick or case.width > 64:
            yield of_training(case)
    yield from of_frozen_models(quick)
