"""What runs on a GPU keeps to its rules, never waits in an update, and gives a CPU's numbers: on a pretend GPU."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import recollect
from recollect.artifacts import lease
from recollect.evaluation.speed import Clock

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # benchmarks is no part of the package

from benchmarks.gpu import amago, language, memory, off_policy, one_line, supervised  # noqa: E402
from benchmarks.gpu.case import Case  # noqa: E402
from benchmarks.gpu.lines import LINES  # noqa: E402
from benchmarks.gpu.pretend import PretendGpu  # noqa: E402
from recollect.memory_rl.off_policy import OffPolicyTrainer  # noqa: E402

pytestmark = pytest.mark.usefixtures("in_the_repository")
SAME = {"fp32": 1e-4}
QUICK = {"gpt_50": ("as set",), "search": ("as set",)}


def measured(name: str, ways: Sequence[str]) -> list[one_line.Row]:
    found: list[Any] = []
    with PretendGpu():
        one_line.measure(name, device="cuda", quick=True, seconds=math.inf, hand_on=found.append, only=list(ways))
    rows = {(row.part, row.variant): row for row in found if isinstance(row, one_line.Row)}  # as they came last
    return list(rows.values())


def lines() -> list[Any]:
    """A few now, and with the slow tests all. Here TF32 is float32."""
    all_ways = {
        name: [way for way in line.variants if way != "TF32"]
        for name, line in LINES.items()
        if not name.endswith("_of_64")  # as those of 10
    }
    slow = [pytest.param(name, ways, marks=pytest.mark.slow, id=f"{name}-all") for name, ways in all_ways.items()]
    return [pytest.param(*item, id=item[0]) for item in QUICK.items()] + slow


@pytest.mark.quick("search")
@pytest.mark.parametrize(("name", "ways"), lines())
def test_a_line_of_make_gpu_runs_and_agrees_with_the_cpu(name: str, ways: Sequence[str]) -> None:
    rows = measured(name, ways)
    assert {row.variant for row in rows} == set(ways)
    for row in rows:
        assert row.rate and not row.why and row.difference is not None, row
        assert row.within and row.difference < SAME.get(row.variant, 1), row


@pytest.mark.quick("gpt_50-as set", "helm-graph")
@pytest.mark.parametrize(
    ("name", "way"), [("gpt_50", "as set"), ("lstm_50", "as set"), ("amago_500", "graph"), ("helm", "graph")]
)
def test_what_is_compared_with_the_cpu_replays_its_graphs(
    name: str, way: str, tmp_path: Path, replays: list[Any]
) -> None:
    line = LINES[name]
    with PretendGpu():
        one_line.subject_of(
            line, one_line.Cases(line, "cuda", True, tmp_path).case(line.variants[way], small=True)
        ).numbers()
    assert replays


# ---- an update never waits


def case(env: str, method: str, folder: Path, **more: Any) -> Case:
    return Case("smoke", env, method, "cuda", folder, seconds=0.01, warm=1, **more)


@pytest.mark.quick("dqn_lstm-0", "dqn_gpt-3")
@pytest.mark.parametrize("members", [0, 3])
@pytest.mark.parametrize("method", ["dqn_gpt", "dqn_lstm"])
def test_an_update_of_memory_rl_never_waits(method: str, members: int, tmp_path: Path) -> None:
    with PretendGpu() as gpu:
        together = off_policy.Together(case("tmaze_passive_5", method, tmp_path, extra={"members": members}))
        for _ in range(5):
            together.update()
        del gpu.waits[:]
        for _ in range(3):
            together.update()
        assert not gpu.waits
        if members:
            assert together.ensemble.compute.graph is not None


@pytest.mark.parametrize("members", [0, 1])
def test_a_seed_alone_is_timed_as_it_plays_in_a_run(
    members: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played: list[str] = []

    def noted(name: str) -> Any:
        plain = getattr(OffPolicyTrainer, name)

        def call(*given: Any) -> Any:
            played.append(name)
            return plain(*given)

        return call

    for name in ("play_round", "_evaluate"):
        monkeypatch.setattr(OffPolicyTrainer, name, noted(name))
    with PretendGpu():
        one = off_policy.Together(case("tmaze_passive_5", "dqn_lstm", tmp_path, extra={"members": members}))
        one.collect()
        one.evaluate()
    assert played == ([] if members else ["play_round", "_evaluate"])  # an ensemble of one plays as an ensemble


def test_an_update_of_amago_never_waits(tmp_path: Path) -> None:
    waits = {}
    for updates in (6, 12):
        with PretendGpu() as gpu:
            trainer = amago._trainer(case("amago_tmaze_10", "amago_transformer", tmp_path), updates)
            del gpu.waits[:]
            trainer.learn({})
            waits[updates] = len(gpu.waits)
            assert trainer.agent.graphs is not None and trainer.agent.graphs.works
    assert waits[6] == waits[12] > 0  # an epoch's row is read


@pytest.mark.slow
def test_a_training_step_of_radt_waits_for_its_exact_search_alone(tmp_path: Path) -> None:
    class Watch(supervised.Watch):
        def due(self, step: int, every: int) -> bool:
            seen.append(len(gpu.waits))
            return super().due(step, every)

    seen: list[int] = []
    changes = {"optimisation.steps": 4000, "optimisation.evaluate_every": "null"}  # a row of the log for each 20 steps
    with PretendGpu() as gpu:
        of = case("dark_room_10x10", "radt", tmp_path, changes=changes)
        watch = Watch(of.nowhere, "cuda", 0.01, 15)
        module = supervised.algorithm_module(of.settings.method.algorithm, where="radt")
        with pytest.raises(supervised.Enough):
            module.train(of.settings, supervised.inputs_of(of), watch)
        waited = {where for _, where in gpu.waits[seen[2] : seen[14]]}
    assert waited <= {
        "common/index.py:_settled",
        "common/index.py:_tied",
    }  # whether it ended in a tie, and what was tied


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "changes", "waits"),
    [
        ("ad", {"network.padding": "attended", "acting_dropout": "true"}, ["select_actions"]),
        ("radt", {"network.padding": "counted", "retrieve_every": 1}, ["retrieve", "select_actions"]),
    ],
)
def test_a_step_of_acting_waits_for_what_is_read_and_for_actions(
    method: str, changes: dict[str, object], waits: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    with PretendGpu() as gpu:
        play = supervised.play_in_context

        def watched(*args: Any, watch: Any, **more: Any) -> None:
            play(*args, watch=lambda moment: seen.append(len(gpu.waits)), **more)

        monkeypatch.setattr(supervised, "play_in_context", watched)
        supervised.acting_rate(case("dark_room_10x10", method, tmp_path, changes=changes))
    for step in (3, 4, 5):  # of the second episode, whose end and beginning ask more
        at = len(seen) // 3 + step
        assert [where.split(":")[-1] for _, where in gpu.waits[seen[at] : seen[at + 1]]] == waits


@pytest.mark.quick("ppo_cnn")
@pytest.mark.parametrize("method", ["ppo_lstm", "ppo_cnn"])
def test_an_update_of_ppo_never_waits(method: str, tmp_path: Path) -> None:
    with PretendGpu() as gpu:
        of = case("mini_grid_MemoryS7", method, tmp_path)
        module = language.algorithm_module(of.settings.method.algorithm, where=of.method)
        trainer = module.make_trainer(of.settings, language.inputs_of(of))
        learn, waits = trainer._learn, []

        def watched(*args: Any) -> None:
            before = len(gpu.waits)
            learn(*args)
            waits.extend(gpu.waits[before:])

        trainer._learn = watched
        for _ in range(4):
            trainer.advance(Clock(of.nowhere))
    assert not waits
    assert any(step.graph is not None for step in trainer.graph.minibatch.steps.values())


@pytest.mark.slow
def test_a_rollout_of_helms_seeds_waits_for_nothing_but_what_agents_say(tmp_path: Path, replays: list[Any]) -> None:
    """They are two groups, so that the host never waits for a group while there is nothing for the GPU to do."""
    changes = {"language_model": "random-transfo-xl"}
    with PretendGpu() as gpu:
        of = case("mini_grid_MemoryS7", "helm", tmp_path, changes=changes, extra={"members": 4})
        runs = language.begun(of)
        groups, hp = language.groups_of(runs.trainers), runs.trainers[0].hp
        runs.rollout(groups)
        del gpu.waits[:], replays[:]
        played = runs._play(groups)
        waited = [where.split(":")[-1] for _, where in gpu.waits]
    assert sorted(played) == [0, 1, 2, 3] and not runs.failed
    assert waited == ["unpacked_outputs"] * 4  # for each run's last values; for what agents say it waits by an event
    assert len(replays) == 2 * hp.rollout + 4 * (hp.rollout + 1)  # of the language model, and of what each agent says


# ---- runs, on a real GPU where there is one

A_REAL_ONE = torch.cuda.is_available()
STILL = {"optimisation.precision": "float32", "acting_precision": "float32", "network.dropout": 0}
# A graph reads the step size in float32, which has these whole: what rounding does to a run of many updates is another matter.
IN_FLOAT32 = {"learning_rate": 2**-8, "warmup": 16}
FLOAT32: dict[str, dict[str, object]] = {  # and without dropout, for which a GPU has a generator of its own
    "dt": STILL,
    "radt": {**STILL, "query_dropout": 0},
    "memory_rl": {"precision": "float32"},
    "amago": {"precision": "float32", "tf32": "false", "sequence.dropout": 0, **IN_FLOAT32},
    "helm": {},
}
UNTIL = {  # rows of a curve up to where rounding of a real GPU decides what happens
    ("amago_gym_CartPole-v1", "amago_transformer"): 12,  # what is seen is continuous, and a pole falls or does not
    ("amago_tmaze_5", "amago_multi_task"): 5,  # which actions are cloned: advantages lie around the threshold
    ("amago_dark_key_door_3", "amago_gru"): 20,  # the last evaluation: one of its episodes went otherwise
}
RUNS = [  # discrete actions: continuous ones carry rounding into what is seen next
    ("dark_room_10x10", "dt", "dt"),
    ("dark_room_10x10", "ad", "dt"),
    ("dark_room_10x10", "dpt", "dt"),
    ("dark_room_10x10", "radt", "radt"),
    ("dark_room_10x10", "radt_agnostic", "radt"),
    ("maze_runner_15x15", "radt", "radt"),
    ("tmaze_passive_5", "dqn_gpt", "memory_rl"),
    ("tmaze_passive_5", "dqn_lstm", "memory_rl"),
    ("tmaze_passive_5", "dqn_ff", "memory_rl"),
    ("visual_match_3", "sacd_gpt", "memory_rl"),
    ("visual_match_3", "sacd_lstm", "memory_rl"),
    ("key_to_door_3", "sacd_gpt.separate", "memory_rl"),
    ("amago_tmaze_5", "amago_transformer", "amago"),
    ("amago_dark_key_door_3", "amago_gru", "amago"),
    ("amago_dark_key_door_3", "amago_ff", "amago"),
    ("amago_maze_11", "amago_transformer", "amago"),
    ("amago_gym_CartPole-v1", "amago_transformer", "amago"),
    ("amago_tmaze_5", "amago_multi_task", "amago"),
    ("mini_grid_MemoryS7", "ppo_cnn", "helm"),
    ("mini_grid_MemoryS7", "ppo_lstm", "helm"),
    ("mini_grid_MemoryS7", "helm", "helm"),
    ("mini_grid_MemoryS7", "helmv2", "helm"),
    ("mini_grid_MemoryS7", "shelm", "helm"),
    ("mini_grid_MemoryS7", "shelm_lstm", "helm"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("env", "method", "line"), RUNS)
def test_a_run_on_a_gpu_learns_what_a_run_on_a_cpu_learns(
    env: str, method: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From its data to its scores, in float32: the same rows, and what is logged of learning is near.

    RA-DT's embedder is a run of its own, in bfloat16 there: so its memory may hold other windows.
    """
    curves = []
    for device in ("cpu", "auto"):
        folder = tmp_path / device
        folder.mkdir()
        if not A_REAL_ONE:
            monkeypatch.setattr(lease, "_cuda_devices", lambda: ["a pretend one"])
        with PretendGpu() if device == "auto" and not A_REAL_ONE else monkeypatch.context():
            run = recollect.train("smoke", env, method, changes=FLOAT32[line], folder=folder, device=device)
        curves.append((run.curve, run.scores))
    (curve, scores), (other_curve, other_scores) = curves
    keys = [name for name in scores if name != "value"]
    assert scores[keys].equals(other_scores[keys])
    assert list(curve) == list(other_curve)
    names = [name for name in curve if not name.startswith(("seconds", "memory_", "retrieved_"))]
    rows = UNTIL.get((env, method), len(curve)) if A_REAL_ONE else len(curve)
    here, there = (of[names].to_numpy(float)[:rows] for of in (curve, other_curve))
    np.testing.assert_allclose(here, there, rtol=0.01, atol=0.03)


# ---- memory


@pytest.mark.parametrize(("words", "why"), [(["helm"], "unknown line 'helm'"), (["gpt_50", "--write"], "all lines")])
def test_bytes_are_counted_of_known_lines_and_written_of_all(
    words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        memory.main(words)
    assert why in capsys.readouterr().err


@pytest.mark.slow
def test_bytes_of_a_whole_batch_are_those_carried_over_from_few_rows() -> None:
    line = LINES["gpt_50"]
    one, three = (memory.peak(line, {"batch_size": rows}) for rows in memory.FEW)
    whole = memory.peak(line, {"batch_size": 64})
    assert one + 63 * (three - one) / 2 == pytest.approx(whole, rel=0.05)
