"""Rounds and evaluations in mazes and room games on the device are those that the members of an ensemble play on the host."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]  # benchmarks is no part of the package

from test_ensemble import ROOMS, SEEDS, Together, assert_near, begun, own_episodes  # noqa: E402

from benchmarks.gpu.pretend import PretendGpu  # noqa: E402
from recollect.common.rollout import Episodes  # noqa: E402
from recollect.common.step_graphs import StepGraphs  # noqa: E402
from recollect.memory_rl import sacd  # noqa: E402
from recollect.memory_rl.ensemble import Ensemble  # noqa: E402
from recollect.memory_rl.off_policy import OffPolicyTrainer  # noqa: E402

ACTIVE = {"world": "tmaze", "options": {"variant": "active", "length": 20}}
DOOR = {"world": "key_to_door", "options": {"length": 20, "flat": True}}
EATEN = {"world": "visual_match", "options": {"apple_reward_high": 10.0, "fixed_apple_reward": False}}
KINDS: list[tuple[str, dict[str, Any]]] = [
    ("gpt", {"sequence": {"dropout": 0.0, "layers": 2, "heads": 2}}),
    ("gpt", {"sequence": {"dropout": 0.0}, "world": ACTIVE, "replay_transitions": 2000}),
    ("lstm", {"sequence": {"layers": 2}}),
    ("ff", {}),
    ("gpt", {"algorithm": sacd, "sequence": {"dropout": 0.0}}),
    ("gpt", {"algorithm": sacd, "world": ROOMS, "sequence": {"dropout": 0.0}}),
    ("lstm", {"algorithm": sacd, "world": DOOR, "replay_transitions": 2000, "shared_encoder": False}),
    ("lstm", {"world": ROOMS}),
]


def plays(ensemble: Ensemble, turns: int = 5) -> tuple[list[Episodes], list[int]]:
    """Rounds and evaluations in turn, and how much each member has explored."""
    members, found = ensemble.members, []
    for turn in range(turns):
        for member in members:
            member.at.evaluation_due, member.at.updates_due = turn % 2 == 1, 0
        episodes = ensemble.play()
        assert episodes is not None
        found += episodes
        for member, own in zip(members, episodes, strict=True):
            if turn % 2 == 0:
                member.keep(own)
    return found, [member.at.explored for member in members]


def assert_same(found: list[Episodes], wanted: list[Episodes]) -> None:
    for one, other in zip(found, wanted, strict=True):
        for name in Episodes.__dataclass_fields__:
            here, there = getattr(one, name), getattr(other, name)
            assert here.dtype == there.dtype and np.array_equal(here, there, equal_nan=here.dtype.kind == "f"), name


def states(members: list[OffPolicyTrainer]) -> list[np.ndarray]:
    worlds = (world for member in members for world in (member.world, member.evaluation_world))
    return [array for world in worlds for array in world.get_state().values()]


@pytest.mark.quick("gpt-changes5-cpu", "lstm-changes2-cuda", "ff-changes3-cuda")
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(("kind", "changes"), KINDS)
def test_what_is_played_is_what_the_host_plays(
    kind: str, changes: dict[str, Any], device: str, replays: list[Any]
) -> None:
    on_host = begun(kind, precision="float32", **changes)
    wanted, explored = plays(Ensemble(on_host))
    if device == "cpu":  # the function that a graph holds, as it is
        members = begun(kind, precision="float32", **changes)
        ensemble = Ensemble(members)
        ensemble.on_device = ensemble._on_device()
        found = plays(ensemble)
    else:
        with PretendGpu():
            members = begun(kind, device="cuda", precision="float32", **changes)
            ensemble = Ensemble(members)
            found = plays(ensemble)
        steps = 5 * members[0].horizon
        assert len(replays) == steps
    assert ensemble.on_device is not None
    assert_same(found[0], wanted)
    assert found[1] == explored
    for here, there in zip(states(members), states(on_host), strict=True):
        assert np.array_equal(here, there)


def test_an_episode_on_the_device_begins_without_action_and_reward() -> None:
    both = Ensemble(begun("ff", reward_embedding=4))._on_device()
    assert both is not None
    rounds, read = both[1], []  # type: ignore[var-annotated]
    rounds.token[0].zero_()
    rounds.token[1].fill_(5.0)  # as an episode before left them
    rounds.network.encoder.embedder.register_forward_pre_hook(
        lambda embedder, token: read.append([part.tolist() for part in token[:2]])
    )
    rounds.play()
    assert read[0] == [[4] * 6, [0.0] * 6]  # two episodes of each seed


def test_an_evaluation_on_the_device_drops_nothing_out() -> None:
    members, alone = (begun("gpt", precision="float32", sequence={"dropout": 0.5}) for _ in range(2))
    ensemble = Ensemble(members)
    ensemble.on_device = ensemble._on_device()
    ensemble.learner.network.train()  # as rounds and updates leave it
    for member in (*members, *alone):
        member.at.evaluation_due, member.at.updates_due = True, 0
    found = ensemble.play()
    assert found is not None
    for one, other in zip(found, alone, strict=True):
        assert np.array_equal(one.action_BT, own_episodes(other).action_BT)


@pytest.mark.slow
def test_whole_runs_on_a_gpu_play_there_and_learn_what_they_learn_on_a_cpu(tmp_path: Path) -> None:
    wanted = Together(tmp_path / "cpu")
    assert wanted.train() == {}
    found = Together(tmp_path / "gpu")
    with PretendGpu():
        found.device = "cuda"
        assert found.train() == {}
    for place in range(len(SEEDS)):
        assert_near(found.policies[place], wanted.policies[place])
        here, there = (of.runs[place].table() for of in (found, wanted))
        assert here.drop(columns="value").equals(there.drop(columns="value"))
        np.testing.assert_allclose(here["value"], there["value"], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"world": EATEN, "algorithm": sacd},
        {"actors": 2},
        {"sampled_seq_len": 2},
    ],
)
def test_what_needs_the_host_is_played_with_it(changes: dict[str, Any]) -> None:
    with PretendGpu():
        assert Ensemble(begun("gpt", device="cuda", precision="float32", **changes)).on_device is None


def test_where_no_graph_can_be_captured_the_same_is_played_more_slowly(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise RuntimeError("out of graphs")

    wanted, _ = plays(Ensemble(begun("lstm")))
    monkeypatch.setattr("recollect.common.step_graphs.captured", fails)
    monkeypatch.setattr(StepGraphs, "works", True)
    with PretendGpu(), caplog.at_level(logging.WARNING):
        found, _ = plays(Ensemble(begun("lstm", device="cuda")))
    assert_same(found, wanted)
    assert [record.getMessage() for record in caplog.records] == [
        "acting goes on without CUDA graphs, which is slower: out of graphs"
    ]


@pytest.mark.gpu
@pytest.mark.parametrize(("kind", "changes"), KINDS)
def test_on_a_gpu_what_is_played_is_what_the_host_plays(kind: str, changes: dict[str, Any]) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    of = {"device": "cuda", "precision": "float32", **changes}
    with_host = Ensemble(begun(kind, **of))
    with_host.on_device = None
    wanted, explored = plays(with_host)
    ensemble = Ensemble(begun(kind, **of))
    found = plays(ensemble)
    assert ensemble.on_device is not None
    assert_same(found[0], wanted)
    assert found[1] == explored
