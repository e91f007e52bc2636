"""A transformer learns from windows of many lengths, packed: batches are filled up to one of few sizes.

Against exact sizes. oneDNN prepares a product for each size anew, and packed batches of windows seldom have one size twice. The
network and the batches are those of scale demo's Decision Transformer in Dark-Room 7x7; every batch is a new one.
"""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import torch
from torch import Tensor

from benchmarks.harness import Comparison, Side
from benchmarks.repeated_images import gradients, largest_difference
from recollect.common.cpu import packing
from recollect.common.transformer import Transformer, TransformerSettings

ROWS, STEPS, WIDTH = 32, 49, 64


class Learner:
    """Forward and backward passes over batches whose lengths are drawn anew each time."""

    def __init__(self, batches: int, *, exact: bool) -> None:
        self.network = Transformer(TransformerSettings(width=WIDTH, layers=2, heads=4, dropout=0.0))
        self.draws = torch.Generator().manual_seed(0)
        self.batches = batches
        self.filled = (lambda count: count) if exact else packing.filled

    def batch(self) -> list[Tensor]:
        """Gradients of the parameters."""
        length_B = torch.randint(1, STEPS + 1, (ROWS,), generator=self.draws)
        x_BTD = torch.randn(ROWS, STEPS, WIDTH, generator=self.draws)
        hidden = self.network(x_BTD, mask_BT=torch.arange(STEPS) < length_B[:, None])
        assert isinstance(hidden, Tensor)
        return gradients(self.network, [hidden])

    def run(self) -> list[Tensor]:
        with mock.patch.object(packing, "filled", self.filled):
            return [self.batch() for _ in range(self.batches)][-1]


def comparisons(quick: bool) -> Iterator[Comparison]:
    """Batches of a Decision Transformer."""
    batches = 4 if quick else 60
    ours, exact = Learner(batches, exact=False), Learner(batches, exact=True)

    yield Comparison(
        work=f"gradients of {ROWS} windows of 1 to {STEPS} steps, width {WIDTH}",
        unit="batches",
        plain="as many tokens as there are",
        ours=Side(ours.run, batches),
        against=Side(exact.run, batches),
        difference=lambda: largest_difference(Learner(1, exact=False).run(), Learner(1, exact=True).run()),
        tolerance=1e-4,
    )
