"""Numbers on their way between the host and the device that learns, without either waiting for the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

AnyBatch = TypeVar("AnyBatch")


def sent(values: np.ndarray | Tensor, device: torch.device | str) -> Tensor:
    """Values as a tensor on a device. To a GPU they go from pinned memory, and nobody waits for them to arrive."""
    tensor = torch.as_tensor(values)
    if tensor.device.type == "cpu" and torch.device(device).type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


class Fetched:
    """A tensor on its way from its device to the host. Who asks for it waits for it, and for nothing that the device does later."""

    def __init__(self, tensor: Tensor) -> None:
        self._there: torch.cuda.Event | None = None
        self._on_host = tensor
        if tensor.device.type == "cuda":
            self._on_host = torch.empty(tensor.shape, dtype=tensor.dtype).pin_memory()
            self._on_host.copy_(tensor, non_blocking=True)
            self._there = torch.cuda.Event()
            self._there.record()

    def numpy(self) -> np.ndarray:
        if self._there is not None:
            self._there.synchronize()
        found: np.ndarray = self._on_host.numpy()
        return found


def map_tensors(batch: AnyBatch, change: Callable[[Tensor], Tensor]) -> AnyBatch:
    """A batch with each of its tensors changed; batches are tensors, and tuples and dataclasses of them."""
    if isinstance(batch, Tensor):
        return change(batch)  # type: ignore[return-value]
    if isinstance(batch, tuple):
        return tuple(map_tensors(inner, change) for inner in batch)  # type: ignore[return-value]
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        inner = {field.name: map_tensors(getattr(batch, field.name), change) for field in dataclasses.fields(batch)}
        return dataclasses.replace(batch, **inner)
    return batch
