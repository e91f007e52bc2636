"""Our Transformer-XL against the plain way of computing it, and against what its paper says."""

import sys
from pathlib import Path

import pytest
import torch

from recollect.helm.language.transformer_xl import TransformerXL, TransformerXLSettings, XLCache
from recollect.settings.errors import UserError

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # benchmarks is no part of the package
from benchmarks.plain_transformer_xl import PlainXL

SETTINGS = TransformerXLSettings(
    vocabulary=50, cutoffs=(10, 30), division=2, width=16, layers=3, heads=2, head_width=6, inner=24, clamp=6
)


@pytest.fixture(scope="module")
def model() -> TransformerXL:
    made = TransformerXL(SETTINGS, seed=1).eval().requires_grad_(False)
    draw = torch.Generator().manual_seed(2)
    for name, weight in made.named_parameters():  # livelier than the first weights of training
        if name.endswith(("_bias", ".bias")):
            weight.normal_(0.0, 1.0, generator=draw)
    return made


def inputs(steps: int, rows: int, tokens: int) -> torch.Tensor:
    return torch.randn(steps, rows, tokens, 16, generator=torch.Generator().manual_seed(tokens))


@pytest.mark.quick("2-1", "7-2", "12-1")
@pytest.mark.parametrize("tokens", [1, 2, 4])
@pytest.mark.parametrize("length", [2, 7, 12])
def test_the_cache_equals_projecting_everything_anew_under_staggered_resets(model, tokens, length):
    rows, draw = 3, torch.Generator().manual_seed(3)
    cache, plain = XLCache(model, rows, length, tokens), PlainXL(model, rows, length)
    for x in inputs(3 * length + 5, rows, tokens):
        torch.testing.assert_close(cache.read(x), plain.read(x), rtol=0, atol=1e-5)
        done = torch.rand(rows, generator=draw) < 0.2
        cache.reset(done)
        plain.reset(done)


def test_fewer_tokens_than_the_cache_was_made_for_are_read_as_well(model):
    cache, plain = XLCache(model, 2, 5, 4), PlainXL(model, 2, 5)
    for step, x in enumerate(inputs(20, 2, 4)):
        x = x[:, : 1 + step % 4]
        torch.testing.assert_close(cache.read(x), plain.read(x), rtol=0, atol=1e-5)


def test_a_peek_sees_what_a_step_would_and_leaves_no_trace(model):
    cache, other = XLCache(model, 2, 5, 2), XLCache(model, 2, 5, 2)
    for x in inputs(12, 2, 2):
        cache.read(-x, remember=False)
        expected = cache.read(x, remember=False)
        assert torch.equal(cache.read(x), expected) and torch.equal(other.read(x), expected)
    assert (
        all(torch.equal(a, b) for a, b in zip(cache.layers, other.layers, strict=True)) and cache.count == other.count
    )


def test_every_token_attends_to_exactly_m_and_zeros_take_their_share(model):
    cache = XLCache(model, 2, 5, 3)
    for x in inputs(4, 2, 3):
        cache.read(x)
        for weights_BHKS in cache.weights:
            assert ((weights_BHKS > 0).sum(3) == 5).all()
            torch.testing.assert_close(weights_BHKS.sum(3), torch.ones(2, 2, 3))
        attention_LBM = cache.attention()
        assert attention_LBM.shape == (3, 2, 5)
        torch.testing.assert_close(attention_LBM.sum(2), torch.ones(3, 2))
    fresh = XLCache(model, 1, 5)
    (x,) = inputs(1, 1, 1)
    fresh.read(x)
    assert (fresh.attention()[:, :, :4] > 0.01).all()  # nothing was seen yet, and still it is attended to
    # By hand, first layer: keys of the four zeros are zero, so their scores are (q + position bias) . R alone.
    layer, scale = model.layers[0], 6**-0.5
    q, k, _ = layer.qkv(x[0, 0]).view(3, 2, 6)
    code = torch.stack(
        [torch.cat([angle.sin(), angle.cos()]) for angle in (d / 10000 ** (torch.arange(8) / 8) for d in range(5))]
    )
    r = layer.positions(code).view(5, 2, 6)
    scores = torch.einsum("he,dhe->hd", q + layer.position_bias, r)
    scores[:, 0] += ((q + layer.content_bias) * k).sum(1)
    torch.testing.assert_close(fresh.attention()[0, 0], (scores * scale).softmax(1).mean(0).flip(0))


def test_attention_names_the_tokens_oldest_first(model):
    cache, plain = XLCache(model, 1, 5), XLCache(model, 1, 5)
    seen = inputs(9, 1, 1)
    for x in seen:
        cache.read(x)
    for step, x in enumerate(seen):
        plain.read(x * (100 if step == 6 else 1))
    moved = (plain.attention()[0, 0] - cache.attention()[0, 0]).abs()
    assert moved.argmax() == 2  # steps 4..8 are attended to; the third of them is another


def test_a_forgotten_row_is_as_new_and_the_others_keep_their_bytes(model):
    cache, fresh = XLCache(model, 3, 6), XLCache(model, 3, 6)
    x = inputs(8, 3, 1)
    for step in range(4):
        cache.read(x[step])
    before = [kv.clone() for kv in cache.layers]
    cache.reset(torch.tensor([False, True, False]))
    assert all(torch.equal(kv[:, [0, 2]], old[:, [0, 2]]) for kv, old in zip(cache.layers, before, strict=True))
    for step in range(4, 8):
        torch.testing.assert_close(cache.read(x[step])[1], fresh.read(x[step])[1], rtol=0, atol=1e-6)


def test_distances_beyond_the_clamp_count_as_it(model):
    with torch.no_grad():
        codes = model.distances(9)
        assert all(torch.equal(code[:, :, 0], code[:, :, 2]) for code in codes)  # 8 and 6
        assert not any(torch.equal(code[:, :, 2], code[:, :, 3]) for code in codes)  # 6 and 5


def test_parameters_are_those_of_the_published_model():
    with torch.device("meta"):
        model = TransformerXL(TransformerXLSettings())
    count = {name: sum(p.numel() for p in part.parameters()) for name, part in model.named_children()}
    assert count["embeddings"] + count["projections"] == 38_316_400
    assert count["layers"] == 18 * 13_642_752
    assert sum(count.values()) == 283_885_936
    assert [tuple(p.shape) for p in model.embeddings] == [(20_000, 1024), (20_000, 256), (160_000, 64), (67_735, 16)]


def test_the_table_is_scaled_and_projected(model):
    table_VD = model.table()
    assert table_VD.shape == (50, 16)
    torch.testing.assert_close(table_VD[12], 4 * (model.projections[1] @ model.embeddings[1][2]))  # sqrt(16) = 4


def test_random_weights_are_a_function_of_the_seed_and_draw_nothing_global():
    before = torch.get_rng_state()
    first, again, other = (TransformerXL(SETTINGS, seed=seed).state_dict() for seed in (4, 4, 5))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["layers.0.qkv.weight"], other["layers.0.qkv.weight"])


@pytest.mark.parametrize("shape", [(3, 1, 16), (2, 3, 16), (2, 1, 15), (2, 0, 16)])
def test_inputs_that_do_not_fit_are_refused(model, shape):
    with pytest.raises(UserError, match="do not fit"):
        XLCache(model, 2, 5, 2).read(torch.zeros(shape))


def test_a_memory_of_nothing_is_refused(model):
    with pytest.raises(UserError, match="holds nothing"):
        XLCache(model, 2, 0)


@pytest.mark.parametrize("tokens", [1, 3])
def test_a_checkpoint_holds_what_was_written_since_each_rows_reset_and_gives_the_same_ring(model, tokens):
    rows, length, draw = 4, 9, torch.Generator().manual_seed(5)
    cache, since = XLCache(model, rows, length, tokens), torch.zeros(rows, dtype=torch.int64)
    for step, x in enumerate(inputs(40, rows, tokens)):
        x = x[:, : 1 + step % tokens]
        cache.read(x)
        since = (since + x.shape[1]).clamp(max=cache.slots)
        done = torch.rand(rows, generator=draw) < 0.2
        cache.reset(done)
        since[done] = 0
        kept = {name: value.clone() for name, value in cache.arrays().items()}
        assert kept["cache0"].shape == (int(since.sum()), 2, 2, 6)
        resumed = XLCache(model, rows, length, tokens)
        resumed.load(kept)
        assert all(
            a.numpy().tobytes() == b.numpy().tobytes() for a, b in zip(cache.layers, resumed.layers, strict=True)
        )
        peek = cache.read(x, remember=False)
        assert torch.equal(resumed.read(x, remember=False), peek)
    assert 0 < int(since.sum()) < rows * cache.slots


@pytest.mark.parametrize("tokens", [1, 3])
def test_a_step_asks_the_host_nothing_so_that_a_graph_can_hold_it(model, tokens):
    meta = torch.device("meta")
    with meta:
        shapes_only = TransformerXL(SETTINGS)
    cache = XLCache(shapes_only, 2, 5, tokens)  # what reads a number of a tensor fails there
    assert cache.step(torch.zeros(2, tokens, 16, device=meta))[0].shape == (2, 16)
    cache.reset(torch.tensor([True, False]))


def test_in_bfloat16_a_memory_that_has_rolled_over_stays_near_float32_and_is_saved_exactly():
    plain, half = (TransformerXL(SETTINGS, seed=1).eval().requires_grad_(False) for _ in range(2))
    half.hold_products(torch.bfloat16)
    assert half.projections[0].dtype == half.layers[0].norm_mlp.weight.dtype == torch.float32
    cache, other = XLCache(plain, 3, 7), XLCache(half, 3, 7, dtype=torch.bfloat16)
    for step, x in enumerate(inputs(40, 3, 1)):
        expected, found = cache.read(x), other.read(x)
        apart = (found - expected).norm(dim=1) / expected.norm(dim=1)
        assert found.dtype == torch.float32 and 0 < apart.max() < 0.02
        if step % 9 == 4:
            for each in (cache, other):
                each.reset(torch.tensor([step % 2 == 0, False, True]))
    resumed = XLCache(half, 3, 7, dtype=torch.bfloat16)
    resumed.load(other.arrays())
    assert torch.equal(resumed.read(x, remember=False), other.read(x, remember=False))
