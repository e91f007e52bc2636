"""Steps of a rotary memory that were taken before: the same as taking them, and cheaper."""

import numpy as np
import pytest
import torch

from recollect.helm.frame_cache import VectorCache
from recollect.helm.language.recalled_steps import LONGEST, RecalledSteps, inputs_that_count
from recollect.helm.language.rotary_transformer import RotaryCache, RotaryTransformer, RotaryTransformerSettings

SMALL = RotaryTransformerSettings(vocabulary=5, width=32, layers=2, heads=4, shared_heads=2, head_width=8, inner=48)
ROWS, STEPS = 7, 60


def pair(layers: int, length: int, tokens: int) -> tuple[RotaryCache, RecalledSteps]:
    model = RotaryTransformer(SMALL.shortened(layers), seed=3).eval().requires_grad_(False)
    plain, ring = (RotaryCache(model, ROWS, length, tokens) for _ in range(2))
    return plain, RecalledSteps(ring, VectorCache(4000))


def play(tokens: int, seed: int = 0):
    """Inputs of few different words, so that sequences come again, and resets at odd times."""
    draw = np.random.default_rng(seed)
    table = torch.from_numpy(draw.normal(size=(3, 32)).astype(np.float32))
    for _ in range(STEPS):
        yield torch.from_numpy(draw.random(ROWS) < 0.15), table[torch.from_numpy(draw.integers(0, 3, (ROWS, tokens)))]


def taken_by(recalled: RecalledSteps) -> list[int]:
    """The rows whose steps go through the network from now on."""
    taken, take = [], recalled._taken
    recalled._taken = lambda x_BKD, rows: (taken.extend(rows), take(x_BKD, rows))[1]
    return taken


@pytest.mark.quick("1-4-1", "2-2-3")
@pytest.mark.parametrize(("layers", "length", "tokens"), [(1, 4, 1), (2, 3, 1), (1, 6, 3), (2, 5, 2), (2, 2, 3)])
def test_a_recalled_step_equals_the_step(layers, length, tokens):
    plain, recalled = pair(layers, length, tokens)
    taken = taken_by(recalled)
    for mask_B, x_BKD in play(tokens):
        plain.reset(mask_B)
        recalled.reset(mask_B)
        torch.testing.assert_close(recalled.step(x_BKD), plain.read(x_BKD)[:, -1], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(recalled.attention(), plain.attention(), rtol=1e-5, atol=1e-6)
        # What is remembered is the same, so whatever is read next is.
        torch.testing.assert_close(recalled.ring.arrays(), plain.arrays(), rtol=1e-5, atol=1e-6)
    assert len(taken) < ROWS * STEPS - 50


def test_tokens_of_a_step_may_be_fewer():
    plain, recalled = pair(2, 4, 3)
    for step, (mask_B, x_BKD) in enumerate(play(3)):
        x_BKD = x_BKD[:, : 1 + step % 3]
        plain.reset(mask_B)
        recalled.reset(mask_B)
        torch.testing.assert_close(recalled.step(x_BKD), plain.read(x_BKD)[:, -1], rtol=1e-5, atol=1e-6)


def test_a_key_of_fewer_inputs_would_be_wrong():
    """All inputs that are counted do count: with one fewer in the key, states differ."""
    plain, recalled = pair(2, 3, 1)
    recalled._layers = 1
    apart = 0.0
    for mask_B, x_BKD in play(1):
        plain.reset(mask_B)
        recalled.reset(mask_B)
        apart = max(apart, float((recalled.step(x_BKD) - plain.read(x_BKD)[:, -1]).abs().max()))
    assert apart > 1e-2


def test_a_step_goes_on_bit_exactly_from_arrays():
    _, whole = pair(2, 4, 2)
    moves = list(play(2))
    for mask_B, x_BKD in moves[:30]:
        whole.reset(mask_B)
        whole.step(x_BKD)
    _, again = pair(2, 4, 2)
    again.load({name: np.asarray(value) for name, value in whole.arrays().items()})
    taken = [taken_by(whole), taken_by(again)]
    for mask_B, x_BKD in moves[30:]:
        whole.reset(mask_B)
        again.reset(mask_B)
        assert torch.equal(whole.step(x_BKD), again.step(x_BKD))
        assert torch.equal(whole.attention(), again.attention())
    assert taken[0] == taken[1] and len(taken[0]) < ROWS * 30


def test_long_memories_are_read_as_they_are():
    model = RotaryTransformer(SMALL, seed=3).eval().requires_grad_(False)
    assert RecalledSteps.pays(RotaryCache(model, 2, LONGEST // 2, 1))
    assert not RecalledSteps.pays(RotaryCache(model, 2, LONGEST, 1))
    assert not RecalledSteps.pays(RotaryCache(model, 2, 4, 1, dtype=torch.bfloat16))


def test_inputs_that_count_are_those_that_layers_see():
    assert inputs_that_count(1, 6, 1) == 5
    assert inputs_that_count(2, 6, 1) == 10
    assert inputs_that_count(1, 15, 3) == 12  # four steps of three, and the new one
