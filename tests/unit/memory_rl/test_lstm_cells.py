"""LSTMs of several networks: what a GPU has for them gives what the plain cell gives, or is not taken."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from recollect.memory_rl import lstm_over_time
from recollect.memory_rl.lstm_cells import FusedCells, PlainCells
from recollect.memory_rl.lstm_over_time import fastest, fused, plain, works

CPU = torch.device("cpu")


class Stand:
    """What PyTorch documents of its fused cell, on a CPU. Its two functions are not there for one."""

    def __init__(self) -> None:
        self.calls, self.wrong = 0, 1.0

    def _thnn_fused_lstm_cell(self, gates: Tensor, hidden: Tensor, c: Tensor, *biases: Any) -> tuple[Tensor, ...]:
        self.calls += 1
        assert gates.dim() == 2 and gates.shape == hidden.shape and c.shape == (len(gates), gates.shape[1] // 4)
        into, forget, cell, out = (gates + hidden).chunk(4, 1)
        into, forget, cell, out = into.sigmoid(), forget.sigmoid(), cell.tanh(), out.sigmoid()
        after = forget * c + into * cell
        return out * after.tanh() * self.wrong, after, torch.cat([into, forget, cell, out], 1)

    def _thnn_fused_lstm_cell_backward_impl(
        self, dh: Tensor, dc: Tensor, before: Tensor, after: Tensor, activated: Tensor, has_bias: bool
    ) -> tuple[Tensor, Tensor, None]:
        assert dh.shape == dc.shape == before.shape == after.shape and not has_bias
        into, forget, cell, out = activated.chunk(4, 1)
        dc = dc + dh * out * (1 - after.tanh() ** 2)
        parts = [
            dc * cell * into * (1 - into),
            dc * before * forget * (1 - forget),
            dc * into * (1 - cell**2),
            dh * after.tanh() * out * (1 - out),
        ]
        return torch.cat(parts, 1), dc * forget, None


@pytest.fixture
def stand(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stand]:
    one = Stand()
    for name in ("_thnn_fused_lstm_cell", "_thnn_fused_lstm_cell_backward_impl"):
        monkeypatch.setattr(torch.ops.aten, name, getattr(one, name))
    fastest.cache_clear()
    yield one
    fastest.cache_clear()


@pytest.fixture
def without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lstm_over_time, "_kernels", lambda width: None)


@pytest.mark.parametrize("T", [1, 2, 7])
def test_fused_cells_have_the_states_and_gradients_of_plain_ones(T: int, stand: Stand) -> None:
    draws = torch.Generator().manual_seed(1)
    gates, w_hidden = torch.randn(3, T, 4, 20, generator=draws).transpose(0, 1), torch.randn(3, 5, 20, generator=draws)
    weight = torch.randn(T, 3, 4, 5, generator=draws)
    found = []
    for cells in (PlainCells, FusedCells):
        given = [gates.clone().requires_grad_(), w_hidden.clone().requires_grad_()]
        h = cells.apply(*given)
        found.append([h, *torch.autograd.grad((h * weight).sum(), given)])
    assert stand.calls == T
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.usefixtures("without_triton")
def test_the_fused_cell_is_taken_where_it_works(stand: Stand) -> None:
    assert fastest(CPU, 16, True) is fused
    calls = stand.calls
    assert fastest(CPU, 16, True) is fused and stand.calls == calls  # tried once


@pytest.mark.usefixtures("without_triton")
def test_a_fused_cell_that_gives_other_numbers_is_not_taken(stand: Stand, caplog: pytest.LogCaptureFixture) -> None:
    stand.wrong = 1.001
    with caplog.at_level(logging.WARNING):
        assert fastest(CPU, 16, True) is plain
    assert "fused cells give other numbers" in caplog.text
    stand.wrong = math.nan
    fastest.cache_clear()
    assert fastest(CPU, 16, True) is plain


@pytest.mark.usefixtures("without_triton")
def test_where_there_is_nothing_faster_the_plain_cell_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    fastest.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert fastest(CPU, 16, True) is plain  # PyTorch has no fused cell for a CPU
    assert "fused cells do not work on this device" in caplog.text
    fastest.cache_clear()


def test_kernels_that_fail_leave_the_fused_cell_and_a_warning(
    stand: Stand, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(PlainCells):
        @staticmethod
        def backward(ctx: Any, dh: Tensor) -> Any:
            raise ValueError("no room in shared memory")  # a compiler's own errors are of many kinds

    monkeypatch.setattr(lstm_over_time, "_kernels", lambda width: partial(lstm_over_time._by_cells, Broken))
    with caplog.at_level(logging.WARNING):
        assert fastest(CPU, 16, True) is fused
    assert "kernels of LSTMs do not work on this device: no room in shared memory" in caplog.text


@pytest.mark.parametrize("layers", [1, 2])
def test_the_plain_way_is_pytorchs_lstm(layers: int) -> None:
    draws, networks, steps, inputs, width = torch.Generator().manual_seed(2), 2, 9, 6, 8
    lstms = [torch.nn.LSTM(inputs, width, layers, batch_first=True) for _ in range(networks)]
    x = torch.randn(networks, 5, steps, inputs, generator=draws)
    with torch.no_grad():
        wanted = torch.stack([lstm(rows)[0] for lstm, rows in zip(lstms, x, strict=True)])
        found = plain(x, *(torch.stack(own) for own in zip(*(lstm.parameters() for lstm in lstms), strict=True)))
    torch.testing.assert_close(found, wanted)


@pytest.mark.gpu
@pytest.mark.parametrize("width", [16, 128])
def test_on_a_gpu_the_kernels_and_the_fused_cell_work(width: int) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    gpu = torch.device("cuda")
    for exact in (True, False):
        assert fastest(gpu, width, exact) is lstm_over_time._kernels(width)
        assert works(fused, "fused cells", gpu, width, exact)
