"""The same work in bfloat16 and in float32, on processors that multiply in bfloat16 (AVX-512 BF16, AMX).

Others take several times as long in bfloat16 as in float32, so there nothing is timed. RA-DT's released code trains in float16
on a GPU, and CLIP's runs so; on a CPU both are float32, as ours are unless a setting says otherwise (`optimisation.precision`,
`precision` of a CLIP, `mixture_precision` and `language_precision` of HELM).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from benchmarks import training
from benchmarks.frozen_models import SMALL
from benchmarks.harness import Comparison, Side
from recollect.common.frozen_hopfield import FrozenHopfield
from recollect.helm.language.frozen_products import hold_products
from recollect.helm.language.transformer_xl import TransformerXL, TransformerXLSettings, XLCache
from recollect.helm.vision.clip import SHAPES, VisionTransformer

UNITS = {"avx512_bf16", "amx_bf16"}


def has_units(told: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the processor says that it multiplies in bfloat16."""
    try:
        return bool(UNITS & set(told.read_text(encoding="utf-8").split()))
    except OSError:
        return False


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
    rows, width, layers, words = (2, 64, 1, 100) if quick else (16, 1024, 18, 267_735)
    draw = torch.Generator().manual_seed(0)
    shape = SMALL if quick else SHAPES["clip_vit_b16"]
    clip = VisionTransformer(shape, 1 if quick else 12).eval().requires_grad_(False)
    for weight in clip.parameters():
        weight.normal_(0.0, 0.02, generator=draw)
    half = deepcopy(clip)
    hold_products(half, torch.bfloat16)
    frames = torch.rand(rows, 3, shape.image_size, shape.image_size, generator=draw)
    calls = [partial(network, frames) for network in (half, clip)]
    yield side_by_side(f"CLIP ViT-B/16, {rows} frames", *calls, 1, lambda: apart(half(frames), clip(frames)), 1e-2)

    embeddings_VD, observations = torch.randn(words, width, generator=draw), torch.rand(rows, 147, generator=draw)
    mixtures = [FrozenHopfield(embeddings_VD, 147, dtype=dtype) for dtype in (torch.bfloat16, torch.float32)]
    calls = [partial(mixture, observations) for mixture in mixtures]
    work = f"FrozenHopfield, {rows} × {words:,} words"
    yield side_by_side(work, *calls, 1, lambda of=calls: apart(*(mix() for mix in of)), 1e-2)  # type: ignore[misc]
    del mixtures, calls, embeddings_VD

    sizes = TransformerXLSettings(
        vocabulary=100, cutoffs=(50,), width=width, layers=layers, heads=width // 64, inner=4 * width
    )
    model = TransformerXL(sizes, seed=0).eval().requires_grad_(False)
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
