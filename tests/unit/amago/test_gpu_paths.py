"""What AMAGO does on a GPU, as far as a CPU can tell: the form of attention, precision, and acting of fixed shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tiny_amago
import torch
from tiny_amago import DISCRETE, GOALS, MAZE, ROOM, collector_of, lively, random_batch, settings_of, small, window_of
from torch.nn import functional

from recollect.amago import trajectory_encoders
from recollect.amago.acting_graph import ActingGraph
from recollect.amago.amago import Agent
from recollect.common.precision import tf32
from recollect.common.step_graphs import StepGraphs

SEQUENCE = {"width": 16, "layers": 2, "heads": 2, "dropout": 0.0}


def loss_and_calls(monkeypatch: pytest.MonkeyPatch, where: dict[str, str], **changes: Any) -> tuple[float, list[Any]]:
    """The loss of a batch, and what attention was called with. `where`: which precisions are taken here, by their owner."""
    hp = small(sequence={**SEQUENCE, **changes})
    network, target = lively(hp, DISCRETE)
    for owner, precision in where.items():
        if owner == "attention":
            network.trajectory_encoder.attention_precision = precision
        else:
            network.precision = precision
    calls: list[Any] = []
    attention = functional.scaled_dot_product_attention

    def watched(q: Any, k: Any, v: Any, **options: Any) -> Any:
        calls.append(((q, k, v), options))
        return attention(q, k, v, **options)

    with monkeypatch.context() as patch:
        patch.setattr(trajectory_encoders.functional, "scaled_dot_product_attention", watched)
        loss, _ = tiny_amago.computed(network.train(), target, random_batch(), hp, DISCRETE)
    network.zero_grad()
    loss.backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is None or parameter.grad.dtype == torch.float32, name
    return float(loss.detach()), calls


@pytest.mark.parametrize("where", [{"attention": "bfloat16"}, {"attention": "bfloat16", "encoder": "bfloat16"}])
@pytest.mark.parametrize("changes", [{}, {"positions": "rotary"}, {"head_scale": False, "sigma_reparam": False}])
def test_attention_while_learning_has_the_form_that_flash_attention_takes(
    where: dict[str, str], changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half precision, no mask but `is_causal`, numbers of a head side by side, no dropout; and the loss is near float32's."""
    expected, plain = loss_and_calls(monkeypatch, {}, **changes)
    found, calls = loss_and_calls(monkeypatch, where, **changes)
    assert len(calls) == len(plain) == 2  # layers
    for (q, k, v), options in calls:
        assert options == {"attn_mask": None, "is_causal": True}
        assert q.shape == k.shape == v.shape and q.shape[-1] % 8 == 0
        for part in (q, k, v):
            assert part.dtype == torch.bfloat16 and part.stride(-1) == 1
    assert all(part.dtype == torch.float32 for parts, _ in plain for part in parts)
    assert found == pytest.approx(expected, rel=0.02) and found != expected


@pytest.mark.parametrize("precision", ["float32", "attention", "bfloat16"])
def test_on_a_cpu_every_precision_is_float32(precision: str) -> None:
    losses = []
    for name in ("float32", precision):
        hp = small(sequence=SEQUENCE, precision=name)
        network, target = lively(hp, DISCRETE)
        losses.append(float(tiny_amago.computed(network, target, random_batch(), hp, DISCRETE)[0]))
        window = window_of(network, random_batch(), hp)
        assert network.states(window).dtype == torch.float32
        assert network.trajectory_encoder.initial_state(2, "cpu").keys_values[0].dtype == torch.float32
    assert losses[0] == losses[1]
    with tf32(True, "cpu"):
        assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize(
    ("precision", "whole", "attention"),
    [("float32", "float32", "float32"), ("attention", "float32", "auto"), ("bfloat16", "auto", "auto")],
)
def test_bfloat16_is_of_nothing_of_attention_or_of_the_whole_trajectory_encoder(
    precision: str, whole: str, attention: str
) -> None:
    network, _ = lively(small(precision=precision), DISCRETE)
    assert (network.precision, network.trajectory_encoder.attention_precision) == (whole, attention)


def in_ten_bits() -> tuple[str, bool]:
    return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32


def test_products_take_tf32_on_a_gpu_while_inside_and_not_behind_an_error() -> None:
    before = in_ten_bits()
    with pytest.raises(ZeroDivisionError), tf32(True, "cuda"):
        assert in_ten_bits() == ("high", True)
        raise ZeroDivisionError
    assert in_ten_bits() == before
    assert before[0] == "highest"


@pytest.mark.parametrize("on", [True, False])
def test_an_agents_updates_take_tf32_where_its_settings_say_so(on: bool) -> None:
    agent = Agent(small(tf32=on), DISCRETE, seed=0, device="cpu")
    agent.device = torch.device("cuda")
    agent._step = lambda *arguments: in_ten_bits()  # type: ignore[assignment,method-assign,return-value]
    assert agent.step(random_batch(), 0) == ("high" if on else "highest", on)


def test_without_it_convolutions_and_recurrent_layers_are_whole_on_a_gpu_too() -> None:
    before = in_ten_bits()
    with tf32(False, "cuda"):
        assert in_ten_bits() == ("highest", False)
    assert in_ten_bits() == before


def test_a_sigma_is_as_exact_in_bfloat16_as_it_is_in_float32() -> None:
    block = lively(small(sequence=SEQUENCE), DISCRETE)[0].trajectory_encoder.blocks[0]
    expected = block.qkv.scaled()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(block.qkv.scaled(), expected)


# ---- acting


def stepped(world: Any, steps: int, graph: bool, **changes: Any) -> tuple[list[np.ndarray], Any]:
    """Raw outputs while actors play, some of whom are reset at odd moments."""
    settings = settings_of(world, sample_actions=False, **changes)
    collector, agent = collector_of(settings)
    policy, raws = collector.policy, []
    if graph:
        remember = policy._remember

        def remembered(state: Any) -> None:
            remember(state)
            policy._graph = ActingGraph(policy.network, policy._state, torch.device("cpu"))

        policy._remember = remembered  # type: ignore[method-assign]
    outputs, draws = policy.outputs, np.random.default_rng(0)

    def watched(observation: np.ndarray, reward: np.ndarray, done: np.ndarray) -> Any:
        raw = outputs(observation, reward, done)
        raws.append(raw.numpy().copy())
        return raw

    policy.outputs = watched  # type: ignore[method-assign]
    for _ in range(steps):
        collector.collect(1)
        policy.reset(draws.random(policy._rows) < 0.1)
        if len(raws) == steps // 2:  # an update between steps, and a memory that was saved
            agent.network.train()
            with torch.no_grad():
                for parameter in agent.network.parameters():
                    parameter.mul_(1.01)
            policy.load_state({name: np.array(value) for name, value in policy.state_arrays().items()})
    return raws, policy


@pytest.mark.quick("world0-changes0")
@pytest.mark.parametrize(
    ("world", "changes"),
    [
        (MAZE, {}),
        (ROOM, {"context": 6, "sequence": {**SEQUENCE, "positions": "rotary"}}),
        (GOALS, {"sequence": {**SEQUENCE, "positions": "sinusoid", "sigma_reparam": False}}),
    ],
)
def test_acting_of_fixed_shapes_equals_acting_as_it_is_on_cpus(
    world: Any, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within 1e-5 of outputs of about 1, as sums have another order: what a CUDA graph would hold is called as it is."""
    monkeypatch.setattr("recollect.amago.ring_cache.SHORTEST_READ", 4)
    expected, other = stepped(world, 40, False, **changes)
    found, policy = stepped(world, 40, True, **changes)
    assert policy._graph is not None
    np.testing.assert_allclose(np.stack(found), np.stack(expected), atol=1e-5)
    rows = np.flatnonzero(policy._time_B)  # those that remember something
    for name in ("traced", "maps"):  # what is traced does not depend on it either
        said, plainly = getattr(policy, name)(rows), getattr(other, name)(rows)
        assert said.keys() == plainly.keys() != set()
        assert all(np.allclose(said[key], plainly[key], atol=1e-3) for key in said)


def test_a_graph_reads_one_of_few_numbers_of_slots_and_never_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recollect.amago.ring_cache.SHORTEST_READ", 4)
    network, _ = lively(small(sequence=SEQUENCE), DISCRETE)
    state = network.trajectory_encoder.initial_state(3, "cpu")
    reads = []
    for count in range(30):
        state.count_B = np.array([count, 0, count // 2])
        reads.append(state.reach())
        assert reads[-1] >= min(count + 1, state.length)
    assert sorted(set(reads)) == [4, 8, 12]  # the last is the ring's length


def test_a_memory_in_bfloat16_is_saved_as_it_is_and_acts_near_float32() -> None:
    network, _ = lively(small(sequence=SEQUENCE), DISCRETE)
    encoder = network.eval().trajectory_encoder
    x_BTD = torch.randn(3, 9, encoder.input_width, generator=torch.Generator().manual_seed(0))
    outs = []
    for precision in ("float32", "bfloat16"):
        encoder.attention_precision = precision
        state = encoder.initial_state(3, "cpu")
        assert state.keys_values[0].dtype == getattr(torch, precision)
        for t in range(9):
            out, state = encoder.step(x_BTD[:, t], state)
        outs.append(out)
        again = encoder.state_from(encoder.state_arrays(state), "cpu")
        for one, other in zip(state.keys_values, again.keys_values, strict=True):
            assert torch.equal(one, other) and one.dtype == other.dtype
    assert 0 < float((outs[0] - outs[1]).abs().max()) < 0.05


def test_a_step_that_cannot_be_captured_is_warned_of_once_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Here no step can: there is no CUDA."""
    monkeypatch.setattr(StepGraphs, "works", True)
    network, _ = lively(small(sequence=SEQUENCE), DISCRETE)
    graph = ActingGraph(network.eval(), network.trajectory_encoder.initial_state(3, "cpu"), torch.device("cpu"))
    steps = window_of(network, random_batch(), small(sequence=SEQUENCE)).steps
    first = type(steps)(**{name: None if value is None else value[:, 0] for name, value in vars(steps).items()})
    expected = graph(first)
    graph.state.count_B[:] = 0
    graph._graphs.device = torch.device("cuda")
    monkeypatch.setattr(graph._graphs, "_captured", _fails)
    for _ in range(2):
        graph.state.count_B[:] = 0
        assert torch.equal(graph(first), expected)
    assert [record.levelname for record in caplog.records] == ["WARNING"] and not StepGraphs.works


def _fails(*of: Any) -> Any:
    raise RuntimeError("no capture")
