"""Promises of the key/value cache: whatever is stepped, skipped, prefilled and reset, it equals the full forward."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from recollect.common.cache import KeyValueCache
from recollect.common.transformer import Transformer, TransformerSettings
from recollect.settings.errors import UserError

D, CAPACITY = 16, 12
TIGHT = {"rtol": 1e-5, "atol": 1e-5}


def make(**options: object) -> Transformer:
    shape = {"width": D, "layers": 2, "heads": 2, "cross_attention": (1,), **options}
    model = Transformer(TransformerSettings.model_validate(shape))
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator) * 0.3)
    return model.eval()


MODEL = make()


class Twin:
    """A cache, and beside it the tokens of every row, which the full forward encodes from scratch."""

    def __init__(self, batch: int, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.cache = KeyValueCache(MODEL, batch, CAPACITY)
        self.rows = [torch.zeros(0, D) for _ in range(batch)]
        self.context = torch.zeros(batch, 3, D)
        self.context_mask = torch.zeros(batch, 3, dtype=torch.bool)
        self.has = torch.zeros(batch, dtype=torch.bool)

    def draw(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator)

    def check(self, h_BTD: Tensor, mask_BT: Tensor) -> None:
        assert h_BTD.isfinite().all()
        for b, tokens in enumerate(self.rows):
            new = int(mask_BT[b].sum())
            assert int(self.cache.lengths_B[b]) == len(tokens)
            if new:
                part = slice(b, b + 1)
                full = MODEL(
                    tokens[None],
                    context_BSD=self.context[part],
                    context_mask_BS=self.context_mask[part],
                    has_context_B=self.has[part],
                )
                torch.testing.assert_close(h_BTD[b, mask_BT[b]], full[0, -new:], **TIGHT)

    def feed(self, mask_BT: Tensor, plain: bool) -> None:
        B, T = mask_BT.shape
        x = self.draw(B, T, D)
        self.rows = [torch.cat([row, x[b, mask_BT[b]]]) for b, row in enumerate(self.rows)]
        if T == 1:
            h = self.cache.step(x[:, 0], None if plain else mask_BT[:, 0])[:, None]
        else:
            h = self.cache.extend(x, None if plain else mask_BT)
        self.check(h, mask_BT)

    def room(self) -> int:
        return CAPACITY - max(len(row) for row in self.rows)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 4), st.integers(0, 2**32))
def test_every_history_of_calls_equals_the_full_forward(data: st.DataObject, batch: int, seed: int) -> None:
    twin = Twin(batch, seed)
    bools = st.lists(st.booleans(), min_size=batch, max_size=batch)
    for _ in range(data.draw(st.integers(1, 10))):
        call = data.draw(
            st.sampled_from(["step", "step", "some", "block", "left", "right", "reset", "context", "rows"])
        )
        if call == "reset":
            mask = torch.tensor(data.draw(bools))
            twin.cache.reset(mask.numpy() if data.draw(st.booleans()) else mask)
            twin.rows = [row[:0] if mask[b] else row for b, row in enumerate(twin.rows)]
        elif call in ("context", "rows"):
            rows = torch.tensor(data.draw(bools)) if call == "rows" else torch.ones(batch, dtype=torch.bool)
            context, has = twin.draw(batch, 3, D), torch.tensor(data.draw(bools))
            mask = torch.tensor([data.draw(st.lists(st.booleans(), min_size=3, max_size=3)) for _ in range(batch)])
            twin.cache.set_context(context, mask, has, rows_B=rows if call == "rows" else None)
            twin.context = torch.where(rows[:, None, None], context, twin.context)
            twin.context_mask = torch.where(rows[:, None], mask, twin.context_mask)
            twin.has = torch.where(rows, has, twin.has)
        elif call == "some":  # full rows may stand by
            able = torch.tensor([len(row) < CAPACITY for row in twin.rows])
            twin.feed((torch.tensor(data.draw(bools)) & able)[:, None], plain=False)
        elif twin.room() >= 1 and call == "step":
            twin.feed(torch.ones(batch, 1, dtype=torch.bool), plain=True)
        elif twin.room() >= 2:
            T = data.draw(st.integers(2, twin.room()))
            counts = torch.tensor(data.draw(st.lists(st.integers(0, T), min_size=batch, max_size=batch)))[:, None]
            slots = torch.arange(T)
            masks = {"left": slots >= T - counts, "right": slots < counts}
            twin.feed(masks.get(call, torch.ones(batch, T, dtype=torch.bool)), plain=call not in masks)


def test_rows_reset_at_different_times_equal_the_full_forward_step_by_step() -> None:
    twin = Twin(5, seed=1)
    every = torch.ones(5, 1, dtype=torch.bool)
    for t in range(40):
        twin.feed(every, plain=True)
        over = np.array([(t + 1) % period == 0 for period in (3, 5, 7, 11, 12)])
        twin.cache.reset(over)
        twin.rows = [row[:0] if over[b] else row for b, row in enumerate(twin.rows)]


def test_rows_that_take_no_part_keep_their_cache_byte_for_byte() -> None:
    cache = KeyValueCache(MODEL, 3, CAPACITY)
    generator = torch.Generator().manual_seed(0)
    cache.extend(torch.randn(3, 4, D, generator=generator), None)
    cache.step(torch.randn(3, D, generator=generator), torch.tensor([True, False, True]))
    kept = [kv[:, 1, :, :4].clone() for kv in cache.layers]
    for _ in range(CAPACITY - 5):
        cache.step(torch.randn(3, D, generator=generator), torch.tensor([True, False, True]))
    assert cache.lengths_B.tolist() == [CAPACITY, 4, CAPACITY]
    assert all(torch.equal(kv[:, 1, :, :4], was) for kv, was in zip(cache.layers, kept, strict=True))


def test_context_keys_and_values_are_computed_once_and_only_for_the_rows_that_change() -> None:
    seen: list[int] = []
    hooks = [
        block.cross_kv.register_forward_hook(lambda _m, x, _y: seen.append(len(x[0])))
        for block in MODEL.blocks
        if block.cross
    ]
    cache = KeyValueCache(MODEL, 4, CAPACITY)
    cache.set_context(torch.ones(4, 3, D))
    for _ in range(5):
        cache.step(torch.ones(4, D))
    cache.set_context(torch.zeros(4, 3, D), rows_B=np.array([True, False, False, True]))
    cache.step(torch.ones(4, D))
    assert seen == [4, 2]
    for hook in hooks:
        hook.remove()


def test_refilled_rows_hold_what_they_are_given_and_read_their_own_context() -> None:
    twin, yes = Twin(4, seed=2), True
    twin.context, twin.has = twin.draw(4, 3, D), torch.tensor([True, True, False, True])
    twin.context_mask = torch.tensor([[yes, yes, yes], [yes, False, yes], [yes, yes, yes], [False, yes, yes]])
    twin.cache.set_context(twin.context, twin.context_mask, twin.has)
    twin.feed(torch.ones(4, 5, dtype=torch.bool), plain=True)
    rows, mask = torch.tensor([2, 1]), torch.tensor([[False, yes, yes], [yes, yes, yes]])
    x, hidden, new = twin.draw(2, 3, D), torch.zeros(4, 3, D), torch.zeros(4, 3, dtype=torch.bool)
    hidden[rows], new[rows] = twin.cache.refill(rows, x, mask), mask
    for place, row in enumerate(rows.tolist()):
        twin.rows[row] = x[place, mask[place]]
    twin.check(hidden, new)
    twin.feed(torch.ones(4, 1, dtype=torch.bool), plain=True)
    # What was saved goes on alike, with the contexts and with who has none.
    other = Twin(4, seed=3)
    other.__dict__ |= {**twin.__dict__, "cache": other.cache}
    other.cache.load_state(twin.cache.state_arrays())
    other.feed(torch.ones(4, 1, dtype=torch.bool), plain=True)


def test_clearing_the_context_takes_cross_attention_away() -> None:
    cache, fresh = KeyValueCache(MODEL, 2, CAPACITY), KeyValueCache(MODEL, 2, CAPACITY)
    x = torch.randn(2, D, generator=torch.Generator().manual_seed(0))
    cache.set_context(torch.ones(2, 3, D))
    changed = cache.step(x)
    cache.reset()
    cache.clear_context()
    plain = fresh.step(x)
    torch.testing.assert_close(cache.step(x), plain, **TIGHT)
    assert (changed - plain).abs().max() > 0.01


@pytest.mark.parametrize("staggered", [False, True])
def test_overflow_is_a_clear_error_and_changes_nothing(staggered: bool) -> None:
    cache = KeyValueCache(MODEL, 2, 3)
    x = torch.ones(2, D)
    for _ in range(3):
        cache.step(x)
    if staggered:
        cache.reset(np.array([False, True]))
    lengths = cache.lengths_B.tolist()
    with pytest.raises(UserError, match="would hold 4 tokens, but it was made for 3"):
        cache.step(x)
    with pytest.raises(UserError, match="would hold 5 tokens"):
        cache.extend(torch.ones(2, 2, D), None)
    with pytest.raises(UserError, match="would hold 4 tokens"):
        cache.extend(torch.ones(2, 2, D), torch.tensor([[False, True], [False, False]]))
    assert cache.lengths_B.tolist() == lengths
    cache.step(x, torch.tensor([False, staggered]))  # a full row may stand by
    assert cache.lengths_B.tolist() == [3, 1 if staggered else 3]
    cache.reset()
    cache.step(x)
    assert cache.lengths_B.tolist() == [1, 1]


def test_wrong_shapes_are_refused() -> None:
    cache = KeyValueCache(MODEL, 2, 3)
    with pytest.raises(UserError, match="3 rows were given to a key/value cache of 2"):
        cache.step(torch.ones(3, D))
    with pytest.raises(UserError, match=r"mask of dtype torch\.float32"):
        cache.reset(torch.ones(2))
    with pytest.raises(UserError, match=r"mask of dtype torch\.bool"):
        cache.reset(torch.ones(3, dtype=torch.bool))
    with pytest.raises(UserError, match="context of 3 rows"):
        cache.set_context(torch.ones(3, 3, D))
    cache.set_context(torch.ones(2, 3, D))
    with pytest.raises(UserError, match="4 and 3 tokens"):
        cache.set_context(torch.ones(2, 4, D), rows_B=np.array([True, False]))


def test_stepping_needs_no_gradient_and_stores_only_what_was_allocated() -> None:
    cache = KeyValueCache(MODEL, 2, 5)
    where = [kv.data_ptr() for kv in cache.layers]
    for _ in range(5):
        assert not cache.step(torch.ones(2, D)).requires_grad
    assert [kv.data_ptr() for kv in cache.layers] == where
    assert [tuple(kv.shape) for kv in cache.layers] == [(2, 2, 2, 6, D // 2)] * 2


def test_dropout_acts_while_stepping_in_training_mode_only() -> None:
    model = make(dropout=0.5)
    x = torch.randn(3, D, generator=torch.Generator().manual_seed(0))

    def twice() -> list[Tensor]:
        cache = KeyValueCache(model, 3, 4)
        return [cache.step(x), cache.step(x), cache.extend(x[:, None].expand(3, 2, D), None)]

    assert all(torch.equal(a, b) for a, b in zip(twice(), twice(), strict=True))
    model.train()
    assert not any(torch.equal(a, b) for a, b in zip(twice(), twice(), strict=True))
    model.reseed_dropout(3)
    first = twice()
    model.reseed_dropout(3)
    assert all(torch.equal(a, b) for a, b in zip(first, twice(), strict=True))


def test_a_bfloat16_cache_and_autocast_stay_near_float32() -> None:
    x = torch.randn(2, 6, D, generator=torch.Generator().manual_seed(0))
    exact = MODEL(x, context_BSD=x[:, :3])
    cache = KeyValueCache(MODEL, 2, 6, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        cache.set_context(x[:, :3])
        first = cache.extend(x[:, :3], None)
        cache.reset(np.array([True, False]))
        cache.reset(np.array([False, True]))
        h = [cache.step(x[:, t]) for t in range(6)]
    assert (torch.stack(h, 1) - exact).abs().max() < 0.3
    assert (first - exact[:, :3]).abs().max() < 0.3


def test_a_state_without_a_context_takes_one_away() -> None:
    model = Transformer(TransformerSettings(width=8, heads=2, layers=2, cross_attention="all")).eval()
    without, other = KeyValueCache(model, 2, 4), KeyValueCache(model, 2, 4)
    other.set_context(torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0)))
    other.load_state(without.state_arrays())
    x_BD = torch.ones(2, 8).cumsum(1)
    assert torch.equal(other.step(x_BD), without.step(x_BD))
