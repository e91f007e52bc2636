"""Activations that are computed again in the backward pass instead of being kept until then: time for memory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

from torch import Tensor

from recollect.common.cpu.dropout import Dropout


def recomputed(function: Callable[[Tensor], Tensor], x: Tensor, dropout: Dropout) -> Tensor:
    """``function(x)``, of which only the input is kept; the backward pass calls it again, with the same dropout masks."""
    from torch.utils.checkpoint import checkpoint

    if x.device.type != "cpu":  # there masks come from the device's generator, which `checkpoint` winds back
        return checkpoint(function, x, use_reentrant=False)
    held = dropout.held()
    return checkpoint(function, x, use_reentrant=False, context_fn=lambda: (nullcontext(), dropout.replaying(held)))
