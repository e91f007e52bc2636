"""The recurrent source agents: each is the recurrent PPO it claims to be, none depends on the others, none loses work."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from pydantic import ValidationError

from recollect.artifacts.run import Run
from recollect.environments import dark_room, maze_runner, registry
from recollect.environments.base import Task
from recollect.environments.base import World as BaseWorld
from recollect.settings.errors import UserError
from recollect.sources import ppo, recording, recurrent_ppo
from recollect.sources.cpu.output_gradients import log_softmax
from recollect.sources.cpu.plain import RecurrentNetwork
from recollect.sources.cpu.recurrent_actor_critics import RecurrentActorCritics


@pytest.fixture(autouse=True)
def one_thread():
    """Threads within products wait for each other: slow where tests share the cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


MAZE = {"size": 7, "horizon": 35}  # horizon shorter than a rollout: episodes are cut within it
SMALL = {
    "transitions": 400, "rollout": 80, "minibatch": 40, "segment": 20, "epochs": 2, "learning_rate": 3e-3, "units": 12,
    "hidden": (8,), "entropy": 0.01,
}  # fmt: skip


def make(tasks, seeds):
    return registry.make_world("maze_runner", MAZE, tasks, seeds)


def tasks(split="train"):
    return maze_runner.tasks(split, **MAZE)


def trained(chosen, **settings):
    agents = recurrent_ppo.RecurrentPPO(
        make, [tasks()[i] for i in chosen], recurrent_ppo.Hyperparameters(**settings), seed=5
    )
    while not agents.finished:
        agents.advance()
    return agents


def as_agents(networks):
    """An ordinary actor and critic per task."""
    return [
        (RecurrentNetwork(networks, 2 * e, 5), RecurrentNetwork(networks, 2 * e + 1, 1)) for e in range(networks.count)
    ]


@pytest.mark.parametrize("hidden", [(7, 6), ()])
def test_a_step_is_the_step_of_a_plain_recurrent_ppo_written_with_autograd(hidden):
    """Three agents, four minibatches of three segments of six steps, with episodes that begin inside."""
    settings = recurrent_ppo.Hyperparameters(
        rollout=18, minibatch=18, segment=6, units=9, hidden=hidden, learning_rate=1e-2, entropy=0.05
    )
    agents = recurrent_ppo.RecurrentPPO(make, tasks()[:3], settings, seed=1)
    networks, plain = agents.networks, as_agents(agents.networks)
    optimisers = [
        torch.optim.Adam([p for m in pair for p in m.parameters() if p.requires_grad], lr=1e-2, eps=1e-5)
        for pair in plain
    ]
    draw = np.random.default_rng(0)
    for step in range(4):
        x_ELSD = draw.normal(size=(3, 6, 3, 6)).astype(np.float32)
        keep_ELS = (draw.random((3, 6, 3)) > 0.3).astype(np.float32)
        state = tuple(torch.from_numpy(draw.normal(size=(6, 3, 9)).astype(np.float32)) for _ in range(2))
        action = torch.from_numpy(draw.integers(0, 5, (3, 18)))
        old = torch.from_numpy(np.log(draw.uniform(0.1, 0.4, (3, 18))).astype(np.float32))
        advantage = torch.from_numpy(draw.normal(1, 3, (3, 18)).astype(np.float32))
        target = torch.from_numpy(draw.normal(5 * step, 2, (3, 18)).astype(np.float32))

        hidden_layers, out_NAR = networks.unroll(x_ELSD, keep_ELS, state)
        gradients = agents._output_gradients(out_NAR, None, action, old, advantage, target)
        networks.backward_through_time(hidden_layers, gradients)
        agents._update()

        for e, ((actor, critic), optimiser) in enumerate(zip(plain, optimisers, strict=True)):
            x_LSD, keep_LS = torch.from_numpy(x_ELSD[e]), torch.from_numpy(keep_ELS[e])
            logits = actor(x_LSD, keep_LS, tuple(part[2 * e] for part in state))[0].flatten(0, 1)
            value = critic(x_LSD, keep_LS, tuple(part[2 * e + 1] for part in state))[0].flatten()
            normed = (advantage[e] - advantage[e].mean()) / (advantage[e].std() + 1e-8)
            distribution = torch.distributions.Categorical(logits=logits)
            ratio = torch.exp(distribution.log_prob(action[e]) - old[e])
            surrogate = -torch.min(normed * ratio, normed * torch.clamp(ratio, 0.8, 1.2)).mean()
            loss = surrogate - 0.05 * distribution.entropy().mean()
            loss = loss + 0.5 * torch.nn.functional.mse_loss(value, target[e])
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_([p for m in (actor, critic) for p in m.parameters() if p.requires_grad], 0.5)
            optimiser.step()
    after = as_agents(networks)
    moved = 0.0
    for e in range(3):
        for ours, theirs in zip(after[e], plain[e], strict=True):
            for (name, p), q in zip(ours.named_parameters(), theirs.parameters(), strict=True):
                torch.testing.assert_close(p, q, rtol=2e-4, atol=2e-5, msg=lambda m, name=name: f"{name}: {m}")
                moved += float(q.detach().abs().sum())
    assert moved > 0


def test_acting_is_one_step_after_the_other_of_the_same_networks():
    agents = recurrent_ppo.RecurrentPPO(make, tasks()[:3], recurrent_ppo.Hyperparameters(**SMALL), seed=1)
    networks, plain = agents.networks, as_agents(agents.networks)
    draw = np.random.default_rng(0)
    states = [[(torch.zeros(1, 12), torch.zeros(1, 12)) for _ in range(2)] for _ in range(3)]
    for t in range(12):
        x_ED = draw.random((3, 6)).astype(np.float32)
        out_NA1 = networks.act(x_ED)
        done_E = np.array([t == 4, t == 7, False])
        for e in range(3):
            for k, agent in enumerate(plain[e]):
                with torch.no_grad():
                    out, states[e][k] = agent(torch.from_numpy(x_ED[e])[None, None], torch.ones(1, 1), states[e][k])
                torch.testing.assert_close(out_NA1[2 * e + k, : out.shape[-1], 0], out[0, 0], atol=1e-6, rtol=1e-5)
                if done_E[e]:
                    states[e][k] = (torch.zeros(1, 12), torch.zeros(1, 12))
        networks.end_episodes(done_E)


def test_a_rollout_that_is_unrolled_again_gives_what_was_played():
    """With the weights unchanged: recorded states, resets within segments and the order of rows all fit together."""
    settings = recurrent_ppo.Hyperparameters(**SMALL)
    agents = recurrent_ppo.RecurrentPPO(make, tasks()[:4], settings, seed=3)
    agents.advance()
    values_TE, logs_TE = agents._play(80)
    seen: list[tuple[np.ndarray, np.ndarray]] = []

    def compare(out_NAR, row_EB, action_EB, old_log_EB, advantage_EB, return_EB):
        log_EAR = log_softmax(out_NAR[0::2])
        seen.append((log_EAR.gather(1, action_EB[:, None])[:, 0].numpy().copy(), old_log_EB.numpy().copy()))
        value_EB = out_NAR[1::2, 0].numpy().copy()
        seen.append((value_EB + advantage_EB.numpy(), return_EB.numpy().copy()))
        return torch.zeros_like(out_NAR)

    agents._output_gradients = compare
    agents._update = lambda: None
    agents._learn(slice(80, 160), values_TE, logs_TE)
    assert agents.recorder.done[80:160].any()
    assert len(seen) == 2 * 2 * settings.epochs
    for found, played in seen:
        np.testing.assert_allclose(found, played, atol=2e-6)
    assert np.ptp([log for log, _ in seen[::2]]) > 1e-3


class Clock(BaseWorld):
    """Shows the step, pays 1 at each; ends by itself after `data["length"]` steps, or is cut after 6."""

    def _setup(self) -> None:
        self.horizon = 6
        self.single_observation_space = Box(0, 1, (1,), np.float32)
        self.single_action_space = Discrete(2)
        self.length_B = np.array([task.data["length"] for task in self.tasks])

    def _begin(self, index_N: np.ndarray) -> None:
        pass

    def _advance(self, actions_B: np.ndarray, last_B: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
        return np.ones(self.num_envs, np.float32), self._timestep_B >= self.length_B

    def _observe(self) -> np.ndarray:
        return (self._timestep_B[:, None] / 6).astype(np.float32)


def test_only_episodes_that_were_cut_short_are_bootstrapped_from_their_last_observation(monkeypatch):
    clocks = [Task(0, "cut", "train", {"length": 9}), Task(1, "ends", "train", {"length": 5})]
    settings = recurrent_ppo.Hyperparameters(
        transitions=60, rollout=20, minibatch=20, segment=10, units=6, hidden=(), epochs=1
    )
    agents = recurrent_ppo.RecurrentPPO(lambda t, s: Clock(t, seeds=s), clocks, settings, seed=0)
    critics = [pair[1] for pair in as_agents(agents.networks)]
    values_TE, logs_TE = agents._play(20)
    assert not agents._cut_worth_TE[:, 1].any()
    assert np.flatnonzero(agents._cut_worth_TE[:, 0]).tolist() == [5, 11, 17]
    for e, length in ((0, 6), (1, 5)):
        x_LSD = torch.arange(length + 1)[:, None, None] / 6
        with torch.no_grad():
            whole, _ = critics[e](x_LSD, torch.ones(length + 1, 1), (torch.zeros(1, 6), torch.zeros(1, 6)))
        worth = whole[:, 0, 0].numpy()
        np.testing.assert_allclose(values_TE[:, e], np.tile(worth[:length], 5)[:21], atol=1e-6)
        if e == 0:
            np.testing.assert_allclose(agents._cut_worth_TE[[5, 11, 17], 0], worth[6], atol=1e-6)
    asked = []
    real = recurrent_ppo.advantages
    monkeypatch.setattr(recurrent_ppo, "advantages", lambda *given: asked.append(given) or real(*given))
    agents._learn(slice(0, 20), values_TE, logs_TE)
    reward_TE, _, _, gamma, gae_lambda = asked[0]
    np.testing.assert_allclose(reward_TE, 1 + 0.99 * agents._cut_worth_TE, atol=1e-6)
    assert (gamma, gae_lambda) == (0.99, 0.95)
    assert (agents.recorder.reward[:20] == 1).all()  # what is written down is what the world paid


def test_the_value_of_a_cut_episode_may_be_stored_with_its_last_reward():
    """The same agents, whose histories differ in these rewards alone; also in the last rollout, which none learns from.

    What they learned is the same to the bit: a stored value is not added once more.
    """
    clocks = [Task(0, "cut", "train", {"length": 9}), Task(1, "ends", "train", {"length": 5})]
    sizes = {"transitions": 58, "rollout": 20, "minibatch": 20, "segment": 10, "units": 6, "hidden": (), "epochs": 1}
    records, learned = [], []
    for stored in ("paid", "with_value"):
        settings = recurrent_ppo.Hyperparameters(**sizes, stored_reward=stored)
        agents = recurrent_ppo.RecurrentPPO(lambda t, s: Clock(t, seeds=s), clocks, settings, seed=0)
        while not agents.finished:
            agents.advance()
        records.append(agents.recorder)
        learned.append(agents.networks.arrays())
    paid, stored = records
    for name, array in learned[0].items():
        np.testing.assert_array_equal(array, learned[1][name], err_msg=name)
    np.testing.assert_array_equal(paid.action, stored.action)
    added_TE = stored.reward - paid.reward
    assert (paid.reward == 1).all() and not added_TE[:, 1].any()
    assert np.flatnonzero(added_TE[:, 0]).tolist() == list(range(5, 58, 6))
    assert np.abs(added_TE[40:]).max() > 1e-3
    np.testing.assert_allclose(added_TE[40:], 0.99 * agents._cut_worth_TE, atol=1e-6)


class Hasty(Clock):
    """Its episodes are cut by something else than the horizon, after as many steps as the task says."""

    def _advance(self, actions_B: np.ndarray, last_B: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
        self._cut_B = self._timestep_B >= self.length_B
        return np.ones(self.num_envs, np.float32), np.zeros(self.num_envs, bool)


def test_a_world_may_cut_as_many_episodes_as_it_likes():
    hasty = [Task(i, f"{length}", "train", {"length": length}) for i, length in enumerate((2, 1, 9))]
    settings = recurrent_ppo.Hyperparameters(
        transitions=40, rollout=20, minibatch=20, segment=10, units=6, hidden=(), epochs=1
    )
    agents, alone = (
        recurrent_ppo.RecurrentPPO(lambda t, s: Hasty(t, seeds=s), some, settings, seed=0)
        for some in (hasty, hasty[:1])
    )
    critics = [pair[1] for pair in as_agents(agents.networks)]
    agents._play(20)
    alone._play(20)
    for e, length in enumerate((2, 1, 6)):
        cuts = np.arange(length - 1, 20, length)
        assert np.flatnonzero(agents._cut_worth_TE[:, e]).tolist() == cuts.tolist()
        with torch.no_grad():
            x_LSD = torch.arange(length + 1)[:, None, None] / 6
            whole, _ = critics[e](x_LSD, torch.ones(length + 1, 1), (torch.zeros(1, 6), torch.zeros(1, 6)))
        np.testing.assert_allclose(agents._cut_worth_TE[cuts, e], float(whole[-1]), atol=1e-6)
    np.testing.assert_array_equal(agents._cut_worth_TE[:, 0], alone._cut_worth_TE[:, 0])


def test_a_task_has_the_same_history_to_the_bit_whatever_other_tasks_are_in_the_ensemble():
    settings = {**SMALL, "transitions": 240}
    ten, alone, all_of_them = trained(range(10), **settings), trained([3], **settings), trained(range(100), **settings)
    assert ten.recorder.done[:, 3].any()
    for other, place in ((alone, 0), (all_of_them, 3)):
        np.testing.assert_array_equal(ten.recorder.action[:, 3], other.recorder.action[:, place])
        np.testing.assert_array_equal(ten.recorder.observations[:, 3], other.recorder.observations[:, place])
        for p, q in zip(
            [*ten.networks.front, *ten.networks.parameters, *ten.networks.state],
            [*other.networks.front, *other.networks.parameters, *other.networks.state],
            strict=True,
        ):
            assert torch.equal(p[6:8], q[2 * place : 2 * place + 2])
    assert (ten.recorder.action[:, 3] != ten.recorder.action[:, 4]).mean() > 0.5


@pytest.mark.slow
def test_the_number_of_threads_changes_no_bit():
    chosen, settings = tasks()[:7], recurrent_ppo.Hyperparameters(**SMALL)
    one, three = (
        recurrent_ppo.generate("maze_runner", MAZE, chosen[::-1], settings, seed=0, workers=w) for w in (1, 3)
    )
    for name in one:
        np.testing.assert_array_equal(one[name], three[name])
    assert np.unique(one["task"]).tolist() == list(range(7))


@pytest.mark.slow
def test_a_shorter_history_is_the_beginning_of_a_longer_one_and_a_seed_changes_it():
    longer = trained([0, 1], **SMALL)
    shorter = trained([0, 1], **{**SMALL, "transitions": 210})
    np.testing.assert_array_equal(shorter.recorder.action, longer.recorder.action[:210])
    settings = recurrent_ppo.Hyperparameters(**SMALL)
    one, other = (
        recurrent_ppo.generate("maze_runner", MAZE, tasks()[:2], settings, seed=s, workers=1)["action"] for s in (0, 1)
    )
    assert (one != other).mean() > 0.5


def test_first_weights_are_drawn_by_the_seed_for_each_task():
    one, same, other = (
        recurrent_ppo.RecurrentPPO(make, tasks()[:2], recurrent_ppo.Hyperparameters(**SMALL), seed=s).networks
        for s in (5, 5, 6)
    )
    assert torch.equal(one.weight, same.weight) and torch.equal(one.flat, same.flat)
    for ours, theirs in ((one.weight, other.weight), (one.parameters[0], other.parameters[0])):
        assert not (ours == theirs).any() and not (ours[:2] == ours[2:]).any()


def test_layers_behind_the_lstm_have_the_activation_that_is_set():
    agents = recurrent_ppo.RecurrentPPO(
        make, tasks()[:1], recurrent_ppo.Hyperparameters(**SMALL, activation="relu"), seed=1
    )
    hidden, _ = agents.networks.forward(torch.randn(2, 50, 12, generator=torch.Generator().manual_seed(0)))
    assert hidden[1].min() == 0 and hidden[1].max() > 1


def test_a_run_that_was_killed_ends_with_the_same_bytes(tmp_path):
    chosen, hyperparameters = tasks()[:3], recurrent_ppo.Hyperparameters(**SMALL, checkpoint_every=80)
    whole = recurrent_ppo.generate("maze_runner", MAZE, chosen, hyperparameters, seed=2, workers=1)
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
        recurrent_ppo.generate("maze_runner", MAZE, chosen, hyperparameters, seed=2, run=run(), workers=2)
    # Resumed in the midst of episodes: what the LSTMs remember of them is not lost.
    states = [array for name, array in run().resume().arrays.items() if "state/output" in name]
    assert len(states) == 2 and all(np.any(array) for array in states)
    arrays = recurrent_ppo.generate("maze_runner", MAZE, chosen, hyperparameters, seed=2, run=run(), workers=1)
    assert saved == [80, 160, 240, 320]  # it went on and did not begin again
    assert arrays.keys() == whole.keys()
    for name in whole:
        np.testing.assert_array_equal(arrays[name], whole[name])


def test_a_checkpoint_of_other_networks_is_refused():
    saved = trained([0, 1], **{**SMALL, "transitions": 80}).arrays()
    for other in ({"units": 8}, {"hidden": (9,)}):
        with pytest.raises(UserError, match="this ensemble needs"):
            recurrent_ppo.RecurrentPPO(make, tasks()[:2], recurrent_ppo.Hyperparameters(**SMALL | other), seed=5).load(
                saved
            )
    without = {name: array for name, array in saved.items() if "state/" not in name}
    with pytest.raises(UserError, match="no state of these LSTMs"):
        recurrent_ppo.RecurrentPPO(make, tasks()[:2], recurrent_ppo.Hyperparameters(**SMALL), seed=5).load(without)


def test_defaults_are_those_of_sb3_contrib_and_segments_must_fit():
    """sb3-contrib, RecurrentPPO.__init__ and RecurrentActorCriticPolicy.__init__; stable-baselines3's MLP and Adam."""
    chosen = recurrent_ppo.Hyperparameters()
    assert (chosen.rollout, chosen.minibatch, chosen.epochs, chosen.units, chosen.hidden) == (
        128,
        128,
        10,
        256,
        (64, 64),
    )
    assert (chosen.learning_rate, chosen.gamma, chosen.gae_lambda, chosen.clip) == (3e-4, 0.99, 0.95, 0.2)
    assert (chosen.entropy, chosen.value_coefficient, chosen.gradient_norm, chosen.adam_epsilon) == (0, 0.5, 0.5, 1e-5)
    with pytest.raises(ValidationError, match="segment 100 does not divide"):
        recurrent_ppo.Hyperparameters(segment=100)
    with pytest.raises(ValidationError, match="does not divide rollout"):
        recurrent_ppo.Hyperparameters(rollout=130)
    with pytest.raises(ValidationError, match="extra"):
        recurrent_ppo.Hyperparameters(n_steps=128)


def test_initial_weights_are_those_of_torch_and_stable_baselines():
    networks = RecurrentActorCritics([np.random.default_rng(i) for i in range(2)], 6, 5, (64,), "tanh", 100)
    assert float(networks.weight.abs().max()) == pytest.approx(0.1, abs=1e-4)
    assert float(networks.weight.std()) == pytest.approx(0.1 / 3**0.5, rel=0.02)
    assert 0.19 < float(networks.bias.abs().max()) < 0.2  # the sum of torch's two
    assert not torch.equal(networks.weight[0], networks.weight[1])
    first, _, head, _ = networks.parameters
    torch.testing.assert_close(first[0].T @ first[0], 2 * torch.eye(64), atol=1e-4, rtol=0)
    torch.testing.assert_close(head[0] @ head[0].T, 1e-4 * torch.eye(5), atol=1e-8, rtol=0)


class Recall(BaseWorld):
    """Shows a sign at the first step only; at the last of five steps the action that the sign named pays 1."""

    def _setup(self) -> None:
        self.horizon = 5
        self.single_observation_space = Box(-1, 1, (2,), np.float32)
        self.single_action_space = Discrete(2)
        self._sign_B = self._keep("sign", np.zeros(self.num_envs, np.int64))

    def _begin(self, index_N: np.ndarray) -> None:
        self._sign_B[index_N] = self._draw_integers(index_N, 2)

    def _advance(self, actions_B: np.ndarray, last_B: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
        at_end_B = self._timestep_B == 5
        return (at_end_B & (actions_B == self._sign_B)).astype(np.float32), at_end_B

    def _observe(self) -> np.ndarray:
        shown_B = np.where(self._timestep_B == 0, 2 * self._sign_B - 1, 0)
        return np.stack([shown_B, self._timestep_B / 5], 1).astype(np.float32)


@pytest.mark.slow
def test_agents_learn_to_remember_what_no_agent_without_memory_can():
    signs = [Task(i, f"sign_{i}", "train") for i in range(4)]
    shared = {"transitions": 6000, "rollout": 400, "epochs": 6, "learning_rate": 5e-3, "entropy": 0.01}

    def last_returns(kind, hyperparameters):
        agents = kind(lambda t, s: Recall(t, seeds=s), signs, hyperparameters, seed=0)
        while not agents.finished:
            agents.advance()
        return agents.recorder.reward[-1000:].sum(0) / 200

    with_memory = recurrent_ppo.Hyperparameters(**shared, minibatch=200, segment=20, units=16, hidden=())
    assert (last_returns(recurrent_ppo.RecurrentPPO, with_memory) > 0.9).all()
    without = ppo.Hyperparameters(**shared, minibatch=200, hidden=(16,))
    assert (last_returns(ppo.EnsemblePPO, without) < 0.65).all()


def test_the_recorder_says_which_episodes_were_cut_and_what_they_last_saw():
    clocks = [Task(0, "cut", "train", {"length": 9}), Task(1, "ends", "train", {"length": 5})]
    recorder = recording.HistoryRecorder(lambda t, s: Clock(t, seeds=s), clocks, 12, 0)
    for t in range(1, 7):
        recorder.step(np.zeros(2, np.int64))
        assert recorder.truncated.tolist() == [t == 6, False]
        assert recorder.final_observation[:, 0].tolist() == pytest.approx([t / 6, t / 6 if t < 6 else 1 / 6])
    assert recorder.observation[:, 0].tolist() == pytest.approx([0, 1 / 6])


def test_the_recorder_says_what_the_newest_whole_episodes_paid():
    clocks = [Task(0, "cut", "train", {"length": 9}), Task(1, "ends", "train", {"length": 5})]
    recorder = recording.HistoryRecorder(lambda t, s: Clock(t, seeds=s), clocks, 17, 0)
    for t in range(1, 18):
        recorder.step(np.zeros(2, np.int64))
        assert recorder.last_return() == (0 if t < 5 else 5 if t == 5 else 5.5)


def test_grids_can_be_played_too():
    settings = recurrent_ppo.Hyperparameters(**SMALL, observation_encoding="one_hot")
    arrays = recurrent_ppo.generate("dark_room", {}, dark_room.tasks("train")[:2], settings, seed=0, workers=1)
    assert arrays["observation"].shape == (800, 2) and arrays["observation"].dtype == np.int8
