"""Updates as CUDA graphs are the updates without them: on a pretend GPU."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_amago import GOALS, MAZE, ROOM, SHAPES, SMALL, goes_on_to_the_bit, lively, random_batch, settings_of, small

from recollect.amago import amago, amago_multi_task, update_graphs
from recollect.amago.drawing import pinned
from recollect.amago.network import WorldShape
from recollect.amago.share import Share
from recollect.amago.terms import FURTHER
from recollect.amago.timestep_encoders import StepShape
from recollect.common.contract import Inputs
from recollect.common.cuda_graphs import WARM_UP

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # benchmarks is no part of the package

from benchmarks.gpu.pretend import PretendGpu

SLOW = pytest.mark.slow
UPDATES, EPOCH = 8, 4
SEQUENCE = {"width": 8, "layers": 1, "heads": 2, "dropout": 0.0}
IMAGES = WorldShape(StepShape(vector=0, kind="discrete", actions=4, horizon=12, image=(3, 9, 9)))
TOKENS = {"inputs": {**SMALL["inputs"], "goals": "token"}}
Metrics = dict[str, float]


@pytest.fixture
def gpu() -> Iterator[PretendGpu]:
    with PretendGpu() as gpu:
        yield gpu


def agent_of(module: Any = amago, kind: str = "discrete", **changes: Any) -> Any:
    hp = module.Hyperparameters.model_validate({**SMALL, "warmup": 8, **changes})
    return module.Agent(hp, SHAPES[kind], seed=0, device="cuda")


def updated(
    agent: Any,
    gpu: PretendGpu | None,
    lengths: tuple[int, ...] = (6,),
    updates: int = UPDATES,
    kind: str = "discrete",
) -> tuple[list[Metrics], dict[str, np.ndarray]]:
    """The metrics of updates on batches of these lengths in turn, read when all are made, and what the agent then has."""
    found, waits = [], [] if gpu is None else gpu.waits
    del waits[:]
    for counter in range(updates):
        batch = pinned(random_batch(kind, seed=counter, lengths=(4, lengths[counter % len(lengths)], 2)))
        found.append(agent.step(batch, counter, further=counter % EPOCH == EPOCH - 1))
    # Where bins are, and where goals stand in observations, is sent once for all updates.
    assert all("value_bins" in where or "network" in where for _, where in waits) and len(set(waits)) == len(waits)
    arrays = {name: torch.as_tensor(array).cpu().numpy() for name, array in agent.arrays().items()}
    return [{name: float(value) for name, value in metrics.items()} for metrics in found], arrays


def assert_near(found: Any, expected: Any) -> None:
    """To rounding: a graph reads the step size in float32."""
    for one, other in zip(found[0], expected[0], strict=True):
        assert list(one) == list(other)
        np.testing.assert_allclose(list(one.values()), list(other.values()), rtol=1e-4, atol=1e-6)
    for name, array in expected[1].items():
        np.testing.assert_allclose(found[1][name], array, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.quick("recollect.amago.amago_multi_task-discrete-changes8")
@pytest.mark.parametrize(
    ("module", "kind", "changes"),
    [
        (amago, "discrete", {}),
        (amago, "discrete", {"sequence": {**SEQUENCE, "kind": "gru"}, "targets_first": True, "actor_mask": "upstream"}),
        (amago, "discrete", {"fake_filter": True, "online_coefficient": 0.0}),
        (amago, "discrete", {"sequence": {**SEQUENCE, "window": 2}, "precision": "bfloat16", "popart": False}),
        (amago, "continuous", {"target_draws": 2}),
        pytest.param(amago, "continuous", {"continuous": "mixture", "online_coefficient": 0.0}, marks=SLOW),
        pytest.param(amago, "binary", {"online_coefficient": 0.0}, marks=SLOW),
        (amago, "goals", TOKENS),
        (amago_multi_task, "discrete", {"filter": "exp"}),
        (amago_multi_task, "discrete", {"filter": "exp", "labels": "hl_gauss", "online_coefficient": 1.0}),
        pytest.param(amago_multi_task, "continuous", {"filter": "exp", "online_coefficient": 1.0}, marks=SLOW),
    ],
)
def test_updates_as_graphs_equal_updates_without(
    module: Any, kind: str, changes: dict[str, Any], gpu: PretendGpu, replays: list[Any]
) -> None:
    """Over two epochs: metrics, weights, statistics, targets and the optimiser. No update waits, and the fourth is a replay."""
    expected = updated(agent_of(module, kind, cuda_graphs=False, **changes), gpu, kind=kind)
    assert not replays
    found = updated(agent_of(module, kind, **changes), gpu, kind=kind)
    assert len(replays) == UPDATES - WARM_UP and len(set(replays)) == 1
    assert_near(found, expected)
    at_the_end = set(found[0][EPOCH - 1]) - set(found[0][0])
    values = {name for name in at_the_end if name.startswith("q_discount_")}
    assert at_the_end - values == {"learning_rate", *(() if "fake_filter" in changes else FURTHER)}
    assert bool(values) == ("fake_filter" not in changes)


@pytest.mark.slow
def test_dropout_is_what_it_is_without_graphs(
    gpu: PretendGpu, replays: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "manual_seed_all", torch.default_generator.manual_seed)
    changes = {"sequence": {**SEQUENCE, "dropout": 0.3}}
    with torch.random.fork_rng(devices=()):
        expected = updated(agent_of(cuda_graphs=False, **changes), gpu)
        found = updated(agent_of(**changes), gpu)
    assert replays
    assert_near(found, expected)
    assert found[0] != updated(agent_of(), gpu)[0]


@pytest.mark.slow
def test_each_shape_of_batches_is_a_graph_up_to_a_bound_and_others_are_updates_all_the_same(
    gpu: PretendGpu, replays: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = (6, 9, 6, 7, 9)
    expected = updated(agent_of(cuda_graphs=False), gpu, lengths, 30)
    for most in (1, 2, 4):
        monkeypatch.setattr(update_graphs, "MOST", most)
        del replays[:]
        agent = agent_of()
        assert_near(updated(agent, gpu, lengths, 30), expected)
        assert len(set(replays)) == min(most, 3)
        assert len(replays) == sum(times - WARM_UP for times in (12, 12, 6)[:most])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lengths", "graphs"),
    [
        ((6, 7) * 4 + (9,) * 10 + (6,) * 8, 4),  # 9 takes the place of 6, and later 6 that of 7
        pytest.param((6, 7, 9) * 9, 2, marks=SLOW),  # those that are used stay
    ],
)
def test_as_windows_grow_a_graph_that_is_no_longer_used_makes_room(
    lengths: tuple[int, ...], graphs: int, gpu: PretendGpu, replays: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(update_graphs, "MOST", 2)
    monkeypatch.setattr(update_graphs, "OFTEN", 3)
    expected = updated(agent_of(cuda_graphs=False), gpu, lengths, len(lengths))
    agent = agent_of()
    assert_near(updated(agent, gpu, lengths, len(lengths)), expected)
    assert len(set(replays)) == graphs and len(agent.graphs._updates) == 2
    assert replays[-1] == next(reversed(agent.graphs._updates.values())).graph


@pytest.mark.slow
def test_an_update_that_cannot_be_captured_is_warned_of_once_and_goes_on(
    gpu: PretendGpu, replays: list[Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = updated(agent_of(cuda_graphs=False), gpu)
    agent, loss = agent_of(), amago.Agent.loss

    def asks(*arguments: Any, **options: Any) -> Any:
        found = loss(*arguments, **options)
        if gpu.capturing is not None:
            assert float(found[0]) == 0
        return found

    agent.loss = asks
    assert_near(updated(agent, gpu), expected)
    assert not replays and not agent.graphs.works
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "updates go on without CUDA graphs" in caplog.text


@pytest.mark.quick("drawn on the host-shape0-changes0", "images are shifted-shape1-changes1")
@pytest.mark.parametrize(
    ("why", "shape", "changes"),
    [
        ("drawn on the host", SHAPES["continuous"], {"continuous": "beta"}),
        ("images are shifted", IMAGES, {"inputs": {"encoder": "image", "cnn": "gridworld", "augment": True}}),
        ("", IMAGES, {"inputs": {"encoder": "image", "cnn": "gridworld"}}),
        ("", SHAPES["continuous"], {}),
        ("", SHAPES["discrete"], {"inputs": {**SMALL["inputs"], "augment": True}}),  # there is no image
    ],
)
def test_what_asks_the_host_is_no_graph(
    why: str, shape: WorldShape, changes: dict[str, Any], gpu: PretendGpu, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    agent = amago.Agent(small(**changes), shape, seed=0, device="cuda")
    assert (agent.graphs is None) == bool(why) and why in caplog.text
    assert (agent.optimiser.rate is None) == bool(why)


@pytest.mark.slow
def test_several_devices_and_agents_of_ones_own_make_no_graphs(gpu: PretendGpu) -> None:
    network, _ = lively(small(), SHAPES["discrete"])
    agent = agent_of()
    assert not update_graphs.hindrance(agent.hp, network, agent.distribution, agent.share)
    assert "devices" in update_graphs.hindrance(agent.hp, network, agent.distribution, Share(0, 2, 4))

    class Own(amago.agent.Agent):
        make, loss = staticmethod(amago.make_network), staticmethod(amago.loss_of)

    assert Own(small(), SHAPES["discrete"], seed=0, device="cuda").graphs is None


def test_on_a_cpu_there_are_no_graphs_and_the_step_size_is_a_number() -> None:
    agent = amago.Agent(small(), SHAPES["discrete"], seed=0, device="cpu")
    assert agent.graphs is None and agent.optimiser.rate is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "module"),
    [(ROOM, amago_multi_task), *(pytest.param(world, amago, marks=SLOW) for world in (MAZE, GOALS))],
)
def test_a_run_of_graphs_that_is_stopped_goes_on_to_the_bit(
    world: Any, module: Any, gpu: PretendGpu, replays: list[Any], tmp_path: Path
) -> None:
    """Also where its lengths differ, and the run that goes on has other graphs."""
    settings = settings_of(world, module=module, updates_per_epoch=8, sequence={**SEQUENCE, "width": 16})
    goes_on_to_the_bit(module, settings, tmp_path, Inputs(device="cuda"))
    assert replays


# ---- on a real GPU


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("module", "kind", "sequence"),
    [
        *(
            (module, "discrete", sequence)
            for module in (amago, amago_multi_task)
            for sequence in ("transformer", "gru")
        ),
        (amago, "continuous", "transformer"),
        (amago_multi_task, "continuous", "transformer"),
        (amago, "goals", "transformer"),
    ],
)
def test_on_a_gpu_graphs_make_the_updates_that_are_made_without(module: Any, kind: str, sequence: str) -> None:
    """Of two shapes, and with dropout, whose masks are the same."""
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    changes = {"sequence": {**SEQUENCE, "kind": sequence, "dropout": 0.2}, "precision": "float32", "tf32": False}
    changes |= {"filter": "exp", **TOKENS}
    expected = updated(agent_of(module, kind, cuda_graphs=False, **changes), None, (6, 9), kind=kind)
    agent = agent_of(module, kind, **changes)
    assert_near(updated(agent, None, (6, 9), kind=kind), expected)
    assert len(agent.graphs._updates) == 2


@pytest.mark.gpu
def test_on_a_gpu_a_capture_that_breaks_spoils_no_update_and_no_graph() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    changes = {"sequence": {**SEQUENCE, "dropout": 0.2}, "precision": "float32", "tf32": False}
    expected = updated(agent_of(cuda_graphs=False, **changes), None, (6, 9))
    agent, loss = agent_of(**changes), amago.Agent.loss

    def asks(*arguments: Any, **options: Any) -> Any:
        found = loss(*arguments, **options)
        if torch.cuda.is_current_stream_capturing() and len(agent.graphs._updates) == 1:
            assert float(found[0].detach()) == 0
        return found

    agent.loss = asks
    assert_near(updated(agent, None, (6, 9)), expected)
    assert len(agent.graphs._updates) == 1 and not agent.graphs.works
