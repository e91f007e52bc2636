"""Promises of the positional codes."""

import math

import pytest
import torch

from recollect.common.positional_codes import Positions, sinusoid
from recollect.settings.errors import UserError


@pytest.mark.parametrize("width", [2, 7, 100])
def test_the_sinusoid_is_the_formula_entry_by_entry(width: int) -> None:
    table = sinusoid(13, width)
    assert table.shape == (13, width)
    assert table.dtype == torch.float32
    for p in (0, 1, 12):
        for feature in range(width):
            angle = p * 10000 ** (-2 * (feature // 2) / width)
            expected = math.cos(angle) if feature % 2 else math.sin(angle)
            assert table[p, feature].item() == pytest.approx(expected, abs=1e-7)


def test_the_sinusoid_stays_exact_at_far_positions() -> None:
    assert sinusoid(10_001, 4)[10_000, 0].item() == pytest.approx(math.sin(10_000), abs=1e-7)


def test_a_fixed_table_is_the_sinusoid_and_has_no_parameters() -> None:
    code = Positions(5, 4)
    assert torch.equal(code.table_LD, sinusoid(5, 4))
    assert not list(code.parameters())


def test_a_learned_table_trains_and_is_a_function_of_its_seed() -> None:
    code = Positions(400, 8, kind="learned", std=1.0, seed=3)
    assert code.table_LD.std().item() == pytest.approx(1.0, abs=0.05)
    torch.testing.assert_close(
        code.table_LD, Positions(400, 8, kind="learned", std=1.0, seed=3).table_LD, rtol=0, atol=0
    )
    assert not torch.equal(code.table_LD, Positions(400, 8, kind="learned", std=1.0, seed=4).table_LD)
    (torch.zeros(2, 3, 8) + code.table_LD[:3]).sum().backward()
    grad = code.table_LD.grad
    assert grad is not None
    assert grad[:3].eq(2).all() and grad[3:].eq(0).all()


def test_unknown_kinds_are_refused() -> None:
    with pytest.raises(UserError, match="'rope'"):
        Positions(5, 4, kind="rope")
