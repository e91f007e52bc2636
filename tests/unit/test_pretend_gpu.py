"""The pretend GPU refuses what a GPU refuses, and its graphs are as late and as deaf to the host as CUDA's."""

from __future__ import annotations

import copy
import gc
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from recollect.amago.goal_embedders import TokenGoals
from recollect.common import cuda_graphs
from recollect.common.cuda_graphs import captured, on_side_stream

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # benchmarks is no part of the package

from benchmarks.gpu.pretend import PretendGpu, Stream  # noqa: E402


@pytest.fixture
def gpu() -> Iterator[PretendGpu]:
    with PretendGpu() as gpu:
        yield gpu


def on_gpu(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float32).to("cuda")


def test_what_is_made_of_a_tensor_is_where_it_is(gpu: PretendGpu) -> None:
    x = on_gpu(1, 2, 3)
    for made in (
        x + 1,
        x[1:],
        x.view(3, 1),
        torch.zeros_like(x),
        x.new_zeros(2),
        copy.deepcopy(x),
        x.double(),
        x.detach(),
    ):
        assert made.device.type == "cuda" and made.is_cuda
    assert x.device == torch.zeros(2, device=x.device).device == torch.as_tensor(np.ones(2), device="cuda").device
    assert x.cpu().device.type == "cpu" and not torch.zeros_like(x, device="cpu").is_cuda and not torch.ones(2).is_cuda
    assert nn.functional.one_hot(x.long(), 4).is_cuda


def test_tensors_of_two_devices_are_refused(gpu: PretendGpu) -> None:
    x, host = on_gpu(1, 2, 3), torch.ones(3)
    for together in (
        lambda: x + host,
        lambda: torch.cat([x, host]),
        lambda: nn.functional.linear(x, host[None]),
        lambda: host[x.long() - 1],
        lambda: torch.where(host > 0, x, x),
        lambda: x.add_(host),
    ):
        with pytest.raises(RuntimeError, match="device"):
            together()
    with pytest.raises(TypeError, match="numpy"):
        x.numpy()
    with pytest.raises(TypeError, match="numpy"):
        np.asarray(x)


def test_numbers_and_indices_of_the_host_are_taken(gpu: PretendGpu) -> None:
    x = on_gpu(1, 2, 3)
    assert (x * torch.tensor(2.0)).is_cuda
    assert x[torch.tensor([0, 2])].tolist() == [1, 3]
    assert ("an index from the host", "") in gpu.waits
    x.copy_(torch.zeros(3))
    assert x.tolist() == [0, 0, 0]


def test_modules_move_and_their_gradients_are_with_them(gpu: PretendGpu) -> None:
    class Doubled(torch.autograd.Function):
        """Asks in its backward pass where its gradient is."""

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
            seen.append(gradient.device.type)
            return gradient + torch.ones(1, device=gradient.device)

    seen: list[str] = []
    net = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)).to("cuda")
    Doubled.apply(net(on_gpu(1, 2, 3))).sum().backward()
    assert seen == ["cuda"] and all(p.is_cuda and p.grad is not None and p.grad.is_cuda for p in net.parameters())
    assert copy.deepcopy(net)[0].weight.is_cuda and not net.to("cpu")[0].weight.is_cuda


def test_waits_are_counted_and_copies_that_nobody_waits_for_are_not(gpu: PretendGpu) -> None:
    x = on_gpu(1, 2, 3)
    del gpu.waits[:]
    torch.ones(3).pin_memory().to("cuda", non_blocking=True)
    torch.ones(3).to("cuda", non_blocking=True)
    x.sum() + 1
    assert not gpu.waits
    x.cpu(), float(x.sum()), x.nonzero(), x[x > 1], torch.ones(3).to("cuda"), bool((x > 0).all())
    assert len(gpu.waits) == 6


def test_a_graph_computes_when_it_is_replayed_and_with_the_hosts_numbers_of_then(gpu: PretendGpu) -> None:
    x, total, factor = on_gpu(1, 2), on_gpu(0, 0), 3.0

    def step() -> Tensor:
        total.add_(x * factor)
        return total.sum()

    graph, found = captured(step)
    assert total.tolist() == [0, 0] and bool(found.isnan())
    factor = 5.0
    x.fill_(2)
    graph.replay()
    graph.replay()
    assert total.tolist() == [12, 12] and float(found) == 24


def test_a_graph_holds_a_whole_update(gpu: PretendGpu) -> None:
    net = nn.Linear(2, 1).to("cuda")
    nn.init.zeros_(net.weight)
    nn.init.zeros_(net.bias)
    x, optimiser = on_gpu(1, 2), torch.optim.SGD(net.parameters(), lr=0.1)
    before = net.weight.detach().clone()

    def update() -> Tensor:
        optimiser.zero_grad(set_to_none=True)
        loss = (net(x) - 1).square().sum()
        loss.backward()
        optimiser.step()
        return loss.detach()

    graph, loss = captured(update)
    assert torch.equal(net.weight, before)
    losses = []
    for _ in range(20):
        graph.replay()
        losses.append(float(loss))
    assert losses[-1] < 1e-3 and losses[0] == 1


@pytest.mark.parametrize("wait", [lambda x: float(x.sum()), lambda x: x[x > 0], lambda x: x + torch.ones(2).to("cuda")])
def test_a_capture_in_which_the_host_waits_is_an_error(gpu: PretendGpu, wait: Any) -> None:
    x = on_gpu(1, 2)
    with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
        captured(lambda: wait(x))
    assert float(x.sum()) == 3


def test_after_a_capture_that_failed_work_goes_on_where_it_was(
    gpu: PretendGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch does not come back from the stream of a capture that ends in an error. A second one frees its generator."""
    main, at = Stream(), []

    @contextmanager
    def left_there(graph: Any, **unused: Any) -> Iterator[None]:
        yield
        graph.broken = True
        at.append("the stream of the capture")
        raise RuntimeError("operation failed due to a previous error during capture")

    monkeypatch.setattr(torch.cuda, "graph", left_there)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: main)
    monkeypatch.setattr(torch.cuda, "set_stream", at.append)
    with pytest.raises(RuntimeError, match="during capture"):
        captured(lambda: on_gpu(1) + 1)
    assert at == ["the stream of the capture", main] * 2


def test_a_function_that_fails_in_a_capture_keeps_no_memory(gpu: PretendGpu) -> None:
    """A capture that it did not break ends whole, with a pool of memory that is the graph's until it is reset."""
    x, known = on_gpu(1, 2), len(cuda_graphs._failed)
    before = gpu.allocated

    def fails() -> None:
        made.append(weakref.ref(x + 1))
        raise torch.OutOfMemoryError("CUDA out of memory")

    made: list[Any] = []
    with pytest.raises(torch.OutOfMemoryError):
        captured(fails)
    assert made[0]() is None and gpu.allocated == before and len(cuda_graphs._failed) == known
    with pytest.raises(RuntimeError, match="not permitted"):
        captured(lambda: float(x.sum()))
    assert len(cuda_graphs._failed) == known + 1  # what the allocator points into stays


@pytest.mark.parametrize("collects", [True, False])
def test_no_garbage_is_collected_in_a_capture(gpu: PretendGpu, collects: bool) -> None:
    """An old graph that is destroyed in a capture breaks it."""
    inside: list[bool] = []
    (gc.enable if collects else gc.disable)()
    try:
        captured(lambda: inside.append(gc.isenabled()))
        with pytest.raises(RuntimeError):
            captured(lambda: float(on_gpu(1)))
        assert inside == [False] and gc.isenabled() == collects
    finally:
        gc.enable()


def test_all_warm_ups_are_on_one_stream(gpu: PretendGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    streams = set()

    @contextmanager
    def inside(stream: Any) -> Iterator[None]:
        streams.add(stream)
        yield

    monkeypatch.setattr(torch.cuda, "stream", inside)
    assert [on_side_stream(lambda: 1), on_side_stream(lambda: 2)] == [1, 2] and len(streams) == 1


def test_goals_are_read_in_a_capture_as_outside(gpu: PretendGpu) -> None:
    goals = TokenGoals(8, torch.Generator().manual_seed(0)).to("cuda").eval()
    told = torch.tensor([[[1, 2], [3, 4]], [[5, 6], [7, 8]], [[1, 2], [3, 4]]]).to("cuda")
    expected = goals(told).detach().clone()
    graph, found = captured(lambda: goals(told))
    graph.replay()
    assert torch.equal(found, expected)
    again = goals.train()(told)  # in training, a CPU alone asks what is the same, and reads it once
    assert all("unique" not in where for where, _ in gpu.waits) and torch.equal(again, expected)
    torch.testing.assert_close(goals.to("cpu")(told.cpu()), expected.cpu())


def test_bytes_are_counted_as_tensors_come_and_go(gpu: PretendGpu) -> None:
    x = torch.zeros(1000, device="cuda")
    assert gpu.allocated == 4000
    y = (x + 1)[:10].view(5, 2)  # a view keeps all of it
    assert gpu.allocated == 8000
    x.add_(1)
    del y
    gc.collect()
    assert gpu.allocated == 4000 and gpu.peak == 8000
    weight = torch.ones(1000, device="cuda", requires_grad=True)
    loss = (weight.exp() * x).sum()  # what the backward pass reads is kept
    assert gpu.allocated == 3 * 4000 + 4
    loss.backward()
    del loss
    gc.collect()
    assert gpu.allocated == 3 * 4000  # x, the weight and its gradient


def test_more_than_its_memory_is_refused() -> None:
    with PretendGpu(memory=10_000) as gpu:
        x = torch.zeros(1000, device="cuda")
        with pytest.raises(torch.OutOfMemoryError):
            torch.cat([x, x])
        assert gpu.allocated == 4000


def test_other_threads_see_the_gpu_too(gpu: PretendGpu) -> None:
    x, seen = on_gpu(1), []
    thread = threading.Thread(target=lambda: seen.append((x + 1).device.type))
    thread.start()
    thread.join()
    assert seen == ["cuda"]


def test_nothing_of_it_is_left_behind() -> None:
    with PretendGpu():
        x = on_gpu(1)
    assert not torch.cuda.is_available() and x.device.type == "cpu"
