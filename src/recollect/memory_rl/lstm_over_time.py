"""An LSTM over whole sequences for several networks at once: cuDNN knows one network only.

On a GPU all steps are one kernel (`lstm_kernels`). Where that cannot be, they go cell by cell (`lstm_cells`), with PyTorch's fused
cell or with the plain one. What is not plain is tried before it is taken, on random numbers, gradients included. Where it is not
there, or gives other numbers, the next one is.

Shapes: T steps, k networks, B rows of each, H hidden numbers. Gates stand in PyTorch's order: input, forget, cell, output.
"""

from __future__ import annotations

import logging
from functools import cache

import torch
from torch import Tensor

from recollect.common.precision import tf32
from recollect.memory_rl.lstm_cells import FusedCells, PlainCells

log = logging.getLogger(__name__)
NEAR = 1e-4  # how far numbers may be from the plain cell's

Cells = type[torch.autograd.Function]
"""(gates [T, k, B, 4H], weights of the hidden state [k, H, 4H]) -> hidden states [T, k, B, H], with a backward."""


def over_time(gates: Tensor, w_hidden: Tensor) -> Tensor:
    """Hidden states [T, k, B, H] of what the inputs add to the gates [T, k, B, 4H] and weights of the hidden state [k, H, 4H]."""
    cells = fastest(gates.device, w_hidden.shape[1]) if gates.is_cuda else PlainCells
    h_TSBH: Tensor = cells.apply(gates, w_hidden)  # type: ignore[no-untyped-call]
    return h_TSBH


@cache
def fastest(device: torch.device, width: int) -> Cells:
    """The first that works on a device, of cells for H = `width`; asked once, never while a graph is captured."""
    for cells in (_kernel_cells(width), FusedCells):
        if cells is not None and works(cells, device, width):
            return cells
    return PlainCells


def _kernel_cells(width: int) -> Cells | None:
    """All steps in one kernel; None: Triton is not installed, or a block of the GPU has no room for such weights."""
    try:
        from recollect.memory_rl import lstm_kernels
    except ImportError as error:
        log.debug("LSTMs of several seeds go cell by cell: %s", error)
        return None
    return lstm_kernels.KernelCells if width in lstm_kernels.WIDTHS else None


def works(cells: Cells, device: torch.device, width: int) -> bool:
    """Whether cells are there on a device, and give what the plain ones give, with gradients and without."""
    draws = torch.Generator().manual_seed(0)
    steps, networks, rows = 5, 2, 19
    shapes = (steps, networks, rows, 4 * width), (networks, width, 4 * width), (steps, networks, rows, width)
    gates, w_hidden, weight = (torch.randn(shape, generator=draws).to(device) for shape in shapes)
    w_hidden /= width**0.5
    found = []
    try:
        with tf32(False, device):  # plain cells, too, in whole float32
            for each in (PlainCells, cells):
                given = [tensor.clone().requires_grad_() for tensor in (gates, w_hidden)]
                with torch.enable_grad():
                    h: Tensor = each.apply(*given)  # type: ignore[no-untyped-call]
                    found.append([h.detach(), *torch.autograd.grad((h * weight).sum(), given)])
                with torch.no_grad():
                    found[-1].append(each.apply(gates, w_hidden))  # type: ignore[no-untyped-call]
    except Exception as error:  # a compiler may fail in its own ways
        said = str(error).strip().partition("\n")[0]
        log.warning("%s do not work on this device: %s; LSTMs go on without, slower", cells.__name__, said)
        return False
    same = all(
        torch.allclose(one, other, NEAR, NEAR * float(one.abs().max())) for one, other in zip(*found, strict=True)
    )
    if not same:
        log.warning(
            "%s give other numbers than plain cells on this device; LSTMs go on without, slower", cells.__name__
        )
    return same
