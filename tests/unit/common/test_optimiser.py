"""Our Adam is torch's Adam."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from recollect.common.optimiser import Adam
from recollect.common.polyak import follow


def gradients(step: int) -> list[torch.Tensor]:
    draws = torch.Generator().manual_seed(step)
    return [torch.randn(3, 4, generator=draws), torch.randn(3, generator=draws)]


def module() -> nn.Linear:
    layer = nn.Linear(4, 3)
    with torch.no_grad():
        layer.weight.fill_(0.5)
        layer.bias.fill_(-0.5)
    return layer


def test_it_steps_like_torch_and_goes_on_after_a_reload_with_the_same_bytes() -> None:
    ours, theirs = module(), module()
    own, reference = Adam(ours.named_parameters(), lr=0.01), torch.optim.Adam(theirs.parameters(), lr=0.01)
    for step in range(20):
        if step == 10:  # a new optimiser on the same parameters
            saved = {name: value.clone() for name, value in own.arrays().items()}
            own = Adam(ours.named_parameters(), lr=0.01)
            own.load(saved)
        for layer, optimiser in ((ours, own), (theirs, reference)):
            optimiser.zero_grad()  # type: ignore[attr-defined]
            layer.weight.grad, layer.bias.grad = gradients(step)
            optimiser.step()  # type: ignore[attr-defined]
    torch.testing.assert_close(ours.weight, theirs.weight, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(ours.bias, theirs.bias, atol=1e-6, rtol=1e-6)
    assert not torch.allclose(ours.weight, torch.full((3, 4), 0.5), atol=0.01)


def test_a_parameter_without_gradient_stays() -> None:
    layer = module()
    optimiser = Adam(layer.named_parameters(), lr=0.01)
    layer.weight.grad = torch.ones(3, 4)
    optimiser.step()
    assert torch.equal(layer.bias, torch.full((3,), -0.5))
    assert float(optimiser.arrays()["steps/weight"]) == 1 and float(optimiser.arrays()["steps/bias"]) == 0


def test_with_weight_decay_it_is_torchs_adamw() -> None:
    ours, theirs = module(), module()
    own = Adam(ours.named_parameters(), lr=0.01, weight_decay=0.3)
    reference = torch.optim.AdamW(theirs.parameters(), lr=0.01, weight_decay=0.3)
    for step in range(5):
        for layer in (ours, theirs):
            layer.weight.grad, layer.bias.grad = gradients(step)
        own.step()
        reference.step()
    torch.testing.assert_close(ours.weight, theirs.weight, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(ours.bias, theirs.bias, atol=1e-6, rtol=1e-6)


def test_a_step_has_the_bits_of_torchs_fused_adamw_with_groups_of_other_decay() -> None:
    ours, theirs = module(), module()
    own = Adam(ours.named_parameters(), lr=0.01, betas=(0.9, 0.99), weight_decay=0.3, decayed={"weight"})
    groups = [{"params": [theirs.weight], "weight_decay": 0.3}, {"params": [theirs.bias], "weight_decay": 0.0}]
    reference = torch.optim.AdamW(groups, lr=0.5, betas=(0.9, 0.99), fused=True)
    for step in range(9):
        own.lr = 0.1 / (step + 1)
        for group in reference.param_groups:
            group["lr"] = 0.1 / (step + 1)
        for layer in (ours, theirs):
            layer.weight.grad, layer.bias.grad = gradients(step)
        own.step()
        reference.step()
        assert torch.equal(ours.weight, theirs.weight) and torch.equal(ours.bias, theirs.bias)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_a_step_size_that_is_a_tensor_is_read_at_each_step(weight_decay: float) -> None:
    ours, theirs = module(), module()
    own, other = (Adam(m.named_parameters(), lr=1.0, weight_decay=weight_decay) for m in (ours, theirs))
    own.rate = torch.zeros(())
    for step in range(5):
        for layer, optimiser in ((ours, own), (theirs, other)):
            layer.weight.grad, layer.bias.grad = gradients(step)
            optimiser.set_rate(0.01 * step)
            optimiser.step()
    assert own.lr == other.lr == 0.04 and other.rate is None
    torch.testing.assert_close(ours.weight, theirs.weight)
    assert not torch.equal(ours.weight, module().weight)


@pytest.mark.parametrize("clip", [None, 0.5, 100.0])
def test_gradients_of_a_loss_take_the_place_of_old_ones_and_are_clipped_as_torch_does(clip: float | None) -> None:
    ours, theirs = module(), module()
    optimiser = Adam(ours.named_parameters(), lr=0.01)
    ours.weight.grad = torch.ones(3, 4)
    x = torch.arange(8.0).reshape(2, 4)
    norm = optimiser.backward((ours(x) ** 2).mean(), clip=clip)
    (theirs(x) ** 2).mean().backward()
    wanted = torch.nn.utils.clip_grad_norm_(theirs.parameters(), float("inf") if clip is None else clip)
    torch.testing.assert_close(norm, wanted)
    assert 0.5 < float(norm) < 100.0
    for own, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad)


def test_targets_go_their_share_of_the_way() -> None:
    targets, followed = [torch.zeros(2), torch.ones(1)], [torch.full((2,), 4.0), torch.zeros(1)]
    follow(targets, followed, 0.25)
    assert [target.tolist() for target in targets] == [[1.0, 1.0], [0.75]]
    assert [tensor.tolist() for tensor in followed] == [[4.0, 4.0], [0.0]]
