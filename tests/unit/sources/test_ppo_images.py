"""The source agent of images: what it records is what happened, it learns, and a kill costs it nothing."""

from __future__ import annotations

import copy
import shutil
import sys
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from odd_clock import ends_the_same
from pydantic import ValidationError
from torch import Tensor

from recollect.artifacts.run import Run
from recollect.common.histories import Histories
from recollect.environments import procgen, registry
from recollect.settings.errors import UserError
from recollect.settings.seeding import seed_of
from recollect.sources import ppo_images
from recollect.sources.columns import GROWING, Columns

FAKE = Path(__file__).parents[1] / "fake_procgen_worker.py"
OPTIONS = {"games": ["bigfish", "maze"]}
SMALL: dict[str, Any] = {
    "transitions": 360, "actors": 4, "recorded": 2, "rollout": 15, "minibatch": 30, "epochs": 1, "encoder": "nature", "width": 8,
    "checkpoint_every": 60,
}  # fmt: skip


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Simple games in Procgen's place, and one thread."""
    monkeypatch.setenv("RECOLLECT_PROCGEN_PYTHON", sys.executable)
    monkeypatch.setattr(procgen, "SCRIPT", FAKE)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def settings(**chosen: Any) -> ppo_images.Hyperparameters:
    return ppo_images.Hyperparameters(**{**SMALL, **chosen})


def generated(
    folder: Path | None = None, stop_at: int | None = None, run: Run | None = None, **chosen: Any
) -> dict[str, np.ndarray]:
    if folder is not None:
        run = run or Run(folder / "data", folder / "checkpoints", settings_text="the same")
        save = run.save

        def killed(step: int, *what: Any) -> None:
            save(step, *what)
            if stop_at is not None and step >= stop_at:
                raise KeyboardInterrupt

        run.save = killed  # type: ignore[method-assign]
    tasks = registry.tasks("procgen", OPTIONS, "train")
    return ppo_images.generate("procgen", OPTIONS, tasks, settings(**chosen), seed=3, run=run)


@pytest.mark.slow
def test_histories_are_the_whole_episodes_of_the_recorded_games_in_the_order_in_which_they_ended() -> None:
    histories = Histories(generated())
    histories.validate(actions=15)
    assert histories.observation.dtype == np.uint8 and histories.observation.shape[1:] == (3, 64, 64)
    table = histories.episodes
    assert int(table.length.sum()) == len(histories) <= 2 * 2 * 90  # every row is in a whole episode
    assert table.length.min() >= 6 and table.length.max() <= 12 and set(table.task) == {0, 1}
    # Played again with the recorded actions, the games answer with the recorded frames and rewards.
    for task in registry.tasks("procgen", OPTIONS, "train"):
        mine = np.flatnonzero(table.task == task.index)
        seeds = np.array([seed_of("source-world", 3, "train", task.index, e) for e in range(2)], np.uint64)
        games = [registry.make_world("procgen", OPTIONS, [task], seeds[e : e + 1]) for e in range(2)]
        seen, steps = [game.reset()[0] for game in games], [0, 0]
        ended_at = []
        for episode in mine:
            rows = np.arange(table.start[episode], table.start[episode] + table.length[episode])
            e = next(e for e in range(2) if np.array_equal(seen[e][0], histories.observation[rows[0]]))
            for row in rows:
                assert np.array_equal(seen[e][0], histories.observation[row])
                seen[e], reward, ended, *_ = games[e].step(histories.action[row : row + 1].astype(np.int64))
                assert (reward[0], ended[0]) == (histories.reward[row], histories.done[row])
            games[e].reset(options={"reset_mask": np.ones(1, bool)})
            steps[e] += len(rows)
            ended_at.append(steps[e])
        assert ended_at == sorted(ended_at)


@pytest.mark.slow
@pytest.mark.parametrize("stop_at", [120, 480])
def test_a_run_that_was_killed_goes_on_and_ends_with_the_same_bytes(stop_at: int, tmp_path: Path) -> None:
    whole = generated(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        generated(tmp_path / "killed", stop_at)
    again = Run(tmp_path / "killed/data", tmp_path / "killed/checkpoints", settings_text="the same")
    resumed = generated(tmp_path / "killed", run=again)
    assert again.resumed
    for name, array in whole.items():
        assert array.dtype == resumed[name].dtype and np.array_equal(array, resumed[name]), name
    assert all(np.array_equal(array, whole[name]) for name, array in generated().items())


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage",
    [lambda content: b"short", lambda content: b"\xff" + content[1:]],
)
def test_where_rows_went_missing_or_changed_after_a_kill_it_starts_afresh(
    damage: Callable[[bytes], bytes], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(KeyboardInterrupt):
        generated(tmp_path, 480)
    rows = tmp_path / "data/observation.rows"
    assert damage(rows.read_bytes()) != rows.read_bytes()
    rows.write_bytes(damage(rows.read_bytes()))
    run = Run(tmp_path / "data", tmp_path / "checkpoints", settings_text="others", trust=True)
    again = generated(tmp_path, run=run)
    assert "starting afresh" in caplog.text and not run.resumed and not run.trusted
    assert all(np.array_equal(array, again[name]) for name, array in generated().items())


class Many(gymnasium.Env):
    """Images, and more actions than fit into eight bits; an episode has 20 steps."""

    observation_space, action_space = Box(0, 255, (3, 40, 40), np.uint8), Discrete(468)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self.t = 0
        return np.zeros((3, 40, 40), np.uint8), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return np.full((3, 40, 40), self.t, np.uint8), 0.0, self.t == 20, False, {}


def test_any_number_of_actions_is_recorded_and_no_image_of_another_game_is_kept() -> None:
    if "many/Many-v0" not in gymnasium.registry:
        gymnasium.register("many/Many-v0", entry_point=lambda **_: Many())
    options = {"id": "many/Many-v0", "horizon": 50}
    (task,) = registry.tasks("gymnasium", options, "train")
    columns = Columns()
    agent = ppo_images.ImagePPO("gymnasium", options, task, settings(actors=8, recorded=1), 0, columns, "cpu")
    for action in range(300, 319):
        agent._step(np.full(8, action))
    held = {id(image.base): image.base.nbytes for image, *_ in agent.open[0] if image.base is not None}
    assert sum(held.values()) == 0
    agent._step(np.full(8, 467))
    arrays = columns.arrays()
    assert arrays["action"].tolist() == [*range(300, 319), 467] and arrays["action"].dtype == np.int16
    assert (arrays["observation"].reshape(20, -1) == np.arange(20)[:, None]).all()


def agent_of(columns: Columns, task: int = 0, seed: int = 0, **chosen: Any) -> ppo_images.ImagePPO:
    tasks = registry.tasks("procgen", OPTIONS, "train")
    return ppo_images.ImagePPO("procgen", OPTIONS, tasks[task], settings(**chosen), seed, columns, "cpu")


def test_an_agent_that_is_loaded_goes_on_as_if_it_had_not_been() -> None:
    """Also with the episodes that are being played: they are recorded whole."""
    columns, later = Columns(), Columns()
    agent, other = agent_of(columns), agent_of(later)
    agent.advance()
    saved = {name: np.array(value) for name, value in agent.arrays().items()}
    assert any(name.startswith("open/") for name in saved)
    before = len(columns.arrays()["action"])
    other.load(saved)
    for one in (agent, other):
        one.advance()
    for name, rows in later.arrays().items():
        if name != "episode":
            assert len(rows) > 0 and np.array_equal(rows, columns.arrays()[name][before:]), name
    after = other.arrays()
    for name, value in agent.arrays().items():
        assert np.asarray(value).tobytes() == np.asarray(after[name]).tobytes(), name


def test_every_rollout_of_every_agent_has_draws_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []
    known = ppo_images.generator
    monkeypatch.setattr(ppo_images, "generator", lambda *keys: (asked.append(keys), known(*keys))[1])
    for task, seed in ((0, 0), (1, 0), (0, 1)):
        agent = agent_of(Columns(), task, seed, rollout=5, minibatch=20)
        agent.advance()
        agent.advance()
    assert len(set(asked)) == len(asked) == 3 * 2 * 2


def test_it_learns_from_scaled_rewards_and_says_the_raw_return_of_the_newest_episode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    columns, learned = Columns(), list[Any]()
    agent = agent_of(columns, actors=1, recorded=1, rollout=30, minibatch=30, gamma=0.9, gae_lambda=0.8)
    known = ppo_images.advantages
    monkeypatch.setattr(ppo_images, "advantages", lambda *given: (learned.append(given), known(*given))[1])
    monkeypatch.setattr(agent, "_scaled", lambda reward_E, done_E: 7 + reward_E)
    step = agent.world.step

    def paid(action_E: np.ndarray) -> Any:
        observation, reward_E, *ends = step(action_E)
        return observation, reward_E + 1, *ends

    monkeypatch.setattr(agent.world, "step", paid)
    agent.advance()
    arrays = columns.arrays()
    reward_TE, _, _, gamma, gae_lambda = learned[0]
    assert (gamma, gae_lambda) == (0.9, 0.8)
    np.testing.assert_array_equal(reward_TE[: len(arrays["reward"]), 0], 7 + arrays["reward"])
    returns = Histories(arrays).episodes.total_return
    assert len(returns) > 1 and agent.last_return() == pytest.approx(returns[-1])


def test_channels_at_the_end_are_brought_to_the_front() -> None:
    agent = agent_of(Columns())
    agent.last = True
    images = np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3)
    assert np.array_equal(agent._images(images), np.moveaxis(images, 3, 1))


@pytest.mark.slow
def test_it_learns() -> None:
    """In each episode of about nine steps a random agent earns 0.3; what pays can be seen."""
    chosen = settings(transitions=12_000, actors=16, rollout=30, minibatch=120, epochs=2, width=16, learning_rate=2e-3)
    options = {"games": ["bigfish"]}
    columns = Columns()
    agent = ppo_images.ImagePPO(
        "procgen", options, registry.tasks("procgen", options, "train")[0], chosen, 0, columns, "cpu"
    )
    while agent.played < chosen.transitions:
        agent.advance()
    returns = Histories(columns.arrays()).episodes.total_return
    assert returns[:40].mean() < 0.8
    assert returns[-40:].mean() > 2.5


def test_rewards_are_scaled_by_the_deviation_of_discounted_returns() -> None:
    chosen = settings(actors=3, recorded=1, rollout=10, gamma=0.9)
    agent = ppo_images.ImagePPO(
        "procgen", OPTIONS, registry.tasks("procgen", OPTIONS, "train")[0], chosen, 0, Columns(), "cpu"
    )
    draws = np.random.default_rng(0)
    rewards, ends = draws.normal(2, 3, (50, 3)).astype(np.float32), draws.random((50, 3)) < 0.2
    running, seen = np.zeros(3), []
    for reward_E, done_E in zip(rewards, ends, strict=True):
        running = running * 0.9 + reward_E
        seen.extend(running)
        expected = np.clip(reward_E / np.sqrt(np.var(seen)), -10, 10)
        np.testing.assert_allclose(agent._scaled(reward_E, done_E), expected, rtol=0.02)
        running[done_E] = 0
    agent.settings = settings(normalise_rewards=False)
    np.testing.assert_array_equal(agent._scaled(rewards[0], ends[0]), rewards[0])


def test_a_step_is_adams_on_the_loss_of_ppo_with_its_gradient_cut() -> None:
    """Of all settings that a loss and a step have; images are 0 to 1."""
    cut = {"gradient_norm": 0.02, "adam_epsilon": 0.01, "learning_rate": 0.1}
    chosen = settings(entropy=0.03, value_coefficient=0.7, minibatch=20, **cut)
    agent = ppo_images.ImagePPO(
        "procgen", OPTIONS, registry.tasks("procgen", OPTIONS, "train")[0], chosen, 0, Columns(), "cpu"
    )
    draws = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (20, 3, 64, 64), generator=draws, dtype=torch.uint8)
    action = torch.randint(0, 15, (20,), generator=draws)
    old, advantage, target = (torch.randn(20, generator=draws) - shift for shift in (2.7, 0, 0))
    plain = copy.deepcopy(agent.network)
    features = plain.encoder(images.float() / 255)
    chosen_log, value = torch.distributions.Categorical(logits=plain.actor(features)), plain.critic(features)[:, 0]
    ratio = torch.exp(chosen_log.log_prob(action) - old)
    scaled = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    surrogate = torch.minimum(ratio * scaled, ratio.clamp(0.8, 1.2) * scaled).mean()
    expected = 0.7 * (value - target).square().mean() - surrogate - 0.03 * chosen_log.entropy().mean()
    torch.testing.assert_close(agent._loss(images, action, old, advantage, target).detach(), expected.detach())
    weights = list(plain.parameters())
    gradients = torch.autograd.grad(expected, weights)
    norm = float(torch.cat([gradient.ravel() for gradient in gradients]).norm())
    assert norm > 0.1
    agent._learn(images.numpy(), [row.numpy() for row in (action, old, advantage, target)])
    for ours, before, gradient in zip(agent.network.parameters(), weights, gradients, strict=True):
        short = gradient * 0.02 / norm
        torch.testing.assert_close(ours, before - 0.1 * short / (short.abs() + 0.01), rtol=1e-3, atol=1e-5)


def test_each_pass_takes_what_was_played_once_in_an_order_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the weights unchanged each moment's log-probability and value come out again."""
    agent = agent_of(Columns(), rollout=15, minibatch=20, epochs=3)
    taken: list[Tensor] = []

    def loss(images: Tensor, action_B: Tensor, old_B: Tensor, advantage_B: Tensor, return_B: Tensor) -> Tensor:
        with torch.no_grad():
            log_BA, value_B = agent.network(images)
        torch.testing.assert_close(log_BA.gather(1, action_B[:, None])[:, 0], old_B, atol=1e-5, rtol=0)
        torch.testing.assert_close(value_B + advantage_B, return_B, atol=1e-5, rtol=0)
        taken.append(advantage_B)
        return 0 * agent.network.critic.bias.sum()  # moves nothing

    monkeypatch.setattr(agent, "_loss", loss)
    agent.advance()
    passes = torch.cat(taken).view(3, 60)
    assert len(passes.unique(dim=0)) == 3
    assert all(torch.equal(one.sort().values, passes[0].sort().values) for one in passes)


def test_weights_depend_on_the_seed_and_the_task_alone() -> None:
    tasks = registry.tasks("procgen", OPTIONS, "train")
    torch.manual_seed(0)
    first = ppo_images.ImagePPO("procgen", OPTIONS, tasks[0], settings(), 1, Columns(), "cpu").network.state_dict()
    torch.manual_seed(9)
    same = ppo_images.ImagePPO("procgen", OPTIONS, tasks[0], settings(), 1, Columns(), "cpu").network.state_dict()
    other = ppo_images.ImagePPO("procgen", OPTIONS, tasks[1], settings(), 1, Columns(), "cpu").network.state_dict()
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert not torch.equal(first["actor.weight"], other["actor.weight"])
    assert float(first["actor.weight"].norm(dim=0).mean()) == pytest.approx(0.01, rel=1e-4)
    assert float(first["critic.weight"].norm()) == pytest.approx(1, rel=1e-4)


def test_what_does_not_fit_is_refused_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValidationError, match="minibatch 31 does not divide 4 x 15"):
        settings(minibatch=31)
    with pytest.raises(ValidationError, match="recorded 5 exceeds actors 4"):
        settings(recorded=5)
    rooms = registry.tasks("dark_room", {}, "train")[:1]
    with pytest.raises(UserError, match=r"worlds of images[\s\S]*algorithm: ppo"):
        ppo_images.generate("dark_room", {}, rooms, settings(), seed=0)
    with pytest.raises(UserError, match="no episode of 'bigfish' ended within 5 steps"):
        generated(transitions=20, rollout=5, minibatch=20)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(0, 0, 10**6))
    with pytest.raises(UserError, match=r"may need 0\.0 GB .* and 0\.0 GB are free"):
        generated(tmp_path)
    shown = registry.make_world(
        "procgen", OPTIONS, registry.tasks("procgen", OPTIONS, "train")[:1], np.zeros(1, np.uint64)
    )
    (tmp_path / f"observation{GROWING}").write_bytes(bytes(5 * 10**6))  # of a run before, which is written over
    ppo_images.check_room(tmp_path, shown, settings(), 1)
    with pytest.raises(UserError, match=r"may need 0\.0 GB .* and 0\.0 GB are free"):
        ppo_images.check_room(tmp_path, shown, settings(), 2)


def test_the_published_settings_are_the_defaults() -> None:
    """RA-DT, specification 2.1: five of 64 games side by side, about 2 of 25 million steps."""
    chosen = ppo_images.Hyperparameters()  # type: ignore[call-arg]
    assert (chosen.transitions, chosen.actors, chosen.recorded, chosen.rollout) == (25_000_000, 64, 5, 256)
    assert (chosen.learning_rate, chosen.minibatch, chosen.epochs, chosen.entropy) == (5e-4, 2048, 3, 0.01)
    assert (chosen.gamma, chosen.gae_lambda, chosen.encoder, chosen.width) == (0.99, 0.95, "impala", 2048)
    assert chosen.normalise_rewards


@pytest.mark.slow
def test_checkpoints_at_odd_moments_change_nothing(tmp_path: Path) -> None:
    tasks = registry.tasks("procgen", OPTIONS, "train")

    def played(run: Run) -> dict[str, np.ndarray]:
        arrays = ppo_images.generate("procgen", OPTIONS, tasks, settings(), seed=3, run=run)
        return {name: array.copy() for name, array in arrays.items()}

    assert ends_the_same(played, tmp_path, (3, 4)) == 2


def test_advantages_are_of_the_ends_and_the_last_look_of_a_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    columns, given = Columns(), list[Any]()
    agent = agent_of(columns, actors=4, recorded=1, rollout=30, minibatch=60)
    known = ppo_images.advantages
    monkeypatch.setattr(ppo_images, "advantages", lambda *what: (given.extend(what), known(*what))[1])
    monkeypatch.setattr(agent, "_learn", lambda images, rows: None)
    agent.advance()
    _, done_TE, value_TE, *_ = given
    done = columns.arrays()["done"]
    np.testing.assert_array_equal(done_TE[: len(done), 0], done)
    assert done.any() and not done.all()
    with torch.no_grad():
        _, value_E = agent.network(torch.from_numpy(agent.observation))
    torch.testing.assert_close(torch.from_numpy(value_TE[30]), value_E, atol=1e-5, rtol=0)
    assert value_E.abs().min() > 1e-3


def test_an_agent_begins_orthogonal_and_with_a_policy_that_is_almost_uniform() -> None:
    """As Stable-Baselines3: gains √2, 0.01 for the actor and 1 for the critic; no biases."""
    network = agent_of(Columns(), width=8).network
    for layer, gain in ((network.actor, 0.01), (network.critic, 1.0), (network.encoder.linear, 2**0.5)):
        rows = layer.weight if len(layer.weight) <= layer.weight.shape[1] else layer.weight.T
        torch.testing.assert_close(rows @ rows.T, gain**2 * torch.eye(len(rows)), atol=1e-5, rtol=0)
        assert not layer.bias.any()


def test_scaled_rewards_are_cut_at_ten() -> None:
    agent = agent_of(Columns(), actors=4)
    for _ in range(1000):
        agent._scaled(np.zeros(4, np.float32), np.ones(4, bool))
    scaled = agent._scaled(np.array([100, -100, 0, 0], np.float32), np.zeros(4, bool))
    assert scaled.tolist() == [10, -10, 0, 0]
