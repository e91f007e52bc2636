"""The arithmetic of a piece of work is counted by what it computes, forward and backward, and the results stay what they are."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # benchmarks is no part of the package

from benchmarks.arithmetic import Arithmetic
from benchmarks.harness import Comparison, Side, measure
from recollect.common.cpu.kernels import linear

B, T, D, E = 8, 50, 96, 128
X, W = torch.randn(B, T, D, requires_grad=True), torch.randn(E, D, requires_grad=True)
LAYER = 2 * B * T * D * E
LSTM = nn.LSTM(D, E, batch_first=True)
RECURRENT = 2 * B * T * 4 * E * (D + E)
HEADS = torch.randn(B, 2, T, 16, requires_grad=True)
SCORES = 2 * B * 2 * T * T * 16
CONVOLUTION = nn.Conv2d(3, 8, 3)
IMAGES = torch.randn(2, 3, 10, 10)


def counted(work: Callable[[], object]) -> int:
    with Arithmetic() as arithmetic:
        work()
    return arithmetic.flop


@pytest.mark.parametrize(
    ("work", "flop"),
    [
        (lambda: F.linear(X, W), LAYER),
        (lambda: linear(X, W), LAYER),  # through oneDNN
        (lambda: linear(X, W).sum().backward(), 3 * LAYER),
        (lambda: LSTM(X.detach()), RECURRENT),
        (lambda: LSTM(X)[0].sum().backward(), 3 * RECURRENT),
        (lambda: F.scaled_dot_product_attention(HEADS, HEADS, HEADS), 2 * SCORES),
        (lambda: F.scaled_dot_product_attention(HEADS, HEADS, HEADS, is_causal=True), SCORES),
        (lambda: F.scaled_dot_product_attention(HEADS, HEADS, HEADS).sum().backward(), 7 * SCORES),
        (lambda: CONVOLUTION(IMAGES), 2 * IMAGES.shape[0] * 8 * 8 * 8 * 27),
        (lambda: torch.bmm(HEADS[0], HEADS[0].transpose(1, 2)), 2 * 2 * T * T * 16),
        (lambda: torch.mv(W, X[0, 0]), 2 * D * E),
        (lambda: torch.addmv(torch.zeros(E), W, X[0, 0]), 2 * D * E),
        (lambda: torch.zeros(T, E).addmm_(X.detach()[0], W.detach().T), 2 * T * D * E),
        (lambda: (X + 1).softmax(-1), 0),
    ],
)
def test_products_are_counted(work: Callable[[], object], flop: int) -> None:
    assert counted(work) == flop


def test_inference_mode_is_counted_too() -> None:
    with torch.inference_mode():
        assert counted(lambda: F.linear(X, W)) == LAYER
        assert counted(lambda: X @ W.T) == LAYER


def test_counting_changes_no_number() -> None:
    with Arithmetic():
        found = linear(X, W)
    assert torch.equal(found, linear(X, W))


def test_a_result_has_the_arithmetic_of_one_unit() -> None:
    side = Side(lambda: F.linear(X, W), 4)
    comparison = Comparison("a product", "rows", "the same", side, side, difference=lambda: 0.0)
    assert measure(comparison, rounds=1, at_least=0.0).gflop == pytest.approx(LAYER / 4 / 1e9)
    nothing = Side(lambda: None, 1)
    comparison = Comparison("nothing", "", "–", nothing, None, difference=lambda: 0.0)
    assert measure(comparison, rounds=1, at_least=0.0).gflop is None
