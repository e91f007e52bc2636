"""Seeds trained together: each run's numbers are those of the run alone, and what befalls one run befalls no other."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fake_bullet
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from recollect.artifacts.cadence import COST
from recollect.artifacts.run import Run
from recollect.common.contract import Inputs, facts_of
from recollect.common.rollout import Episodes, play_episodes
from recollect.common.sequence_models import RecurrentSequence
from recollect.memory_rl import dqn, lstm_over_time, playing_together, sacd, stacked, td3
from recollect.memory_rl.ensemble import Ensemble, stacked_learner
from recollect.memory_rl.off_policy import OffPolicyTrainer
from recollect.memory_rl.playing_together import SideBySide, split_by_member
from recollect.memory_rl.stacked import StackedLSTM
from recollect.settings.errors import UserError
from recollect.settings.resolve import resolve, scale_settings
from recollect.settings.schema import EnvironmentSettings, MethodSettings, Settings
from recollect.stages import packs

SEEDS = (3, 4, 5)
TOLERANCE = 2e-6
"""Of each number, after some updates; what is near zero by the largest of its tensor."""


MAZE = {"world": "tmaze", "options": {"variant": "passive", "length": 4}}
ROOMS = {"world": "visual_match", "options": {"length": 2, "explore_steps": 2, "reward_steps": 2}}


def settings_of(seed: int, kind: str, algorithm: Any = dqn, world: dict[str, Any] = MAZE, **changes: Any) -> Settings:
    content = {
        "sequence": {"kind": kind, "width": 16, **changes.pop("sequence", {})},
        "observation_embedding": 8,
        "action_embedding": 8,
        "head": [16],
        "train_episodes": 4,
        "batch_size": 8,
        "evaluate_every": 2,
        "evaluation_episodes": 2,
        "replay_transitions": 200,
        "replay_episodes": 4,
        "checkpoint_every": 5,
        **changes,
    }
    hp = algorithm.Hyperparameters.model_validate(content)
    name = algorithm.__name__.rpartition(".")[2]
    method = MethodSettings(name="agent", algorithm=name, data="online", hyperparameters=hp)
    environment = EnvironmentSettings(name="world", **world)
    return Settings(scale="smoke", seed=seed, environment=environment, method=method)


def begun(kind: str, algorithm: Any = dqn, device: str = "cpu", **changes: Any) -> list[OffPolicyTrainer]:
    """Runs that have collected their first episodes."""
    trainers = [algorithm.make_trainer(settings_of(seed, kind, algorithm, **changes), device) for seed in SEEDS]
    for trainer in trainers:
        while not trainer.at.updates_due:
            trainer._collect()
    return trainers


def difference(one: OffPolicyTrainer, other: OffPolicyTrainer, floor: float = 1e-3) -> float:
    """The largest difference of two runs' networks, optimisers and sums, relative to each tensor's largest number or the floor.

    But for the biases of a GPT's keys: softmax knows nothing of them, so their gradients are nothing but rounding.
    """
    here, there = (part for part in (one.saved()[0], other.saved()[0]))
    assert here.keys() == there.keys()
    found = 0.0
    for name, value in here.items():
        if name.startswith(("learner", "sums")):
            value, wanted = torch.as_tensor(value).double(), torch.as_tensor(there[name]).double()
            largest = wanted.abs().max().clamp(min=floor)
            if name.endswith("qkv.bias") and value.dim():
                value, wanted = (torch.cat(of.chunk(3)[::2]) for of in (value, wanted))
            found = max(found, float((value - wanted).abs().max() / largest))
    return found


@pytest.mark.quick("gpt-changes0", "lstm-changes2", "gru-changes3", "ff-changes4")
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("gpt", {"sequence": {"dropout": 0.0, "layers": 2, "heads": 2}}),
        ("gpt", {"sequence": {"dropout": 0.1, "heads": 2}}),
        ("lstm", {"sequence": {"layers": 2}, "gradient_clip": 0.01}),
        ("gru", {}),
        ("ff", {"sampled_seq_len": 2}),
        ("lstm", {"algorithm": sacd}),
        ("gpt", {"algorithm": sacd, "world": ROOMS, "shared_encoder": False}),
    ],
)
def test_updates_made_together_are_those_of_each_run_alone(kind: str, changes: dict[str, Any]) -> None:
    alone, together = begun(kind, **changes), begun(kind, **changes)
    ensemble = Ensemble(together)
    for _ in range(3):
        ensemble.update()
        for trainer in alone:
            trainer._update()
    for one, other in zip(together, alone, strict=True):
        assert one.at == other.at
        assert difference(one, other) < TOLERANCE


def test_what_runs_summed_before_goes_into_the_ensemble_that_they_join_and_into_the_next() -> None:
    alone, together = begun("ff"), begun("ff")
    for trainer in (*alone, together[0]):
        trainer._update()
    Ensemble(together[1:]).update()
    Ensemble(together).update()
    for one, other in zip(together, alone, strict=True):
        other._update()
        assert one.at == other.at and difference(one, other) < TOLERANCE


@pytest.mark.parametrize("kind", ["gpt", "lstm"])
def test_a_single_actor_acts_with_the_weights_that_an_ensemble_updates(kind: str) -> None:
    members = begun(kind, learning_rate=0.1)
    member = members[0]
    assert member.alone is not None
    member.play_round(False, 1)  # reads the weights
    Ensemble(members).update()
    first = member.world.reset(options={"reset_mask": np.ones(1, bool)})[0]
    member.alone.begin(None)
    found = member.alone.outputs(member.alone.no_action, 0.0, first[0]).copy()
    member.learner.network.eval()
    member.policy.start(np.zeros(1, np.uint64))
    wanted = member.policy.outputs(first, np.zeros(1, np.float32), np.zeros(1, bool))[0]
    np.testing.assert_allclose(found, wanted.detach().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.quick("gpt-changes1", "lstm-changes2")
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("gpt", {"sequence": {"layers": 2}, "actors": 3, "train_episodes": 2}),  # one episode more than is kept
        ("gpt", {"sequence": {"dropout": 0.5}, "dropout_while_acting": False}),
        ("lstm", {"sequence": {"layers": 2}}),
        ("ff", {"algorithm": sacd}),
    ],
)
def test_episodes_played_together_are_those_of_each_run_alone(kind: str, changes: dict[str, Any]) -> None:
    alone, together = begun(kind, **changes), begun(kind, **changes)
    ensemble = Ensemble(together)
    for evaluation_due in (False, True):
        for trainer in (*alone, *together):
            trainer.at.updates_due, trainer.at.evaluation_due = 0, evaluation_due
        played = ensemble.play()
        assert played is not None
        for one, other, episodes in zip(together, alone, played, strict=True):
            wanted = own_episodes(other)
            for name in ("observation_BTD", "action_BT", "reward_BT", "terminal_BT", "length_B", "success_B"):
                np.testing.assert_array_equal(getattr(episodes, name), getattr(wanted, name))
            assert one.at == other.at
            for world in ("world", "evaluation_world"):
                states = getattr(one, world).get_state(), getattr(other, world).get_state()
                assert all(np.array_equal(states[0][name], states[1][name]) for name in states[1])


def own_episodes(trainer: OffPolicyTrainer) -> Episodes:
    """What a run plays by itself: its next evaluation or round."""
    if not trainer.at.evaluation_due:
        return trainer.play_round(*trainer.next_round())
    trainer.policy.start(np.zeros(trainer.evaluation_world.num_envs, np.uint64))
    return play_episodes(trainer.evaluation_world, lambda o, r, d, t, live: trainer.policy.act(o, r, d))


class Uneven:
    """A world whose instances' episodes last some steps of up to seven; it counts its steps and resets."""

    horizon, num_envs = 7, 2
    single_observation_space = Box(0, 9, (1,), np.float32)

    def __init__(self, seed: int) -> None:
        self.draws, self.calls = np.random.default_rng(seed), 0
        self.left = np.zeros(2, np.int64)
        self.sent: np.ndarray | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any]) -> tuple[np.ndarray, dict[str, Any]]:
        assert self.sent is None or np.array_equal(self.sent, options["reset_mask"])
        self.sent = None
        self.calls += 1
        self.left = np.where(options["reset_mask"], self.draws.integers(1, 8, 2), self.left)
        return self.left[:, None].astype(np.float32), {}

    def send(self, actions: np.ndarray) -> None:
        self.sent = actions

    def send_reset(self, mask_B: np.ndarray) -> None:
        self.sent = mask_B

    def step(self, actions: np.ndarray) -> tuple[Any, ...]:
        assert self.sent is None or np.array_equal(self.sent, actions)
        self.sent = None
        self.calls += 1
        self.left = self.left - 1
        ended = self.left <= 0
        return (
            self.left[:, None].astype(np.float32),
            actions.astype(np.float32),
            ended,
            ended & False,
            {"success": ended},
        )


def test_worlds_side_by_side_are_stepped_and_reset_as_each_alone() -> None:
    def act(observation: np.ndarray, *of: Any) -> np.ndarray:
        return observation[:, 0].astype(np.int64) % 3

    for seed in range(20):
        alone, worlds = [Uneven(seed), Uneven(seed + 100)], [Uneven(seed), Uneven(seed + 100)]
        together = split_by_member(play_episodes(SideBySide(worlds), act), 2)
        for world, other, episodes in zip(worlds, alone, together, strict=True):
            wanted = play_episodes(other, act)
            T = wanted.action_BT.shape[1]
            assert world.calls == other.calls and np.array_equal(world.left, other.left)
            assert np.array_equal(episodes.length_B, wanted.length_B)
            assert np.array_equal(episodes.success_B, wanted.success_B)
            assert np.array_equal(episodes.reward_BT[:, :T], wanted.reward_BT)
            assert np.array_equal(episodes.observation_BTD[:, : T + 1], wanted.observation_BTD)


@pytest.mark.parametrize("kind", ["gpt", "lstm", "ff"])
def test_the_update_asks_for_no_value(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CUDA graph cannot hold an update whose host waits for a number of the device."""

    def asked(*of: Any) -> None:
        raise AssertionError("the host asked for a value")

    ensemble = Ensemble(begun(kind))
    ensemble.update()
    with monkeypatch.context() as patch:
        for name in ("item", "tolist", "cpu", "nonzero", "__bool__", "__int__", "__float__", "__index__"):
            patch.setattr(torch.Tensor, name, asked)
        ensemble._compute()


def test_a_gpus_one_stream_of_dropout_begins_elsewhere_at_each_update_and_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def seeds(members: list[OffPolicyTrainer]) -> list[int]:
        begun_with: list[int] = []
        monkeypatch.setattr(torch.cuda, "manual_seed", begun_with.append)
        ensemble = Ensemble(members)
        ensemble.device = torch.device("cuda")  # nothing is computed there
        for purpose in ("dropout", "dropout while acting"):
            for counters in ([1, 1, 1], [1, 2, 1], [2, 1, 1]):
                ensemble._reseed(purpose, counters[: len(members)])
        return begun_with

    members = begun("ff")
    all_of_them = seeds(members)
    assert len(set(all_of_them)) == 6 and seeds(members) == all_of_them
    assert not set(seeds(members[1:])) & set(all_of_them)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["gpt", "lstm", "ff"])
def test_on_a_gpu_the_graph_makes_the_updates_of_each_run_alone(kind: str) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    changes = {"sequence": {"dropout": 0.0}, "precision": "float32", "device": "cuda"}
    alone, together = begun(kind, **changes), begun(kind, **changes)
    ensemble = Ensemble(together)
    for _ in range(8):
        ensemble.update()
        for trainer in alone:
            trainer._update()
    assert ensemble.compute.graph is not None
    assert max(difference(*pair) for pair in zip(together, alone, strict=True)) < 1e-4


@pytest.mark.gpu
def test_on_a_gpu_a_captured_ensemble_has_the_losses_of_cudnn_with_the_kernels_of_many_lstms(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    maze = {"world": "tmaze", "options": {"variant": "passive", "length": 40}}
    ensembles = []
    for few in (5, 0):  # of cuDNN, of the kernels
        monkeypatch.setattr(stacked, "FEW_LSTMS", few)
        ensembles.append(Ensemble(begun("lstm", device="cuda", world=maze)))
        for _ in range(8):
            ensembles[-1].update()
        assert ensembles[-1].compute.graph is not None
    kernels = lstm_over_time._kernels(16)
    assert kernels is not None and lstm_over_time.fastest(torch.device("cuda"), 16, False) is kernels
    for name, total_S in ensembles[0].sums.items():
        torch.testing.assert_close(ensembles[1].sums[name], total_S, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_the_paper_scale_lists_what_can_be_trained_together(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_bullet.install(monkeypatch)
    seeds_of = packs._seeds("paper")
    learners = {"dqn": dqn.DQN, "sacd": sacd.SACD, "td3": td3.TD3}
    for name in scale_settings("paper").ensembles:
        env = next(env for env, method in seeds_of if method == name)
        settings = resolve("paper", env, name, 0)
        learner = learners.get(settings.method.algorithm)
        if learner is None:  # HELM's, see test_together
            continue
        facts = facts_of(settings.environment)
        members = [learner(settings.method.hyperparameters, facts, seed=seed, device="cpu") for seed in (0, 1)]
        assert stacked_learner(members).mean is not members[0].mean


@pytest.mark.parametrize("way", ["one_after_the_other", "at_once"])
def test_a_stacked_lstm_has_the_states_and_gradients_of_each_lstm(way: str) -> None:
    draws = torch.Generator().manual_seed(0)
    members = [RecurrentSequence("lstm", 3, 5, 2, init="uniform", generator=draws) for _ in range(2)]
    x_RTD = torch.randn(2 * 4, 6, 3, generator=draws)
    weight_RTH = torch.randn(2 * 4, 6, 5, generator=draws)
    alone = torch.cat([member(part) for member, part in zip(members, x_RTD.chunk(2), strict=True)])
    (alone * weight_RTH).sum().backward()
    wanted = [{name: own.grad.clone() for name, own in member.cells.named_parameters()} for member in members]
    whole = StackedLSTM(members)
    together = whole.at_once(x_RTD) if way == "at_once" else whole.run(x_RTD)[0]
    (together * weight_RTH).sum().backward()
    torch.testing.assert_close(together, alone)
    for place, gradients in enumerate(wanted):
        for name, gradient in gradients.items():
            torch.testing.assert_close(whole.cells[name].grad[place], gradient)


def run_of(folder: Path, seed: int, clock: Callable[[], float] = lambda: 0.0) -> Run:
    labels: dict[str, Any] = {"env": "maze", "method": "agent", "seed": seed}
    return Run(folder, folder / "checkpoints", settings_text=f"seed {seed}", clock=clock, **labels)


class Together:
    """Runs in folders of their own that are trained together, and how it went."""

    def __init__(self, folder: Path, seeds: tuple[int, ...] = SEEDS, **changes: Any) -> None:
        self.folders = [folder / str(seed) for seed in seeds]
        self.runs = [run_of(part, seed) for part, seed in zip(self.folders, seeds, strict=True)]
        self.settings = [settings_of(seed, "ff", **changes) for seed in seeds]
        self.policies: dict[int, dict[str, np.ndarray]] = {}
        self.device = "cpu"

    def train(self) -> dict[int, Exception]:
        def finished(place: int, policy: Any) -> None:
            self.policies[place] = policy.arrays()

        return dqn.train_together(self.settings, Inputs(device=self.device), self.runs, finished)


def alone(folder: Path, seed: int) -> tuple[dict[str, np.ndarray], Run]:
    run = run_of(folder, seed)
    return dqn.train(settings_of(seed, "ff"), Inputs(), run).arrays(), run


def assert_near(some: dict[str, np.ndarray], others: dict[str, np.ndarray]) -> None:
    for name, value in others.items():
        np.testing.assert_allclose(some[name], value, rtol=1e-4, atol=1e-6)


def test_whole_runs_have_the_rows_and_the_policies_of_the_runs_alone(tmp_path: Path) -> None:
    together = Together(tmp_path / "together")
    assert together.train() == {}
    for place, seed in enumerate(SEEDS):
        arrays, run = alone(tmp_path / "alone" / str(seed), seed)
        assert_near(together.policies[place], arrays)
        rows, wanted = together.runs[place].table(), run.table()
        assert rows.drop(columns="value").equals(wanted.drop(columns="value"))
        np.testing.assert_allclose(rows["value"], wanted["value"], rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_seeds_whose_worlds_other_processes_play_see_and_learn_the_same(
    tmp_path: Path, in_other_processes: Callable[[str], None]
) -> None:
    wanted, found = Together(tmp_path / "here"), Together(tmp_path / "there")
    assert wanted.train() == {}
    in_other_processes("tmaze")
    assert found.train() == {}
    for place in range(len(SEEDS)):
        assert all(np.array_equal(array, wanted.policies[place][name]) for name, array in found.policies[place].items())
        assert found.runs[place].table().equals(wanted.runs[place].table())


class Stopped(Exception):
    pass


def stop_at(run: Run, monkeypatch: pytest.MonkeyPatch, step: int, error: type[Exception] = Stopped) -> None:
    """Let the run break at its first row from a step on."""
    log = run.log

    def logged(at: int, **metrics: float) -> None:
        if at >= step:
            raise error("here")
        log(at, **metrics)

    monkeypatch.setattr(run, "log", logged)


def test_a_run_that_was_begun_alone_goes_on_in_an_ensemble_and_the_other_way_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So members are at different places, and end at different times."""
    wanted = [alone(tmp_path / "alone" / str(seed), seed)[0] for seed in SEEDS]
    together = Together(tmp_path / "together")
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        run = run_of(together.folders[0], SEEDS[0])
        stop_at(run, patch, 60)
        dqn.train(together.settings[0], Inputs(), run)
    with monkeypatch.context() as patch:
        stop_at(together.runs[1], patch, 60)
        assert {place: type(error) for place, error in together.train().items()} == {1: Stopped}
    assert together.runs[0].resumed and sorted(together.policies) == [0, 2]
    arrays, run = alone(together.folders[1], SEEDS[1])
    assert run.resumed
    for some, others in zip([together.policies[0], arrays, together.policies[2]], wanted, strict=True):
        assert_near(some, others)


@pytest.mark.slow
def test_a_damaged_checkpoint_costs_its_own_run_some_steps_and_the_others_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = Together(tmp_path / "whole")
    wanted.train()
    stopped = Together(tmp_path / "together")
    with monkeypatch.context() as patch:
        for run in stopped.runs:
            stop_at(run, patch, 60)
        assert len(stopped.train()) == len(SEEDS)
    newest = max((stopped.folders[1] / "checkpoints").glob("step_*.safetensors"))
    newest.write_bytes(newest.read_bytes()[:-100])
    again = Together(tmp_path / "together")
    assert again.train() == {}
    assert all(run.resumed for run in again.runs)
    for place in range(len(SEEDS)):
        assert_near(again.policies[place], wanted.policies[place])


@pytest.mark.slow
def test_where_the_world_of_one_breaks_in_a_joint_round_that_run_alone_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    together = Together(tmp_path / "together")
    played = playing_together.round_of

    def broken(policy: Any, members: Any) -> list[Episodes]:
        for member in members:
            if member.seed == SEEDS[1] and member.at.rounds == 11:

                def step(actions: np.ndarray) -> Any:
                    raise UserError("the world breaks", where="here", do="mend it")

                member.world.step = step
        return played(policy, members)

    monkeypatch.setattr(playing_together, "round_of", broken)
    with caplog.at_level(logging.WARNING, "recollect"):
        assert {place: str(error) for place, error in together.train().items()}.keys() == {1}
    assert not caplog.messages  # what fails is that run's own
    for place in (0, 2):
        assert_near(together.policies[place], alone(tmp_path / "alone" / str(place), SEEDS[place])[0])


@pytest.mark.slow
def test_where_runs_cannot_be_played_together_each_plays_by_itself_from_then_on_and_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried: list[int] = []
    counts: list[Any] = []

    def broken(policy: Any, members: Any) -> list[Episodes]:
        tried.append(members[0].at.rounds)
        members[0].world.reset(options={"reset_mask": np.ones(1, bool)})  # what was begun leaves no trace
        members[0].at.explored += 3
        counts.append(members[0].at)
        raise RuntimeError("no room for all")

    monkeypatch.setattr(playing_together, "round_of", broken)
    together = Together(tmp_path / "together")
    with caplog.at_level(logging.WARNING, "recollect"):
        assert together.train() == {}
    assert len(tried) == 1 and counts[0].explored == 4 * 5  # of its episodes after the warm-up
    (said,) = caplog.messages
    assert said == "seeds play one after the other from now on, which is slower: RuntimeError: no room for all"
    for place, seed in enumerate(SEEDS):
        assert_near(together.policies[place], alone(tmp_path / "alone" / str(seed), seed)[0])


@pytest.mark.quick("0")
@pytest.mark.parametrize("due", [0, 1])
def test_a_resumed_ensemble_plays_together_what_a_whole_one_plays_together(
    due: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU they draw other numbers together than alone."""
    calls: list[tuple[int, int]] = []
    advance = OffPolicyTrainer.advance

    def advanced(trainer: OffPolicyTrainer, run: Run) -> None:
        if not trainer.next_round()[0]:
            calls.append((trainer.seed, trainer.at.rounds))
        advance(trainer, run)

    monkeypatch.setattr(OffPolicyTrainer, "advance", advanced)
    stopped = Together(tmp_path)
    with monkeypatch.context() as patch:
        saved, update = Run.due, Ensemble.update

        def updated(ensemble: Ensemble) -> None:
            update(ensemble)
            patch.setattr(
                Run,
                "due",
                lambda run, step, every: ensemble.members[0].at.updates_due == due or saved(run, step, every),
            )
            if ensemble.members[0].at.updates > 6 and ensemble.members[0].at.updates_due == due:
                patch.setattr(Ensemble, "update", lambda ensemble: (_ for _ in ()).throw(Stopped("here")))

        patch.setattr(Ensemble, "update", updated)
        with pytest.raises(Stopped):
            stopped.train()
    again = Together(tmp_path)
    assert again.train() == {} and all(run.resumed for run in again.runs)
    assert calls == []


@pytest.mark.slow
def test_saves_of_many_runs_take_no_more_of_the_time_than_those_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An update takes four seconds, and a run's save two: those of all three take six, a twentieth of the time between them."""
    now, update = [0.0], Ensemble.update

    def updated(ensemble: Ensemble) -> None:
        now[0] += 4.0
        update(ensemble)

    def saved(run: Run, step: int, *of: Any, began: float) -> None:
        now[0] += 2.0
        run._cadence.saved(began)
        if run is together.runs[0]:
            starts.append(now[0] - 2.0)

    starts: list[float] = []
    monkeypatch.setattr(Ensemble, "update", updated)
    monkeypatch.setattr(Run, "save", saved)
    together = Together(tmp_path, train_episodes=150, checkpoint_every=10**6)
    together.runs = [run_of(part, 0, lambda: now[0]) for part in together.folders]
    assert together.train() == {}
    assert len(starts) > 3 and np.diff(starts[1:]).min() >= 6 * COST


def test_what_cannot_be_trained_together_is_said() -> None:
    with pytest.raises(UserError, match="the weights of a Positions"):
        Ensemble(begun("gpt", sequence={"positions": "learned"}))
