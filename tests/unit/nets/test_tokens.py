"""Promises of the min-max tokeniser."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recollect.nets.tokens import MinMaxTokens
from recollect.settings.errors import UserError

bounds = st.tuples(st.floats(-500, 500, width=32), st.floats(0.5, 1000, width=32), st.integers(1, 800))


def test_dark_room_returns_fall_into_the_bins_of_the_paper() -> None:
    tokens = MinMaxTokens(0, 100, 100)
    x = np.array([-3.0, 0.0, 0.99, 1.0, 57.5, 99.0, 100.0, 1e9], dtype=np.float32)
    expected = [0, 0, 0, 1, 57, 99, 99, 99]
    assert tokens.encode(x).tolist() == expected
    assert tokens.encode(torch.from_numpy(x)).tolist() == expected
    assert tokens.decode(np.array([0, 57])).tolist() == [0.0, 57.0]


@given(bounds)
def test_every_bin_survives_decode_then_encode(shape: tuple[float, float, int]) -> None:
    low, extent, vocabulary = shape
    tokens = MinMaxTokens(low, low + extent, vocabulary)
    every = torch.arange(vocabulary)
    assert torch.equal(tokens.encode(tokens.decode(every)), every)
    assert np.array_equal(tokens.encode(tokens.decode(every.numpy())), every.numpy())


@given(bounds, st.floats(0.001, 0.999))
def test_the_middle_of_a_bin_is_in_it_and_decodes_to_its_lower_edge(
    shape: tuple[float, float, int], fraction: float
) -> None:
    low, extent, vocabulary = shape
    tokens = MinMaxTokens(low, low + extent, vocabulary)
    bin_index = int(fraction * vocabulary)
    x = np.array([low + (bin_index + 0.5) * tokens.bin_width])
    assert tokens.encode(x).tolist() == [bin_index]
    assert x[0] - tokens.decode(tokens.encode(x))[0] == pytest.approx(tokens.bin_width / 2, rel=0.05, abs=1e-3)


def test_integers_and_shapes_are_kept() -> None:
    tokens = MinMaxTokens(0, 9, 10)
    x = torch.tensor([[0, 9], [5, 3]], dtype=torch.uint8)
    assert tokens.encode(x).tolist() == [[0, 9], [5, 3]]
    assert tokens.encode(x).dtype == torch.int64
    assert tokens.decode(tokens.encode(x)).dtype == torch.float32


@pytest.mark.parametrize("bad", [(1, 1, 4), (2, 1, 4), (0, 1, 0), (0, float("inf"), 4), (float("nan"), 1, 4)])
def test_impossible_bins_are_refused(bad: tuple[float, float, int]) -> None:
    with pytest.raises(UserError, match="no bins fit"):
        MinMaxTokens(*bad)
