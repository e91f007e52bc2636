"""What a forecast takes as the kernels of an update of AMAGO is near the number of operations that the update has."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from counted_operations import Operations

from recollect.amago.amago import Agent, Hyperparameters
from recollect.amago.work import ENDS, LAYER

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # benchmarks is no part of the package

from benchmarks.amago import hyperparameters, shape_of, windows


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
