"""AMAGO's networks are as large as the released ones."""

from __future__ import annotations

from typing import Any

import pytest

from recollect.methods import amago
from recollect.methods.amago import make_network
from recollect.methods.amago_network import WorldShape
from recollect.nets.goal_sequences import GoalPart
from recollect.nets.timestep_encoders import StepShape

WIDE: dict[str, Any] = {"further_discounts": [0.1, 0.9, 0.95, 0.97, 0.99, 0.995]}
GRID = {"hidden": [128, 128], "width": 64}
# What the released seed code (commit 514c1c2) counts when it builds these models; heads and encoders, trainable.
# Its time step encoder keeps a goal embedder that is off: 9 parameters, and a zero that the first layer reads.
COUNTED = [
    ("Dark Key-To-Door", (4, "discrete", 5, 500), GRID, (256, 3), (26_697, 2_520_100, 140_579, 562_316)),
    ("Dark Key-To-Door 128x2", (4, "discrete", 5, 500), GRID, (128, 2), (26_697, 471_064, 107_811, 431_244)),
    ("T-Maze 400", (2, "discrete", 4, 401), {"hidden": [128, 128], "width": 128}, (128, 2),
     (34_697, 466_584, 106_012, 424_048)),
    ("T-Maze 10k", (2, "discrete", 4, 10_001), {"hidden": [128, 128], "width": 128}, (128, 2),
     (34_697, 1_695_384, 106_012, 424_048)),
    ("Meta-World reach", (40, "continuous", 4, 1001), {}, (256, 3), (419_593, 2_697_508, 145_976, 532_484)),
    ("LunarLander", (8, "discrete", 4, 500), {}, ("ff", 256, 2), (403_209, 1_183_232, 138_780, 555_120)),
]  # fmt: skip


def parts(hp: amago.Hyperparameters, shape: WorldShape) -> tuple[int, ...]:
    network = make_network(hp, shape, seed=0)
    each = (network.timestep_encoder, network.trajectory_encoder, network.actor, network.critics)
    return tuple(sum(p.numel() for p in module.parameters()) for module in each)


def sized(inputs: dict[str, Any], sequence: Any, **more: Any) -> amago.Hyperparameters:
    kind, width, layers = sequence if len(sequence) == 3 else ("transformer", *sequence)
    content = {"inputs": inputs, "sequence": {"kind": kind, "width": width, "layers": layers, **more}, **WIDE}
    return amago.Hyperparameters.model_validate(content)


@pytest.mark.parametrize(
    ("shape", "inputs", "sequence", "counts"), [row[1:] for row in COUNTED], ids=[r[0] for r in COUNTED]
)
def test_networks_have_as_many_parameters_as_the_released_ones(
    shape: Any, inputs: dict[str, Any], sequence: Any, counts: tuple[int, ...]
) -> None:
    vector, kind, actions, horizon = shape
    hp = sized(inputs, sequence)
    found = parts(hp, WorldShape(StepShape(vector=vector, kind=kind, actions=actions, horizon=horizon)))
    assert (found[0] + 9 + hp.inputs.hidden[0], *found[1:]) == counts


def test_maze_runner_has_as_many_with_its_goals() -> None:
    shape = WorldShape(StepShape(6, "discrete", 5, 400, goals=(3, 2)), GoalPart(slice(6, 12), 3, 2))
    assert parts(sized(GRID, (256, 3)), shape) == (31_164, 2_494_500, 140_579, 562_316)


def test_the_newer_layout_has_as_many_as_the_newer_code() -> None:
    """Counted in commit 2d85600: no time, no reset flag, fixed positions."""
    head = {**GRID, "layout": "head"}
    shape = WorldShape(StepShape(vector=4, kind="discrete", actions=5, horizon=500))
    assert parts(sized(head, (256, 3), positions="sinusoid"), shape) == (26_304, 2_391_844, 140_579, 562_316)
    shape = WorldShape(StepShape(vector=2, kind="discrete", actions=4, horizon=401))
    found = parts(sized({**head, "width": 128}, (128, 2), positions="sinusoid"), shape)
    assert found == (34_304, 415_128, 106_012, 424_048)
    assert sum(found) == 979_492
