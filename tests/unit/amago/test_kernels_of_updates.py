"""What forecasts take as the kernels of an update of AMAGO, its products and its weights is near what these are."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from counted_operations import Operations
from tiny_amago import SHAPES, random_batch
from torch.utils.flop_counter import FlopCounterMode

from recollect.amago import amago, amago_multi_task, work
from recollect.amago.amago import Agent, Hyperparameters
from recollect.amago.batch import Batch
from recollect.amago.goal_embedders import TokenGoals
from recollect.amago.network import world_shape
from recollect.amago.timestep_encoders import StepShape
from recollect.amago.work import ENDS, LAYER
from recollect.common.cpu import kernels
from recollect.settings.resolve import algorithm_module
from recollect.stages.workload import settings_of

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # benchmarks is no part of the package

from benchmarks.amago import hyperparameters, shape_of, windows


@pytest.mark.quick(
    "amago_dark_key_door-amago_transformer",
    "amago_dark_key_door-amago_ff",
    "amago_wind-amago_transformer.online_coefficient=0",
)
@pytest.mark.usefixtures("in_the_repository")
@pytest.mark.parametrize(
    ("env", "method"),
    [
        ("amago_dark_key_door", "amago_transformer"),
        ("amago_dark_key_door", "amago_transformer.fake_filter=true,online_coefficient=0"),
        ("amago_dark_key_door", "amago_gru"),
        ("amago_dark_key_door", "amago_ff"),
        ("amago_dark_key_door", "amago_multi_task"),
        ("amago_dark_key_door", "amago_multi_task.online_coefficient=1"),
        ("amago_tmaze_400", "amago_transformer"),
        ("amago_wind", "amago_transformer"),  # continuous actions
        ("amago_wind", "amago_transformer.online_coefficient=0"),
    ],
)
def test_products_and_weights_are_counted_as_the_networks_have_them(
    env: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Critics once for all discounts, as far as they read states alone; a policy's file has none of them."""
    monkeypatch.setattr(kernels, "_onednn", None)  # whose products are not counted
    settings, steps = settings_of("paper", env, method), 30
    hp: Any = settings.method.hyperparameters
    module = algorithm_module(settings.method.algorithm, where="")
    agent = module.Agent(hp, world_shape(settings.environment), seed=0, device="cpu")
    counted = work.parts(settings, steps)
    assert counted.trained.parameters == pytest.approx(sum(p.numel() for p in agent.network.parameters()), rel=0.08)
    arrays = agent.network.policy_arrays().values()
    assert counted.acting.parameters == pytest.approx(sum(array.size for array in arrays), rel=0.08)
    batch = _random(agent.network.shape.steps, steps)
    with FlopCounterMode(display=False) as counter:
        agent.step(batch, 0)
    assert work.learned(settings, steps) == pytest.approx(counter.get_total_flops() / (steps + 1), rel=0.08)


@pytest.mark.quick("true")
@pytest.mark.usefixtures("in_the_repository")
@pytest.mark.parametrize("slow", ["true", "false"])
def test_acting_is_counted_as_its_memory_is_read(slow: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Token by token, or all of the last steps anew at each."""
    monkeypatch.setattr(kernels, "_onednn", None)
    settings = settings_of("paper", "amago_tmaze_50", f"amago_transformer.context=8,slow_inference={slow}")
    hp: Any = settings.method.hyperparameters
    policy = Agent(hp, world_shape(settings.environment), seed=0, device="cpu").policy()
    policy.start(np.zeros(1, np.uint64))
    with FlopCounterMode(display=False) as counter:
        for _ in range(51):
            policy.act(np.zeros((1, 2), np.float32), np.zeros(1, np.float32), np.zeros(1, bool))
    judged = work.played(settings)
    assert judged.flop / judged.env_steps == pytest.approx(counter.get_total_flops() / 51, rel=0.15)


@pytest.mark.usefixtures("in_the_repository")
def test_policies_that_a_run_keeps_are_counted() -> None:
    """The run's own, the best and the latest; and one of every hundredth of a thousand epochs."""
    few, many = (
        work.trained(settings_of("paper", "amago_tmaze_50", f"amago_transformer.keep_every={every}"))
        for every in (0, 100)
    )
    assert many.disk / few.disk == pytest.approx((3 + 10) / 3)


def _random(shape: StepShape, steps: int) -> Batch:
    """One window of vectors, and of discrete or continuous actions."""
    rows, draws = (1, steps + 1), np.random.default_rng(0)
    previous = draws.integers(shape.actions, size=rows).astype(np.int16)
    if shape.kind == "continuous":
        previous = draws.uniform(-1, 1, (*rows, shape.actions)).astype(np.float32)
    seen = draws.random((*rows, shape.vector), np.float32)
    nothing = np.zeros(rows, bool)
    return Batch(seen, previous, nothing.astype(np.float32), nothing, np.arange(steps + 1)[None], ~nothing)


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
