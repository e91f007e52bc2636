"""Pooling: the masked mean, the kinds, and the query dropout."""

import pytest
import torch

from recollect.radt.pooling import normalised, pooled

TOKENS = ("s", "rtg", "a", "r")


def batch():
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(4, 30, 4, 8, generator=generator)
    mask = torch.arange(30) >= torch.tensor([0, 10, 28, 29])[:, None]
    return hidden, mask


@pytest.mark.parametrize("kind", ["s", "rtg", "a", "r", "all"])
def test_mean_over_the_last_real_steps(kind):
    hidden, mask = batch()
    found = pooled(hidden, mask, kind=kind, steps=25, normalise=False)
    for row in range(4):
        vectors = [
            hidden[row, t, k]
            for t in range(5, 30)
            if mask[row, t]
            for k in range(4)
            if kind == "all" or TOKENS[k] == kind
        ]
        torch.testing.assert_close(found[row], torch.stack(vectors).mean(0))


def test_last_is_the_state_before_the_last_action():
    hidden, mask = batch()
    torch.testing.assert_close(pooled(hidden, mask, kind="last", normalise=False), hidden[:, -1, 1])


@pytest.mark.parametrize("kind", ["s", "last"])
def test_keys_have_length_one_and_an_empty_window_gives_zeros(kind):
    hidden, mask = batch()
    mask[0] = False
    found = pooled(hidden, mask, kind=kind)
    torch.testing.assert_close(found.norm(dim=1), torch.tensor([0.0, 1.0, 1.0, 1.0]))
    assert torch.equal(normalised(torch.zeros(1, 3)), torch.zeros(1, 3))


def test_query_dropout_zeroes_without_rescaling_and_keeps_the_denominator():
    hidden = torch.ones(2000, 25, 4, 1)
    mask = torch.ones(2000, 25, dtype=torch.bool)
    found = pooled(hidden, mask, dropout=0.2, generator=torch.Generator().manual_seed(0), normalise=False)
    counts = found * 25
    torch.testing.assert_close(counts, counts.round())  # n kept of 25, divided by 25 and not by n
    assert abs(found.mean().item() - 0.8) < 0.01
    assert counts.min() < 20 < counts.max()


def test_query_dropout_is_a_function_of_its_generator():
    hidden, mask = batch()
    one, two, three = (
        pooled(hidden, mask, dropout=0.5, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    assert torch.equal(one, two) and not torch.equal(one, three)
    with pytest.raises(ValueError, match="generator"):
        pooled(hidden, mask, dropout=0.5)
