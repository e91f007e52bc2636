"""What a forecast takes as the kernels of an update of AMAGO is near the number of operations that the update has."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from counted_operations import Operations
from tiny_amago import SHAPES, random_batch

from recollect.amago import amago, amago_multi_task
from recollect.amago.amago import Agent, Hyperparameters
from recollect.amago.goal_embedders import TokenGoals
from recollect.amago.work import ENDS, LAYER

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # benchmarks is no part of the package

from benchmarks.amago import hyperparameters, shape_of, windows


@pytest.mark.parametrize("module", [amago, amago_multi_task])
@pytest.mark.parametrize("kind", ["continuous", "goals"])
def test_those_of_continuous_actions_and_of_goal_sequences_are_too(
    kind: str, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TokenGoals, "_reads_once", lambda self, tokens: False)
    content = hyperparameters(16, 3).model_dump(exclude_unset=True)
    content["inputs"] |= {"goals": "token"}
    agent = module.Agent(module.Hyperparameters.model_validate(content), SHAPES[kind], seed=0, device="cpu")
    agent.step(random_batch(kind), 0)
    with Operations() as counted:
        agent.step(random_batch(kind), 1)
    expected = ENDS + 3 * LAYER["transformer"]
    assert expected / 1.5 < counted.count < expected * 1.5


@pytest.mark.parametrize("kind", ["transformer", "ff"])
@pytest.mark.parametrize("layers", [1, 3])
def test_kernels_of_an_update_are_its_operations_to_a_half(kind: str, layers: int) -> None:
    """A GRU's cells are cuDNN's on a GPU, and cannot be counted on a CPU."""
    content = hyperparameters(32, layers).model_dump()
    content["sequence"] |= {"kind": kind, "layers": layers, "width": 32}
    agent = Agent(Hyperparameters.model_validate(content), shape_of(20), seed=0, device="cpu")
    batch = windows(2, 20)
    agent.step(batch, 0)
    with Operations() as counted:
        agent.step(batch, 1)
    expected = ENDS + layers * LAYER[kind]
    assert expected / 1.5 < counted.count < expected * 1.5
