"""Updates and acting of PPO as CUDA graphs are those without: on a pretend GPU, and on a real one."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_worlds
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from recollect.common import cuda_graphs
from recollect.common.contract import Inputs
from recollect.common.cuda_graphs import WARM_UP
from recollect.helm import graphs_by_shape, helm, ppo_cnn, ppo_lstm, shelm_lstm
from recollect.helm.graphs_by_shape import GraphsByShape
from recollect.helm.on_policy import OnPolicyTrainer
from recollect.helm.sampled_policy import Agent
from recollect.settings.schema import EnvironmentSettings, EvaluationSettings, MethodSettings, Settings

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # benchmarks is no part of the package

from benchmarks.gpu.pretend import PretendGpu

MODULES: dict[str, Any] = {"ppo_cnn": ppo_cnn, "ppo_lstm": ppo_lstm, "helm": helm, "shelm_lstm": shelm_lstm}
GIVEN: dict[str, Any] = {}  # what runs read
OWN: dict[str, dict[str, Any]] = {
    "ppo_cnn": {},
    "ppo_lstm": {"units": 12, "sequences": 3},
    "helm": {"language_model": "random", "memory_length": 6, "mem_len": "config"},
    "shelm_lstm": {"units": 12, "sequences": 3, "language_model": "random", "token_vocabulary": "random"},
}
SCHEDULES: dict[str, Any] = {  # all that changes between rollouts
    "learning_rate": 0.01,
    "learning_rate_schedule": {"kind": "linear", "minimum": 0.0},
    "entropy_schedule": {"kind": "exp", "factor": 0.5},
    "clip_schedule": "linear",
    "clip": 0.1,
}
Numbers = dict[str, np.ndarray]


@pytest.fixture(autouse=True)
def signals(monkeypatch: pytest.MonkeyPatch, root: Path, inputs: Inputs) -> None:
    fake_worlds.install(monkeypatch)
    monkeypatch.setitem(GIVEN, "token_vocabulary", inputs.need("token_vocabulary"))
    monkeypatch.chdir(root)  # the names of models are read from the repository's configuration


@pytest.fixture
def gpu() -> Iterator[PretendGpu]:
    with PretendGpu() as gpu:
        yield gpu


def settings_of(method: str, **chosen: Any) -> Settings:
    environment = EnvironmentSettings(
        name="signal",
        world="signal",
        options={"height": 9, "width": 9},
        evaluation=EvaluationSettings(protocol="episodic", episodes=6),
    )
    small: dict[str, Any] = {"channel_scale": 1, "width": 16, "actor": 8, "critic": 8, "log_every": 10**6}
    small |= {"steps": 192, "actors": 4, "rollout": 8, "batches": 4, "epochs": 2, **OWN[method], **chosen}
    hp = MODULES[method].Hyperparameters(**small)
    shell = MethodSettings(name=method, algorithm=method, data="online", hyperparameters=hp)
    return Settings(scale="smoke", seed=0, environment=environment, method=shell)


def trainer_of(method: str = "ppo_cnn", device: str = "cuda", *, graphs: bool = True, **chosen: Any) -> OnPolicyTrainer:
    """A run; without `graphs`: whose updates and acting are those of a CPU."""
    trainer: OnPolicyTrainer = MODULES[method].make_trainer(
        settings_of(method, **chosen), Inputs(**GIVEN, device=device)
    )
    if not graphs:
        trainer.graph = trainer.optimiser.rate = None
        trainer.agent.acting_graph.graphed = False
    return trainer


def rolled(trainer: OnPolicyTrainer, rollouts: int) -> Numbers:
    """What a run has after some more rollouts: weights, Adam's state and sums of metrics."""
    for _ in range(rollouts):
        with trainer.agent.features.rollout():
            moments, done_TE = trainer._play()
        trainer.rollouts += 1
        trainer._learn(moments, done_TE)
    return numbers(trainer)


def numbers(trainer: OnPolicyTrainer) -> Numbers:
    arrays, _ = trainer.saved()
    kept = ("agent/network/", "adam/", "sums/")
    return {name: np.asarray(on_host(value)) for name, value in arrays.items() if name.startswith(kept)}


def graphs_of(made: GraphsByShape[Any]) -> set[Any]:
    return {step.graph for step in made.steps.values()} - {None}


def failed(made: GraphsByShape[Any]) -> set[bool]:
    return {step.failed for step in made.steps.values()}


def on_host(value: Any) -> Any:
    return value.cpu().numpy() if isinstance(value, Tensor) else value


def assert_near(found: Numbers, expected: Numbers, within: float = 2e-5) -> None:
    assert list(found) == list(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=within * 10, atol=within, err_msg=name)


# ---- updates


@pytest.mark.quick("ppo_cnn")
@pytest.mark.parametrize("method", ["ppo_cnn", "ppo_lstm", "helm", "shelm_lstm"])
def test_updates_as_graphs_are_those_without(method: str, gpu: PretendGpu, replays: list[Any]) -> None:
    """Over three rollouts, between which the step size, the clipping and the weight of the entropy change."""
    plain = trainer_of(method, graphs=False, **SCHEDULES)
    expected = rolled(plain, 3)
    trainer = trainer_of(method, **SCHEDULES)
    assert_near(rolled(trainer, 3), expected)
    steps = trainer.graph.minibatch.steps.values()
    graphs = {step.graph for step in steps} - {None}
    assert trainer.minibatches == plain.minibatches == sum(step.calls for step in steps)
    assert sum(graph in graphs for graph in replays) == sum(max(0, step.calls - WARM_UP) for step in steps) >= 20
    assert expected["sums/clip_fraction"] > 0


@pytest.mark.slow
def test_pieces_of_episodes_have_a_graph_for_each_of_few_lengths(gpu: PretendGpu) -> None:
    """Also where a minibatch is a single moment, whose advantage is not standardised."""
    chosen: dict[str, Any] = {"steps": 4 * 24, "rollout": 24, "sequences": 1, "epochs": 2, "learning_rate": 1e-4}
    plain, trainer = trainer_of("ppo_lstm", graphs=False, **chosen), trainer_of("ppo_lstm", **chosen)
    for done_TE in np.random.default_rng(1).random((1, 24, 4)) < 0.2:
        moments, _ = plain._play()
        for one in (plain, trainer):
            one.rollouts += 1
            one._learn(moments, done_TE)
    assert_near(numbers(trainer), numbers(plain))
    assert {shapes[0][0] for shapes in trainer.graph.minibatch.steps} == {3, 6, 12, 24}
    assert len(graphs_of(trainer.graph.minibatch)) >= 3


def test_updates_as_a_graph_are_those_of_a_cpu(replays: list[Any]) -> None:
    expected = rolled(trainer_of(device="cpu", **SCHEDULES), 2)
    with PretendGpu():
        assert_near(rolled(trainer_of(**SCHEDULES), 2), expected)
    assert replays


@pytest.mark.parametrize(("method", "sent", "copies"), [("ppo_cnn", 1, 1), ("ppo_lstm", 0, 4)])
def test_an_update_never_waits_and_a_replay_is_copies_and_a_launch(
    method: str, sent: int, copies: int, gpu: PretendGpu
) -> None:
    """`sent` for a pass, `copies` for each minibatch."""
    trainer = trainer_of(method)
    moments, done_TE = trainer._play()
    trainer._learn(moments, done_TE)
    del gpu.waits[:]
    with Launches() as launches:
        trainer._learn(moments, done_TE)
    assert not gpu.waits
    around = len(moments) + 3 + 4 * len(trainer.sums)  # rollouts, schedules, sums
    assert len(graphs_of(trainer.graph.minibatch)) == 1
    assert launches.count <= around + trainer.hp.epochs * sent + trainer.minibatches / 2 * copies


class Launches(TorchDispatchMode):
    """Counts operations that are no views: about as many kernels and copies does the host launch."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not func.is_view and "detach" not in str(func)
        return func(*args, **(kwargs or {}))


def test_where_no_graph_can_be_captured_one_warning_says_so_and_updates_go_on(
    gpu: PretendGpu, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = rolled(trainer_of(graphs=False, **SCHEDULES), 2)
    trainer = trainer_of(**SCHEDULES)
    scaled = trainer._scaled_advantages

    def asks(advantage_M: Tensor, kept: Any) -> Tensor:
        if gpu.capturing is not None:
            float(advantage_M[0])
        return scaled(advantage_M, kept)

    monkeypatch.setattr(trainer, "_scaled_advantages", asks)
    with caplog.at_level(logging.WARNING):
        assert_near(rolled(trainer, 2), expected)
    assert not graphs_of(trainer.graph.minibatch)
    (said,) = [record.getMessage() for record in caplog.records]
    assert "updates are made without CUDA graphs, which is slower: operation not permitted" in said


@pytest.mark.slow
def test_a_graph_learns_with_a_checkpoint_that_is_loaded_behind_its_capture(
    gpu: PretendGpu, replays: list[Any]
) -> None:
    """From weights, Adam's state and step sizes of then, to the bit."""
    trainer = trainer_of("helm", **SCHEDULES)
    rolled(trainer, 1)
    arrays, state = trainer.saved()
    arrays = {name: np.array(on_host(value)) for name, value in arrays.items()}
    expected = rolled(trainer, 2)
    graphs = graphs_of(trainer.graph.minibatch)
    trainer.load(arrays, state)
    found = rolled(trainer, 2)
    assert graphs_of(trainer.graph.minibatch) == graphs and len(graphs) == 1
    other = trainer_of("helm", **SCHEDULES)  # and a run that is begun anew captures its own
    other.load(arrays, state)
    for name, value in rolled(other, 2).items():
        assert value.tobytes() == expected[name].tobytes() == found[name].tobytes(), name


@pytest.mark.parametrize("method", ["ppo_cnn", "ppo_lstm"])
@pytest.mark.parametrize("changes", [{"advantages": "running"}, {"target_kl": 0.01}], ids=str)
@pytest.mark.quick("{'advantages': 'running'}-ppo_cnn")
def test_updates_that_ask_the_device_are_no_graphs(method: str, changes: dict[str, Any], gpu: PretendGpu) -> None:
    trainer = trainer_of(method, **changes)
    assert trainer.graph is None and trainer.optimiser.rate is None
    assert_near(rolled(trainer, 2), rolled(trainer_of(method, graphs=False, **changes), 2))


def test_on_a_cpu_there_are_no_graphs_and_the_step_size_is_a_number() -> None:
    trainer = trainer_of(device="cpu")
    rolled(trainer, 1)
    assert trainer.graph is None and trainer.optimiser.rate is None and not trainer.agent.acting_graph.steps


# ---- acting


def images_of(seed: int, rows: int = 4) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (rows, 3, 9, 9), dtype=np.uint8)


def acted(agent: Agent, seeds: range, rows: int = 4) -> list[np.ndarray]:
    """Log-probabilities and values of some steps, and the values of images that are not remembered."""
    agent.start(rows)
    found = []
    for seed in seeds:
        agent.see(images_of(seed, rows))
        log_BA, value_B = agent.act()
        found.append(np.concatenate([log_BA, value_B[:, None], agent.value(images_of(seed + 100, rows))[:, None]], 1))
    return found


@pytest.mark.quick("ppo_cnn", "ppo_lstm")
@pytest.mark.parametrize("method", ["ppo_cnn", "ppo_lstm", "helm", "shelm_lstm"])
def test_acting_as_a_graph_is_acting_without_also_with_newer_weights(
    method: str, gpu: PretendGpu, replays: list[Any]
) -> None:
    plain, trainer = trainer_of(method, graphs=False).agent, trainer_of(method)
    for scale in (1.0, 0.5):
        for agent in (plain, trainer.agent):
            with torch.no_grad():
                for parameter in agent.network.parameters():
                    parameter.mul_(scale)
        for rows in (4, 2):
            for found, expected in zip(acted(trainer.agent, range(5), rows), acted(plain, range(5), rows), strict=True):
                np.testing.assert_allclose(found, expected, atol=1e-6)
    graphs = graphs_of(trainer.agent.acting_graph)
    assert len(graphs) == 2 and graphs <= set(replays)
    assert plain.acting_graph.steps == {}


@pytest.mark.parametrize(("method", "copies"), [("ppo_cnn", 2), ("ppo_lstm", 6)])
def test_acting_waits_once_and_launches_copies_and_a_graph(method: str, copies: int, gpu: PretendGpu) -> None:
    agent = trainer_of(method).agent
    acted(agent, range(WARM_UP))
    agent.see(images_of(0))
    del gpu.waits[:]
    with Launches() as launches:
        agent.act()
    assert [how for how, _ in gpu.waits] == ["cpu"] and launches.count <= copies
    del gpu.waits[:]
    agent.value(images_of(1))
    assert [how for how, _ in gpu.waits] == ["cpu"]


def test_few_numbers_of_rows_become_graphs(gpu: PretendGpu) -> None:
    plain, agent = trainer_of(graphs=False).agent, trainer_of().agent
    for rows in range(1, graphs_by_shape.MOST + 3):
        for found, expected in zip(acted(agent, range(3), rows), acted(plain, range(3), rows), strict=True):
            np.testing.assert_allclose(found, expected, atol=1e-6)
    assert len(agent.acting_graph.steps) == graphs_by_shape.MOST


def test_where_acting_cannot_be_captured_it_goes_on_with_one_warning(
    gpu: PretendGpu, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*unused: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    plain, agent = trainer_of(graphs=False).agent, trainer_of().agent
    monkeypatch.setattr(cuda_graphs, "captured", fails)
    for rows in (4, 3):
        for found, expected in zip(acted(agent, range(4), rows), acted(plain, range(4), rows), strict=True):
            np.testing.assert_allclose(found, expected, atol=1e-6)
    (said,) = [record.getMessage() for record in caplog.records]
    assert "acting goes on without CUDA graphs" in said


# ---- on a real GPU


@pytest.fixture
def real_gpu() -> Iterator[None]:
    """One that adds in the same order each time, as Adam makes much of small differences of small gradients."""
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
        yield


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["ppo_cnn", "ppo_lstm", "helm", "shelm_lstm"])
def test_on_a_gpu_a_run_of_graphs_is_the_run_without(method: str, real_gpu: None) -> None:
    """Both learn from what the one without plays, and act on the same images."""
    plain, trainer = trainer_of(method, graphs=False, **SCHEDULES), trainer_of(method, **SCHEDULES)
    for _ in range(3):
        moments, done_TE = plain._play()
        for one in (plain, trainer):
            one.rollouts += 1
            one._learn(moments, done_TE)
    assert graphs_of(trainer.graph.minibatch)
    assert_near(numbers(trainer), numbers(plain), 1e-4)
    trainer.agent.network.load_state_dict(plain.agent.network.state_dict())
    for found, expected in zip(acted(trainer.agent, range(6)), acted(plain.agent, range(6)), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)
    assert failed(trainer.agent.acting_graph) == {False}


@pytest.mark.gpu
def test_on_a_gpu_a_capture_that_breaks_spoils_no_update(real_gpu: None) -> None:
    plain, trainer = trainer_of(graphs=False, **SCHEDULES), trainer_of(**SCHEDULES)
    scaled = trainer._scaled_advantages

    def asks(advantage_M: Tensor, kept: Any) -> Tensor:
        if torch.cuda.is_current_stream_capturing():
            float(advantage_M[0])
        return scaled(advantage_M, kept)

    trainer._scaled_advantages = asks  # type: ignore[method-assign]
    for _ in range(2):
        moments, done_TE = plain._play()
        for one in (plain, trainer):
            one.rollouts += 1
            one._learn(moments, done_TE)
    assert failed(trainer.graph.minibatch) == {True}
    assert_near(numbers(trainer), numbers(plain), 1e-4)
    acted(trainer.agent, range(6))
    assert failed(trainer.agent.acting_graph) == {False}
