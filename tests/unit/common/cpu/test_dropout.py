"""Promises of the dropout stream."""

import copy
import math

import numpy as np
import pytest
import torch

from recollect.common.cpu.dropout import Dropout


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_it_drops_at_the_rate_asked_for_and_keeps_the_mean(p: float) -> None:
    dropped = Dropout(0)(torch.ones(400, 1001), p)
    assert dropped.eq(0).float().mean().item() == pytest.approx(p, abs=0.003)
    assert dropped.mean().item() == pytest.approx(1.0, abs=0.01 / (1 - p))
    values = dropped.unique()
    assert len(values) == 2
    assert values[1].item() == pytest.approx(1 / (1 - p), rel=1e-3)


def test_neighbours_are_dropped_independently() -> None:
    kept = Dropout(1).keep((1000, 1000), 0.3)
    both_down = (kept[1:] * kept[:-1]).mean().item()
    both_right = (kept[:, 1:] * kept[:, :-1]).mean().item()
    assert both_down == pytest.approx(0.49, abs=0.003)
    assert both_right == pytest.approx(0.49, abs=0.003)


def test_the_residual_form_is_the_plain_form_plus_x() -> None:
    x, y = torch.arange(12.0).view(3, 4), torch.ones(3, 4, requires_grad=True)
    added, plain = Dropout(2).add(x, y, 0.4), Dropout(2)(y, 0.4)
    torch.testing.assert_close(added, x + plain)
    (grad,) = torch.autograd.grad(added.sum(), y)
    torch.testing.assert_close(grad, plain.detach())


def test_the_stream_is_a_function_of_the_seed_and_is_copied_with_the_object() -> None:
    stream = Dropout(3)
    first = stream.keep((50,), 0.5)
    assert not torch.equal(stream.keep((50,), 0.5), first)
    copied = copy.deepcopy(stream)
    torch.testing.assert_close(copied.keep((50,), 0.5), stream.keep((50,), 0.5), rtol=0, atol=0)
    stream.reseed(3)
    torch.testing.assert_close(stream.keep((50,), 0.5), first, rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(0,), (1,), (3, 5), (4, 0, 2)])
def test_any_shape_is_served(shape: tuple[int, ...]) -> None:
    assert Dropout(0).keep(shape, 0.5).shape == shape


def test_what_is_drawn_ahead_changes_nothing_of_the_stream() -> None:
    """Small and large masks in any order use up the words of the generator one after the other."""
    sizes = [(3,), (70, 90), (1,), (4096,), (5, 7), (20_000,), (2,)] * 3
    words = np.random.Generator(np.random.SFC64(4)).integers(0, 2**64, 30_000, dtype=np.uint64).view(np.int16)
    stream, at = Dropout(4), 0
    for shape in sizes:
        count = math.prod(shape)
        expected = words[at : at + count] >= round(0.3 * 65536) - 32768
        assert np.array_equal(stream.keep(shape, 0.3).numpy().ravel(), expected)
        at += -(-count // 4) * 4
