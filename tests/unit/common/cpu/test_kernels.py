"""Promises of the fast kernels: they compute what PyTorch's own do, and so do their gradients."""

import pytest
import torch
from torch.nn import functional as F

from recollect.common.cpu import kernels
from recollect.common.cpu.kernels import Linear, gelu, linear


def draws(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


@pytest.mark.parametrize("rows, inputs, outputs", [(3, 4, 5), (700, 64, 192), (700, 192, 64), (1, 1024, 2048)])
@pytest.mark.parametrize("bias", [True, False])
def test_linear_equals_the_product_in_double_precision(rows: int, inputs: int, outputs: int, bias: bool) -> None:
    x, w = draws(2, rows, inputs), draws(outputs, inputs, seed=1)
    b = draws(outputs, seed=2) if bias else None
    weight = draws(2, rows, outputs, seed=3).detach()
    wanted = [t for t in (x, w, b) if t is not None]
    given = linear(x, w, b)
    exact = x.double() @ w.double().t() + (0 if b is None else b.double())
    torch.testing.assert_close(given.double(), exact, rtol=1e-4, atol=1e-3)
    grads = torch.autograd.grad((given * weight).sum(), wanted)
    exact_grads = torch.autograd.grad((exact * weight.double()).sum(), wanted)
    for ours, theirs in zip(grads, exact_grads, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-2)
    with torch.no_grad():
        torch.testing.assert_close(linear(x, w, b), given, rtol=1e-5, atol=1e-4)


@pytest.mark.slow
def test_linear_takes_views_that_are_not_contiguous() -> None:
    x, w = draws(64, 700).t(), draws(200, 128)[:, ::2]
    torch.testing.assert_close(linear(x, w), x @ w.t(), rtol=1e-4, atol=1e-4)
    g = torch.ones(1).expand(700, 200)
    ours = torch.autograd.grad(linear(x, w), x, g)[0]
    torch.testing.assert_close(ours, g @ w, rtol=1e-4, atol=1e-4)


def test_a_frozen_weight_or_input_gets_no_gradient() -> None:
    x, w = draws(700, 64), draws(200, 64, seed=1).detach()
    (gx,) = torch.autograd.grad(linear(x, w).sum(), x)
    torch.testing.assert_close(gx, w.sum(0).expand(700, 64), rtol=1e-4, atol=1e-4)


def test_a_layer_is_made_without_the_global_generator() -> None:
    before = torch.random.get_rng_state()
    layer = Linear(4, 3)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert layer.weight.eq(0).all() and layer.bias.eq(0).all()


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_and_its_gradient_equal_pytorchs_also_far_out(approximate: str) -> None:
    x = torch.cat([torch.linspace(-12, 12, 4001), torch.tensor([-1e4, 1e4, 0.0])]).requires_grad_()
    ours, theirs = gelu(x, approximate), F.gelu(x.double(), approximate=approximate)
    torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-6)
    for without in (
        x.detach().repeat(2),
        x.detach()[::8].contiguous(),
    ):  # more and fewer numbers; no gradient is wanted
        torch.testing.assert_close(
            gelu(without, approximate).double(), F.gelu(without.double(), approximate=approximate), rtol=1e-5, atol=1e-6
        )
    (a,) = torch.autograd.grad(ours.sum(), x)
    (b,) = torch.autograd.grad(theirs.sum(), x)
    torch.testing.assert_close(a, b, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("block", [1 << 9, 1000])
def test_gelu_gives_the_same_bits_in_any_blocks(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, g = draws(64, 129), draws(64, 129, seed=1).detach()
    found = []
    for size in (1 << 20, block):
        monkeypatch.setattr(kernels, "_BLOCK", size)
        y = gelu(x, "tanh")
        found.append((y, *torch.autograd.grad(y, x, g), gelu(x.detach(), "tanh")))
    for whole, in_blocks in zip(*found, strict=True):
        assert torch.equal(whole, in_blocks)


def test_gelu_takes_views_that_are_not_contiguous() -> None:
    x, g = draws(129, 64).t(), draws(129, 64, seed=1).detach().t()
    y = gelu(x, "tanh")
    torch.testing.assert_close(y, F.gelu(x, approximate="tanh"), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gelu(x.detach(), "tanh"), y)
    (ours,) = torch.autograd.grad(y, x, g)
    (theirs,) = torch.autograd.grad(F.gelu(x, approximate="tanh"), x, g)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=2e-6)
