"""Products of frozen networks: a GPU computes the long sums of few rows in shares, a CPU never does."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from recollect.common.cpu.kernels import linear
from recollect.helm.language.frozen_products import SHARE, product, shares_of
from recollect.helm.language.transformer_xl import TransformerXL, TransformerXLSettings, XLCache

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # benchmarks is no part of the package
from benchmarks.gpu.pretend import PretendGpu

WIDE = TransformerXLSettings(
    vocabulary=20, cutoffs=(10,), division=2, width=1024, layers=2, heads=2, head_width=64, inner=2048
)


def factors(*shape: int, columns: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    draw = torch.Generator().manual_seed(1)
    x, weight, bias = (torch.randn(size, generator=draw) for size in (shape, (columns, shape[-1]), (columns,)))
    return x.to(dtype), (weight * shape[-1] ** -0.5).to(dtype), bias.to(dtype)


@pytest.mark.parametrize(
    ("rows", "columns", "length", "shares"),
    [
        (16, 3072, 1024, 4),  # the published Transformer-XL with 16 games
        (16, 1024, 1024, 8),
        (16, 4096, 1024, 1),
        (16, 1024, 4096, 16),
        (1, 1024, 4096, 1),
        (256, 1024, 4096, 1),
        (16, 1024, 4095, 1),
        (16, 1024, 1536, 8),
        (16, 576, 576, 1),
    ],
)
def test_long_sums_of_few_blocks_are_shared_evenly(rows: int, columns: int, length: int, shares: int) -> None:
    assert shares_of(rows, columns, length) == shares
    assert length % shares == 0 and (shares == 1 or length // shares >= SHARE[0])


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize(("shape", "columns"), [((16, 1, 4096), 128), ((3, 2, 1024), 384), ((5, 1024), 70)])
def test_on_a_gpu_shares_add_up_to_the_product_and_no_factor_is_copied(
    shape: tuple[int, ...], columns: int, biased: bool
) -> None:
    x, weight, bias = factors(*shape, columns=columns)
    expected = linear(x, weight, bias if biased else None)
    shares = shares_of(x.numel() // shape[-1], columns, shape[-1])
    assert shares > 1
    with PretendGpu() as gpu:
        on_gpu = [tensor.to("cuda") for tensor in (x, weight, bias)]
        before = gpu.allocated
        found = product(*on_gpu[: 2 + biased])
        assert gpu.peak - before == (shares + 1) * expected.numel() * expected.itemsize
        assert not [wait for wait in gpu.waits if wait[0] != "to"]
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-5, atol=1e-5)
    assert found.shape == expected.shape


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_cpu_and_half_precision_compute_the_product_whole(dtype: torch.dtype) -> None:
    x, weight, bias = factors(16, 1, 2048, columns=128, dtype=dtype)
    expected = linear(x, weight, bias)
    assert torch.equal(product(x, weight, bias), expected)
    if dtype == torch.bfloat16:
        with PretendGpu():
            on_gpu = [tensor.to("cuda") for tensor in (x, weight, bias)]
            assert torch.equal(product(*on_gpu).cpu(), linear(*on_gpu).cpu())


@pytest.mark.quick("1-dtype0")
@pytest.mark.parametrize(("tokens", "dtype"), [(1, torch.float32), (2, torch.float32), (1, torch.bfloat16)])
def test_transformer_xl_on_a_gpu_gives_a_cpus_states_and_replays_its_graphs(
    tokens: int, dtype: torch.dtype, replays: list[Any]
) -> None:
    near = 1e-5 if dtype == torch.float32 else 2e-2

    def model() -> TransformerXL:
        made = TransformerXL(WIDE, seed=1).eval().requires_grad_(False)
        draw = torch.Generator().manual_seed(2)
        for name, weight in made.named_parameters():
            if name.endswith(("_bias", ".bias")):
                weight.normal_(0.0, 1.0, generator=draw)
        made.hold_products(dtype)
        return made

    inputs = torch.randn(9, 4, tokens, 1024, generator=torch.Generator().manual_seed(3))
    forgotten = torch.tensor([False, True, False, True])
    on_cpu = XLCache(model(), 4, 6, tokens, dtype=dtype)
    with PretendGpu():
        on_gpu = XLCache(model().to("cuda"), 4, 6, tokens, dtype=dtype)
        for step, x in enumerate(inputs):
            expected, found = on_cpu.read(x), on_gpu.read(x.to("cuda"))
            torch.testing.assert_close(found.cpu(), expected, rtol=near, atol=near)
            attention, looked = on_cpu.attention(), on_gpu.attention()
            assert attention is not None and looked is not None
            torch.testing.assert_close(looked.cpu(), attention, rtol=near, atol=near)
            if step == 5:
                on_cpu.reset(forgotten)
                on_gpu.reset(forgotten)
    assert len(replays) == 6
