"""Mixed precision is used where it is asked for, or (auto) on a GPU, and nowhere else."""

from __future__ import annotations

import pytest
import torch

from recollect.common.precision import Precision, autocast, in_bfloat16


@pytest.mark.parametrize(
    ("precision", "device", "expected"),
    [
        ("auto", "cpu", False),
        ("auto", "cuda", True),
        ("auto", "cuda:1", True),
        ("float32", "cuda", False),
        ("bfloat16", "cpu", True),
        ("bfloat16", "cuda", True),
    ],
)
def test_auto_means_bfloat16_on_a_gpu(precision: Precision, device: str, expected: bool) -> None:
    assert in_bfloat16(precision, device) == expected
    assert in_bfloat16(precision, torch.device(device)) == expected


@pytest.mark.parametrize(("precision", "dtype"), [("auto", torch.float32), ("bfloat16", torch.bfloat16)])
def test_a_product_on_the_cpu_has_the_precision_asked_for(precision: Precision, dtype: torch.dtype) -> None:
    x = torch.ones(3, 3)
    with autocast(precision, "cpu"):
        assert (x @ x).dtype == dtype
    assert (x @ x).dtype == torch.float32
