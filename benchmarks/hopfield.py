"""FrozenHopfield of cells of a 10x10 room: a look-up in a table, against the softmax over the vocabulary."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.harness import Comparison, Side
from recollect.common.frozen_hopfield import FrozenHopfield, LookupHopfield, one_hots

CELLS = (10, 10)


def comparisons(quick: bool) -> Iterator[Comparison]:
    """The vocabulary of MiniLM (30 522 x 384), random; and what making the table costs."""
    vocabulary, width, tokens = (500, 16, 50) if quick else (30_522, 384, 1000)
    draw = torch.Generator().manual_seed(0)
    direct = FrozenHopfield(torch.randn(vocabulary, width, generator=draw), sum(CELLS))
    table = LookupHopfield(direct, CELLS)
    values = torch.randint(0, 10, (tokens, 2), generator=draw)

    def difference() -> float:
        return float((table(values) - direct(one_hots(values, CELLS))).abs().max())

    yield Comparison(
        work=f"FrozenHopfield of {tokens} cells, vocabulary {vocabulary} × {width}",
        unit="tokens",
        plain="softmax over the vocabulary",
        ours=Side(lambda: table(values), tokens),
        against=Side(lambda: direct(one_hots(values, CELLS)), tokens),
        difference=difference,
        tolerance=1e-5,
        notes=("the table is made once, in the time that 100 tokens take directly",),
    )
