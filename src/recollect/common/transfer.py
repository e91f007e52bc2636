"""Batches on their way from the host to the device that learns, without either waiting for the other."""

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
