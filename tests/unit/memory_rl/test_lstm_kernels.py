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
# an array in a way that NumPy 2.4 refuses. Both are mended here. It knows nothing of a GPU's own instructions.
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

import triton
from recollect.memory_rl import lstm_kernels, lstm_layers
from recollect.memory_rl.lstm_cells import kept_of, layers_of
from recollect.memory_rl.lstm_operator import is_exact
from recollect.memory_rl.lstm_over_time import plain

@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))

lstm_kernels._sigmoid = sigmoid

class Kernels(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, *weights):
        states = lstm_layers.forward(x, layers_of(weights), keeps=any(ctx.needs_input_grad), exact=is_exact())
        ctx.save_for_backward(x, *weights, *states)
        return states[0]

    @staticmethod
    def backward(ctx, dh):
        x, *rest = ctx.saved_tensors
        layers = len(rest) // 2  # four weights and four states each
        weights, states = rest[:layers], rest[layers:]
        dx, *found = lstm_layers.backward(dh.contiguous(), x, layers_of(weights), kept_of(states), exact=is_exact())
        return dx, *(each for at in range(0, len(found), 3) for each in (*found[at : at + 3], found[at + 2]))

def numbers(way, given, weight):
    given = [tensor.clone().requires_grad_() for tensor in given]
    h = way(*given)
    found = [h.detach(), *torch.autograd.grad((h * weight).sum(), given)]
    with torch.no_grad():
        return [*found, way(*(tensor.detach() for tensor in given))]

found = {}
for T, k, B, H, layers in SHAPES:
    draws = torch.Generator().manual_seed(0)
    given, inputs = [torch.randn(k, B, T, 24, generator=draws)], 24
    for _ in range(layers):
        given += [torch.randn(k, 4 * H, own, generator=draws) / own**0.5 for own in (inputs, H)]
        given += [torch.randn(k, 4 * H, generator=draws) / 10 for _ in range(2)]
        inputs = H
    weight = torch.randn(k, B, T, H, generator=draws)
    for products, size in [("highest", 1), ("high", 1), ("high", 1e-9), ("high", 1e9)]:
        torch.set_float32_matmul_precision(products)
        pairs = zip(*(numbers(way, given, weight * size) for way in (plain, Kernels.apply)))
        apart = [float((one - other).abs().max() / one.abs().max().clamp(min=1e-30)) for one, other in pairs]
        found[str((T, k, B, H, layers, products, size))] = max(apart)
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
      for way, exact, ahead in (("exact", True, False), ("rounded", False, False), ("ahead", False, True)):
        own = {"H": H, "R": lstm_kernels.ROWS, "KEEP": True, "EXACT": exact, "AHEAD": ahead}
        types, constants, whole = {}, {}, {}
        for place, name in enumerate(kernel.arg_names):
            types[name] = "constexpr" if name in own else "i32"
            if name in own:
                constants[place,] = own[name]
            if name.endswith("_ptr"):
                types[name] = ("*bf16" if exact else "*fp16") if name in ("high_ptr", "low_ptr") else "*fp32"
                whole[place,] = [["tt.divisibility", 16]]
        options = {"num_warps": lstm_kernels.WARPS, "num_stages": 1}
        made = triton.compile(ASTSource(kernel, types, constants, whole), target=GPUTarget("cuda", 90, 32), options=options)
        found[f"{kernel.__name__} {H} {way}"] = made.metadata.shared
print(json.dumps(found))
"""


def said(program: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *, interpret: bool) -> dict[str, float]:
    """What a program prints, in a process of its own: how Triton runs is decided where it is imported."""
    monkeypatch.setenv("TRITON_INTERPRET", "1" if interpret else "0")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=1800)
    assert not ended.returncode, ended.stderr
    found: dict[str, float] = json.loads(ended.stdout)
    return found


@pytest.mark.parametrize(
    "shapes",
    [
        [(1, 1, 3, 32, 1), (6, 2, 20, 16, 1)],
        pytest.param([(3, 2, 17, 128, 1), (30, 1, 16, 64, 1), (60, 2, 17, 16, 3)], marks=pytest.mark.slow),  # minutes
    ],
    ids=["small", "large"],
)
def test_kernels_have_the_states_and_gradients_of_plain_cells(
    shapes: list[tuple[int, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of T steps of k networks' B rows, through some layers of width H."""
    found = said(INTERPRETED.replace("SHAPES", str(shapes)), tmp_path, monkeypatch, interpret=True)
    whole = [apart for case, apart in found.items() if "highest" in case]
    assert len(found) == 4 * len(shapes) and len(whole) == len(shapes) and max(whole) < 2e-5, found
    assert max(found.values()) < 4e-4, found


def test_kernels_fit_into_a_block_of_their_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All into one of an H100; those of 11 bits that do not read ahead into one of an A100."""
    found = said(COMPILED, tmp_path, monkeypatch, interpret=False)
    largest = {
        way: max(size for name, size in found.items() if name.endswith(way)) for way in ("exact", "rounded", "ahead")
    }
    assert len(found) == 24 and largest["exact"] <= 227 * 1024, found
    assert largest["rounded"] <= 163 * 1024 and largest["ahead"] <= 220_000, found  # `lstm_kernels.ROOM_AHEAD`
