"""Mixed precision is used where it is asked for, or (auto) on a GPU, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import pytest
import torch

from recollect.artifacts.threads import use_threads
from recollect.common.precision import Precision, autocast, full_precision, in_bfloat16, tf32
from recollect.common.sequence_models import RecurrentSequence
from recollect.stages import making
from recollect.stages.stage import Job, Resources, Stage
from recollect.stages.table import STAGES


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


def test_weights_are_rounded_anew_at_each_use() -> None:
    layer, x = torch.nn.Linear(3, 3), torch.ones(1, 3)
    with autocast("bfloat16", "cpu"):
        before = layer(x)
        with torch.no_grad():
            layer.weight.add_(1.0)
        assert not torch.equal(layer(x), before)


def test_float32_within_bfloat16_is_float32() -> None:
    x, weight = torch.ones(2, 2), torch.ones(2, 2)
    with autocast("bfloat16", "cpu"):
        assert (x @ weight).dtype == torch.bfloat16
        with autocast("float32", "cpu"):
            assert (x @ weight).dtype == torch.float32
        assert (x @ weight).dtype == torch.bfloat16


@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn"])
def test_recurrent_layers_stay_in_float32(kind: Literal["lstm", "gru", "rnn"]) -> None:
    model = RecurrentSequence(kind, 3, 4, generator=torch.Generator().manual_seed(0))
    x_BTD = torch.ones(2, 5, 3)
    with autocast("bfloat16", "cpu"):
        h_BTH, state = model.run(x_BTD.bfloat16())
    assert {part.dtype for part in (h_BTH, *state)} == {torch.float32}
    assert torch.equal(h_BTH, model.run(x_BTD)[0])


def test_tf32_is_behind_an_inner_block_as_before_it() -> None:
    """As a layer that insists on float32 within an update that does not."""
    with tf32(True, "cuda"):
        with tf32(False, "cuda"):
            assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == ("highest", False)
        with full_precision("cuda"):
            assert torch.get_float32_matmul_precision() == "highest"
        assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == ("high", True)


def test_a_job_does_without_attention_that_plans_for_each_length() -> None:
    torch.backends.cuda.enable_cudnn_sdp(True)
    use_threads(0)
    assert not torch.backends.cuda.cudnn_sdp_enabled()


def test_a_job_that_python_makes_on_a_gpu_computes_as_one_of_the_workflow(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def leased(*wanted: object, **more: object) -> Iterator[str]:
        yield "cuda"

    seen: list[tuple[bool, bool]] = []

    def work(seed: int, *, device: str) -> None:
        seen.append((torch.backends.cuda.cudnn_sdp_enabled(), torch.backends.cudnn.allow_tf32))

    stage = Stage("look", ("seed",), {}, run=work, asks=Resources((1, 1), (1, 1), gpu=True), made=lambda seed: False)
    monkeypatch.setitem(STAGES, "look", stage)
    monkeypatch.setattr(making, "device_lease", leased)
    monkeypatch.setattr(making, "timed", lambda stage, job, device, work: work())
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    torch.backends.cuda.enable_cudnn_sdp(True)
    making.make_job(Job("look", "", seed="0"), "cuda")
    assert seen == [(False, False)]


def test_a_job_computes_in_whole_float32_where_nobody_asks_for_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)  # PyTorch's own default
    use_threads(0)
    assert not torch.backends.cudnn.allow_tf32 and torch.get_float32_matmul_precision() == "highest"


def test_inside_full_precision_products_are_float32_whatever_is_around_it() -> None:
    x = torch.ones(2, 2)
    with autocast("bfloat16", "cpu"):
        with full_precision("cpu"):
            assert (x @ x).dtype == torch.float32
        assert (x @ x).dtype == torch.bfloat16
