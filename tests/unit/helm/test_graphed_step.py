"""Steps that a GPU takes alone: what the host does around a CUDA graph, which no CPU can make."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from recollect.common.cuda_graphs import WARM_UP
from recollect.common.transfer import sent
from recollect.helm.language import graphed_step
from recollect.helm.language.graphed_step import GraphedStep
from recollect.settings.errors import UserError


class Counter:
    """A memory that adds up what it reads."""

    def __init__(self) -> None:
        self.total = torch.zeros(1)

    def step(self, x: Any) -> tuple[Tensor, list[Tensor]]:
        self.total.add_(x.value)
        return self.total, []

    def peek(self, x: Any) -> tuple[Tensor, list[Tensor]]:
        return self.total + x.value, []


class Given:
    """What a tensor on a GPU is to the host."""

    def __init__(self, value: float, shape: tuple[int, ...] = (1,)) -> None:
        self.device, self.shape, self.value = torch.device("cuda"), torch.Size(shape), value

    def copy_(self, other: Any) -> None:
        self.value = other.value


def graphed(counter: Counter, monkeypatch: pytest.MonkeyPatch, capture: Callable[[Given], Any]) -> Any:
    step: Any = GraphedStep(counter.step, counter.peek)
    monkeypatch.setattr(graphed_step, "on_side_stream", lambda function: function())
    monkeypatch.setattr(step, "_capture", capture)
    return step


def test_on_a_cpu_arrays_stay_where_they_are_and_steps_are_taken() -> None:
    array = np.arange(3)
    there = sent(array, torch.device("cpu"))
    array[0] = 7
    assert there.tolist() == [7, 1, 2]
    step = GraphedStep(lambda x: (x + 1, []), lambda x: (x, []))
    assert [step(torch.tensor(i))[0].item() for i in range(6)] == [1, 2, 3, 4, 5, 6]


def test_a_graph_is_made_once_per_shape_behind_some_steps_and_then_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    counter, captures = Counter(), []

    def capture(x: Given) -> Any:
        captures.append(x.shape)
        given = Given(0, x.shape)
        return SimpleNamespace(replay=lambda: counter.step(given)), given, (counter.total, [])

    step, expected = graphed(counter, monkeypatch, capture), 0.0
    for shape in ((1,), (2,)):
        for value in range(WARM_UP + 3):
            expected += value
            assert step(Given(value, shape))[0].item() == expected
    assert captures == [torch.Size((1,)), torch.Size((2,))]


def test_where_no_graph_can_be_made_steps_are_taken_without_and_it_is_said_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(x: Given) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    counter = Counter()
    step = graphed(counter, monkeypatch, fails)
    for _ in range(WARM_UP):
        step(Given(1))
    with pytest.warns(UserWarning, match="no CUDA graph could be made, steps are taken without: operation not"):
        step(Given(1))
    assert step(Given(1))[0].item() == WARM_UP + 2


def test_a_graph_that_gives_other_numbers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = Counter()

    def capture(x: Given) -> Any:
        return SimpleNamespace(replay=lambda: None), Given(0), (counter.total * 2, [])

    step = graphed(counter, monkeypatch, capture)
    for _ in range(WARM_UP):
        step(Given(1))
    with pytest.raises(UserError, match="other numbers"):
        step(Given(1))
