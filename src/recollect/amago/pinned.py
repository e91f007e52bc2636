"""Batches in memory from which a GPU copies while the host goes on."""

from __future__ import annotations

from typing import Any

import torch

from recollect.amago.batch import Batch


def pinned(batch: Batch) -> Batch:
    """The batch as pinned tensors."""
    return Batch(**{name: _pinned(array) for name, array in vars(batch).items()})


def _pinned(array: Any) -> Any:
    if array is None:
        return None
    if isinstance(array, dict):
        return {name: _pinned(part) for name, part in array.items()}
    return torch.as_tensor(array).pin_memory()
