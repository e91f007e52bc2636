"""Steps of acting as CUDA graphs, on the pretended GPU."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # benchmarks is no part of the package

from benchmarks.gpu.pretend import PretendGpu
from recollect.common.cuda_graphs import WARM_UP
from recollect.common.step_graphs import StepGraphs


def test_what_is_captured_draws_as_if_there_had_been_no_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = torch.zeros(3)
    with PretendGpu(), monkeypatch.context() as patch:
        for name in ("get_rng_state", "set_rng_state"):  # it draws from the CPU's own generator
            patch.setattr(torch.cuda, name, getattr(torch, name))
        graphs, found = StepGraphs(torch.device("cuda")), []
        torch.manual_seed(7)
        for _ in range(2):
            graphs.run("draws", lambda: drawn.uniform_(), (drawn,))
            found.append(drawn.clone())
    own = torch.Generator().manual_seed(7)
    for one in found:
        assert torch.equal(one, torch.zeros(3).uniform_(generator=own))


def test_a_compared_graph_begins_where_the_function_would_have() -> None:
    count = torch.zeros(())
    with PretendGpu():
        graphs = StepGraphs(torch.device("cuda"), near=1e-3)
        for wanted in (1.0, 2.0, 3.0):
            assert float(graphs.run("counts", lambda: count.add_(1), (count,)).clone()) == wanted
    assert set(graphs.made) == {"counts"}


def test_a_graph_that_gives_other_numbers_is_warned_of_once_and_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(StepGraphs, "works", True)
    calls = [0]

    def differs() -> torch.Tensor:
        """As a function does that decides on the host: its captured call goes another way than those before it."""
        calls[0] += 1
        return torch.full((), float(calls[0] > WARM_UP))

    with PretendGpu(), caplog.at_level(logging.WARNING):
        graphs = StepGraphs(torch.device("cuda"), near=1e-3)
        for _ in range(2):
            assert float(graphs.run("decides", differs)) == 1.0
    assert not graphs.made and not StepGraphs.works
    assert [record.message for record in caplog.records] == [
        "acting goes on without CUDA graphs, which is slower: a captured step gives other numbers than the step itself"
    ]
