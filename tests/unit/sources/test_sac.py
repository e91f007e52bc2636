"""The source agents of continuous control: Stable-Baselines3's SAC learns, its history is what happened, a kill costs nothing.

Skipped where Stable-Baselines3 is not installed (`make setup FAMILY=sac`), but for what holds without it.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import fake_suite
import numpy as np
import pytest
from odd_clock import ends_the_same

from recollect.artifacts.run import Run
from recollect.common.histories import Histories
from recollect.environments import registry
from recollect.environments.dm_control import GOAL
from recollect.settings.errors import UserError
from recollect.settings.resolve import environment_settings, source_hyperparameters
from recollect.sources import sac
from recollect.sources.recording import world_seeds

WORLD, OPTIONS = "dm_control", {"horizon": 20, "only": ["cartpole-swingup", "reacher-easy"]}
SMALL: dict[str, Any] = {"learning_starts": 10, "batch_size": 8, "hidden": (8,), "checkpoint_every": 20}


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Toy physics in DMControl's place, and short blocks."""
    fake_suite.install(monkeypatch)
    monkeypatch.setattr(sac, "BLOCK", 20)


def generated(run: Run | None = None, **chosen: Any) -> dict[str, np.ndarray]:
    settings = sac.Hyperparameters(**{**SMALL, **chosen})
    tasks = registry.tasks(WORLD, OPTIONS, "train")
    return sac.generate(WORLD, OPTIONS, tasks, settings, seed=1, run=run)


def test_a_history_is_what_the_world_did_and_shows_no_goal() -> None:
    pytest.importorskip("stable_baselines3")
    arrays = generated(transitions=50)
    histories = Histories(arrays)
    histories.validate()
    assert histories.episodes.length.tolist() == [20] * 4 and histories.incomplete_transitions == 20
    assert not arrays["observation"][:, GOAL].any() and not arrays["action"][:50, 1:].any()
    assert arrays["action"][50:, :2].all() and not arrays["action"][:, 2:].any()
    for place, task in enumerate(registry.tasks(WORLD, OPTIONS, "train")):
        world = registry.make_world(WORLD, OPTIONS, [task], world_seeds(1, [task]))
        seen, _ = world.reset()
        for row in range(50 * place, 50 * place + 50):
            np.testing.assert_array_equal(arrays["observation"][row], seen[0])
            seen, reward, terminated, truncated, _ = world.step(arrays["action"][row : row + 1])
            ended = terminated | truncated
            assert (reward[0], ended[0]) == (arrays["reward"][row], arrays["done"][row])
            if ended[0]:
                seen, _ = world.reset(options={"reset_mask": ended})


@pytest.mark.parametrize("bootstrap_limit", [False, True])
def test_an_agent_has_its_settings_and_draws_and_learns_from_what_happened(bootstrap_limit: bool) -> None:
    """An end by time is one for SB3 in DMControl, whose suite says `done` there (`bootstrap_limit: false`)."""
    pytest.importorskip("stable_baselines3")
    from recollect.sources.sac_agent import SACAgent

    chosen: dict[str, Any] = {"learning_rate": 0.02, "learning_starts": 99, "batch_size": 7, "gamma": 0.9, "tau": 0.3}
    more: dict[str, Any] = {"replay": 50, "transitions": 60, "bootstrap_limit": bootstrap_limit}
    settings = sac.Hyperparameters(**chosen, **more, hidden=(6, 5), train_every=5)
    options, (task, _) = {**OPTIONS, "goal": "shown"}, registry.tasks(WORLD, OPTIONS, "train")
    agent, other = (SACAgent(WORLD, options, one, settings, 1) for one in (task, replace(task, index=7)))
    model, buffer = agent.model, agent.model.replay_buffer
    assert {name: getattr(model, name) for name in chosen} == chosen and model.policy.net_arch == [6, 5]
    assert (model.train_freq.frequency, model.gradient_steps, model.buffer_size) == (5, 5, 50)
    assert (agent.weights()["actor.mu.weight"] != other.weights()["actor.mu.weight"]).all()  # of equal networks
    blocks = [agent.advance(20).action for _ in range(2)]
    assert (blocks[0][:, 0] != blocks[1][:, 0]).all()  # at random, in each block anew
    world, rows = registry.make_world(WORLD, options, [task], world_seeds(1, [task])), []
    seen = world.reset()[0]
    for action in np.concatenate(blocks):
        led_to, reward, _, cut, _ = world.step(action[None])
        rows.append(
            (seen[0, agent.env.entries], led_to[0, agent.env.entries], reward[0], cut[0], cut[0] and bootstrap_limit)
        )
        seen = world.reset(options={"reset_mask": cut})[0] if cut[0] else led_to
    kept = [buffer.observations, buffer.next_observations, buffer.rewards, buffer.dones, buffer.timeouts]
    for array, expected in zip(kept, zip(*rows, strict=True), strict=True):
        np.testing.assert_array_equal(array[:40, 0], np.array(expected))
    assert buffer.timeouts.sum() == 2 * bootstrap_limit


def test_a_history_depends_on_its_own_task_alone_and_leaves_the_generators_alone() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("stable_baselines3")
    drawn = []
    for play in (False, True):
        np.random.seed(3)
        torch.manual_seed(3)
        both = generated(transitions=40) if play else {}
        drawn.append((np.random.random(), torch.rand(()).item()))
    assert drawn[0] == drawn[1]
    one = registry.tasks(WORLD, OPTIONS, "train")[1:]
    settings = sac.Hyperparameters(**SMALL, transitions=40)
    alone = sac.generate(WORLD, OPTIONS, one, settings, seed=1)
    for name, array in alone.items():
        np.testing.assert_array_equal(array, both[name][40:])


def test_learning_leaves_nothing_in_the_folder_of_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("stable_baselines3")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    generated(transitions=40)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("network", ["plain", "continual_world"])
def test_a_killed_run_ends_with_the_same_histories(tmp_path: Path, network: str) -> None:
    """The replay is smaller than the history, episodes end in the midst of blocks, and phases are of two steps."""
    pytest.importorskip("stable_baselines3")
    chosen: dict[str, Any] = {"network": network, "hidden": (8, 8), "replay": 50, "train_every": 2, "transitions": 110}

    def train(run: Run) -> dict[str, np.ndarray]:
        return {name: np.array(array) for name, array in generated(run, **chosen).items()}

    assert ends_the_same(train, tmp_path, stops=(60, 120, 160)) >= 3


def test_a_run_that_was_killed_before_its_first_episode_ended_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("stable_baselines3")
    options = {**OPTIONS, "horizon": 90}

    def train(run: Run) -> dict[str, np.ndarray]:
        settings, tasks = sac.Hyperparameters(**SMALL, transitions=100), registry.tasks(WORLD, options, "train")[:1]
        return {
            name: np.array(one) for name, one in sac.generate(WORLD, options, tasks, settings, seed=1, run=run).items()
        }

    assert ends_the_same(train, tmp_path, stops=(40,)) >= 1


@pytest.mark.slow
def test_an_agent_that_sees_the_goal_learns_to_reach_it() -> None:
    pytest.importorskip("stable_baselines3")
    options = {"horizon": 20, "only": ["reacher-easy"]}
    settings = sac.Hyperparameters(
        transitions=600, learning_starts=100, batch_size=32, hidden=(32,), learning_rate=0.01, tau=0.05, gamma=0.5
    )
    arrays = sac.generate(WORLD, options, registry.tasks(WORLD, options, "train"), settings, seed=0)
    returns = arrays["reward"].reshape(-1, 20).sum(1)
    assert returns[-5:].mean() > returns[:5].mean() + 2.5  # of 20; at random 12, at best 20


def test_networks_are_those_of_the_released_code() -> None:
    """L2M at 0a4747b, src/algos/models/extractors.py:20 (`create_cwnet`), printed for 5 inputs and (4, 3)."""
    pytest.importorskip("stable_baselines3")
    from recollect.sources.sac_agent import SACAgent

    task = registry.tasks(WORLD, OPTIONS, "train")[0]
    settings = sac.Hyperparameters(network="continual_world", hidden=(4, 3), transitions=10)
    policy: Any = SACAgent(WORLD, {**OPTIONS, "goal": "shown"}, task, settings, 0).model.policy
    kinds = ["Linear", "LayerNorm", "Tanh", "Linear", "LeakyReLU"]
    assert [type(layer).__name__ for layer in policy.actor.latent_pi] == kinds
    for critic in (policy.critic, policy.critic_target):
        for network in critic.q_networks:
            assert [type(layer).__name__ for layer in network] == [*kinds, "Linear"]
            assert network in (critic.qf0, critic.qf1) and network[0].in_features == 4 + 1
    learned = {id(parameter) for group in policy.critic.optimizer.param_groups for parameter in group["params"]}
    assert learned == {id(parameter) for parameter in policy.critic.parameters()}


def test_without_the_package_an_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    monkeypatch.delitem(sys.modules, "recollect.sources.sac_agent", raising=False)
    with pytest.raises(UserError, match=r"(?s)stable_baselines3.*FAMILY=sac"):
        generated(transitions=20)


def test_agents_see_the_goal_where_a_world_hides_one_and_a_wrong_option_stays_one() -> None:
    default = sac.Hyperparameters().agent_options
    assert sac.options_of_agents(WORLD, {"goal": "hidden"}, default) == {"goal": "shown"}
    assert sac.options_of_agents("gymnasium", {"id": "Pendulum-v1"}, default) == {"id": "Pendulum-v1"}
    wrong = {"goal": "seen", "colour": 1}
    assert sac.options_of_agents("gymnasium", {}, wrong) == wrong  # the world refuses them


def test_phases_that_fill_no_block_are_refused() -> None:
    with pytest.raises(ValueError, match="train_every 3"):
        sac.Hyperparameters(train_every=3, transitions=30)


@pytest.mark.parametrize(("env", "transitions"), [("meta_world", 2_000_000), ("dm_control", 1_000_000)])
def test_at_paper_scale_histories_are_of_the_published_source(
    env: str, transitions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paper: transitions per task of its section on data. Networks: L2M at 0a4747b, configs/agent_params/*sac.yaml."""
    monkeypatch.setattr(sac, "BLOCK", 1000)
    source = environment_settings("paper", env).source
    assert source is not None and (source.algorithm, source.split) == ("sac", "train")
    chosen = source_hyperparameters("paper", env, source)
    assert chosen.transitions == transitions and chosen.learning_rate == 3e-4
    for scale in ("demo", "hour", "smoke"):
        other = environment_settings(scale, env).source
        assert other is not None and other.algorithm == "source_policies"
