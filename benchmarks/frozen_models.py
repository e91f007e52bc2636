"""HELM's frozen models at their published sizes, with random weights: what the released code was timed at.

A step of Transformer-XL in 16 games with a full memory, one FrozenHopfield of 16 observations over its 267,735 words, and CLIP's
ViT-B/16 on 16 frames (an agent sees most of its frames again and encodes those once; that is not counted here). That their
values are the released models' is held by the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

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


class Sizes(NamedTuple):
    """Games, width and layers of the language model, and its words."""

    rows: int
    width: int
    layers: int
    words: int


def sizes_of(quick: bool) -> Sizes:
    return Sizes(2, 64, 1, 100) if quick else Sizes(16, 1024, 18, 267_735)


def transformer_xl(sizes: Sizes) -> TransformerXL:
    """With random weights; of few words, which its history vectors do not depend on."""
    width = sizes.width
    chosen = TransformerXLSettings(
        vocabulary=100, cutoffs=(50,), width=width, layers=sizes.layers, heads=width // 64, inner=4 * width
    )
    return TransformerXL(chosen, seed=0).eval().requires_grad_(False)


def clip(quick: bool, rows: int, draw: torch.Generator) -> tuple[VisionTransformer, Tensor]:
    """CLIP's ViT-B/16 with random weights, and frames [rows, 3, S, S] for it."""
    shape = SMALL if quick else SHAPES["clip_vit_b16"]
    encoder = VisionTransformer(shape, 1 if quick else 12).eval().requires_grad_(False)
    for weight in encoder.parameters():
        weight.normal_(0.0, 0.02, generator=draw)
    return encoder, torch.rand(rows, 3, shape.image_size, shape.image_size, generator=draw)


def comparisons(quick: bool) -> Iterator[Comparison]:
    """Of 16 games."""
    rows, width, layers, words = sizes = sizes_of(quick)
    model = transformer_xl(sizes)
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

    encoder, frames = clip(quick, rows, draw)
    yield timed(f"CLIP ViT-B/16, {rows} frames", lambda: encoder(frames), "clip_16_frames", quick)
