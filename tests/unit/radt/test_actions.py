"""Continuous actions: tokens and back, what is missing is zero on the way in and counts for nothing in the loss."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recollect.common.transformer import TransformerSettings
from recollect.radt.actions import (
    NONE,
    ContinuousEmbedding,
    ContinuousHead,
    middles,
    tokens_of,
    where,
)
from recollect.radt.decision_transformer import DecisionTransformer, DecisionTransformerSettings
from recollect.radt.dt import loss_of_steps


def test_tokens_are_those_of_the_min_max_tokeniser() -> None:
    """clamp(floor((x + 1) / (2 / 64)), 0, 63), by hand (RA-DT, specification 3.1)."""
    values = torch.tensor([-1.0, -0.9999, -0.96875, -1e-6, 0.0, 0.5, 0.999, 1.0, 7.0, -7.0])
    assert tokens_of(values, 64).tolist() == [0, 0, 1, 31, 32, 48, 63, 63, 63, 0]


@given(st.integers(2, 300), st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=20))
def test_a_decoded_token_is_half_a_bin_away_at_most_and_has_the_same_token(bins: int, numbers: list[float]) -> None:
    values = torch.tensor(numbers)
    back = middles(bins)[tokens_of(values, bins)]
    assert (back - values).abs().max() <= 1 / bins + 1e-6
    assert (back.abs() < 1).all()
    assert torch.equal(tokens_of(back, bins), tokens_of(values, bins))


def test_no_action_embeds_to_zero_and_missing_dimensions_as_if_they_were_zero() -> None:
    embedding = ContinuousEmbedding(3, 5)
    known = torch.tensor([[0.5, -0.5, 0.0], [0.5, -0.5, NONE], [NONE, NONE, NONE]], requires_grad=True)
    out = embedding(known)
    assert torch.equal(out[0], out[1]) and (out[0] != 0).any()
    assert torch.equal(out[2], torch.zeros(5))
    out.sum().backward()
    assert torch.isfinite(embedding.weight.grad).all() and torch.isfinite(embedding.bias.grad).all()  # type: ignore[union-attr,arg-type]


def test_no_action_of_padding_that_is_read_embeds_as_zeros_do() -> None:
    """As the released embedding of padded actions, which are zeros: its bias."""
    embedding = ContinuousEmbedding(3, 5, padding_read=True)
    assert torch.equal(embedding(torch.full((3,), NONE)), embedding(torch.zeros(3)))
    shape = DecisionTransformerSettings(
        action_size=3, window=4, transformer=TransformerSettings(width=8, layers=1, heads=2)
    )
    for padding in ("hidden", "attended"):
        network = DecisionTransformer(shape.model_copy(update={"padding": padding}), seed=0)
        assert network.embed.action.padding_read == (padding == "attended")


def test_where_puts_none_in_all_dimensions_of_a_step() -> None:
    real = torch.tensor([[True, False]])
    assert where(real, torch.tensor([[3, 4]]), 9).tolist() == [[3, 9]]
    numbers = where(real, torch.ones(1, 2, 3), NONE)
    assert numbers.dtype == torch.float32
    assert numbers.isnan().tolist() == [[[False] * 3, [True] * 3]]


def test_regression_is_squared_error_over_the_dimensions_that_are_there() -> None:
    predicted = torch.tensor([[0.5, 0.0], [0.25, 0.75]], requires_grad=True)
    loss, metrics = loss_of_steps(predicted, torch.tensor([[1.0, NONE], [0.25, 0.25]]))
    assert loss.item() == pytest.approx((0.25 + 0 + 0.25) / 3)
    assert metrics["action_error"].item() == pytest.approx(1 / 3)
    loss.backward()
    assert predicted.grad is not None and predicted.grad[0, 1] == 0 and torch.isfinite(predicted.grad).all()


def test_bins_are_cross_entropy_over_the_dimensions_that_are_there() -> None:
    logits = torch.zeros(1, 3, 4, requires_grad=True)
    loss, metrics = loss_of_steps(logits, torch.tensor([[-0.9, 0.6, NONE]]))
    assert loss.item() == pytest.approx(math.log(4))
    assert metrics["action_accuracy"].item() == 0.5  # all logits equal: the first bin, which is right for -0.9
    loss.backward()
    assert logits.grad is not None and (logits.grad[0, 2] == 0).all()
    assert logits.grad[0, 1].argmin() == 3


def test_heads_give_numbers_within_bounds_or_logits_per_dimension() -> None:
    hidden = torch.randn(2, 7, 16) * 100
    numbers = ContinuousHead(16, 6, None)(hidden)
    assert numbers.shape == (2, 7, 6) and numbers.abs().max() <= 1
    assert ContinuousHead(16, 6, 64)(hidden).shape == (2, 7, 6, 64)
