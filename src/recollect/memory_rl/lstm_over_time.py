"""An LSTM over whole sequences for several networks at once: cuDNN knows one network only.

On a GPU all steps of a layer are one kernel (`lstm_layers`). Where that cannot be, they go cell by cell (`lstm_cells`), with
PyTorch's fused cell or with the plain one. What is not plain is tried before it is taken, on random numbers, gradients included.
Where it is not there, or gives other numbers, the next one is. In a loss that goes through torch.compile all of it is one operator
(`lstm_operator`), which is there where the kernels are.

Shapes: k networks, B rows of each, T steps, D input numbers, H hidden ones. Gates are input, forget, cell, output.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cache, partial

import torch
from torch import Tensor

from recollect.common.precision import tf32
from recollect.memory_rl.lstm_cells import FusedCells, PlainCells, layers_of
from recollect.memory_rl.lstm_operator import as_operator, is_exact

log = logging.getLogger(__name__)
NEAR = {
    True: 1e-4,
    False: 2e-3,
}  # how far numbers may be from the plain cell's, where products are exact and where they need not be

Way = Callable[..., Tensor]
"""(inputs [k, B, T, D], of each layer the weights of the inputs [k, 4H, D], of the hidden state [k, 4H, H], and both biases
[k, 4H]) -> hidden states of the last layer [k, B, T, H], with gradients."""


def over_time(x_SBTD: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """Hidden states of the last layer [k, B, T, H], see `Way`; on a GPU in the fastest way that works there."""
    if torch.compiler.is_compiling():
        return as_operator(x_SBTD, *weights)
    way = fastest(x_SBTD.device, weights[1].shape[2], is_exact()) if x_SBTD.is_cuda else plain
    return way(x_SBTD, *weights)


def in_kernels(w_hidden: Tensor) -> bool:
    """Whether all steps of LSTMs with such weights [k, 4H, H] are one kernel, where they lie and as exact as products now are."""
    return w_hidden.is_cuda and fastest(w_hidden.device, w_hidden.shape[2], is_exact()) is as_operator


@cache
def fastest(device: torch.device, width: int, exact: bool) -> Way:
    """The first that works on a device, for H = `width`; asked once, never while a graph is captured.

    Args:
        exact: whether products of float32 are whole, or may be in TF32.
    """
    for name, way in (("kernels of LSTMs", _kernels(width)), ("PyTorch's fused cells", fused)):
        if way is not None and works(way, name, device, width, exact):
            return way
    return plain


def _kernels(width: int) -> Way | None:
    """All steps in one kernel; None: Triton is not installed, or a block of the GPU has no room for such weights."""
    try:
        from recollect.memory_rl.lstm_kernels import WIDTHS
    except ImportError as error:
        log.debug("LSTMs of several seeds go cell by cell: %s", error)
        return None
    return as_operator if width in WIDTHS else None


def _by_cells(cells: type[torch.autograd.Function], x_SBTD: Tensor, *weights: Tensor) -> Tensor:
    for own in layers_of(weights):
        k, B, T, D = x_SBTD.shape
        gates_TSBG = own.of_inputs(x_SBTD.reshape(k, B * T, D)).view(k, B, T, -1).permute(2, 0, 1, 3)
        x_SBTD = cells.apply(gates_TSBG, own.w_hidden.transpose(1, 2)).permute(1, 2, 0, 3)  # type: ignore[no-untyped-call]
    return x_SBTD


plain: Way = partial(_by_cells, PlainCells)
fused: Way = partial(_by_cells, FusedCells)


def works(way: Way, name: str, device: torch.device, width: int, exact: bool) -> bool:
    """Whether a way is there on a device, and gives what plain cells give: with and without gradients, one layer and two."""
    draws = torch.Generator().manual_seed(0)
    networks, rows, steps, inputs = 2, 19, 60, 24

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draws).to(device)

    x, weight = drawn(networks, rows, steps, inputs), drawn(networks, rows, steps, width)
    layers = []
    for own in (inputs, width):
        layers.append([drawn(networks, 4 * width, own) / own**0.5, drawn(networks, 4 * width, width) / width**0.5])
        layers[-1] += [drawn(networks, 4 * width) / 10 for _ in range(2)]  # more, and small errors grow

    def numbers(tried: Way, weights: Sequence[Tensor]) -> list[Tensor]:
        given = [tensor.clone().requires_grad_() for tensor in (x, *weights)]
        with torch.enable_grad():
            h = tried(*given)
            found = [h.detach(), *torch.autograd.grad((h * weight).sum(), given)]
        with torch.no_grad():
            return [*found, tried(x, *weights)]

    same, near = True, NEAR[exact]
    try:
        for weights in (layers[0], [*layers[0], *layers[1]]):
            with tf32(False, device):
                right = numbers(plain, weights)
            with tf32(not exact, device, in_cudnn=False):
                pairs = zip(right, numbers(way, weights), strict=True)
                same &= all(torch.allclose(one, other, near, near * float(one.abs().max())) for one, other in pairs)
    except Exception as error:  # a compiler may fail in its own ways
        said = str(error).strip().partition("\n")[0]
        log.warning("%s do not work on this device: %s; LSTMs go on without, slower", name, said)
        return False
    if not same:
        log.warning("%s give other numbers than plain cells on this device; LSTMs go on without, slower", name)
    return same
