"""Attention to a ring in one kernel gives what attention written out gives: states, weights, and what is kept."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from recollect.helm.language import ring_attention
from recollect.helm.language.transformer_xl import TransformerXL, TransformerXLSettings, XLCache

SMALL = TransformerXLSettings(
    vocabulary=40, cutoffs=(10,), division=2, width=32, layers=3, heads=2, head_width=16, inner=48
)
CPU = torch.device("cpu")


def ring_of(length: int, tokens: int, *, in_one: bool, monkeypatch: pytest.MonkeyPatch, **chosen: Any) -> XLCache:
    """A ring whose attention is written out twice: as on every device, and as the kernel is judged by."""
    with monkeypatch.context() as patch:
        patch.setattr(ring_attention, "kernel", lambda *unused: ring_attention.plain if in_one else None)
        model = TransformerXL(SMALL, seed=0).eval().requires_grad_(False)
        return XLCache(model, 3, length, tokens, **chosen)


@pytest.mark.parametrize(("length", "tokens"), [(1, 1), (9, 1), (9, 3), (70, 2)])
def test_what_is_read_in_one_is_what_is_read_written_out(
    length: int, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Round the ring twice, with rows forgotten on the way, and with tokens that are not remembered."""
    whole, apart = (ring_of(length, tokens, in_one=one, monkeypatch=monkeypatch) for one in (True, False))
    draws = torch.Generator().manual_seed(1)
    for step in range(2 * length // tokens + 5):
        x = torch.randn(3, 1 + step % tokens, 32, generator=draws)
        for remember in (False, True) if step % 4 == 0 else (True,):
            found, expected = (ring.read(x, remember=remember) for ring in (whole, apart))
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
            if step % 3 == 0:
                kept = [kv.clone() for kv in whole.layers]
                told, wanted = whole.attention(), apart.attention()
                assert told is not None and wanted is not None
                torch.testing.assert_close(told, wanted, rtol=1e-4, atol=1e-6)
                torch.testing.assert_close(told.sum(-1), torch.ones(3, 3))
                assert all(torch.equal(kv, before) for kv, before in zip(whole.layers, kept, strict=True))
        if step % 7 == 6:
            for ring in (whole, apart):
                ring.reset(torch.tensor([True, False, False]))
    assert whole.count == int(whole._count) == apart.count
    for kv, other in zip(whole.layers, apart.layers, strict=True):
        torch.testing.assert_close(kv, other, rtol=1e-4, atol=1e-5)


def test_a_ring_in_bfloat16_is_as_near_to_one_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores and weights are float32 to the end; most of the distance is that of products with rounded weights."""
    exact = ring_of(40, 1, in_one=False, monkeypatch=monkeypatch)
    rings = [ring_of(40, 1, in_one=one, monkeypatch=monkeypatch, dtype=torch.bfloat16) for one in (True, False)]
    draws, far = torch.Generator().manual_seed(1), torch.zeros(2)
    for _ in range(60):
        x = torch.randn(3, 1, 32, generator=draws)
        right = exact.read(x)
        far += torch.stack([(ring.read(x) - right).norm() / right.norm() for ring in rings])
    assert 0 < float(far[0]) < 1.05 * float(far[1]) < 60 * 0.01


def test_a_cpu_has_no_kernel() -> None:
    assert ring_attention.kernel(CPU, torch.float32, 2, 16) is None


def test_a_kernel_is_judged_before_it_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    def wrong(*given: Any) -> Tensor:
        return ring_attention.plain(*given) * 1.02

    def broken(*given: Any) -> Tensor:
        raise RuntimeError("no compiler here\nat all")

    for dtype in (torch.float32, torch.bfloat16):
        assert ring_attention.works(ring_attention.plain, CPU, dtype, 2, 16)
        assert not caplog.records
        assert not ring_attention.works(wrong, CPU, dtype, 2, 16)
        assert not ring_attention.works(broken, CPU, dtype, 2, 16)
        assert ["other numbers" in caplog.text, "no compiler here; it" in caplog.text] == [True, True]
        assert {record.levelno for record in caplog.records} == {logging.WARNING}
        caplog.clear()


# ---- Triton interprets the kernel on a CPU, and compiles it for a GPU that is not there

# The interpreter of Triton 3.6 asks NumPy for the number in an array in a way that NumPy 2.4 refuses.
INTERPRETED = """
import json
import torch
from triton.runtime import interpreter

patch = interpreter._patch_lang_tensor

def patched(tensor, scope):
    patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

interpreter._patch_lang_tensor = patched
from recollect.helm.language import ring_attention
from recollect.helm.language.attention_kernel import attended

cpu = torch.device("cpu")
print(json.dumps([ring_attention.works(attended, cpu, dtype, 2, 16) for dtype in (torch.float32, torch.bfloat16)]))
"""
COMPILED = """
import json
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from recollect.helm.language.attention_kernel import SLOTS, _attend

found = []
for kind in ("fp32", "bf16"):
    types = {"qkv": f"*{kind}", "biases": "*fp32", "ring": f"*{kind}", "codes": "*fp32", "count": "*i64", "out": f"*{kind}"}
    types |= {"scale": "fp32", "slots": "i32", "length": "i32", "values": "i32"}
    constants = {"K": 1, "H": 16, "E": 64, "SLOTS": SLOTS}
    types |= dict.fromkeys(constants, "constexpr")
    whole = {(place,): [["tt.divisibility", 16]] for place in range(6)}
    made = triton.compile(ASTSource(_attend, types, constants, whole), target=GPUTarget("cuda", 90, 32))
    found.append(made.asm["ptx"].count("ld.global.v4"))
print(json.dumps(found))
"""


def said_by(script: str, **environment: str) -> Any:
    pytest.importorskip("triton", reason="Triton is not installed")
    import os

    path = os.pathsep.join([str(Path(ring_attention.__file__).parents[3]), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_the_kernel_as_triton_interprets_it_gives_what_is_written_out() -> None:
    assert said_by(INTERPRETED, TRITON_INTERPRET="1") == [True, True]


def test_the_kernel_is_compiled_and_reads_sixteen_bytes_at_a_time() -> None:
    assert all(count > 4 for count in said_by(COMPILED))


# ---- on a real GPU


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_a_gpu_the_kernel_works_and_a_ring_reads_with_it(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    model = TransformerXL(SMALL, seed=0).eval().requires_grad_(False).to("cuda")
    model.hold_products(dtype)
    whole = XLCache(model, 3, 70, 2, dtype=dtype)
    with monkeypatch.context() as patch:
        patch.setattr(ring_attention, "kernel", lambda *unused: None)
        apart = XLCache(model, 3, 70, 2, dtype=dtype)
    assert whole._attended is not None and apart._attended is None
    near = 1e-3 if dtype == torch.float32 else 3e-2
    draws = torch.Generator().manual_seed(1)
    for step in range(90):
        x = torch.randn(3, 1 + step % 2, 32, generator=draws).to("cuda")
        found, expected = (ring.read(x).clone() for ring in (whole, apart))
        assert float((found - expected).norm() / expected.norm()) < near
    told, wanted = whole.attention(), apart.attention()
    assert told is not None and wanted is not None
    torch.testing.assert_close(told, wanted, rtol=10 * near, atol=near)
