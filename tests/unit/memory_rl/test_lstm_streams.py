"""LSTMs of several networks side by side: they give what they give one after the other, and no stream overtakes another."""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from recollect.common import cuda_graphs
from recollect.common.cuda_graphs import WARM_UP, beside, captured, side_by_side
from recollect.common.precision import tf32
from recollect.common.sequence_models import RecurrentSequence
from recollect.memory_rl import ensemble
from recollect.memory_rl.lstm_streams import beside_each_other
from recollect.memory_rl.stacked import StackedLSTM

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))  # benchmarks is no part of the package

from benchmarks.gpu import off_policy  # noqa: E402
from benchmarks.gpu.case import Case  # noqa: E402
from benchmarks.gpu.pretend import PretendGpu  # noqa: E402


class Stream:
    """Knows of each stream how many of its operations come before its own next one."""

    def __init__(self, *unused: Any) -> None:
        self.before: Counter[Stream] = Counter()

    def wait_stream(self, other: Stream) -> None:
        self.before |= other.before


class Overtaken(Exception):
    pass


class Order(TorchDispatchMode):
    """Operations that a CPU computes as those of CUDA's streams and of the memory that PyTorch's allocator gives to them.

    Raises Overtaken where two operations touch one tensor, or memory that one tensor has after another, at least one of them
    writes, and nothing says which is first.
    """

    def __init__(self) -> None:
        super().__init__()
        self.current = Stream()
        self.writes: dict[int, Counter[Stream]] = {}
        self.reads: dict[int, Counter[Stream]] = {}
        self.freed: dict[Stream, Counter[Stream]] = {}  # what touched memory that is the stream's to give again
        self.used: set[Stream] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        here = self.current
        here.before[here] += 1
        self.used.add(here)
        given = {id(tensor.untyped_storage()) for tensor in tensors_of((args, kwargs))}
        changed = {id(tensor.untyped_storage()) for tensor in tensors_of(args[:1])} if changes(func) else set()
        for key in given:
            self._behind(self.writes.get(key))
            if key in changed:
                self._behind(self.reads.get(key))
            (self.writes if key in changed else self.reads).setdefault(key, Counter())[here] = here.before[here]
        for tensor in tensors_of(found):
            storage = tensor.untyped_storage()
            if id(storage) not in given and id(storage) not in self.writes:
                self._behind(self.freed.get(here))
                self.writes[id(storage)] = Counter({here: here.before[here]})
                weakref.finalize(storage, self._free, id(storage), here)
        return found

    def _behind(self, touched: Counter[Stream] | None) -> None:
        if touched is not None and not touched <= self.current.before:
            raise Overtaken

    def _free(self, key: int, owner: Stream) -> None:
        self.freed[owner] = self.freed.get(owner, Counter()) | self.writes.pop(key) | self.reads.pop(key, Counter())

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before


def tensors_of(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_iter(tree) if isinstance(leaf, Tensor)]


def changes(func: Any) -> bool:
    return any(one.alias_info is not None and one.alias_info.is_write for one in func._schema.arguments)


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> Order:
    one = Order()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *unused: one.current)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "stream", one.on)
    monkeypatch.setattr(cuda_graphs, "_side_stream", cache(Stream))
    return one


def lstms(k: int, layers: int = 2, device: str = "cpu", width: int = 5) -> StackedLSTM:
    draws = torch.Generator().manual_seed(k)
    return StackedLSTM(
        [RecurrentSequence("lstm", 3, width, layers, init="uniform", generator=draws).to(device) for _ in range(k)]
    )


def by_streams(whole: StackedLSTM, x_RTD: Tensor) -> Tensor:
    return beside_each_other(whole.layers, whole.training, x_RTD, whole._every)


def computed(whole: StackedLSTM, way: Callable[[StackedLSTM, Tensor], Tensor], given: list[Tensor]) -> list[Tensor]:
    """Hidden states of an LSTM that reads what it gave for other inputs, and gradients of all; memory comes and goes between."""
    x_RTD, mix_HD, weight_RTH = given
    x_RTD = x_RTD.detach().requires_grad_()
    h_RTH = way(whole, way(whole, x_RTD * 2).tanh() @ mix_HD)
    with torch.no_grad():
        apart = way(whole, x_RTD + 1)
    found = torch.autograd.grad(((h_RTH + apart) * weight_RTH).square().sum(), (x_RTD, *whole.cells.parameters()))
    return [h_RTH.detach(), apart, *found]


def given_of(k: int, seed: int = 0, T: int = 6, width: int = 5) -> list[Tensor]:
    draws = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=draws) for shape in ((k * 4, T, 3), (width, 3), (k * 4, T, width))]


@pytest.mark.parametrize("k", [3, cuda_graphs.MOST_STREAMS + 2])
def test_streams_give_what_one_after_the_other_gives_and_none_overtakes_another(k: int, order: Order) -> None:
    whole, given = lstms(k), given_of(k)
    wanted = computed(whole, StackedLSTM.one_after_the_other, given)
    with order:
        for _ in range(2):
            for one, other in zip(computed(whole, by_streams, given), wanted, strict=True):
                torch.testing.assert_close(one, other)
    assert len(order.used) == 1 + min(k, cuda_graphs.MOST_STREAMS)


@pytest.mark.parametrize("missing", ["fork", "join"])
def test_a_stream_that_does_not_wait_is_found(missing: str, order: Order, monkeypatch: pytest.MonkeyPatch) -> None:
    main = order.current

    def waits(stream: Stream, other: Stream) -> None:
        if (stream is main) == (missing == "fork"):
            stream.before |= other.before

    monkeypatch.setattr(Stream, "wait_stream", waits)
    with order, pytest.raises(Overtaken):
        for _ in range(2):
            computed(lstms(3), by_streams, [tensor * 1 for tensor in given_of(3)])


def test_memory_of_a_stream_that_another_one_still_reads_is_found(order: Order) -> None:
    with order:
        (x,) = side_by_side([lambda: torch.ones(2)])
        x + 1
        del x
        with pytest.raises(Overtaken), torch.cuda.stream(cuda_graphs._side_stream(0, 1)):  # without a fork
            torch.ones(2)
        side_by_side([lambda: torch.ones(2)])


def test_where_a_member_fails_the_others_are_waited_for(order: Order) -> None:
    def fails() -> None:
        raise RuntimeError("here")

    with order:
        x = torch.ones(2)
        with pytest.raises(RuntimeError, match="here"):
            side_by_side([lambda: x.add_(1), fails])
        assert x.sum() == 4


@pytest.mark.parametrize("wants", ["inputs", "weights", "nothing"])
def test_only_what_is_wanted_has_a_gradient(wants: str, order: Order) -> None:
    whole, (x_RTD, *_) = lstms(2), given_of(2)
    whole.requires_grad_(wants == "weights")
    x_RTD.requires_grad_(wants == "inputs")
    h_RTH = by_streams(whole, x_RTD)
    assert h_RTH.requires_grad == (wants != "nothing")
    if wants != "nothing":
        h_RTH.sum().backward()
    assert (x_RTD.grad is not None) == (wants == "inputs")
    assert all((weight.grad is not None) == (wants == "weights") for weight in whole.cells.parameters())


# ---- ensembles on a pretend GPU


def together(device: str, folder: Path) -> off_policy.Together:
    return off_policy.Together(
        Case("smoke", "tmaze_passive_5", "dqn_lstm", device, folder, {"sequence.layers": 2}, extra={"members": 3})
    )


def losses(of: off_policy.Together, updates: int = 2 * WARM_UP + 4) -> np.ndarray:
    found = []
    for _ in range(updates):
        of.update()
        found.append([float(trainer.sums[name]) for trainer in of.trainers for name in off_policy.COMPARED])
    return np.array(found)


@pytest.mark.usefixtures("in_the_repository")
@pytest.mark.parametrize("breaks", [False, True])
def test_an_ensemble_of_lstms_has_a_cpus_numbers_also_where_streams_are_in_no_graph(
    breaks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replays: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    capture, failed = ensemble.captured, []

    def once(function: Callable[[], Any]) -> Any:
        if breaks and not failed:
            failed.append(True)
            raise RuntimeError("no branches")
        return capture(function)

    monkeypatch.setattr(StackedLSTM, "way", "streams")
    monkeypatch.setattr(ensemble, "captured", once)
    wanted = losses(together("cpu", tmp_path))
    with PretendGpu():
        found = losses(of := together("cuda", tmp_path))
        assert of.ensemble.compute.graph is not None and len(set(map(id, replays))) == 1
    np.testing.assert_allclose(found, wanted, rtol=1e-4)
    assert StackedLSTM.way == ("cells" if breaks else "streams")
    assert ("no branches" in caplog.text) == breaks


@pytest.mark.usefixtures("in_the_repository")
def test_in_updates_of_an_ensemble_no_stream_overtakes_another(
    tmp_path: Path, order: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU, which goes a GPU's way: a pretend one has no streams."""
    monkeypatch.setattr(StackedLSTM, "forward", lambda self, x, time_RT=None: by_streams(self, x.float()))
    of = together("cpu", tmp_path)
    with order:
        for _ in range(3):
            of.update()
    assert len(order.used) == 4


# ---- on a real GPU


@pytest.mark.gpu
@pytest.mark.parametrize(("layers", "width", "T"), [(1, 16, 50), (2, 128, 300)])
def test_on_a_gpu_ten_lstms_give_what_they_give_one_after_the_other(layers: int, width: int, T: int) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    device = torch.device("cuda")
    with tf32(False, device):
        whole = lstms(10, layers, "cuda", width)
        several = [[tensor.to(device) for tensor in given_of(10, seed, T, width)] for seed in range(6)]
        wanted = [computed(whole, StackedLSTM.one_after_the_other, given) for given in several]
        assert_near(
            [computed(whole, by_streams, given) for given in several], wanted
        )  # launched without a wait between
        where = [tensor.clone() for tensor in several[0]]
        for _ in range(WARM_UP):
            beside(lambda: computed(whole, by_streams, where))
        graph, left = captured(lambda: computed(whole, by_streams, where))
        found = []
        for given in several * 3:
            for own, tensor in zip(where, given, strict=True):
                own.copy_(tensor)
            graph.replay()
            found.append([tensor.clone() for tensor in left])
        assert_near(found, wanted * 3)


def assert_near(found: list[list[Tensor]], wanted: list[list[Tensor]]) -> None:
    """By the largest number of each tensor: sums over many steps have what is near zero."""
    for some, others in zip(found, wanted, strict=True):
        for one, other in zip(some, others, strict=True):
            assert float((one - other).abs().max() / other.abs().max()) < 1e-4
