"""The source agents: each is the PPO it claims to be, none depends on the others, and none loses work."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from odd_clock import ends_the_same
from pydantic import ValidationError

from recollect.artifacts.run import Run
from recollect.environments import dark_room, registry
from recollect.settings.errors import UserError
from recollect.sources import ppo, recording
from recollect.sources.cpu.actor_critics import ActorCritics, orthogonal
from recollect.sources.cpu.output_gradients import log_softmax, output_gradients
from recollect.sources.cpu.plain import loss_of, perceptron


@pytest.fixture(autouse=True)
def one_thread():
    """Threads within products wait for each other: slow where tests share the cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


SMALL = {"transitions": 1000, "rollout": 200, "minibatch": 50, "epochs": 3, "learning_rate": 1e-3}
ON_TABLE = {**SMALL, "minibatch": 100, "observation_encoding": "one_hot", "hidden": (32, 16)}


def make(tasks, seeds):
    return registry.make_world("dark_room", {}, tasks, seeds)


def trained(chosen, **settings):
    tasks = dark_room.tasks("train")
    agents = ppo.EnsemblePPO(make, [tasks[i] for i in chosen], ppo.Hyperparameters(**settings), seed=5)
    while not agents.finished:
        agents.advance()
    return agents


def reference_step(modules, batch, settings, optimisers):
    """One SB3-style minibatch step of every agent by autograd."""
    for (actor, critic), optimiser, x, action, old, advantage, target in zip(modules, optimisers, *batch, strict=True):
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        distribution = torch.distributions.Categorical(logits=actor(x))
        ratio = torch.exp(distribution.log_prob(action) - old)
        clipped = torch.clamp(ratio, 1 - settings.clip, 1 + settings.clip)
        surrogate = -torch.min(advantage * ratio, advantage * clipped).mean()
        value = torch.nn.functional.mse_loss(target, critic(x)[:, 0])
        loss = surrogate - settings.entropy * distribution.entropy().mean() + settings.value_coefficient * value
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_([*actor.parameters(), *critic.parameters()], settings.gradient_norm)
        optimiser.step()


def as_modules(networks):
    """The ensemble's networks as ordinary modules, one (actor, critic) per task."""
    return [(perceptron(networks, 2 * e, 5), perceptron(networks, 2 * e + 1, 1)) for e in range(networks.count)]


@pytest.mark.parametrize("on_table", [False, True])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_a_step_is_the_step_of_a_plain_ppo_written_with_autograd(on_table, activation):
    settings = ppo.Hyperparameters(
        transitions=4000, rollout=1000, minibatch=200 if on_table else 40, entropy=0.05, learning_rate=1e-2,
        activation=activation, observation_scale=10.0, hidden=(24, 16),
    )  # fmt: skip
    agents = ppo.EnsemblePPO(make, dark_room.tasks("train")[:3], settings, seed=1)
    assert agents.learn_on_table == on_table
    modules = as_modules(agents.networks)
    optimisers = [torch.optim.Adam([*a.parameters(), *c.parameters()], lr=1e-2, eps=1e-5) for a, c in modules]
    draw = np.random.default_rng(0)
    for step in range(4):
        size = settings.minibatch
        cell = draw.integers(0, 100, (3, size))
        features = agents.inputs.table[cell]
        action = torch.from_numpy(draw.integers(0, 5, (3, size)))
        # Far from the old policy, so that some ratios are clipped, and targets large enough to clip the gradient.
        old = torch.from_numpy(np.log(draw.uniform(0.1, 0.4, (3, size))).astype(np.float32))
        advantage = torch.from_numpy(draw.normal(1, 3, (3, size)).astype(np.float32))
        target = torch.from_numpy(draw.normal(5 * step, 2, (3, size)).astype(np.float32))
        if on_table:
            agents._descend(agents.table_NRD, torch.from_numpy(cell), action, old, advantage, target)
        else:
            agents._descend(agents.networks.rows_per_task(features), None, action, old, advantage, target)
        batch = [torch.from_numpy(features), action, old, advantage, target]
        reference_step(modules, batch, settings, optimisers)
    # The critics' unused outputs have no gradient and stay at zero.
    assert not agents.networks.parameters[-2][1::2, 1:].any()
    after = as_modules(agents.networks)
    for ours, theirs in zip(after, modules, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            for (name, p), q in zip(one.named_parameters(), other.parameters(), strict=True):
                torch.testing.assert_close(p, q, rtol=2e-4, atol=2e-5, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("on_table", [False, True])
def test_the_gradients_at_the_outputs_are_those_of_the_plain_loss(on_table):
    draw, weights = torch.Generator().manual_seed(0), {"clip": 0.1, "value_coefficient": 0.7, "entropy": 0.05}
    rows, size = (6, 30) if on_table else (30, 30)
    outputs = torch.randn(4, 5, rows, generator=draw)
    row = torch.randint(rows, (2, size), generator=draw) if on_table else None
    action = torch.randint(5, (2, size), generator=draw)
    batch = (action, *(torch.randn(2, size, generator=draw) - shift for shift in (1.6, 0, 1)))
    found = output_gradients(outputs.clone(), row, *(array.clone() for array in batch), **weights)
    outputs.requires_grad_()
    for e in range(2):
        index = torch.arange(size) if row is None else row[e]
        of_task = [array[e] for array in batch]
        loss_of(outputs[2 * e].T[index], outputs[2 * e + 1, 0, index], *of_task, **weights).backward()
    torch.testing.assert_close(found, outputs.grad, atol=1e-6, rtol=1e-4)
    assert found[:, 0].abs().min() > 0


@pytest.mark.quick("table")
@pytest.mark.parametrize("settings", [SMALL, ON_TABLE], ids=["rows", "table"])
def test_a_task_has_the_same_history_to_the_bit_whatever_other_tasks_are_in_the_ensemble(settings):
    ten, alone, all_of_them = trained(range(10), **settings), trained([3], **settings), trained(range(80), **settings)
    for other, place in ((alone, 0), (all_of_them, 3)):
        np.testing.assert_array_equal(ten.recorder.action[:, 3], other.recorder.action[:, place])
        np.testing.assert_array_equal(ten.recorder.observations[:, 3], other.recorder.observations[:, place])
        for p, q in zip(ten.networks.parameters, other.networks.parameters, strict=True):
            assert torch.equal(p[6:8], q[2 * place : 2 * place + 2])
    assert (ten.recorder.action[:, 3] != ten.recorder.action[:, 4]).mean() > 0.5


def test_the_number_of_threads_changes_no_bit_and_no_return_that_is_shown(monkeypatch):
    shown: list[list[float]] = []

    class Shown:
        def update(self, played: int, *, episode_return: float) -> None:
            shown[-1].append(episode_return)

    def tracked(*args):
        shown.append([])
        return nullcontext(Shown())

    monkeypatch.setattr(ppo, "tracked", tracked)
    tasks, settings = dark_room.tasks("train")[:7], ppo.Hyperparameters(**SMALL)
    one, three = (ppo.generate("dark_room", {}, tasks[::-1], settings, seed=0, workers=w) for w in (1, 3))
    for name in one:
        np.testing.assert_array_equal(one[name], three[name])
    assert np.unique(one["task"]).tolist() == list(range(7))
    assert shown[1] == pytest.approx(shown[0]) and max(shown[0]) > 0  # of 7 tasks in parts of 2, 2 and 3


def test_a_shorter_history_is_the_beginning_of_a_longer_one():
    shorter, longer = trained([0, 1], **{**SMALL, "transitions": 500}), trained([0, 1], **SMALL)
    np.testing.assert_array_equal(shorter.recorder.action, longer.recorder.action[:500])


def test_a_seed_changes_the_history_and_the_same_seed_repeats_it():
    tasks, settings = dark_room.tasks("train")[:2], ppo.Hyperparameters(**SMALL)
    one, same, other = (ppo.generate("dark_room", {}, tasks, settings, seed=s)["action"] for s in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert (one != other).mean() > 0.5


@pytest.mark.parametrize("settings", [SMALL, ON_TABLE], ids=["rows", "table"])
def test_a_run_that_was_killed_ends_with_the_same_bytes(settings, tmp_path):
    tasks = dark_room.tasks("train")[:3]
    hyperparameters = ppo.Hyperparameters(**settings, checkpoint_every=200)
    whole = ppo.generate("dark_room", {}, tasks, hyperparameters, seed=2)

    saved = []

    class KilledOnce(Run):
        def save(self, step, arrays, state):
            super().save(step, arrays, state)
            saved.append(step)
            if len(saved) == 3:
                raise KeyboardInterrupt

    def run():
        return KilledOnce(tmp_path / "run", tmp_path / "checkpoints", settings_text="same")

    with pytest.raises(KeyboardInterrupt):
        ppo.generate("dark_room", {}, tasks, hyperparameters, seed=2, run=run(), workers=2)
    threads = torch.get_num_threads()
    # Resumed with another number of threads than it was begun with.
    arrays = ppo.generate("dark_room", {}, tasks, hyperparameters, seed=2, run=run(), workers=1)
    assert torch.get_num_threads() == threads
    assert saved == [200, 400, 600, 800]  # it went on and did not begin again
    assert arrays.keys() == whole.keys()
    for name in whole:
        assert arrays[name].dtype == whole[name].dtype
        np.testing.assert_array_equal(arrays[name], whole[name])


def test_a_checkpoint_of_other_tasks_or_networks_is_refused():
    tasks = dark_room.tasks("train")
    saved = trained([0, 1], **SMALL).arrays()
    with pytest.raises(UserError, match="other tasks"):
        ppo.EnsemblePPO(make, tasks[1:3], ppo.Hyperparameters(**SMALL), seed=5).load(saved)
    with pytest.raises(UserError, match="this ensemble needs"):
        ppo.EnsemblePPO(make, tasks[:2], ppo.Hyperparameters(**SMALL, hidden=(8,)), seed=5).load(saved)


def test_acting_without_a_table_plays_the_same_game(monkeypatch):
    settings = {**SMALL, "transitions": 200}
    tabulated = trained([0, 1, 2], **settings)
    monkeypatch.setattr(recording, "LARGEST_TABLE", 0)
    forward = trained([0, 1, 2], **settings)
    assert tabulated.inputs.size == 100 and forward.inputs.size == 0
    np.testing.assert_array_equal(tabulated.recorder.action, forward.recorder.action)


def test_actions_are_drawn_from_the_policy():
    agents = ppo.EnsemblePPO(
        make,
        dark_room.tasks("train")[:1],
        ppo.Hyperparameters(transitions=20_000, rollout=20_000, minibatch=100),
        seed=0,
    )
    wanted = torch.tensor([0.5, 0.3, 0.1, 0.06, 0.04])
    agents.networks.parameters[-2].zero_()
    agents.networks.parameters[-1][0, :, 0] = wanted.log()
    agents.advance()
    found = np.bincount(agents.recorder.action[:, 0], minlength=5) / 20_000
    np.testing.assert_allclose(found, wanted, atol=0.015)


def test_advantages_are_the_sum_of_discounted_errors_within_an_episode():
    draw = np.random.default_rng(3)
    reward, values = draw.normal(size=(12, 2)).astype(np.float32), draw.normal(size=(13, 2)).astype(np.float32)
    done = np.zeros((12, 2), bool)
    done[4, 0] = done[11, 1] = True
    found = ppo.advantages(reward, done, values, 0.9, 0.8)
    for e in range(2):
        for t in range(12):
            total, weight = 0.0, 1.0
            for k in range(t, 12):
                error = reward[k, e] + (0 if done[k, e] else 0.9 * values[k + 1, e]) - values[k, e]
                total += weight * error
                weight *= 0.9 * 0.8
                if done[k, e]:
                    break
            assert found[t, e] == pytest.approx(total, abs=1e-5)


@pytest.mark.parametrize("chosen", [SMALL, ON_TABLE])
def test_what_is_learned_from_is_what_was_played(chosen, monkeypatch):
    """With the weights unchanged each transition's log-probability and value come out again."""
    settings = ppo.Hyperparameters(**{**chosen, "gamma": 0.9, "gae_lambda": 0.8})
    agents = ppo.EnsemblePPO(make, dark_room.tasks("train")[:3], settings, seed=5)
    agents.advance()
    asked, seen = [], []
    real = ppo.advantages
    monkeypatch.setattr(ppo, "advantages", lambda *given: asked.append(given) or real(*given))

    def compare(out_NAR, row_EB, action_EB, old_log_EB, advantage_EB, return_EB):
        out_NAB = out_NAR
        if row_EB is not None:
            row_N1B = row_EB.repeat_interleave(2, 0)[:, None]
            out_NAB = out_NAR.take_along_dim(row_N1B, 2)
        log_EB = log_softmax(out_NAB[0::2]).gather(1, action_EB[:, None])[:, 0]
        seen.extend([(log_EB, old_log_EB), (out_NAB[1::2, 0] + advantage_EB, return_EB)])
        return torch.zeros_like(out_NAR)

    agents._output_gradients = compare
    agents._update = lambda: None
    agents._learn(slice(200, 400), *agents._play(200))
    assert agents.learn_on_table == (chosen is ON_TABLE) and agents.recorder.done[200:400].any()
    assert len(seen) == 2 * 3 * (200 // settings.minibatch)
    for found, played in seen:
        torch.testing.assert_close(found, played, atol=1e-5, rtol=1e-5)
    reward_TE, done_TE, _, gamma, gae_lambda = asked[0]
    np.testing.assert_array_equal(reward_TE, agents.recorder.reward[200:400])
    np.testing.assert_array_equal(done_TE, agents.recorder.done[200:400])
    assert (gamma, gae_lambda) == (0.9, 0.8)


def test_every_rollout_and_task_has_draws_of_its_own():
    agents = ppo.EnsemblePPO(make, dark_room.tasks("train")[:2], ppo.Hyperparameters(**SMALL), seed=5)
    noise, orders = [], []
    for agents.rollouts in range(2):
        noise.extend(agents._noise(30).T)
        orders.extend(tuple(order) for of_task in agents._orders(30) for order in of_task)
    assert all(sorted(order) == list(range(30)) for order in orders)
    assert len(orders) == len(set(orders)) == 2 * 2 * 3
    assert len(np.unique(noise)) == 2 * 2 * 30


def test_weights_actions_and_minibatches_are_drawn_by_the_seed():
    one, same, other = (
        ppo.EnsemblePPO(make, dark_room.tasks("train")[:2], ppo.Hyperparameters(**SMALL), seed=s) for s in (5, 5, 6)
    )
    for drawn in (lambda of: of.networks.flat.numpy(), lambda of: of._noise(30), lambda of: of._orders(30)):
        assert np.array_equal(drawn(one), drawn(same)) and not np.array_equal(drawn(one), drawn(other))


def test_threads_are_as_many_as_before_when_a_training_has_ended():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        settings = ppo.Hyperparameters(**{**SMALL, "transitions": 10})
        ppo.generate("dark_room", {}, dark_room.tasks("train")[:1], settings, seed=0)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_histories_have_one_task_after_the_other_in_time_order():
    tasks = dark_room.tasks("train")
    chosen = [tasks[7], tasks[2]]
    arrays = ppo.generate("dark_room", {}, chosen, ppo.Hyperparameters(**{**SMALL, "transitions": 250}), seed=0)
    assert arrays["observation"].shape == (500, 2) and arrays["observation"].dtype == np.int8
    assert arrays["action"].dtype == np.int8 and arrays["reward"].dtype == np.float32
    np.testing.assert_array_equal(arrays["task"], np.repeat([2, 7], 250))
    np.testing.assert_array_equal(arrays["episode"], np.tile(np.repeat([0, 1, 2], [100, 100, 50]), 2))
    np.testing.assert_array_equal(np.flatnonzero(arrays["done"]), [99, 199, 349, 449])
    # Played again from the record: the same observations and rewards.
    world = make([tasks[2]], recording.world_seeds(0, [tasks[2]]))
    observation, _ = world.reset()
    for t in range(100):
        np.testing.assert_array_equal(observation[0], arrays["observation"][t])
        observation, reward, *_ = world.step(arrays["action"][t : t + 1].astype(np.int64))
        assert reward[0] == arrays["reward"][t]


@pytest.mark.slow
def test_agents_learn_dark_room_gradually():
    settings = ppo.Hyperparameters(
        transitions=16_000, rollout=1000, minibatch=500, epochs=10, learning_rate=3e-3, hidden=(32, 32),
        observation_encoding="one_hot",
    )  # fmt: skip
    arrays = ppo.generate("dark_room", {}, dark_room.tasks("train")[:6], settings, seed=0)
    returns = arrays["reward"].reshape(6, 160, 100).sum(2).mean(0)
    assert returns[:10].mean() < 10
    assert 15 < returns[70:90].mean() < 75
    assert returns[-10:].mean() > 55


def test_initial_weights_are_those_of_stable_baselines():
    draws = [np.random.default_rng(i) for i in range(2)]
    networks = ActorCritics(draws, 2, 5, (64, 64), "tanh")
    first, bias, second, _, head, _ = networks.parameters
    for n in range(4):
        torch.testing.assert_close(first[n] @ first[n].T, 2 * torch.eye(2), atol=1e-5, rtol=0)
        torch.testing.assert_close(second[n] @ second[n].T, 2 * torch.eye(64), atol=1e-5, rtol=0)
    torch.testing.assert_close(head[0] @ head[0].T, 1e-4 * torch.eye(5), atol=1e-8, rtol=0)
    assert float(head[1, 0] @ head[1, 0]) == pytest.approx(1, abs=1e-5)
    assert not bias.any()
    tall = orthogonal(np.random.default_rng(0), 6, 3, 1.0)
    np.testing.assert_allclose(tall.T @ tall, np.eye(3), atol=1e-6)


def test_one_hot_inputs_have_one_indicator_per_dimension():
    world = make(dark_room.tasks("train")[:1], np.zeros(1, np.uint64))
    inputs = recording.Inputs(world.single_observation_space, "one_hot", 1.0)
    assert inputs.features == 20 and inputs.table.shape == (100, 20)
    np.testing.assert_array_equal(np.flatnonzero(inputs.encode(np.array([3, 7], np.int16))), [3, 17])
    assert inputs.row(np.array([[3, 7]], np.int16)).tolist() == [37]
    np.testing.assert_array_equal(inputs.table[37], inputs.encode(np.array([3, 7], np.int16)))
    numbers = recording.Inputs(world.single_observation_space, "number", 10.0)
    np.testing.assert_allclose(numbers.table[37], [0.3, 0.7], atol=1e-7)


def test_what_cannot_be_played_is_refused():
    tasks = dark_room.tasks("train")
    with pytest.raises(UserError, match="each of them once"):
        ppo.generate("dark_room", {}, [tasks[0], tasks[0]], ppo.Hyperparameters(**SMALL), seed=0)
    with pytest.raises(UserError, match="each of them once"):
        ppo.generate("dark_room", {}, [tasks[0], dark_room.tasks("eval")[1]], ppo.Hyperparameters(**SMALL), seed=0)
    with pytest.raises(ValidationError, match="does not divide"):
        ppo.Hyperparameters(rollout=100, minibatch=64)
    with pytest.raises(ValidationError, match="extra"):
        ppo.Hyperparameters(n_steps=100)


def test_checkpoints_at_odd_moments_change_nothing(tmp_path):
    tasks, settings = dark_room.tasks("train")[:2], ppo.Hyperparameters(**SMALL)
    assert (
        ends_the_same(lambda run: ppo.generate("dark_room", {}, tasks, settings, seed=2, run=run), tmp_path, (2, 3))
        == 2
    )


@pytest.mark.filterwarnings("ignore:invalid value")
def test_agents_that_diverge_stop_their_run(tmp_path):
    settings = ppo.Hyperparameters(**{**SMALL, "learning_rate": 1e38})
    with pytest.raises(UserError, match="diverged"):
        ppo.generate("dark_room", {}, dark_room.tasks("train")[:2], settings, seed=2)
