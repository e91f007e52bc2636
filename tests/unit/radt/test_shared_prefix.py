"""Queries behind a shared prefix: the numbers and gradients of one full forward each, and no query sees another."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from recollect.common.cache import KeyValueCache
from recollect.common.transformer import Transformer, TransformerSettings
from recollect.radt.shared_prefix import hidden_behind

B, N, Q, D = 3, 5, 4, 16
TIGHT = {"rtol": 1e-5, "atol": 1e-5}
MASKS = {
    "none": None,
    "left": torch.arange(N) >= torch.tensor([[2], [0], [4]]),
    "right": torch.arange(N) < torch.tensor([[3], [5], [0]]),
    "anywhere": torch.tensor([[1, 0, 1, 1, 0], [0, 1, 0, 1, 1], [0, 0, 0, 0, 0]], dtype=torch.bool),
}


def draws(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def model(dropout: float = 0.0) -> Transformer:
    made = Transformer(TransformerSettings(width=D, layers=3, heads=2, dropout=dropout), seed=1)
    with torch.no_grad():
        for i, weight in enumerate(made.parameters()):
            weight.add_(draws(*weight.shape, seed=i) * 0.3)
    return made


@pytest.mark.parametrize("mask", list(MASKS))
def test_each_query_equals_a_forward_of_its_own(mask: str) -> None:
    net, mask_BN = model().eval(), MASKS[mask]
    prefix, query = draws(B, N, D, seed=7).requires_grad_(), draws(B, Q, D, seed=8).requires_grad_()
    hidden = hidden_behind(net, prefix, query, mask_BN=mask_BN)
    real = torch.ones(B, N, dtype=torch.bool) if mask_BN is None else mask_BN
    alone = [
        net(torch.cat([prefix, query[:, i : i + 1]], 1), mask_BT=torch.cat([real, torch.ones(B, 1).bool()], 1))[:, -1]
        for i in range(Q)
    ]
    torch.testing.assert_close(hidden, torch.stack(alone, 1), **TIGHT)
    weight = draws(B, Q, D, seed=9)
    parameters = list(net.parameters())
    ours = torch.autograd.grad((hidden * weight).sum(), [prefix, query, *parameters])
    theirs = torch.autograd.grad((torch.stack(alone, 1) * weight).sum(), [prefix, query, *parameters])
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)


def test_no_query_sees_another() -> None:
    net, prefix, query = model().eval(), draws(B, N, D), draws(B, Q, D, seed=2)
    other = query.clone()
    other[:, 1] += 1
    before, after = hidden_behind(net, prefix, query), hidden_behind(net, prefix, other)
    kept = torch.tensor([0, 2, 3])
    torch.testing.assert_close(before[:, kept], after[:, kept], rtol=0, atol=0)
    assert not torch.allclose(before[:, 1], after[:, 1])


def test_dropout_is_drawn_from_the_models_own_stream_and_only_in_training() -> None:
    net, prefix, query = model(dropout=0.3), draws(B, N, D), draws(B, Q, D, seed=2)

    def drawn(seed: int) -> Tensor:
        net.reseed_dropout(seed)
        return hidden_behind(net.train(), prefix, query)

    assert torch.equal(drawn(1), drawn(1)) and not torch.equal(drawn(1), drawn(2))
    net.eval()
    assert torch.equal(hidden_behind(net, prefix, query), hidden_behind(net, prefix, query))


@pytest.mark.parametrize("place", ["p_embedding", "p_attention", "p_residual"])
def test_queries_are_dropped_in_training_wherever_a_forward_drops(place: str) -> None:
    """Behind a prefix that is all padding nothing is left but the query itself."""
    net, prefix, query, nothing = model(), draws(B, N, D), draws(B, Q, D, seed=2), torch.zeros(B, N, dtype=torch.bool)
    whole = hidden_behind(net.train(), prefix, query, mask_BN=nothing)
    setattr(net, place, 0.5)
    assert (hidden_behind(net, prefix, query, mask_BN=nothing) - whole).abs().max() > 0.01


def test_a_cache_that_is_peeked_at_stays_as_it_is() -> None:
    net = model().eval()
    cache, untouched = KeyValueCache(net, B, N + 1), KeyValueCache(net, B, N + 1)
    mask = MASKS["right"]
    assert mask is not None
    for filled in (cache, untouched):
        filled.extend(draws(B, N, D), mask)
    query = draws(B, 2, D, seed=5)
    behind = hidden_behind(net, draws(B, N, D), query, mask_BN=mask)
    for i in (0, 1, 0):
        torch.testing.assert_close(cache.peek(query[:, i]), behind[:, i], **TIGHT)
    assert cache.lengths_B.tolist() == [3, 5, 0]
    token = draws(B, D, seed=6)
    torch.testing.assert_close(cache.step(token), untouched.step(token), rtol=0, atol=0)
