"""FrozenHopfield: the formula, its variants, and the table for discrete inputs."""

import pytest
import torch

from recollect.common import frozen_hopfield
from recollect.common.cpu import kernels
from recollect.common.frozen_hopfield import FrozenHopfield, LookupHopfield, one_hots
from recollect.settings.errors import UserError


def words(v=300, d=24, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(v, d, generator=g) * torch.rand(v, 1, generator=g) + 0.3


def test_cosine_and_dot_equal_the_formula():
    e, x = words(), torch.randn(5, 7, 6, generator=torch.Generator().manual_seed(1))
    for similarity in ("cosine", "dot"):
        hopfield = FrozenHopfield(e, 6, beta=4.0, seed=3, similarity=similarity)
        found = hopfield(x)
        assert found.shape == (5, 7, 24)
        for i, j in ((0, 0), (4, 6), (2, 3)):
            u = hopfield.projection_DI.double() @ x[i, j].double()
            sims = e.double() @ u
            if similarity == "cosine":
                sims = sims / (e.double().norm(dim=1) * u.norm())
            torch.testing.assert_close(found[i, j].double(), torch.softmax(4 * sims, 0) @ e.double(), rtol=0, atol=1e-5)


def test_the_projection_has_the_papers_variance_and_depends_on_its_seed_only():
    e = words(300, 400)
    p = FrozenHopfield(e, 25, seed=1).projection_DI
    assert abs(p.var().item() - 25 / 400) < 0.003 and abs(p.mean().item()) < 0.01
    assert FrozenHopfield(e, 25, seed=1, std=0.5).projection_DI.std().item() == pytest.approx(0.5, rel=0.02)
    torch.rand(3)  # the global generator has no part in it
    assert torch.equal(p, FrozenHopfield(e, 25, seed=1).projection_DI)
    assert not torch.equal(p, FrozenHopfield(e, 25, seed=2).projection_DI)


def test_with_the_cosine_the_scale_of_inputs_and_projection_does_not_matter():
    e, x = words(), torch.randn(9, 6, generator=torch.Generator().manual_seed(1))
    one, two = FrozenHopfield(e, 6), FrozenHopfield(e, 6, std=17.0)
    torch.testing.assert_close(one(x), two(x * 100), rtol=0, atol=1e-5)
    torch.testing.assert_close(one(torch.zeros(1, 6))[0], e.mean(0), rtol=0, atol=1e-5)


def test_a_high_beta_gives_the_nearest_word():
    e, x = words(), torch.randn(9, 6, generator=torch.Generator().manual_seed(1))
    sharp = FrozenHopfield(e, 6, beta=1e5)
    nearest = (
        torch.nn.functional.normalize(x @ sharp.projection_DI.T, dim=1) @ torch.nn.functional.normalize(e, dim=1).T
    )
    torch.testing.assert_close(sharp(x), e[nearest.argmax(1)], rtol=0, atol=1e-4)
    weights = FrozenHopfield(e, 6, beta=1.0).weights(x)
    assert torch.equal(weights.argmax(1), nearest.argmax(1))
    torch.testing.assert_close(weights.sum(1), torch.ones(9))


@pytest.mark.parametrize("bins", [(5,), (10, 10), (3, 4, 2)])
@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_the_table_equals_the_direct_path(bins, similarity, monkeypatch):
    monkeypatch.setattr(frozen_hopfield, "BLOCK", 300 * 7)  # several blocks
    hopfield = FrozenHopfield(words(), sum(bins), similarity=similarity)
    lookup = LookupHopfield(hopfield, bins)
    g = torch.Generator().manual_seed(2)
    values = torch.stack([torch.randint(0, size, (20, 8), generator=g) for size in bins], dim=-1)
    monkeypatch.setattr(frozen_hopfield, "BLOCK", 1 << 25)
    atol = 1e-5 if similarity == "cosine" else 2e-5  # float32 rounds larger scores coarser: 1.6e-5 on one CPU
    torch.testing.assert_close(lookup(values), hopfield(one_hots(values, bins)), rtol=0, atol=atol)
    assert len(lookup.table_MD) == torch.tensor(bins).prod()
    if len(bins) == 1:
        torch.testing.assert_close(hopfield.one_hot_table(), lookup.table_MD, rtol=0, atol=1e-6)


def test_one_hots_stand_side_by_side_and_the_last_dimension_runs_fastest():
    assert one_hots(torch.tensor([[2, 0]]), (3, 2)).tolist() == [[0, 0, 1, 1, 0]]
    hopfield = FrozenHopfield(words(), 5)
    table = hopfield.joint_table((3, 2))
    torch.testing.assert_close(table[2 * 2 + 1], hopfield(one_hots(torch.tensor([2, 1]), (3, 2))), rtol=0, atol=1e-6)


def test_values_out_of_range_are_clipped_and_misfits_refused():
    hopfield = FrozenHopfield(words(), 5)
    lookup = LookupHopfield(hopfield, (5,))
    assert torch.equal(lookup(torch.tensor([[-1], [9]])), lookup.table_MD[[0, 4]])
    assert len(hopfield.joint_table((3, 2), limit=6)) == 6
    for misuse in (
        lambda: hopfield(torch.zeros(2, 4)),
        lambda: hopfield.joint_table((3, 3)),
        lambda: hopfield.joint_table((3, 2), limit=5),
        lambda: lookup(torch.zeros(4, 2)),
    ):
        with pytest.raises(UserError):
            misuse()


def test_grey_images_become_mixtures_of_words_whatever_the_scale_of_the_projection():
    embeddings_VD = words(50, 8)
    images = torch.randint(0, 256, (6, 3, 5, 5), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    images[4] = 0
    grey = images.float().mean(1).flatten(1) / 255
    released = FrozenHopfield(embeddings_VD, 25, beta=100.0, std=8**-0.5)
    weights_NV = released.weights(grey)
    assert (weights_NV >= 0).all()
    torch.testing.assert_close(weights_NV.sum(1), torch.ones(6))  # so the mixtures lie in the convex hull of the words
    torch.testing.assert_close(released(grey), weights_NV @ embeddings_VD)
    torch.testing.assert_close(released(grey)[4], embeddings_VD.mean(0))  # black
    assert (released(grey)[5] - embeddings_VD.mean(0)).abs().max() > 0.1
    for std in (1e-3, 30.0):
        other = FrozenHopfield(embeddings_VD, 25, beta=100.0, std=std)
        torch.testing.assert_close(other(grey), released(grey), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_a_large_table_gives_the_same_mixtures(similarity, monkeypatch):
    e, x = words(3000, 64), torch.randn(11, 6, generator=torch.Generator().manual_seed(1))
    x[3] = 0
    hopfield = FrozenHopfield(e, 6, beta=9.0, similarity=similarity)
    expected = hopfield(x)
    monkeypatch.setattr(frozen_hopfield, "LARGE", 0)
    assert kernels._SMALL <= 11 * 64 * 3000  # it goes through oneDNN
    torch.testing.assert_close(hopfield(x), expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("large", [0, 1 << 26])
@pytest.mark.parametrize(("beta", "most"), [(1.0, 0.01), (10.0, 0.01), (100.0, 0.08)])
def test_a_table_in_bfloat16_moves_mixtures_little(large, beta, most, monkeypatch):
    monkeypatch.setattr(frozen_hopfield, "LARGE", large)
    e, x = words(3000, 64), torch.randn(16, 6, generator=torch.Generator().manual_seed(1))
    expected, found = (FrozenHopfield(e, 6, beta=beta, dtype=dtype)(x) for dtype in (torch.float32, torch.bfloat16))
    apart = (found - expected).norm(dim=1) / expected.norm(dim=1)
    assert found.dtype == torch.float32 and 0 < apart.max() < most


def test_a_rounded_table_is_shared_by_those_that_read_the_same_words_and_by_no_others():
    e, other = words(), words(seed=1)
    one, two = (FrozenHopfield(e, 6, seed=seed, dtype=torch.bfloat16) for seed in (0, 1))
    others, half = FrozenHopfield(other, 6, dtype=torch.bfloat16), FrozenHopfield(e, 6, dtype=torch.float16)
    assert one._table_VD is two._table_VD
    assert torch.equal(others._table_VD, other.bfloat16()) and torch.equal(half._table_VD, e.half())
