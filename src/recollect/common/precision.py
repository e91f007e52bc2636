"""Mixed precision: products in bfloat16 or TF32, while parameters, their gradients and what Adam knows of them stay float32."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal, TypeVar

import torch
from torch import nn

Network = TypeVar("Network", bound=nn.Module)

Precision = Literal["auto", "float32", "bfloat16"]
"""``auto``: bfloat16 on a GPU, float32 on a CPU."""
Products = Literal["auto", "float32", "bfloat16", "tf32"]
"""The same, and ``tf32``: float32, but where its owner lets a GPU take TF32 (see `tf32`)."""


def in_bfloat16(precision: Products, device: torch.device | str) -> bool:
    """Whether products on this device are computed in bfloat16."""
    return precision == "bfloat16" or (precision == "auto" and torch.device(device).type == "cuda")


def autocast(precision: Products, device: torch.device | str) -> AbstractContextManager[object]:
    """While inside, products on this device are computed as `precision` says, also within one that says otherwise.

    Weights are rounded anew at each use: PyTorch's cache of them belongs to all threads, and whichever ends first empties it.
    """
    kind = torch.device(device).type
    if in_bfloat16(precision, device):
        return torch.autocast(kind, torch.bfloat16, cache_enabled=False)
    if kind in ("cpu", "cuda") and torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return nullcontext()


def rounded_once(network: Network, precision: Precision, device: torch.device | str) -> Network:
    """A network that will not learn, for use inside `autocast`: a copy whose linear layers lie in bfloat16 if products do.

    `autocast` rounds weights anew at every call, to the same numbers. In float32: the network itself.
    """
    if not in_bfloat16(precision, device):
        return network
    rounded = copy.deepcopy(network).requires_grad_(False)
    for layer in rounded.modules():
        if isinstance(layer, nn.Linear):
            layer.to(torch.bfloat16)
    return rounded


@contextmanager
def tf32(on: bool, device: torch.device | str, *, in_cudnn: bool = True) -> Iterator[None]:
    """While inside, a GPU reads the factors of float32 products with ten bits of fraction if `on`, else never.

    That is so in cuDNN's convolutions and recurrent layers, too, where PyTorch's own default is yes; without `in_cudnn` never
    there. CPUs never do.
    """
    if torch.device(device).type != "cuda":
        yield
        return
    before, before_in_cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if on else "highest")
    torch.backends.cudnn.allow_tf32 = on and in_cudnn
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
        torch.backends.cudnn.allow_tf32 = before_in_cudnn


@contextmanager
def full_precision(device_type: str) -> Iterator[None]:
    """No autocast and no TF32 inside: candidates must be found with float32 products."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.autocast(device_type, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before)
