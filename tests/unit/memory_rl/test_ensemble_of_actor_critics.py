"""Seeds of actor-critic methods trained together: continuous actions, separate encoders, critics that step first."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import fake_bullet
import fake_worlds
import numpy as np
import pytest
import torch

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]  # benchmarks is no part of the package

from test_ensemble import ROOMS, SEEDS, TOLERANCE, begun, difference, own_episodes, run_of, settings_of  # noqa: E402

from benchmarks.gpu.pretend import PretendGpu  # noqa: E402
from recollect.common.contract import Inputs  # noqa: E402
from recollect.common.rollout import Episodes  # noqa: E402
from recollect.memory_rl import sac, sacd, td3  # noqa: E402
from recollect.memory_rl.ensemble import Ensemble  # noqa: E402
from recollect.memory_rl.off_policy import OffPolicyTrainer  # noqa: E402

AIM, STUMBLE = ({"world": name, "options": {}} for name in ("aim", "stumble"))
SEPARATE = {"shared_encoder": False, "critics_first": True}
RELEASED = {"network": "flax", "budget": "steps", "initial_burst": False, "warmup_learns": True, "sampled_seq_len": 3}
STILL = {"sequence": {"dropout": 0.0}, "precision": "float32"}
FLOOR = 5e-3  # biases of the released networks begin at 0, and are what Adam makes of gradients of any size
VARIANTS: list[tuple[str, Any, dict[str, Any]]] = [
    ("gpt", td3, {**RELEASED, "sequence": {"dropout": 0.1}}),
    ("gpt", td3, {**RELEASED, **SEPARATE, "sequence": {"dropout": 0.1, "heads": 2}}),
    ("lstm", td3, {**RELEASED, "world": STUMBLE}),
    ("lstm", td3, {**RELEASED, **SEPARATE, "world": STUMBLE, "gradient_clip": 0.1}),
    ("lstm", td3, {**RELEASED, "freeze_all": False}),
    ("lstm", td3, {**RELEASED, "freeze_all": False, "freeze_critic": False}),
    ("ff", td3, {"network": "flax", "actors": 2}),
    ("lstm", sac, {**RELEASED}),
    ("gpt", sac, {**SEPARATE, "sequence": {"dropout": 0.1}}),
    ("lstm", sac, {"freeze_all": False, "freeze_critic": False, "world": STUMBLE}),
    ("gpt", sacd, {**SEPARATE, "sequence": {"dropout": 0.1}}),
    ("lstm", sacd, {**SEPARATE, "world": ROOMS}),
    ("lstm", sacd, {"target_entropy": 0.5}),
    ("ff", sacd, {**SEPARATE, "target_entropy": 0.5}),
]


@pytest.fixture(autouse=True)
def _worlds(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_worlds.install(monkeypatch)


def members_of(kind: str, algorithm: Any, device: str = "cpu", **changes: Any) -> list[OffPolicyTrainer]:
    world = {} if algorithm is sacd else {"world": AIM}
    return begun(kind, algorithm, device, **{**world, **changes})


@pytest.mark.quick(
    "gpt-recollect.memory_rl.td3-changes0",
    "lstm-recollect.memory_rl.sac-changes7",
    "lstm-recollect.memory_rl.sacd-changes12",
    "ff-recollect.memory_rl.sacd-changes13",
)
@pytest.mark.parametrize(("kind", "algorithm", "changes"), VARIANTS)
def test_updates_made_together_are_those_of_each_run_alone(kind: str, algorithm: Any, changes: dict[str, Any]) -> None:
    alone, together = (members_of(kind, algorithm, **changes) for _ in range(2))
    for trainers in (alone, together):
        for number, trainer in enumerate(trainers):
            temperature = getattr(trainer.learner.online, "log_alpha", None)
            if temperature is not None:
                temperature.data.fill_(-number)  # each has learned one of its own
    ensemble = Ensemble(together)
    for _ in range(3):
        ensemble.update()
        for trainer in alone:
            trainer._update()
    for one, other in zip(together, alone, strict=True):
        assert one.at == other.at and one.sums.keys() == other.sums.keys()
        assert difference(one, other, FLOOR) < TOLERANCE


@pytest.mark.quick("lstm-recollect.memory_rl.td3-changes0", "gpt-recollect.memory_rl.sac-changes4")
@pytest.mark.parametrize(
    ("kind", "algorithm", "changes"),
    [
        ("lstm", td3, {}),
        ("gpt", td3, {"sampled_seq_len": 2, "actors": 2, "sequence": {"dropout": 0.1}}),  # its context slides
        ("lstm", td3, {"world": STUMBLE, "actors": 3}),
        ("gpt", td3, {"world": STUMBLE, "sampled_seq_len": 2, "actors": 2, "sequence": {"dropout": 0.1}}),
        ("gpt", sac, {"world": STUMBLE}),
    ],
)
def test_episodes_played_together_are_those_of_each_run_alone(
    kind: str, algorithm: Any, changes: dict[str, Any]
) -> None:
    """But for rounding, which continuous actions carry on."""
    alone, together = (members_of(kind, algorithm, **{**RELEASED, **changes}) for _ in range(2))
    ensemble = Ensemble(together)
    for evaluation_due in (False, True, False):
        for trainer in (*alone, *together):
            trainer.at.updates_due, trainer.at.evaluation_due = 0, evaluation_due
        played = ensemble.play()
        assert played is not None
        for one, other, episodes in zip(together, alone, played, strict=True):
            wanted = own_episodes(other)
            steps = wanted.action_BT.shape[1]
            for name in ("observation_BTD", "action_BT", "reward_BT", "terminal_BT", "length_B", "success_B"):
                found = getattr(episodes, name)
                if name.endswith(("BT", "BTD")):
                    found = found[:, : steps + (name == "observation_BTD")]
                np.testing.assert_allclose(found, getattr(wanted, name), atol=1e-5)
            assert episodes.action_BT.dtype == np.float32
            if not evaluation_due:
                one.keep(episodes)
                other.keep(wanted)
            assert one.at == other.at
            for world in ("world", "evaluation_world"):
                states = getattr(one, world).get_state(), getattr(other, world).get_state()
                assert all(np.allclose(states[0][name], states[1][name], equal_nan=True) for name in states[1])


class Stopped(Exception):
    pass


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        pytest.param("ff", {"world": STUMBLE}, id="ends early"),
        pytest.param("lstm", {**SEPARATE, "world": AIM}, id="turns"),
    ],
)
def test_a_run_goes_on_in_an_ensemble_and_out_of_it(
    kind: str, changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One was begun alone; another leaves the ensemble where it breaks, and ends alone."""
    changes = {**RELEASED, **changes, "train_episodes": 20, "updates_per_step": 0.5}
    settings = [settings_of(seed, kind, td3, **changes) for seed in SEEDS]
    folders = [tmp_path / str(seed) for seed in SEEDS]
    wanted = []
    for one, seed in zip(settings, SEEDS, strict=True):
        wanted.append(td3.train(one, Inputs(), run_of(tmp_path / f"alone_{seed}", seed)).arrays())

    def stop(patch: pytest.MonkeyPatch, run: Any, step: int) -> None:
        log = run.log

        def logged(at: int, **metrics: float) -> None:
            if at >= step:
                raise Stopped
            log(at, **metrics)

        patch.setattr(run, "log", logged)

    with monkeypatch.context() as patch, pytest.raises(Stopped):
        run = run_of(folders[0], SEEDS[0])
        stop(patch, run, 60)
        td3.train(settings[0], Inputs(), run)
    runs, policies = [run_of(folder, seed) for folder, seed in zip(folders, SEEDS, strict=True)], {}

    def finished(place: int, policy: Any) -> None:
        policies[place] = policy.arrays()

    with monkeypatch.context() as patch:
        stop(patch, runs[1], 60)
        failed = td3.train_together(settings, Inputs(), runs, finished)
        assert {place: type(error) for place, error in failed.items()} == {1: Stopped}
    assert runs[0].resumed and sorted(policies) == [0, 2]
    again = run_of(folders[1], SEEDS[1])
    policies[1] = td3.train(settings[1], Inputs(), again).arrays()
    assert again.resumed
    for place, arrays in enumerate(wanted):
        for name, value in arrays.items():
            np.testing.assert_allclose(policies[place][name], value, rtol=1e-3, atol=1e-5)


@pytest.mark.quick("gpt-recollect.memory_rl.td3-changes0")
@pytest.mark.parametrize(
    ("kind", "algorithm", "changes"),
    [
        ("gpt", td3, {**RELEASED, **STILL}),
        ("lstm", td3, {**RELEASED, "world": STUMBLE}),
        ("lstm", td3, {**RELEASED, **SEPARATE}),
        ("lstm", sac, {**RELEASED, "shared_encoder": False}),
        ("gpt", sacd, {**SEPARATE, **STILL}),
        ("lstm", sacd, {**SEPARATE, "target_entropy": 0.5}),
    ],
)
def test_on_a_gpu_an_update_is_one_graph_that_never_waits_and_gives_the_numbers_of_each_run_alone(
    kind: str, algorithm: Any, changes: dict[str, Any], replays: list[Any]
) -> None:
    alone = members_of(kind, algorithm, **changes)
    for _ in range(6):
        for trainer in alone:
            trainer._update()
    with PretendGpu() as gpu:
        together = members_of(kind, algorithm, "cuda", **changes)
        ensemble = Ensemble(together)
        for update in range(6):
            del gpu.waits[:]
            ensemble.update()
            assert update < 4 or not gpu.waits
        assert ensemble.compute.graph is not None and len(replays) == 3
    for one, other in zip(together, alone, strict=True):
        assert difference(one, other, FLOOR) < 1e-5


@pytest.mark.quick("lstm-recollect.memory_rl.td3-changes0", "ff-recollect.memory_rl.sac-changes3")
@pytest.mark.parametrize(
    ("kind", "algorithm", "changes"),
    [
        ("lstm", td3, {}),
        ("lstm", td3, {**SEPARATE, "world": STUMBLE, "actors": 2}),
        ("gpt", td3, {"sampled_seq_len": 2, **STILL}),
        ("ff", sac, {}),
    ],
)
def test_what_is_played_on_a_gpu_is_what_a_cpu_plays(kind: str, algorithm: Any, changes: dict[str, Any]) -> None:
    def played(device: str) -> list[Any]:
        ensemble, found = Ensemble(members_of(kind, algorithm, device, **{**RELEASED, **changes})), []
        for evaluation_due in (False, True, False, True):
            for trainer in ensemble.members:
                trainer.at.updates_due, trainer.at.evaluation_due = 0, evaluation_due
            found += ensemble.play() or pytest.fail("each plays by itself")
        return found

    wanted = played("cpu")
    with PretendGpu():
        here = played("cuda")
    for one, other in zip(here, wanted, strict=True):
        for name in Episodes.__dataclass_fields__:
            np.testing.assert_allclose(getattr(one, name), getattr(other, name), atol=1e-5)


@pytest.mark.slow
def test_robots_that_fall_are_trained_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a budget in steps, so that members come to their updates and ends at different times: each as alone."""
    fake_bullet.install(monkeypatch)
    hopper = {"world": "partial_bullet", "options": {"robot": "hopper", "observation": "velocities", "horizon": 25}}
    changes = {**RELEASED, "world": hopper, "replay_transitions": 400, "warmup_episodes": 2}
    settings = [settings_of(seed, "lstm", td3, **changes) for seed in SEEDS]
    runs, policies = [run_of(tmp_path / str(seed), seed) for seed in SEEDS], {}

    def finished(place: int, policy: Any) -> None:
        policies[place] = policy.arrays()

    assert td3.train_together(settings, Inputs(), runs, finished) == {}
    for place, (of, seed) in enumerate(zip(settings, SEEDS, strict=True)):
        alone = run_of(tmp_path / f"alone_{seed}", seed)
        for name, value in td3.train(of, Inputs(), alone).arrays().items():
            np.testing.assert_allclose(policies[place][name], value, rtol=1e-3, atol=1e-5)
        rows, wanted = runs[place].table(), alone.table()
        assert rows.drop(columns="value").equals(wanted.drop(columns="value"))
        np.testing.assert_allclose(rows["value"], wanted["value"], rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [{"world": STUMBLE}, {**SEPARATE, "world": AIM, "actors": 2}],
)
def test_whole_runs_on_a_gpu_have_the_rows_and_policies_of_a_cpu(changes: dict[str, Any], tmp_path: Path) -> None:
    settings = [settings_of(seed, "lstm", td3, **RELEASED, **changes) for seed in SEEDS]

    def trained(device: str) -> tuple[list[Any], dict[int, dict[str, np.ndarray]]]:
        runs, policies = [run_of(tmp_path / device / str(seed), seed) for seed in SEEDS], {}

        def finished(place: int, policy: Any) -> None:
            policies[place] = policy.arrays()

        assert td3.train_together(settings, Inputs(device=device), runs, finished) == {}
        return [run.table() for run in runs], policies

    tables, policies = trained("cpu")
    with PretendGpu():
        found = trained("cuda")
    for place in range(len(SEEDS)):
        here, there = found[0][place], tables[place]
        assert here.drop(columns="value").equals(there.drop(columns="value"))
        np.testing.assert_allclose(here["value"], there["value"], rtol=1e-3, atol=1e-4)
        for name, value in policies[place].items():
            np.testing.assert_allclose(found[1][place][name], value, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_where_no_graph_can_be_captured_an_update_goes_on_without_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise RuntimeError("out of graphs")

    changes = {**RELEASED, **SEPARATE}
    wanted = members_of("lstm", td3, **changes)
    for _ in range(6):
        for trainer in wanted:
            trainer._update()
    monkeypatch.setattr("recollect.common.cuda_graphs.captured", fails)
    with PretendGpu():
        members = members_of("lstm", td3, "cuda", **changes)
        ensemble = Ensemble(members)
        for _ in range(6):
            ensemble.update()
    said = ["joint updates are made without CUDA graphs, which is slower: out of graphs"]
    assert [record.getMessage() for record in caplog.records] == said
    assert max(difference(*pair, FLOOR) for pair in zip(members, wanted, strict=True)) < 1e-5


@pytest.mark.gpu
@pytest.mark.parametrize(("kind", "algorithm", "changes"), VARIANTS)
def test_on_a_gpu_the_graph_makes_the_updates_of_each_run_alone(
    kind: str, algorithm: Any, changes: dict[str, Any]
) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    changes = {**changes, "sequence": {"dropout": 0.0}, "precision": "float32"}
    alone, together = (members_of(kind, algorithm, "cuda", **changes) for _ in range(2))
    ensemble = Ensemble(together)
    for _ in range(8):
        ensemble.update()
        for trainer in alone:
            trainer._update()
    assert ensemble.compute.graph is not None
    assert max(difference(*pair, FLOOR) for pair in zip(together, alone, strict=True)) < 1e-4
