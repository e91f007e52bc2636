"""LSTMs as one operator: torch.compile leaves it as it is, and a loss that went through it makes the updates of the plain one."""

from __future__ import annotations

import logging
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.profiler import profile
from torch.utils._pytree import tree_map_only

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]  # benchmarks is no part of the package

import fake_worlds  # noqa: E402
from test_ensemble import begun, difference  # noqa: E402

from benchmarks.gpu.pretend import PretendGpu  # noqa: E402
from recollect.common import compiled as compiler  # noqa: E402
from recollect.common.compiled import compiled  # noqa: E402
from recollect.memory_rl import dqn, ensemble, lstm_over_time, sacd, stacked, td3  # noqa: E402
from recollect.memory_rl.ensemble import Ensemble  # noqa: E402
from recollect.memory_rl.lstm_operator import as_operator, gradients, states  # noqa: E402
from recollect.memory_rl.lstm_over_time import over_time, plain  # noqa: E402
from recollect.memory_rl.stacked import StackedLSTM  # noqa: E402

IN_TURNS: dict[str, Any] = {"shared_encoder": False, "critics_first": True}
AIM: dict[str, Any] = {"world": {"world": "aim", "options": {}}, "network": "flax"}


def drawn(T: int, k: int, B: int, H: int, layers: int = 1, device: str = "cpu") -> list[Tensor]:
    """Inputs [k, B, T, 3], and weights."""
    draws = torch.Generator().manual_seed(T)
    shapes: list[tuple[int, ...]] = [(k, B, T, 3)]
    for layer in range(layers):
        shapes += [(k, 4 * H, H if layer else 3), (k, 4 * H, H), (k, 4 * H), (k, 4 * H)]
    return [torch.randn(shape, generator=draws).to(device) for shape in shapes]


def check(device: str, T: int, H: int, layers: int) -> None:
    x, *weights = drawn(T, 2, 3, H, layers, device)
    torch.library.opcheck(states, (x, weights, False))
    torch.library.opcheck(states, (x.clone().requires_grad_(), [one.clone().requires_grad_() for one in weights], True))
    known = states(x, weights, True)
    torch.library.opcheck(gradients, (torch.randn_like(known[0]), x, weights, known))


def all_say_where_they_lie(device: str, H: int, layers: int) -> None:
    x, *weights = drawn(5, 2, 3, H, layers, device)
    for given in (x, x.transpose(0, 1).contiguous().transpose(0, 1), x.repeat(1, 2, 1, 1)[:, ::2]):
        for keeps in (False, True):
            found = states(given, weights, keeps)
            memories = {tensor.untyped_storage()._cdata for tensor in (given, *weights, *found)}
            assert len(memories) == 1 + len(weights) + len(found) and len(found) == (4 * layers if keeps else 1)
            assert [lies(tensor) for tensor in of_fake(states, given, weights, keeps)] == [
                lies(tensor) for tensor in found
            ]
        h = found[0]
        for dh in (h, h.transpose(0, 1).contiguous().transpose(0, 1), h[:, :1].expand_as(h)):
            made = gradients(dh, given, weights, found)
            said = of_fake(gradients, dh, given, weights, found)
            assert [lies(tensor) for tensor in said] == [lies(tensor) for tensor in made]
            again = gradients(dh.contiguous(), given.contiguous(), weights, found)
            assert all(map(torch.equal, made, again))


def of_fake(operator: Any, *given: Any) -> Any:
    with FakeTensorMode() as mode:
        return operator(*tree_map_only(Tensor, mode.from_tensor, given))


def lies(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor.device


@pytest.mark.parametrize(("T", "layers"), [(1, 1), (5, 1), (5, 2)])
@pytest.mark.slow
def test_operators_are_what_torch_compile_takes_them_for(T: int, layers: int) -> None:
    check("cpu", T, 4, layers)


@pytest.mark.parametrize("layers", [1, 3])
def test_operators_say_where_their_results_will_lie(layers: int) -> None:
    all_say_where_they_lie("cpu", 4, layers)


@pytest.mark.parametrize("layers", [1, 3])
def test_an_operator_has_the_states_and_gradients_of_plain_cells(layers: int) -> None:
    arrays = drawn(6, 3, 4, 5, layers)
    weight = torch.randn(3, 4, 6, 5, generator=torch.Generator().manual_seed(1))
    found = []
    for way in (plain, as_operator):
        given = [array.clone().requires_grad_() for array in arrays]
        h = way(*given)
        found.append([h, *torch.autograd.grad((h * weight).sum(), given)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_a_gradient_through_states_that_were_not_kept_is_refused() -> None:
    x, *weights = drawn(3, 2, 2, 4)
    with pytest.raises(ValueError, match="must keep its cells"):
        states(x.requires_grad_(), weights, False)


def test_in_a_graph_an_lstm_is_one_node_and_keeps_its_cells_where_a_gradient_is_wanted() -> None:
    graphs: list[torch.fx.GraphModule] = []

    def seen(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    def loss(x: Tensor, *weights: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = over_time(x, weights)
        return (over_time(x, weights) - wanted).sum()

    x, *weights = drawn(50, 2, 3, 4, layers=2)
    torch.compiler.reset()
    torch.compile(loss, backend=seen, fullgraph=True, dynamic=False)(x, *(one.requires_grad_() for one in weights))
    (graph,) = graphs
    nodes = [node for node in graph.graph.nodes if "lstm_states" in str(node.target)]
    assert [node.args[2] for node in nodes] == [False, True]
    assert len(graph.graph.nodes) < 30  # not fifty steps


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize(
    ("algorithm", "changes", "passes"),
    [
        (dqn, {}, (2, 1)),  # forward and back: that of the target needs no way back
        (dqn, {"sequence": {"layers": 2}}, (2, 1)),
        (sacd, {}, (1, 1)),
        (sacd, IN_TURNS, (5, 2)),
        (td3, {**AIM, **IN_TURNS}, (5, 2)),
    ],
)
def test_a_compiled_loss_of_lstms_makes_the_updates_of_the_plain_one(
    algorithm: Any, changes: dict[str, Any], passes: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where each of two turns leaves parameters without a gradient."""
    fake_worlds.install(monkeypatch)
    monkeypatch.setattr(StackedLSTM, "forward", lambda self, x, time_RT=None: self.at_once(x.float()))
    plain, members = (begun("lstm", algorithm, **changes) for _ in range(2))
    ensemble, wanted = Ensemble(members), Ensemble(plain)
    torch.compiler.reset()
    ensemble.loss = compiled(ensemble.learner.loss, "cpu", whole=True)
    torch._dynamo.utils.counters.clear()
    for _ in range(2):
        ensemble.update()
        wanted.update()
    with profile() as watched:
        ensemble.update()
    wanted.update()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == len(ensemble.learner.turns)
    assert not torch._dynamo.utils.counters["graph_break"]
    calls = {event.key: event.count for event in watched.key_averages()}
    assert (calls["recollect::lstm_states"], calls["recollect::lstm_gradients"]) == passes
    assert max(map(difference, members, plain)) < 1e-4


def compiles(monkeypatch: pytest.MonkeyPatch, few: int) -> bool:
    """Whether the loss of three LSTMs goes to torch.compile, where GPUs have so few by cuDNN."""
    asked: list[Any] = []
    monkeypatch.setattr(stacked, "FEW_LSTMS", few)
    monkeypatch.setattr(ensemble, "compiled", lambda function, *_, **__: asked.append(function) or function)
    with PretendGpu():
        made = Ensemble(begun("lstm", device="cuda", compile=True))
        made.update()
    return bool(asked)


def test_few_lstms_are_not_compiled_and_nothing_is_said_of_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacked, "in_kernels", lambda w_hidden: True)
    with caplog.at_level(logging.WARNING):
        assert not compiles(monkeypatch, few=3)
    assert not caplog.records


@pytest.mark.quick("False")
@pytest.mark.parametrize("there", [False, True])
def test_more_lstms_are_compiled_where_their_kernels_are_taken(there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    lstm_over_time.fastest.cache_clear()
    monkeypatch.setattr(lstm_over_time, "_kernels", lambda width: as_operator if there else None)
    assert compiles(monkeypatch, few=2) == there
    lstm_over_time.fastest.cache_clear()


@pytest.mark.gpu
def test_on_a_gpu_kernels_are_what_torch_compile_takes_them_for() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    for layers in (1, 3):
        check("cuda", 5, 16, layers)
        all_say_where_they_lie("cuda", 16, layers)


@pytest.mark.gpu
@pytest.mark.parametrize("algorithm", [dqn, sacd])
def test_on_a_gpu_a_compiled_graph_of_lstms_makes_the_updates_of_a_plain_one(
    algorithm: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    monkeypatch.setattr(stacked, "FEW_LSTMS", 0)
    plain = begun("lstm", algorithm, device="cuda", precision="float32")
    members = begun("lstm", algorithm, device="cuda", precision="float32", compile=True)
    wanted, made = Ensemble(plain), Ensemble(members)
    torch._dynamo.utils.counters.clear()
    with caplog.at_level(logging.WARNING, logger=compiler.__name__):
        for _ in range(6):  # of which the last three are replays
            wanted.update()
            made.update()
    assert made.compute.graph is not None and not caplog.records
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert not torch._dynamo.utils.counters["graph_break"]
    for name, total_S in made.sums.items():  # as in test_compiled_ensemble
        torch.testing.assert_close(total_S, wanted.sums[name], rtol=1e-3, atol=1e-5)
