"""A step of acting that is a CUDA graph gives what a step gives, draws what it draws, and asks for nothing."""

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

from test_ensemble import ROOMS, begun  # noqa: E402

from benchmarks.gpu.pretend import PretendGpu  # noqa: E402
from recollect.common.cache import KeyValueCache  # noqa: E402
from recollect.common.step_graphs import StepGraphs  # noqa: E402
from recollect.common.transformer import Transformer, TransformerSettings  # noqa: E402
from recollect.memory_rl import sacd  # noqa: E402
from recollect.memory_rl.acting_graph import ActingGraph, slots_read  # noqa: E402
from recollect.memory_rl.ensemble import Ensemble  # noqa: E402
from recollect.memory_rl.history_policy import HistoryPolicy  # noqa: E402
from recollect.memory_rl.off_policy import OffPolicyTrainer  # noqa: E402

KINDS: list[tuple[str, dict[str, Any]]] = [
    ("gpt", {"sequence": {"dropout": 0.0, "layers": 2, "heads": 2}}),
    ("gpt", {"sequence": {"dropout": 0.0}, "algorithm": sacd, "world": ROOMS}),
    ("lstm", {"sequence": {"layers": 2}}),
    ("gru", {}),
    ("ff", {}),
]


def played(
    trainer: OffPolicyTrainer, steps: int, device: str = "cpu", *, graphed: bool, rows: int = 4
) -> list[np.ndarray]:
    """Outputs of some steps, in which rows end their episodes at different times."""
    policy, space = (
        HistoryPolicy(trainer.learner.network, device, graphed=graphed),
        trainer.world.single_observation_space,
    )
    draws, done_B = np.random.default_rng(0), np.zeros(rows, bool)
    policy.network.eval()
    policy.start(np.zeros(rows, np.uint64))
    found = []
    for t in range(steps):
        observation = draws.integers(0, 2, (rows, *space.shape)).astype(space.dtype)
        outputs_BA = policy.outputs(observation, draws.random(rows).astype(np.float32), done_B)
        found.append(outputs_BA.cpu().numpy().copy())
        policy.took(draws.integers(0, 2, rows))
        done_B = np.arange(rows) == t - 1
    return found


@pytest.mark.parametrize(("kind", "changes"), KINDS)
def test_the_function_that_a_graph_holds_is_a_step(kind: str, changes: dict[str, Any]) -> None:
    trainer = begun(kind, **changes)[0]
    plain, graphed = (played(trainer, 5, graphed=on) for on in (False, True))
    np.testing.assert_allclose(graphed, plain, rtol=1e-5, atol=1e-6)


@pytest.mark.quick("gpt-changes1", "lstm-changes2", "ff-changes4")
@pytest.mark.parametrize(("kind", "changes"), KINDS)
def test_steps_on_a_gpu_are_replays_and_give_a_cpus_numbers(
    kind: str, changes: dict[str, Any], replays: list[Any]
) -> None:
    wanted = played(begun(kind, **changes)[0], 5, graphed=False)
    with PretendGpu():
        found = played(begun(kind, device="cuda", **changes)[0], 5, "cuda", graphed=True)
    assert len(replays) == 5 and len(set(map(id, replays))) == 1
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_an_ensemble_on_a_gpu_plays_what_it_plays_on_a_cpu() -> None:
    """Rounds and evaluations take turns, each with its own rows."""

    def plays(device: str) -> list[np.ndarray]:
        members = begun("gpt", device=device, precision="float32", sequence={"dropout": 0.0})
        ensemble, found = Ensemble(members), []
        for turn in range(4):
            for member in members:
                member.at.evaluation_due, member.at.updates_due = bool(turn % 2), 0
            episodes = ensemble.play()
            assert episodes is not None
            found += [one.action_BT for one in episodes]
        return found

    with PretendGpu():
        on_gpu = plays("cuda")
    for here, there in zip(plays("cpu"), on_gpu, strict=True):
        assert np.array_equal(here, there)


def test_a_longer_row_is_read_by_another_graph_and_one_that_slides_by_none() -> None:
    with PretendGpu():
        trainer = begun("gpt", device="cuda", world={"world": "tmaze", "options": {"length": 40}})[0]
        policy = HistoryPolicy(trainer.learner.network, "cuda", graphed=True)
        policy.network.eval()
        policy.start(np.zeros(2, np.uint64))
        for _ in range(35):
            policy.act(
                np.zeros((2, *trainer.world.single_observation_space.shape), np.float32), np.zeros(2), np.zeros(2, bool)
            )
        assert policy._graph is not None
        assert sorted(end for _, end in policy._graph._graphs.made) == [16, 32, 42]
        sliding = begun("gpt", device="cuda", sampled_seq_len=2)[0]
        assert not ActingGraph(sliding.learner.network, torch.device("cuda")).fits(
            sliding.learner.network.encoder.sequence.initial_state(2, "cuda")
        )


@pytest.mark.parametrize("length", [6, 16, 42, 200])
def test_a_graph_reads_the_slot_of_the_newest_token_and_no_more_than_there_are(length: int) -> None:
    cache = KeyValueCache(Transformer(TransformerSettings(width=4, layers=1, heads=1)), 1, length)
    for tokens in range(length):
        assert tokens < slots_read(tokens, cache) <= length
    assert len({slots_read(tokens, cache) for tokens in range(length)}) <= 5  # each is a graph


def test_where_nothing_can_be_captured_acting_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*of: Any) -> None:
        raise RuntimeError("no capture here")

    monkeypatch.setattr("recollect.common.step_graphs.captured", broken)
    monkeypatch.setattr(StepGraphs, "works", True)
    wanted = played(begun("lstm")[0], 5, graphed=False)
    with PretendGpu(), caplog.at_level(logging.WARNING):
        found = played(begun("lstm", device="cuda")[0], 5, "cuda", graphed=True)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    assert [record.message for record in caplog.records].count(
        "acting goes on without CUDA graphs, which is slower: no capture here"
    ) == 1
