"""DQN on histories: the loss is the formula, the schedule is upstream's, a stopped run goes on exactly, it learns."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from odd_clock import ends_the_same
from playing import play

from recollect.artifacts.checkpoints import part
from recollect.artifacts.finite import check_arrays
from recollect.artifacts.run import Run
from recollect.common.contract import Inputs, facts_of
from recollect.common.learning_curve import make_worlds
from recollect.common.rollout import Episodes
from recollect.memory_rl import dqn
from recollect.memory_rl.dqn import DQN, Hyperparameters, epsilon, loss_of, make_network, make_trainer
from recollect.memory_rl.replay import Batch
from recollect.settings.errors import UserError
from recollect.settings.schema import EnvironmentSettings, MethodSettings, Settings
from recollect.settings.seeding import generator

ONE_ROW = np.zeros(1, np.uint64)


def small(kind: str = "gpt", **changes: Any) -> Hyperparameters:
    """A network of a few hundred parameters, on the paper's schedule unless changed."""
    content: dict[str, Any] = {
        "sequence": {"kind": kind, "width": 8, **changes.pop("sequence", {})},
        "observation_embedding": 4,
        "action_embedding": 4,
        "head": [8],
        "train_episodes": 6,
        "batch_size": 4,
        "evaluation_episodes": 3,
        "replay_transitions": 200,
        "replay_episodes": 4,
        **changes,
    }
    return Hyperparameters.model_validate(content)


def settings_of(hp: Hyperparameters, length: int = 4, seed: int = 0, variant: str = "passive") -> Settings:
    environment = EnvironmentSettings(name="maze", world="tmaze", options={"variant": variant, "length": length})
    method = MethodSettings(name="agent", algorithm="dqn", data="online", hyperparameters=hp)
    return Settings(scale="smoke", seed=seed, environment=environment, method=method)


def run_in(folder: Path, **more: Any) -> Run:
    return Run(folder, folder / "checkpoints", **{"settings_text": "same", **more})


def random_batch(seed: int = 0, n: int = 5, windows: int = 3) -> Batch:
    draws = np.random.default_rng(seed)
    lengths = draws.integers(1, n + 1, windows)
    mask = np.arange(n) < lengths[:, None]
    return Batch(
        torch.as_tensor(draws.normal(size=(windows, n + 1, 2)).astype(np.float32)),
        torch.as_tensor(draws.integers(4, size=(windows, n))),
        torch.as_tensor(draws.normal(size=(windows, n)).astype(np.float32)),
        torch.as_tensor((draws.random((windows, n)) < 0.3).astype(np.float32)),
        torch.as_tensor(mask.astype(np.float32)),
    )


def two_networks(hp: Hyperparameters) -> tuple[Any, Any]:
    facts = facts_of(settings_of(hp).environment)
    return make_network(hp, facts, seed=0), make_network(hp, facts, seed=1)


# ---- the loss


@pytest.mark.parametrize("kind", ["gpt", "lstm", "gru", "rnn", "ff"])
@pytest.mark.parametrize("passes", ["when_exact", "never"])
def test_the_loss_is_a_plain_loop_over_the_formula(kind: str, passes: str) -> None:
    hp = small(
        kind, sequence={"dropout": 0.0}, discount=0.9, merged_passes=passes, reward_embedding=3, action_embedding=1
    )
    online, target = two_networks(hp)
    with torch.no_grad():  # Q values that differ from each other, so that a wrong index shows
        for network in (online, target):
            network.head.last.weight.mul_(300)
    batch = random_batch()
    total, count = 0.0, 0.0
    for b in range(3):
        for k in range(1, 6):  # transition k: from token k - 1 to token k
            if not batch.mask_BT[b, k - 1]:
                continue
            history = []
            for j in range(k + 1):
                none_yet = j == 0
                action = 4 if none_yet else int(batch.action_BT[b, j - 1])
                reward = 0.0 if none_yet else float(batch.reward_BT[b, j - 1])
                history.append((action, reward, batch.observation_BTD[b, j]))

            def q(network: Any, tokens: list[Any]) -> torch.Tensor:
                actions, rewards, observations = zip(*tokens, strict=True)
                whole = network(torch.tensor([actions]), torch.tensor([rewards]), torch.stack(observations)[None])
                return whole[0, -1].detach()

            best = int(q(online, history).argmax())
            y = float(batch.reward_BT[b, k - 1])
            if not batch.terminal_BT[b, k - 1]:
                y += 0.9 * float(q(target, history)[best])
            total += (float(q(online, history[:-1])[int(batch.action_BT[b, k - 1])]) - y) ** 2
            count += 1
    loss, _ = loss_of(online, target, batch, hp)
    assert count < 15  # the masks take part
    assert float(loss.detach()) == pytest.approx(total / count, rel=1e-4)


@pytest.mark.parametrize("kind", ["gpt", "lstm"])
def test_merged_passes_give_the_same_gradient_where_nothing_is_dropped_out(kind: str) -> None:
    batch, gradients = random_batch(), []
    for passes in ("never", "always"):
        hp = small(kind, sequence={"dropout": 0.0}, merged_passes=passes)
        online, target = two_networks(hp)
        loss_of(online, target, batch, hp)[0].backward()
        assert all(p.grad is None for p in target.parameters())
        gradients.append(torch.cat([p.grad.flatten() for p in online.parameters()]))
    torch.testing.assert_close(gradients[0], gradients[1], atol=1e-6, rtol=1e-4)
    assert float(gradients[0].abs().max()) > 1e-3


def test_passes_are_merged_only_where_that_is_exact_unless_asked_for() -> None:
    assert not small("gpt").merges
    assert small("gpt", sequence={"dropout": 0.0}).merges
    assert small("lstm").merges
    assert small("gpt", merged_passes="always").merges
    assert not small("lstm", merged_passes="never").merges


def test_a_step_is_adam_on_the_loss_and_a_polyak_move_of_the_whole_target() -> None:
    hp = small("lstm", polyak=0.25, learning_rate=0.01)
    learner = DQN(hp, facts_of(settings_of(hp).environment), seed=0, device="cpu")
    reference = make_network(hp, facts_of(settings_of(hp).environment), seed=0)
    before = {name: value.clone() for name, value in reference.state_dict().items()}
    batch = random_batch()
    loss_of(reference, learner.target, batch, hp)[0].backward()
    learner.step(batch, 0)
    targets = learner.target.state_dict()
    for name, parameter in reference.named_parameters():
        gradient = parameter.grad
        assert gradient is not None
        moved = before[name] - 0.01 * gradient / (gradient.abs() + 1e-8)  # Adam's first step
        now = learner.network.state_dict()[name]
        torch.testing.assert_close(now, moved, atol=2e-5, rtol=1e-3)
        torch.testing.assert_close(targets[name], before[name] + 0.25 * (now - before[name]), atol=1e-6, rtol=1e-5)
        assert name.startswith("encoder") or not torch.equal(targets[name], before[name])


def test_a_gradient_is_clipped_to_its_norm_only_where_that_is_asked_for() -> None:
    norms = []
    for clip in (None, 1e3, 0.01):
        hp = small("lstm", gradient_clip=clip)
        learner = DQN(hp, facts_of(settings_of(hp).environment), seed=0, device="cpu")
        logged = float(learner.step(random_batch(), 0)["gradient_norm"])
        norms.append(float(torch.linalg.vector_norm(torch.cat([g.flatten() for g in learner.optimiser.gradients()]))))
        assert logged == pytest.approx(norms[0], rel=1e-5)  # the norm before clipping
    assert norms[0] > 0.1 and norms[1] == pytest.approx(norms[0]) and norms[2] == pytest.approx(0.01, rel=1e-3)


# ---- the schedule


def test_epsilon_falls_linearly_to_one_over_the_horizon() -> None:
    hp = small(train_episodes=100)
    T, N = 5, 0.1 * 100 * 5
    assert epsilon(hp, T, 0) == 1.0
    assert epsilon(hp, T, 20) == pytest.approx(1 + (1 / T - 1) * 20 / N)
    assert epsilon(hp, T, np.array([50, 5000])).tolist() == pytest.approx([1 / T, 1 / T])


@pytest.mark.parametrize(("length", "variant"), [(4, "passive"), (6, "active")])
def test_with_one_actor_the_schedule_is_upstreams_to_the_count(length: int, variant: str, tmp_path: Path) -> None:
    hp = small("ff", train_episodes=25)
    trainer = make_trainer(settings_of(hp, length, variant=variant))
    T = length + 1 if variant == "passive" else length + 3
    run, seen, evaluated, updated = run_in(tmp_path), {}, [], []
    while not trainer.done:
        before = trainer.at.evaluations
        trainer.advance(run)
        at = trainer.at
        if at.evaluations > before:
            evaluated.append(at.episodes)
            updated.append(at.updates)
        if not at.updates_due:
            seen[at.episodes] = at.updates
            assert at.env_steps == at.episodes * T
            assert at.explored == max(0, at.episodes - 10) * T  # the warm-up does not count
    for k in range(26):
        assert seen[10 + k] == math.floor(2.5 * T) + k * math.ceil(T / 4)
    assert evaluated == [20, 30] and updated == [seen[20], seen[30]]  # behind the updates of their round
    assert trainer.at.updates == trainer.planned_updates


@pytest.mark.slow
@pytest.mark.parametrize("together", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_where_episodes_end_early_progress_still_ends_at_all_of_its_updates(
    together: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hp = small("lstm", train_episodes=12)
    environment = EnvironmentSettings(name="gym.CartPole-v1", world="gymnasium", options={"id": "CartPole-v1"})
    method = MethodSettings(name="agent", algorithm="dqn", data="online", hyperparameters=hp)
    of_seeds = [Settings(scale="smoke", seed=seed, environment=environment, method=method) for seed in range(2)]
    runs = [run_in(tmp_path / str(seed)) for seed in range(2)]
    if together:
        dqn.train_together(of_seeds, Inputs(), runs, lambda place, policy: None)
    else:
        dqn.train(of_seeds[0], Inputs(), runs[0])
    *_, last = (line for line in capsys.readouterr().err.splitlines() if line.startswith("training"))
    done, total = last.split(" updates")[0].split(": ")[-1].split("/")
    assert done == total and "(100%)" in last and "took" in last
    assert int(total) < make_trainer(of_seeds[0]).planned_updates


@pytest.mark.parametrize("actors", [3, 8])
def test_several_actors_keep_the_updates_per_step_and_share_one_exploration_schedule(
    actors: int, tmp_path: Path
) -> None:
    hp = small("ff", actors=actors, train_episodes=20, warmup_episodes=4)
    trainer = make_trainer(settings_of(hp))
    counts: list[np.ndarray] = []
    explore = trainer.learner.explore
    trainer.learner.explore = lambda q, c, draws: (counts.append(c), explore(q, c, draws))[1]  # type: ignore[method-assign, func-returns-value]
    trainer.train(run_in(tmp_path))
    assert trainer.at.episodes == 24 and len(trainer.replay.arrays()["length"]) == 24
    assert trainer.at.updates == trainer.planned_updates
    assert abs(trainer.at.updates - 0.25 * trainer.at.env_steps) <= 1 + 20 / actors
    full = 20 // actors * 5
    np.testing.assert_array_equal(np.concatenate(counts[:full]), np.arange(full * actors))
    assert trainer.at.explored == 20 * 5


@pytest.mark.parametrize("actors", [1, 3])
def test_where_episodes_end_early_exploration_falls_by_the_steps_that_were_played(actors: int) -> None:
    hp = small("lstm", actors=actors, warmup_episodes=3)
    environment = EnvironmentSettings(name="gym.CartPole-v1", world="gymnasium", options={"id": "CartPole-v1"})
    trainer = make_trainer(settings_of(hp).model_copy(update={"environment": environment}))
    while trainer.at.episodes < 3:
        trainer._collect()
    warm_up = trainer.at.env_steps
    for _ in range(2):
        trainer._collect()
    assert 0 < trainer.at.explored == trainer.at.env_steps - warm_up < trainer.horizon


def test_runs_of_two_seeds_play_and_are_judged_in_episodes_of_their_own() -> None:
    begun = []
    for seed in (0, 1):
        trainer = make_trainer(settings_of(small("ff", actors=64, evaluation_episodes=64), seed=seed))
        for world in (trainer.world, trainer.evaluation_world):
            begun.append(world.reset(options={"reset_mask": np.ones(64, bool)})[0].tobytes())
    assert len(set(begun)) == 4


def test_what_is_stored_is_what_was_played() -> None:
    hp = small("gpt", actors=4)
    trainer = make_trainer(settings_of(hp, length=3))
    trainer.at.episodes = hp.warmup_episodes
    trainer._collect()
    batch = trainer.replay.sample(16, 4, seed=0, counter=0)
    for row in range(16):
        x, y, goal = 0, 0, float(batch.observation_BTD[row, 0, 1])
        for t in range(4):
            dx, dy = [(1, 0), (0, 1), (-1, 0), (0, -1)][int(batch.action_BT[row, t])]
            x = min(3, max(0, x + dx * (y == 0)))
            y = min(1, max(-1, y + dy * (x == 3 and not dx)))
            expected = float(y == goal) if t == 3 else (-1 / 3 if x < t + 1 else 0.0)
            assert float(batch.reward_BT[row, t]) == pytest.approx(expected)
            assert batch.observation_BTD[row, t + 1].tolist() == [float(x == 3), float(y)]
        assert batch.terminal_BT[row].tolist() == [0, 0, 0, 1]


# ---- acting


@pytest.mark.parametrize("kind", ["gpt", "lstm", "ff"])
def test_the_policy_takes_the_best_action_of_the_whole_history_with_dropout_off(kind: str) -> None:
    hp = small(kind, sequence={"dropout": 0.5})
    trainer = make_trainer(settings_of(hp))
    policy, network = trainer.policy, trainer.learner.network
    batch = random_batch(n=4, windows=2)
    network.train()  # as a round of training leaves it
    policy.start(np.zeros(2, np.uint64), 5, 1)
    taken = []
    with torch.no_grad():
        for t in range(4):
            reward = batch.reward_BT[:, t - 1].numpy() if t else np.ones(2, np.float32)
            done = np.array([False, t == 2])  # the second row's episode ends, and a new one begins
            taken.append(policy.act(batch.observation_BTD[:, t].numpy(), reward, done))
            assert not network.training
            for row, first in ((0, 0), (1, 2 if t >= 2 else 0)):
                actions = torch.tensor([[4, *[int(a[row]) for a in taken[first:-1]]]])
                rewards = torch.cat([torch.zeros(1), batch.reward_BT[row, first:t]])[None]
                q = network.eval()(actions, rewards, batch.observation_BTD[row, first : t + 1][None])[0, -1]
                assert int(q.argmax()) == taken[-1][row]


def test_a_single_actor_drops_out_only_where_that_is_asked_for() -> None:
    sharp = {"sequence": {"dropout": 0.5}, "epsilon_start": 0.0, "epsilon_end": 0.0, "head": [8]}
    for dropout in (True, False):
        trainer = make_trainer(settings_of(small("gpt", dropout_while_acting=dropout, **sharp)))
        assert trainer.alone is not None
        found: dict[float, set[bytes]] = {}
        for trainer.at.rounds in range(40):
            episodes = trainer.play_round(warming=False, count=1)
            found.setdefault(float(episodes.observation_BTD[0, 0, 1]), set()).add(episodes.action_BT.tobytes())
        assert len(found) == 2 and all((len(ways) > 1) == dropout for ways in found.values())


def test_dropout_while_acting_is_a_switch() -> None:
    sharp = {"sequence": {"dropout": 0.5}, "epsilon_start": 0.0, "epsilon_end": 0.0, "actors": 32}
    found = []
    for dropout in (True, False):
        trainer = make_trainer(settings_of(small("gpt", dropout_while_acting=dropout, **sharp)))
        trainer.play_round(warming=False, count=32)
        found.append(trainer.learner.network.training)
        episodes = trainer.play_round(warming=False, count=32)
        same_side = episodes.observation_BTD[:, 0, 1] == 1
        actions = episodes.action_BT[same_side]
        assert (len(np.unique(actions, axis=0)) > 1) == dropout
    assert found == [True, False]


def test_evaluation_is_deterministic_and_leaves_training_alone(tmp_path: Path) -> None:
    rare, often = (
        small("gpt", sequence={"dropout": 0.3}, train_episodes=12, evaluate_every=every) for every in (10**6, 2)
    )
    policies = [
        make_trainer(settings_of(hp)).train(run_in(tmp_path / str(i))).arrays() for i, hp in enumerate((rare, often))
    ]
    for name, value in policies[0].items():
        assert value.tobytes() == policies[1][name].tobytes()


def test_the_warm_up_takes_every_action_equally_often() -> None:
    trainer = make_trainer(settings_of(small("ff", actors=400)))
    counts = np.bincount(trainer.play_round(warming=True, count=400).action_BT.ravel(), minlength=4)
    assert np.abs(counts - 500).max() < 5 * math.sqrt(500)


# ---- resuming


class Stopped(Exception):
    pass


CASES = [
    ("gpt", {"sequence": {"dropout": 0.1}, "evaluate_every": 3}, [3, 11, 17, 22]),
    ("lstm", {"actors": 3, "evaluate_every": 3, "sampled_seq_len": 3}, [1, 14, 17]),
    ("gpt", {"actors": 2, "sampled_seq_len": 2, "replay_transitions": 30, "replay_episodes": 1}, [13, 16]),
]


@pytest.mark.quick("lstm-changes1-stops1")
@pytest.mark.parametrize(("kind", "changes", "stops"), CASES)
def test_a_stopped_run_goes_on_bit_exactly(kind: str, changes: Any, stops: list[int], tmp_path: Path) -> None:
    hp = small(kind, **changes)
    straight = run_in(tmp_path / "straight")
    expected = dqn.train(settings_of(hp), Inputs(), straight).arrays()
    planned = make_trainer(settings_of(hp)).planned_updates
    for stop in stops:
        assert stop < planned
        folder = tmp_path / f"stopped_{stop}"
        first = make_trainer(settings_of(hp))
        run = run_in(folder)
        while first.at.updates < stop:
            first.advance(run)
        run.save(first.at.updates, *first.saved())
        for _ in range(5):  # work that is lost
            if not first.done:
                first.advance(run)
        again = run_in(folder)
        policy = dqn.train(settings_of(hp), Inputs(), again)
        assert again.resumed
        for name, value in expected.items():
            assert policy.arrays()[name].tobytes() == value.tobytes(), (stop, name)
        pd.testing.assert_frame_equal(again.table(), straight.table())


def test_what_was_loaded_is_all_that_was_saved(tmp_path: Path) -> None:
    hp = small("lstm", train_episodes=20)
    first, again = (make_trainer(settings_of(hp)) for _ in range(2))
    while first.at.evaluations < 1 or first.at.logged_updates < 3:
        first.advance(run_in(tmp_path))
    arrays, state = first.saved()
    again.load({name: np.asarray(value).copy() for name, value in arrays.items()}, state)
    found, of = again.saved()
    assert of == state and found.keys() == arrays.keys()
    for name, value in arrays.items():
        assert np.asarray(found[name]).tobytes() == np.asarray(value).tobytes(), name


@pytest.mark.parametrize(
    ("steps", "episodes", "run", "rows"), [(200, 4, 1000, 200), (10, 40, 1000, 200), (10**6, 1000, 6, (10 + 6) * 6)]
)
def test_a_replay_has_room_for_the_larger_of_both_sizes_but_for_no_more_than_the_run(
    steps: int, episodes: int, run: int, rows: int
) -> None:
    hp = small("ff", replay_transitions=steps, replay_episodes=episodes, train_episodes=run)
    assert make_trainer(settings_of(hp)).replay.capacity == rows


def test_checkpoints_are_made_on_the_way_and_used(tmp_path: Path) -> None:
    hp = small("lstm", checkpoint_every=5)
    dqn.train(settings_of(hp), Inputs(), run_in(tmp_path))
    found = run_in(tmp_path).resume()
    assert found is not None and found.step % 5 == 0
    trainer = make_trainer(settings_of(hp))
    trainer.load(found.arrays, found.state)
    assert trainer.at.updates == found.step and len(found.arrays["replay/length"]) == trainer.at.episodes


# ---- the policy file and learning


def test_a_policy_is_loaded_from_its_arrays_and_one_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    hp = small("gpt")
    policy = dqn.train(settings_of(hp), Inputs(), run_in(tmp_path))
    again = dqn.load_policy(settings_of(hp), policy.arrays(), Inputs())
    observation = generator("observations", 0).normal(size=(6, 2)).astype(np.float32)
    for each in (policy, again):
        each.start(np.zeros(6, np.uint64), 5, 1)
    zeros, no = np.zeros(6, np.float32), np.zeros(6, bool)
    np.testing.assert_array_equal(policy.act(observation, zeros, no), again.act(observation, zeros, no))
    with pytest.raises(UserError, match="does not fit"):
        dqn.load_policy(settings_of(small("lstm")), policy.arrays(), Inputs())
    with pytest.raises(UserError, match=r"expected \(4, 3\)"):
        wider = settings_of(hp).environment.model_copy(update={"options": {"length": 4, "expose_timestep": True}})
        dqn.load_policy(settings_of(hp).model_copy(update={"environment": wider}), policy.arrays(), Inputs())


def test_the_learning_curve_has_a_row_per_evaluation_episode(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    dqn.train(settings_of(small("ff", train_episodes=20)), Inputs(), run)
    curve = run.table().query("split == 'learning' and metric == 'return'")
    assert curve["step"].tolist() == [100] * 3 + [150] * 3
    assert curve["episode"].tolist() == [0, 1, 2] * 2
    assert set(zip(curve["env"], curve["method"], curve["seed"], strict=True)) == {("maze", "agent", 0)}
    train = run.table().query("split == 'train'")
    assert {"critic_loss", "q", "gradient_norm", "evaluation_return"} <= set(train["metric"])


def test_an_evaluation_is_logged_as_the_mean_of_its_returns(tmp_path: Path) -> None:
    trainer, run = make_trainer(settings_of(small("ff"))), run_in(tmp_path)
    zero = np.zeros((3, 2), np.int64)
    rewards = np.array([[1, 0], [2, 3], [0, 0]], np.float32)
    trainer.judge(run, Episodes(np.zeros((3, 3, 2)), zero, rewards, zero, np.full(3, 2), np.full(3, np.nan)))
    assert run.table().query("metric == 'evaluation_return'")["value"].tolist() == [2.0]


def test_a_row_has_the_means_of_the_updates_since_the_row_before(tmp_path: Path) -> None:
    trainer, run = make_trainer(settings_of(small("ff", train_episodes=30))), run_in(tmp_path)
    step, losses, wanted = trainer.learner.step, [], []  # type: ignore[var-annotated]

    def kept(batch: Batch, counter: int) -> dict[str, torch.Tensor]:
        metrics = step(batch, counter)
        losses.append(float(metrics["critic_loss"]))
        return metrics

    trainer.learner.step = kept  # type: ignore[method-assign]
    while not trainer.done:
        evaluations = trainer.at.evaluations
        trainer.advance(run)
        if trainer.at.evaluations > evaluations:
            wanted.append(np.mean(losses))
            losses.clear()
    rows = run.table().query("split == 'train' and metric == 'critic_loss'")
    assert len(wanted) == 3
    np.testing.assert_allclose(rows["value"], wanted, rtol=1e-5)


@pytest.mark.parametrize(("kind", "reached"), [("gpt", 1.0), ("lstm", 1.0)])
@pytest.mark.quick("lstm-1.0")
def test_it_learns_to_remember_the_sign(kind: str, reached: float, tmp_path: Path) -> None:
    hp = Hyperparameters.model_validate(
        {
            "sequence": {"kind": kind, "width": 32, "dropout": 0.0},
            "observation_embedding": 16,
            "action_embedding": 16,
            "head": [64],
            "train_episodes": 2560,
            "warmup_episodes": 64,
            "actors": 64,
            "updates_per_step": 0.03,
            "batch_size": 32,
            "learning_rate": 0.003 if kind == "gpt" else 0.01,
            "polyak": 0.02,
            "evaluate_every": 10**6,
        }
    )
    policy = dqn.train(settings_of(hp, length=3), Inputs(), run_in(tmp_path))
    worlds = make_worlds(settings_of(hp, length=3).environment, 99, 1, 64)
    assert play(worlds[1], policy).return_E.mean() == reached


@pytest.mark.slow
def test_checkpoints_at_odd_moments_change_nothing(tmp_path: Path) -> None:
    settings = settings_of(small("lstm"))
    assert ends_the_same(lambda run: dqn.train(settings, Inputs(), run).arrays(), tmp_path, (5, 19, 8)) == 3


def test_a_run_that_diverges_stops_and_its_last_good_checkpoint_stays(tmp_path: Path) -> None:
    settings = settings_of(small("lstm", learning_rate=1e30, checkpoint_every=1))
    with pytest.raises(UserError, match="diverged"):
        dqn.train(settings, Inputs(), run_in(tmp_path))
    found = run_in(tmp_path).resume()
    assert found is not None
    check_arrays(part(found.arrays, "learner"), "what is left")


@pytest.mark.parametrize("actors", [1, 4])
def test_each_round_of_each_seed_draws_actions_of_its_own(actors: int) -> None:
    taken = []
    for seed in (0, 1):
        hp = small("lstm", actors=actors, warmup_episodes=actors, train_episodes=100)
        trainer = make_trainer(settings_of(hp, length=20, seed=seed))
        assert (trainer.alone is None) == (actors > 1)
        for _ in range(2):
            taken += [trainer.play_round(warming, actors).action_BT.tobytes() for warming in (True, False)]
            trainer.at.rounds += 1
    assert len(set(taken)) == 8


def test_each_update_draws_windows_of_its_own_with_its_runs_seed(tmp_path) -> None:
    trainer, run = make_trainer(settings_of(small("ff", train_episodes=3), seed=7)), run_in(tmp_path)
    asked, sample = [], trainer.replay.sample

    def noting(windows, n, *, seed, counter):
        asked.append((seed, counter))
        return sample(windows, n, seed=seed, counter=counter)

    trainer.replay.sample = noting
    while not trainer.done:
        trainer.advance(run)
    assert asked == [(7, counter) for counter in range(trainer.planned_updates)]
