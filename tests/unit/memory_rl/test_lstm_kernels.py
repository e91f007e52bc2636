"""The kernels of LSTMs, without a GPU: Triton interprets them on a CPU, and compiles them for a GPU that is not there.

Triton is no dependency of the tests, as it comes with PyTorch for GPUs: `pip install triton`, and these run.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

# The interpreter of Triton 3.6 multiplies bfloat16 numbers as if their bits were integers, and asks NumPy for the number in
# an array in a way that NumPy 2.4 refuses. Both are mended here.
INTERPRETED = """
import json
import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

dot, patch = interpreter.InterpreterBuilder.create_dot, interpreter._patch_lang_tensor

def wide(x):
    if x.dtype != tl.bfloat16:
        return x
    return interpreter.TensorHandle((x.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

def patched(tensor, scope):
    patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

interpreter.InterpreterBuilder.create_dot = lambda self, a, b, *more: dot(self, wide(a), wide(b), *more)
interpreter._patch_lang_tensor = patched

from recollect.memory_rl.lstm_cells import PlainCells
from recollect.memory_rl.lstm_kernels import KernelCells

def numbers(cells, gates, w_hidden, weight):
    given = [gates.clone().requires_grad_(), w_hidden.clone().requires_grad_()]
    h = cells.apply(*given)
    found = [h.detach(), *torch.autograd.grad((h * weight).sum(), given)]
    with torch.no_grad():
        return [*found, cells.apply(gates, w_hidden)]

found = {}
for T, k, B, H in [(1, 1, 3, 32), (6, 2, 20, 16), (3, 2, 17, 128), (30, 1, 16, 64)]:
    draws = torch.Generator().manual_seed(0)
    gates = torch.randn(k, T, B, 4 * H, generator=draws).transpose(0, 1)  # as they come: not in one piece
    w_hidden = torch.randn(k, 4 * H, H, generator=draws).transpose(1, 2) / H**0.5
    weight = torch.randn(T, k, B, H, generator=draws)
    pairs = zip(*(numbers(cells, gates, w_hidden, weight) for cells in (PlainCells, KernelCells)))
    apart = [float((one - other).abs().max() / one.abs().max().clamp(min=1e-9)) for one, other in pairs]
    found[str((T, k, B, H))] = max(apart)
print(json.dumps(found))
"""

COMPILED = """
import json
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from recollect.memory_rl import lstm_kernels

found = {}
for kernel in (lstm_kernels.forward_kernel, lstm_kernels.backward_kernel):
    for H in lstm_kernels.WIDTHS:
        own = {"H": H, "R": lstm_kernels.ROWS, "KEEP": True}
        types, constants, whole = {}, {}, {}
        for place, name in enumerate(kernel.arg_names):
            types[name] = "constexpr" if name in own else "i32"
            if name in own:
                constants[place,] = own[name]
            if name.endswith("_ptr"):
                types[name] = "*bf16" if name in ("high_ptr", "low_ptr") else "*fp32"
                whole[place,] = [["tt.divisibility", 16]]
        options = {"num_warps": lstm_kernels.WARPS, "num_stages": 1}
        made = triton.compile(ASTSource(kernel, types, constants, whole), target=GPUTarget("cuda", 90, 32), options=options)
        found[f"{kernel.__name__} {H}"] = made.metadata.shared
print(json.dumps(found))
"""


def said(program: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *, interpret: bool) -> dict[str, float]:
    """What a program prints, in a process of its own: how Triton runs is decided where it is imported."""
    monkeypatch.setenv("TRITON_INTERPRET", "1" if interpret else "0")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert not ended.returncode, ended.stderr
    found: dict[str, float] = json.loads(ended.stdout)
    return found


def test_kernels_have_the_states_and_gradients_of_plain_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = said(INTERPRETED, tmp_path, monkeypatch, interpret=True)
    assert len(found) == 4 and max(found.values()) < 2e-5, found


def test_kernels_fit_into_a_block_of_an_h100(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = said(COMPILED, tmp_path, monkeypatch, interpret=False)
    assert len(found) == 8 and max(found.values()) <= 227 * 1024, found
