"""HELM's frozen models at their published sizes, with random weights: what the released code was timed at.

A step of Transformer-XL in 16 games with a full memory, one FrozenHopfield of 16 observations over its 267,735 words, and CLIP's
ViT-B/16 on 16 frames (an agent sees most of its frames again and encodes those once; that is not counted here). That their
values are the released models' is held by the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from benchmarks.harness import Comparison, Side
from recollect.common.frozen_hopfield import FrozenHopfield
from recollect.helm.language.transformer_xl import TransformerXL, TransformerXLSettings, XLCache
from recollect.helm.vision.clip import SHAPES, ClipShape, VisionTransformer

SMALL = ClipShape(width=16, image_width=16, image_layers=1, image_size=32, head=8)


def timed(work: str, run: Callable[[], object], released: str, quick: bool) -> Comparison:
    """One call, without a plain way."""
    return Comparison(
        work=work,
        unit="",
        plain="–",
        ours=Side(run, 1),
        against=None,
        difference=lambda: 0.0,
        rounds=3,
        released="" if quick else released,
    )


def comparisons(quick: bool) -> Iterator[Comparison]:
    """Of 16 games."""
    rows, width, layers, words = (2, 64, 1, 100) if quick else (16, 1024, 18, 267_735)
    sizes = TransformerXLSettings(
        vocabulary=100, cutoffs=(50,), width=width, layers=layers, heads=width // 64, inner=4 * width
    )
    model = TransformerXL(sizes, seed=0).eval().requires_grad_(False)
    x_B1D = torch.randn(rows, 1, width, generator=torch.Generator().manual_seed(0))
    for memory in (511, 15):
        cache = XLCache(model, rows, memory)
        yield timed(
            f"history vectors, memory {memory}, {layers} layers of width {width}, {rows} games",
            lambda cache=cache: cache.read(x_B1D),  # type: ignore[misc]
            f"transformer_xl_{memory}",
            quick,
        )
    del model, cache
    draw = torch.Generator().manual_seed(0)
    hopfield = FrozenHopfield(torch.randn(words, width, generator=draw), 147)
    observations = torch.rand(rows, 147, generator=draw)
    yield timed(f"FrozenHopfield, {rows} × {words:,} words", lambda: hopfield(observations), "frozen_hopfield", quick)

    shape = SMALL if quick else SHAPES["clip_vit_b16"]
    clip = VisionTransformer(shape, 1 if quick else 12).eval().requires_grad_(False)
    for weight in clip.parameters():
        weight.normal_(0.0, 0.02, generator=draw)
    frames = torch.rand(rows, 3, shape.image_size, shape.image_size, generator=draw)
    yield timed(f"CLIP ViT-B/16, {rows} frames", lambda: clip(frames), "clip_16_frames", quick)
