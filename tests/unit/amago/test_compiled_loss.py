"""A compiled loss is the loss: one frame, no graph break, and the plain loss and gradients up to rounding."""

from __future__ import annotations

import logging
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_amago import SHAPES, SMALL, random_batch
from torch import Tensor
from torch.nn import functional

from recollect.amago import amago, amago_multi_task, update_graphs
from recollect.amago.compiled_loss import CompiledLoss
from recollect.amago.goal_embedders import TokenGoals
from recollect.amago.popart import PopArt
from recollect.amago.share import Beforehand
from recollect.amago.terms import Draws
from recollect.common.cpu.dropout import Dropout
from recollect.common.cuda_graphs import WARM_UP

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # benchmarks is no part of the package

from benchmarks.gpu.pretend import PretendGpu

CPU = torch.device("cpu")
TWO_LAYERS = {**SMALL["sequence"], "layers": 2}
Found = tuple[Tensor, dict[str, Tensor]]


def agent_of(module: Any, device: str, kind: str = "discrete", **changes: Any) -> Any:
    hp = module.Hyperparameters.model_validate({**SMALL, "warmup": 8, **changes})
    return module.Agent(hp, SHAPES[kind], seed=0, device=device)


# ---- on a pretend GPU, with something else in the place of torch.compile


def updated(made: Any, lengths: tuple[int, ...] = (6,), updates: int = 12) -> Any:
    """The metrics of updates on batches of these lengths in turn, and what the agent then has."""
    found = []
    for counter in range(updates):
        batch = random_batch(seed=counter, lengths=(4, lengths[counter % len(lengths)], 2))
        found.append(made.step(batch, counter, further=counter % 6 == 5))
    arrays = {name: torch.as_tensor(array).cpu().numpy() for name, array in made.arrays().items()}
    return [{name: float(value) for name, value in metrics.items()} for metrics in found], arrays


def assert_equal(found: Any, expected: Any) -> None:
    """To the bit."""
    assert found[0] == expected[0]
    for name, array in expected[1].items():
        np.testing.assert_array_equal(found[1][name], array, err_msg=name)


@pytest.fixture
def gpu() -> Iterator[PretendGpu]:
    with PretendGpu() as gpu:
        yield gpu


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """For each call of what stands for a compiled loss, the shape of its windows."""
    seen: list[tuple[int, ...]] = []

    def compiled(function: Callable[..., Found], **_: Any) -> Callable[..., Found]:
        def noted(window: Any, *rest: Any) -> Found:
            seen.append(tuple(window.mask_BL.shape))
            return function(window, *rest)

        return noted

    monkeypatch.setattr(torch, "compile", compiled)
    return seen


@pytest.mark.slow
def test_without_a_compiler_one_warning_says_so_and_updates_are_what_they_were(
    gpu: PretendGpu, replays: list[Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no Triton here")

    expected = updated(agent_of(amago, "cuda"), (6, 9))
    monkeypatch.setattr(torch, "compile", fails)
    del replays[:]
    assert_equal(updated(agent_of(amago, "cuda", compile=True), (6, 9)), expected)
    assert len(set(replays)) == 2
    assert [record.getMessage() for record in caplog.records] == [
        "`compile` is left off, as the loss cannot be compiled: no Triton here"
    ]


@pytest.mark.slow
@pytest.mark.parametrize("module", [amago, amago_multi_task])
def test_the_loss_of_graphs_alone_is_compiled_and_to_try_it_changes_nothing(
    module: Any, gpu: PretendGpu, calls: list[Any], replays: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(update_graphs, "MOST", 2)
    lengths, changes = (6, 9, 6, 7, 9), {"filter": "exp", "sequence": {**TWO_LAYERS, "dropout": 0.3}}
    monkeypatch.setattr(torch.cuda, "manual_seed_all", torch.default_generator.manual_seed)
    with torch.random.fork_rng(devices=()):
        expected = updated(agent_of(module, "cuda", **changes), lengths, 30)
        assert not calls
        del replays[:]
        assert_equal(updated(agent_of(module, "cuda", compile=True, **changes), lengths, 30), expected)
    assert calls == [(3, 6)] * (WARM_UP + 1) + [(3, 9)] * (WARM_UP + 1)  # the last: the capture
    assert len(set(replays)) == 2


@pytest.mark.slow
def test_a_loss_that_cannot_be_compiled_or_captured_is_left_as_it_is(
    gpu: PretendGpu, replays: list[Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    expected = updated(agent_of(amago, "cuda"), (6, 9))
    for where, said in ((False, "the loss cannot be compiled"), (True, "no CUDA graph can hold what it makes")):

        def compiled(function: Callable[..., Found], where: bool = where, **_: Any) -> Callable[..., Found]:
            def fails(*arguments: Any) -> Found:
                found = function(*arguments)  # statistics have moved
                if (gpu.capturing is not None) == where:
                    raise torch._dynamo.exc.TorchDynamoException("as was to be shown")
                return found

            return fails

        monkeypatch.setattr(torch, "compile", compiled)
        caplog.clear()
        del replays[:]
        made = agent_of(amago, "cuda", compile=True)
        assert_equal(updated(made, (6, 9)), expected)
        assert len(set(replays)) == 2 and made.graphs.works
        assert said in caplog.text and ("the loss of updates is compiled" in caplog.text) == where
        assert [record.levelname for record in caplog.records].count("WARNING") == 1


@pytest.mark.slow
def test_recurrent_layers_and_a_cpu_compile_nothing(gpu: PretendGpu, calls: list[Any]) -> None:
    updated(agent_of(amago, "cuda", compile=True, sequence={**TWO_LAYERS, "kind": "gru"}))
    updated(agent_of(amago, "cpu", compile=True))
    assert not calls


# ---- with a compiler: on the path of a GPU, which asks nothing, and draws with its own dropout


def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TokenGoals, "_reads_once", lambda self, tokens: False)
    monkeypatch.setattr(PopArt, "_learns_nothing", lambda self, mask: False)
    monkeypatch.setattr(Dropout, "__call__", lambda self, x, p: functional.dropout(x, p))
    monkeypatch.setattr(Dropout, "add", lambda self, x, y, p: x + functional.dropout(y, p))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize(
    ("module", "kind", "changes", "rounding", "whole"),
    [
        (amago, "discrete", {"head": [8]}, 1e-4, True),
        (amago, "discrete", {}, 1e-4, False),
        (
            amago,
            "discrete",
            {"sequence": {**TWO_LAYERS, "dropout": 0.1, "window": 2, "positions": "rotary"}},
            None,
            False,
        ),
        (amago, "discrete", {"precision": "bfloat16"}, 5e-2, False),
        (
            amago,
            "discrete",
            {"sequence": {**TWO_LAYERS, "kind": "ff"}, "popart": False, "fake_filter": True},
            1e-4,
            False,
        ),
        (amago, "continuous", {}, 1e-4, False),
        (amago, "continuous", {"continuous": "mixture", "online_coefficient": 0.0}, 1e-4, False),
        (amago, "binary", {"online_coefficient": 0.0}, 1e-4, False),
        (amago, "goals", {"inputs": {**SMALL["inputs"], "goals": "token"}}, 1e-4, False),
        (amago_multi_task, "discrete", {"filter": "exp", "online_coefficient": 1.0}, 1e-4, False),
        (
            amago_multi_task,
            "discrete",
            {"filter": "exp", "labels": "hl_gauss", "critic_loss": "regression"},
            1e-4,
            False,
        ),
        (amago_multi_task, "continuous", {"filter": "exp"}, 1e-4, False),
    ],
)
def test_a_compiled_loss_gives_loss_metrics_statistics_and_gradients_up_to_rounding(
    module: Any,
    kind: str,
    changes: dict[str, Any],
    rounding: float | None,
    whole: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In one frame for each shape, without a graph break. With dropout (None) numbers are others.

    `whole`: down to compiled C++, which takes a minute; else as it is traced, with its gradients.
    """
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    if not whole:
        monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    changes = {"sequence": TWO_LAYERS, **changes}
    plain, other = (agent_of(module, "cpu", kind, **changes) for _ in range(2))
    as_on_a_gpu(monkeypatch)
    if changes.get("precision") == "bfloat16":
        for made in (plain, other):
            made.network.precision = made.network.trajectory_encoder.attention_precision = "bfloat16"
    loss = CompiledLoss(other._loss, other.network, CPU)
    lengths = (6,) if whole else (6, 9)
    for length in lengths:
        batch = random_batch(kind, lengths=(4, length, 2))
        value, metrics = found_of(plain, plain._loss, batch)
        value_2, metrics_2 = found_of(other, loss, batch)
        assert list(metrics_2) == list(metrics) and bool(torch.isfinite(value_2))
        if rounding is None:
            continue
        near = {"rtol": rounding, "atol": rounding}
        torch.testing.assert_close(value_2, value, **near)
        torch.testing.assert_close(metrics_2, metrics, **near)
        for name, weight in plain.network.named_parameters():
            torch.testing.assert_close(other.network.get_parameter(name).grad, weight.grad, **near)
        for name, buffer in plain.network.named_buffers():
            torch.testing.assert_close(other.network.get_buffer(name), buffer, **near)
    frames = torch._dynamo.utils.counters["frames"]
    assert frames["total"] == frames["ok"] == len(lengths), frames
    assert not torch._dynamo.utils.counters["graph_break"]


def found_of(made: Any, loss: Any, batch: Any) -> Found:
    """Loss and metrics of a batch, with draws as a graph has them; the gradients stand in the network."""
    made.network.train()
    B, L = batch.mask_BT.shape
    index_KBTG = torch.randint(3, (2, B, L - 1, 3), generator=torch.Generator().manual_seed(0))
    actions = Beforehand(torch.Generator().manual_seed(1), CPU)
    window, draws = made._window(batch), Draws(index_KBTG, actions)
    before = {name: value.clone() for name, value in made.network.state_dict().items()}
    made._loss(window, draws, True)  # tells what is drawn
    made.network.load_state_dict(before)
    actions.settle()
    if isinstance(loss, CompiledLoss):
        assert loss.is_ready(window, draws)
        assert all(torch.equal(value, before[name]) for name, value in made.network.state_dict().items())
    actions.renew(torch.Generator().manual_seed(2))
    actions.again()
    value, metrics = loss(window, draws, True)
    made.optimiser.backward(value)
    return value, metrics


# ---- on a real GPU


@pytest.mark.gpu
@pytest.mark.parametrize("module", [amago, amago_multi_task])
def test_on_a_gpu_graphs_of_a_compiled_loss_make_the_updates_that_are_made_without(
    module: Any, caplog: pytest.LogCaptureFixture
) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    changes = {"precision": "float32", "tf32": False, "filter": "exp"}
    expected = updated(agent_of(module, "cuda", cuda_graphs=False, **changes), (6, 9))
    made = agent_of(module, "cuda", compile=True, **changes)
    found = updated(made, (6, 9))
    warned = [
        record for record in caplog.records if record.levelname == "WARNING" and record.name.startswith("recollect")
    ]
    assert not warned and made.graphs.quick is not None and len(made.graphs._updates) == 2
    for one, other in zip(found[0], expected[0], strict=True):
        assert one.keys() == other.keys()
        np.testing.assert_allclose([one[name] for name in other], list(other.values()), rtol=1e-2, atol=1e-3)
    for name, array in expected[1].items():
        np.testing.assert_allclose(found[1][name], array, rtol=1e-2, atol=1e-3, err_msg=name)
