"""torch.compile where there is a compiler, one warning and the plain function where there is none."""

from __future__ import annotations

import logging
import shutil
from typing import Any

import pytest
import torch
from test_radt import batch

from recollect.common.attention import FusedAttention
from recollect.common.compiled import compiled
from recollect.common.transformer import Transformer
from recollect.radt import dt, radt
from recollect.radt.experience import Experience
from recollect.radt.supervised import ExperienceStore


def test_without_a_compiler_the_function_stays_and_a_warning_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no working C++ compiler\nand a long trace")

    monkeypatch.setattr(torch, "compile", fails)

    def double(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    with caplog.at_level(logging.WARNING):
        assert compiled(double, "cpu") is double
    assert [record.getMessage() for record in caplog.records] == [
        "`compile` is left off, as torch.compile does not work here: no working C++ compiler"
    ]


def test_a_function_that_cannot_be_compiled_goes_on_as_it_is_and_a_warning_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from torch._dynamo.exc import TorchDynamoException

    calls: list[float] = []

    def compiles(function: Any, **_: bool) -> Any:
        def call(x: torch.Tensor) -> Any:
            if function is double:
                raise TorchDynamoException("a loop without an end")
            return function(x)

        return call

    def double(x: torch.Tensor) -> torch.Tensor:
        calls.append(float(x))
        return 2 * x

    monkeypatch.setattr(torch, "compile", compiles)
    chosen = compiled(double, "cpu")
    assert [float(chosen(torch.tensor(value))) for value in (1.0, 2.0)] == [2.0, 4.0] and calls == [1.0, 2.0]
    assert [record.getMessage() for record in caplog.records] == [
        "`compile` is left off, as torch.compile does not work here: a loop without an end"
    ]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_a_compiled_loss_gives_the_loss_and_the_gradients_up_to_rounding(
    tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the path of a GPU, that gathers nothing, without dropout."""
    monkeypatch.setattr(dt, "gathers", lambda window: False)
    monkeypatch.setattr(
        Transformer, "attention", lambda self, x, mask=None, context=None: FusedAttention(x, mask, context, self.heads)
    )
    room = tiny(tokens="interleaved")
    of = room.settings("radt", network={"dropout": 0.0, "return_embedding": "bins"})
    network, histories = room.network(of).train(), room.histories(lengths=(12, 3))
    store = ExperienceStore(histories, actions=5)
    windows: list[Experience] = [batch(histories, store, step, size=10)[0] for step in (0, 1)]
    one = radt.Batch(*windows, torch.arange(10) % 3 > 0)

    def loss_of(one: radt.Batch) -> Any:
        return radt.radt_loss(network, one, 1.0, room.environment.returns)

    found = []
    for function in (loss_of, compiled(loss_of, "cpu")):
        network.zero_grad()
        loss, metrics = function(one)
        loss.backward()
        gradients = {name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None}
        found.append((loss.detach(), metrics["return_loss"], gradients))
    (loss, of_returns, gradients), (loss_2, of_returns_2, gradients_2) = found
    torch.testing.assert_close(loss_2, loss, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(of_returns_2, of_returns, atol=1e-5, rtol=1e-5)
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradients_2[name], gradient, atol=1e-4, rtol=1e-3)
