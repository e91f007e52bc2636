"""PPO on images: the loss and what leads to it are plain loops over the formulas, a stopped run goes on exactly."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import fake_worlds
import numpy as np
import pandas as pd
import pytest
import torch
from odd_clock import ends_the_same
from pydantic import ValidationError

from recollect.artifacts.run import Run
from recollect.common.contract import Inputs
from recollect.common.distinct_images import DistinctImages
from recollect.common.draws import categorical_from_uniform
from recollect.common.masked_mean import ALL, Kept
from recollect.common.optimiser import Adam
from recollect.common.reward_scale import RunningVariance
from recollect.evaluation.episodic import evaluate
from recollect.helm import on_policy, ppo_cnn, ppo_lstm
from recollect.helm.on_policy import OnPolicyTrainer
from recollect.helm.on_policy_loss import loss_of
from recollect.helm.schedule import Schedule
from recollect.settings.errors import UserError
from recollect.settings.schema import EnvironmentSettings, EvaluationSettings, MethodSettings, Settings

MODULES: dict[str, Any] = {"ppo_cnn": ppo_cnn, "ppo_lstm": ppo_lstm}
TINY = {"channel_scale": 1, "width": 16, "actor": 8, "critic": 8, "log_every": 1, "checkpoint_every": 10**9}


@pytest.fixture(autouse=True)
def signals(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_worlds.install(monkeypatch)


def settings_of(method: str = "ppo_cnn", seed: int = 0, world: str = "signal", **chosen: Any) -> Settings:
    options = {"height": 9, "width": 9} if world == "signal" else {}
    environment = EnvironmentSettings(
        name="signal", world=world, options=options, evaluation=EvaluationSettings(protocol="episodic", episodes=6)
    )
    small: dict[str, Any] = {**TINY, "steps": 96, "actors": 4, "rollout": 8, "batches": 4, **chosen}
    if method == "ppo_lstm":
        small = {"units": 12, "sequences": 3, **small}
    hp = MODULES[method].Hyperparameters(**small)
    shell = MethodSettings(name=method, algorithm=method, data="online", hyperparameters=hp)
    return Settings(scale="smoke", seed=seed, environment=environment, method=shell)


def trainer_of(method: str = "ppo_cnn", **chosen: Any) -> OnPolicyTrainer:
    return MODULES[method].make_trainer(settings_of(method, **chosen), Inputs())


def run_in(folder: Path) -> Run:
    return Run(folder, folder / "checkpoints", settings_text="same")


# ---- schedules and scales


def test_schedules_are_their_formulas() -> None:
    def at(progress: float, updates: int = 0, **chosen: Any) -> float:
        return Schedule(**chosen).at(0.05, progress, updates)

    linear: dict[str, Any] = {"kind": "linear", "minimum": 1e-4, "end": 0.5}
    assert at(0.7) == 0.05
    assert at(0.25, **linear) == pytest.approx((0.05 + 1e-4) / 2) and at(0.6, **linear) == 1e-4
    assert at(0.1, **{**linear, "start": 0.4}) == pytest.approx(0.05 + 0.2 * (1e-4 - 0.05))  # it has no burn-in
    burnt: dict[str, Any] = {**linear, "kind": "linear_burn_in", "start": 0.3}
    assert (
        at(0.29, **burnt) == 0.05 and at(0.4, **burnt) == pytest.approx((0.05 + 1e-4) / 2) and at(0.51, **burnt) == 1e-4
    )
    falls: dict[str, Any] = {"kind": "exp", "factor": 0.9, "start": 0.3}
    assert at(0.2, 7, **falls) == 0.05 and at(0.3, 7, **falls) == pytest.approx(0.05 * 0.9**7)
    with pytest.raises(ValidationError, match="not before"):
        Schedule(kind="linear_burn_in", start=0.5, end=0.5)


def test_schedules_are_refreshed_behind_each_rollout() -> None:
    trainer = trainer_of(
        steps=160,
        learning_rate=0.01,
        learning_rate_schedule={"kind": "linear", "minimum": 0.0},
        entropy_schedule={"kind": "exp", "factor": 0.5},
        entropy=0.08,
        clip_schedule="linear",
    )
    found = []
    while not trainer.done:
        moments, done_TE = trainer._play()
        trainer.rollouts += 1
        trainer.sums, trainer.minibatches = {}, 0
        trainer._learn(moments, done_TE)
        found.append(
            [float(trainer.sums[n]) / trainer.minibatches for n in ("learning_rate", "ent_coef", "clip_range")]
        )
    expected = [[0.01 * (1 - k / 5), 0.08 * 0.5 ** (k - 1), 0.2 * (1 - k / 5)] for k in range(1, 6)]
    np.testing.assert_allclose(found, expected, atol=1e-7)


def test_the_running_variance_is_that_of_all_numbers_so_far() -> None:
    draws, running, seen = np.random.default_rng(0), RunningVariance(), []
    for size in ((5,), (1,), (3, 4)):
        values = draws.normal(3, 2, size)
        seen.append(values.ravel())
        running.take_in(values)
    every = np.concatenate(seen)
    assert running.variance == pytest.approx(every.var(), rel=1e-3)  # it began as 1e-4 numbers around 0
    exact = RunningVariance()
    exact.take_in(every)
    np.testing.assert_allclose(exact.moments, running.moments, rtol=1e-12)


def test_rewards_are_scaled_by_the_formula_of_the_specification() -> None:
    draws = np.random.default_rng(1)
    reward_TE, done_TE = draws.normal(0.3, 2, (30, 3)), draws.random((30, 3)) < 0.2
    scale = trainer_of(actors=3, gamma=0.5, clip_reward=0.9).scale  # its discount is not that of the returns
    mean, var, count, R = 0.0, 1.0, 1e-4, np.zeros(3)
    clipped = 0
    for reward_E, done_E in zip(reward_TE, done_TE, strict=True):
        R = 0.99 * R + reward_E
        delta, total = R.mean() - mean, count + 3
        var = (var * count + R.var() * 3 + delta**2 * count * 3 / total) / total
        mean, count = mean + delta * 3 / total, total
        expected = np.clip(reward_E / math.sqrt(var + 1e-8), -0.9, 0.9)
        np.testing.assert_allclose(scale(reward_E, done_E), expected, rtol=1e-12)
        clipped += int((np.abs(expected) == 0.9).sum())
        R = np.where(done_E, 0, R)
    assert 0 < clipped < 90


# ---- from play to loss


def test_a_rollout_is_what_was_played_and_its_advantages_are_the_plain_loop() -> None:
    trainer = trainer_of(rollout=8, gamma=0.9, gae_lambda=0.8, normalise_rewards=False)
    seen, paid, ended = [trainer.observation], [], []
    step, reset = trainer.world.step, trainer.world.reset

    def stepping(action: np.ndarray) -> Any:
        out = step(action)
        paid.append(out[1].copy())
        ended.append(out[2] | out[3])
        seen.append(out[0])
        return out

    def resetting(**asked: Any) -> Any:
        out = reset(**asked)
        seen[-1] = out[0]
        return out

    trainer.world.step, trainer.world.reset = stepping, resetting  # type: ignore[method-assign]
    moments, done_TE = trainer._play()
    np.testing.assert_array_equal(moments["image"].view(8, 4, 3, 9, 9).numpy(), np.stack(seen[:8]))
    np.testing.assert_array_equal(done_TE, np.stack(ended))
    assert moments["image"].dtype == torch.uint8 and done_TE[2].all() and not done_TE[[0, 1, 3]].any()
    assert np.stack(paid).max() == 1
    with torch.no_grad():
        log, value = trainer.agent.network(torch.from_numpy(np.concatenate(seen)))
    values = value.view(9, 4).numpy()
    np.testing.assert_allclose(moments["value"].view(8, 4), values[:8], atol=1e-6)
    chosen = log[:32].gather(1, moments["action"][:, None])[:, 0]
    np.testing.assert_allclose(moments["log"], chosen, atol=1e-6)
    for e in range(4):
        for t in range(8):
            total, weight = 0.0, 1.0
            for k in range(t, 8):
                after = 0.0 if ended[k][e] else values[k + 1, e]
                total += weight * (paid[k][e] + 0.9 * after - values[k, e])
                weight *= 0.0 if ended[k][e] else 0.9 * 0.8
            assert float(moments["advantage"].view(8, 4)[t, e]) == pytest.approx(total, abs=1e-5)
            assert float(moments["return"].view(8, 4)[t, e]) == pytest.approx(total + values[t, e], abs=1e-5)


@pytest.mark.parametrize("bootstrap", [False, True])
@pytest.mark.parametrize("method", ["ppo_cnn", "ppo_lstm"])
def test_a_time_limit_is_an_end_unless_it_is_bootstrapped(
    method: str, bootstrap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake_worlds.Signal, "horizon_terminates", False)
    trainer = trainer_of(
        method, rollout=3, batches=3, bootstrap_truncation=bootstrap, normalise_rewards=False, gamma=0.5
    )
    with torch.no_grad():
        trainer.agent.network.critic.last.bias.fill_(0.3)  # the last image is black: worth nothing without it
    paid, last = [], []
    step = trainer.world.step

    ends = np.array([True, False, True, False])  # half of the games end by themselves at their time limit

    def stepping(action: np.ndarray) -> Any:
        observation, reward, terminated, truncated, info = step(action)
        paid.append(reward.copy())
        last.append(trainer.agent.value(observation))
        return observation, reward, terminated | (truncated & ends), truncated & ~ends, info

    trainer.world.step = stepping  # type: ignore[method-assign]
    moments, _ = trainer._play()
    expected = paid[2] + (np.where(ends, 0, 0.5 * last[2]) if bootstrap else 0)
    np.testing.assert_allclose(moments["return"].view(3, 4)[2], expected, atol=1e-6)
    assert np.abs(last[2]).min() > 1e-3


@pytest.mark.parametrize("clip_value", [None, 0.05])
def test_the_loss_is_a_plain_loop_over_the_formula(clip_value: float | None) -> None:
    draws = np.random.default_rng(3)
    M, A = 40, 3
    logits, value = draws.normal(size=(M, A)), draws.normal(size=M)
    batch = {
        "action": draws.integers(A, size=M),
        "log": draws.normal(-1, 0.3, M),
        "value": value + draws.normal(0, 0.1, M),
        "advantage": draws.normal(size=M),
        "return": draws.normal(size=M),
    }
    policy = critic = entropy = kl = cut = 0.0
    for m in range(M):
        p = np.exp(logits[m]) / np.exp(logits[m]).sum()
        ratio = p[batch["action"][m]] / math.exp(batch["log"][m])
        near = min(max(ratio, 0.9), 1.1)
        policy -= min(ratio * batch["advantage"][m], near * batch["advantage"][m]) / M
        v = value[m]
        if clip_value is not None:
            v = batch["value"][m] + min(max(v - batch["value"][m], -clip_value), clip_value)
        critic += (v - batch["return"][m]) ** 2 / M
        entropy -= sum(p * np.log(p)) / M
        kl += (batch["log"][m] - math.log(p[batch["action"][m]])) / M
        cut += (abs(ratio - 1) > 0.1) / M
    tensors = {name: torch.as_tensor(v) for name, v in batch.items()}
    log = torch.as_tensor(logits).log_softmax(1)
    weights: dict[str, Any] = {"clip": 0.1, "entropy": 0.3, "value_coefficient": 0.7, "clip_value": clip_value}
    loss, metrics = loss_of(log, torch.as_tensor(value), tensors, **weights)
    assert float(loss) == pytest.approx(policy - 0.3 * entropy + 0.7 * critic)
    expected = {"policy_gradient_loss": policy, "value_loss": critic, "entropy_loss": -entropy, "approx_kl": kl}
    expected |= {
        "clip_fraction": cut,
        "explained_variance": 1 - np.var(batch["return"] - value) / batch["return"].var(),
    }
    for name, number in expected.items():
        assert float(metrics[name]) == pytest.approx(number), name
    assert 0.2 < cut < 0.95


def test_advantages_are_standardised_in_a_minibatch_or_divided_by_their_running_deviation() -> None:
    advantage = torch.tensor([1.0, 2.0, 4.0, 9.0])
    there = trainer_of()._scaled_advantages(advantage)
    torch.testing.assert_close(there, (advantage - 4) / (np.std([1, 2, 4, 9], ddof=1) + 1e-8))
    trainer, running = trainer_of(advantages="running"), RunningVariance()
    for part in (advantage, advantage + 1):
        running.take_in(part.numpy())
        torch.testing.assert_close(trainer._scaled_advantages(part), part / math.sqrt(running.variance + 1e-8))


def test_a_pass_takes_every_moment_once_in_an_order_of_its_own() -> None:
    trainer = trainer_of(epochs=3)
    orders: list[list[int]] = []
    epoch = trainer.agent.epoch

    def watched(*given: Any) -> Any:
        orders.append([])
        for rows, log, value in epoch(*given):
            orders[-1] += rows.tolist()
            assert len(rows) == 8
            yield rows, log, value

    trainer.agent.epoch = watched  # type: ignore[method-assign]
    noise = []
    for _ in range(2):
        moments, done_TE = trainer._play()
        noise.append(trainer.rollout.noise_TE)
        trainer.rollouts += 1
        trainer._learn(moments, done_TE)
    assert [sorted(order) for order in orders] == [list(range(32))] * 6
    assert len({tuple(order) for order in orders}) == 6
    assert noise[0].shape == (8, 4) and not np.isin(noise[0], noise[1]).any()


def test_a_seed_has_weights_games_and_draws_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []
    known = on_policy.generator
    monkeypatch.setattr(on_policy, "generator", lambda *keys: (asked.append(keys), known(*keys))[1])
    trainers = [trainer_of(), trainer_of(), trainer_of(seed=1)]
    images = []
    for trainer in trainers:
        moments, done_TE = trainer._play()
        images.append(moments["image"])
        assert [task.split for task in trainer.world.tasks] == ["train"] * 4
        trainer.rollouts += 1
        for name, weight in trainers[0].agent.network.named_parameters():
            alike = torch.equal(weight, trainer.agent.network.get_parameter(name))
            assert alike == (trainer.seed == 0 or name.endswith("bias")), name
    for trainer in trainers:
        trainer._learn(moments, done_TE)
    assert torch.equal(images[0], images[1]) and not torch.equal(images[0], images[2])
    assert len(asked) == 3 * (1 + 3) and len(set(asked)) == 2 * (1 + 3)  # of actions, and of each pass


def test_no_further_pass_where_the_policy_has_moved_too_far() -> None:
    counts = []
    for kl in (None, 1e-9):
        trainer = trainer_of(epochs=3, target_kl=kl, learning_rate=0.05)
        trainer.rollouts += 1
        trainer._learn(*trainer._play())
        counts.append(trainer.minibatches)
    assert counts[0] == 12 and counts[1] < 12


def test_a_pass_is_the_last_where_all_minibatches_so_far_differ_by_one_and_a_half_times_the_target() -> None:
    trainer = trainer_of(epochs=4, batches=2, target_kl=0.08)
    told = iter([0.0, 0.2, 0.13, 0.13, 0.2, 0.2, 0.2, 0.2])  # their means behind each pass: 0.1, 0.115, 0.143
    trainer._update = lambda *_: {"approx_kl": torch.tensor(next(told))}  # type: ignore[method-assign]
    trainer.rollouts += 1
    trainer._learn(*trainer._play())
    assert trainer.minibatches == 6


def test_a_step_is_adamw_on_the_clipped_gradient_of_the_loss() -> None:
    chosen: dict[str, Any] = {"weight_decay": 3, "gradient_norm": 0.05, "value_coefficient": 0.7, "clip_value": 0.3}
    trainer = trainer_of(epochs=1, batches=1, learning_rate=0.01, entropy=0.02, adam_epsilon=1e-3, **chosen)
    other = trainer_of(epochs=1, batches=1)
    moments, done_TE = trainer._play()
    moments["value"] = moments["value"] + torch.linspace(-1, 1, 32)  # of most of which the critic has moved too far
    log, value = other.agent.network(moments["image"])
    raw = moments["advantage"]
    batch = {**moments, "advantage": (raw - raw.mean()) / (raw.std() + 1e-8)}
    loss_of(log, value, batch, clip=0.2, entropy=0.02, value_coefficient=0.7, clip_value=0.3)[0].backward()
    parameters = list(other.agent.network.parameters())
    norm = torch.nn.utils.clip_grad_norm_(parameters, 0.05)
    assert norm > 0.1
    torch.optim.AdamW(parameters, lr=0.01, weight_decay=3, eps=1e-3).step()
    trainer.rollouts += 1
    trainer._learn(moments, done_TE)
    for ours, theirs in zip(trainer.agent.network.parameters(), parameters, strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-3)


# ---- the LSTM's minibatches


def test_pieces_of_episodes_need_no_number_of_minibatches() -> None:
    assert settings_of("ppo_lstm", actors=5, rollout=7, batches=8).method.hyperparameters.batches == 8


def test_pieces_begin_where_episodes_do() -> None:
    done_TE = np.zeros((5, 3), bool)
    done_TE[[1, 4], 0] = True
    done_TE[3, 2] = True
    first, length = ppo_lstm.pieces(done_TE)
    found = {(int(n) % 3, int(n) // 3, int(size)) for n, size in zip(first, length, strict=True)}
    assert found == {(0, 0, 2), (0, 2, 3), (1, 0, 5), (2, 0, 4), (2, 4, 1)}


def test_the_lstms_minibatches_are_the_steps_as_they_were_played() -> None:
    """With the weights that played, each moment's log-probability and value come out again: starts, ends and masks fit."""
    trainer = trainer_of("ppo_lstm", rollout=8, actors=5, batches=1)
    trainer._play()  # so that states at the start of a rollout are not zero
    moments, done_TE = trainer._play()
    assert np.flatnonzero(done_TE.all(1)).tolist() == [0, 3, 6]  # the rollout begins within an episode
    seen: list[int] = []
    sizes = []
    images = DistinctImages(moments["image"])
    with torch.no_grad():
        for rows, log, value in trainer.agent.epoch(images, moments, done_TE, 1, np.random.default_rng(0)):
            seen += rows.tolist()
            sizes.append(len(rows))
            chosen = log.gather(1, moments["action"][rows][:, None])[:, 0]
            np.testing.assert_allclose(chosen, moments["log"][rows], atol=1e-6)
            np.testing.assert_allclose(value, moments["value"][rows], atol=1e-6)
    assert sorted(seen) == list(range(40))
    assert len(sizes) == -(-len(ppo_lstm.pieces(done_TE)[0]) // 3) and len(set(sizes)) > 1


@pytest.mark.parametrize("actors", [5, 1])
def test_minibatches_that_are_filled_up_are_those_without_filling(actors: int) -> None:
    """Which moments count, in their order, and what the network says of them; all minibatches have few shapes."""
    trainer = trainer_of("ppo_lstm", rollout=11, actors=actors, batches=1)
    trainer._play()
    moments, done_TE = trainer._play()
    agent, images = trainer.agent, DistinctImages(moments["image"])
    shapes = set()
    with torch.no_grad():
        expected = list(agent.epoch(images, moments, done_TE, 1, np.random.default_rng(0)))
        filled = list(agent.minibatches(done_TE, 1, np.random.default_rng(0)))
        for minibatch, (rows, *said) in zip(filled, expected, strict=True):
            there = minibatch.there.flatten()
            assert minibatch.moment.flatten()[there].tolist() == rows.tolist()
            for found, one in zip(agent.of_minibatch(images, moments, minibatch), said, strict=True):
                np.testing.assert_allclose(found[there], one, atol=1e-6)
            shapes.add(tuple(minibatch.moment.shape))
    assert shapes <= {(length, trainer.hp.sequences) for length in (2, 3, 6, 11)}
    pieces = 5 * actors
    assert [int(minibatch.there.any(0).sum()) for minibatch in filled] == [3] * (pieces // 3) + [pieces % 3]


@pytest.mark.parametrize("count", [1, 2, 7])
def test_statistics_over_kept_moments_are_those_of_these_alone(count: int) -> None:
    x, there = torch.randn(9, generator=torch.Generator().manual_seed(0)) * 3 + 1, torch.zeros(9, dtype=torch.bool)
    there[torch.randperm(9, generator=torch.Generator().manual_seed(1))[:count]] = True
    kept, alone = Kept(there), x[there]
    filled = torch.where(there, x, torch.tensor(1e6))  # what fills up does not count
    for name in ("mean", "variance", "deviation"):
        torch.testing.assert_close(getattr(kept, name)(filled), getattr(ALL, name)(alone))
    torch.testing.assert_close(kept.standardised(filled)[there], ALL.standardised(alone))
    assert float(ALL.variance(alone)) == pytest.approx(np.var(alone.numpy()), abs=1e-6)


def test_a_loss_and_its_gradient_are_those_of_the_kept_moments_alone() -> None:
    draws = np.random.default_rng(5)
    there = torch.as_tensor(draws.random(30) < 0.6)
    batch = {name: torch.as_tensor(draws.normal(size=30)) for name in ("log", "value", "advantage", "return")}
    batch["action"] = torch.as_tensor(draws.integers(3, size=30))
    batch["log"] -= 2.0
    weights: dict[str, Any] = {"clip": 0.1, "entropy": 0.3, "value_coefficient": 0.7, "clip_value": 0.5}
    found = {}
    for kept in (True, False):
        logits, value = (torch.as_tensor(np.random.default_rng(6).normal(size=shape)) for shape in ((30, 3), 30))
        rows = torch.arange(30) if kept else torch.as_tensor(np.flatnonzero(there))
        logits.requires_grad_(), value.requires_grad_()
        chosen = {name: column[rows] for name, column in batch.items()}
        loss, metrics = loss_of(
            logits[rows].log_softmax(1), value[rows], chosen, **weights, kept=Kept(there) if kept else ALL
        )
        loss.backward()
        found[kept] = {**metrics, "of logits": logits.grad, "of values": value.grad}
    for name, number in found[False].items():
        torch.testing.assert_close(found[True][name], number, msg=name)
    assert float(found[True]["clip_fraction"]) > 0.2 and not found[True]["of logits"][~there].any()


def test_gradients_flow_through_a_whole_piece_and_not_across_its_ends() -> None:
    trainer = trainer_of("ppo_lstm", rollout=6, actors=1, batches=1, sequences=1)
    moments, done_TE = trainer._play()
    assert done_TE[:, 0].tolist() == [False, False, True] * 2
    network, reached = trainer.agent.network, {}
    encoder = network.encoder.forward

    def watched(images: torch.Tensor) -> torch.Tensor:
        features = encoder(images)
        features.retain_grad()
        reached["features"] = features
        return features

    network.encoder.forward = watched  # type: ignore[method-assign]
    images = DistinctImages(moments["image"])
    for _, _, value in trainer.agent.epoch(images, moments, done_TE, 1, np.random.default_rng(0)):
        value[-1].backward()
        assert len(value) == 3 and (reached["features"].grad.abs().sum(1) > 0).all()


# ---- the policy


@pytest.mark.parametrize("method", ["ppo_cnn", "ppo_lstm"])
def test_rows_of_a_policy_do_not_depend_on_each_other(method: str, tmp_path: Path) -> None:
    settings = settings_of(method)
    policy = MODULES[method].train(settings, Inputs(), run_in(tmp_path))
    draws = np.random.default_rng(0)
    images = draws.integers(0, 256, (9, 5, 3, 9, 9), dtype=np.uint8)
    done_TB = draws.random((9, 5)) < 0.25
    seeds = np.arange(10, 15, dtype=np.uint64)

    def played(rows: list[int]) -> tuple[np.ndarray, np.ndarray]:
        policy.start(seeds[rows], 9, 1)
        actions, values, zero = [], [], np.zeros(len(rows), np.float32)
        for t in range(9):
            actions.append(policy.act(images[t, rows], zero, done_TB[t, rows]))
            values.append(policy.traced(np.arange(len(rows)))["value"])
        return np.stack(actions), np.stack(values)

    together, values = played([0, 1, 2, 3, 4])
    for rows in ([3], [4, 0]):
        alone = played(rows)
        np.testing.assert_array_equal(together[:, rows], alone[0])
        np.testing.assert_allclose(values[:, rows], alone[1], atol=1e-6)
    assert len(np.unique(together)) > 1


def test_an_ended_episode_is_forgotten(tmp_path: Path) -> None:
    policy = ppo_lstm.train(settings_of("ppo_lstm"), Inputs(), run_in(tmp_path))
    images = np.random.default_rng(0).integers(0, 256, (3, 2, 3, 9, 9), dtype=np.uint8)
    images[:, 1] = images[:, 0]
    policy.start(np.zeros(2, np.uint64), 9, 1)
    values = []
    for t, done in enumerate(([False, False], [False, False], [False, True])):
        policy.act(images[t], np.zeros(2, np.float32), np.array(done))
        values.append(policy.traced(np.array([0, 1]))["value"])
    assert values[1][0] == values[1][1] and values[2][0] != values[2][1]
    policy.start(np.zeros(2, np.uint64), 9, 1)
    policy.act(images[2], np.zeros(2, np.float32), np.zeros(2, bool))
    np.testing.assert_allclose(policy.traced(np.array([1]))["value"], values[2][1], atol=1e-6)


def test_actions_are_drawn_as_their_probabilities_say() -> None:
    log = np.log(np.tile(np.float32([0.1, 0.6, 0.3]), (20_000, 1)))
    counts = (
        np.bincount(categorical_from_uniform(log, np.random.default_rng(0).random(20_000, np.float32)), minlength=3)
        / 20_000
    )
    np.testing.assert_allclose(counts, [0.1, 0.6, 0.3], atol=0.015)
    assert categorical_from_uniform(
        log[:2], np.float32([0.0, np.nextafter(np.float32(1), 0, dtype=np.float32)])
    ).tolist() == [0, 2]


def test_actions_are_drawn_anew_at_every_step_or_the_likeliest_where_that_is_asked_for() -> None:
    arrays = trainer_of().agent.learned()
    arrays["network/actor.last.weight"][:], arrays["network/actor.last.bias"][:] = 0, (0, 0.2)  # 45 % and 55 %
    images = np.repeat(np.random.default_rng(0).integers(0, 256, (1, 3, 9, 9), dtype=np.uint8), 60, 0)
    nothing = np.zeros(60, np.float32), np.zeros(60, bool)
    for likeliest in (False, True):
        policy = ppo_cnn.load_policy(settings_of(likeliest=likeliest), arrays, Inputs())
        policy.start(np.arange(60, dtype=np.uint64), 9, 1)
        first, second = (policy.act(images, *nothing) for _ in range(2))
        best = policy.traced(np.arange(60))["outputs"].argmax(1)
        assert (first == best).all() == (second == best).all() == (first == second).all() == likeliest


def test_the_network_is_as_wide_as_the_settings_say() -> None:
    chosen = trainer_of("ppo_lstm", channel_scale=2, width=10, actor=5, critic=7, units=6).agent.network
    assert (chosen.encoder.first.out_channels, chosen.encoder.linear.out_features) == (32, 10)
    assert (chosen.lstm.hidden_size, chosen.actor.hidden.out_features, chosen.critic.hidden.out_features) == (6, 5, 7)


@pytest.mark.parametrize("method", ["ppo_cnn", "ppo_lstm"])
def test_a_policy_is_loaded_from_its_arrays_and_scored(method: str, tmp_path: Path) -> None:
    settings = settings_of(method)
    policy = MODULES[method].train(settings, Inputs(), run_in(tmp_path))
    again = MODULES[method].load_policy(settings, policy.arrays(), Inputs())
    tables = [evaluate(each, settings.environment, method=method, seed=0, step=1) for each in (policy, again)]
    pd.testing.assert_frame_equal(*tables)
    assert len(tables[0]) == 6
    with pytest.raises(UserError, match="does not fit"):
        MODULES[method].load_policy(settings_of(method, width=17), policy.arrays(), Inputs())


def test_worlds_without_images_are_refused() -> None:
    with pytest.raises(UserError, match="see images"):
        trainer_of(world="tmaze")
    with pytest.raises(ValidationError, match="no 3 minibatches"):
        settings_of(batches=3)


# ---- going on after a kill


CASES: list[tuple[str, dict[str, Any]]] = [
    ("ppo_cnn", {"rollout": 4, "advantages": "running", "keep_best": True, "log_every": 40}),
    ("ppo_lstm", {"rollout": 4, "entropy_schedule": {"kind": "linear"}}),
]


@pytest.mark.quick("ppo_lstm-changes1")
@pytest.mark.parametrize(("method", "changes"), CASES)
def test_a_stopped_run_goes_on_bit_exactly(method: str, changes: dict[str, Any], tmp_path: Path) -> None:
    settings, module = settings_of(method, **changes), MODULES[method]
    straight = run_in(tmp_path / "straight")
    expected = module.train(settings, Inputs(), straight).arrays()
    for stop in (1, 4):
        folder = tmp_path / f"stopped_{stop}"
        first, run = module.make_trainer(settings, Inputs()), run_in(folder)
        while first.rollouts < stop:
            first.advance(run)
        run.save(first.steps, *first.saved())
        first.advance(run)  # work that is lost
        again = run_in(folder)
        policy = module.train(settings, Inputs(), again)
        assert again.resumed
        for name, value in expected.items():
            assert policy.arrays()[name].tobytes() == value.tobytes(), (stop, name)
        pd.testing.assert_frame_equal(again.table(), straight.table())


def test_checkpoints_are_made_on_the_way(tmp_path: Path) -> None:
    ppo_cnn.train(settings_of(checkpoint_every=40), Inputs(), run_in(tmp_path))
    found = run_in(tmp_path).resume()
    assert found is not None and found.step == 64 and found.state["rollouts"] == 2


def test_the_learning_curve_is_the_mean_of_recent_raw_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert on_policy.RECENT == 100
    monkeypatch.setattr(on_policy, "RECENT", 6)  # of which this run has more
    run = run_in(tmp_path)
    settings = settings_of(rollout=2, steps=128, batches=2)
    trainer = ppo_cnn.make_trainer(settings, Inputs())
    paid: list[float] = []
    step = trainer.world.step

    def stepping(action: np.ndarray) -> Any:
        out = step(action)
        paid.extend(out[1][out[2] | out[3]].tolist())  # this world pays at the end only
        return out

    trainer.world.step = stepping  # type: ignore[method-assign]
    points = []
    while not trainer.done:
        trainer.advance(run)
        points.append(np.mean(paid[-6:]) if paid else np.nan)
    curve = run.table().query("split == 'learning' and metric == 'return'")
    assert curve["step"].tolist() == list(
        range(16, 129, 8)
    )  # behind the first rollout no game has had time for an episode
    np.testing.assert_allclose(curve["value"], points[1:])
    assert len(set(points[1:])) > 2
    metrics = run.table().query("split == 'train'")
    assert metrics["step"].min() == 16  # with the numbers of the rollout before
    np.testing.assert_allclose(metrics.query("metric == 'learning_rate'")["value"], 1e-4)  # means over minibatches
    np.testing.assert_allclose(metrics.query("metric == 'ep_len_mean'")["value"], 3)
    logged = set(metrics["metric"])
    assert logged >= {"ep_rew_mean", "ep_len_mean", "learning_rate", "ent_coef", "adv_mean", "adv_std", "entropy_loss"}
    assert logged >= {"policy_gradient_loss", "value_loss", "approx_kl", "clip_fraction", "loss", "explained_variance"}


def test_the_best_weights_are_kept_where_that_is_asked_for(tmp_path: Path) -> None:
    trainer = trainer_of(keep_best=True)
    for value, kept in ((0.5, True), (0.2, False), (0.6, True)):
        trainer.recent = np.full((4, 3), value)
        with torch.no_grad():
            trainer.agent.network.actor.last.bias.fill_(value)
        trainer._keep_if_best()
        assert (trainer.best["network/actor.last.bias"][0] == np.float32(value)) == kept
    trainer.recent = np.full((2, 3), 1.0)  # half of the games have no episode yet: they count 0
    trainer._keep_if_best()
    assert trainer.best_return == pytest.approx(0.6)
    trainer.rollouts = 3  # the run is over
    assert trainer.train(run_in(tmp_path)) is trainer.best


def test_weights_are_kept_as_they_played_the_rollout(tmp_path: Path) -> None:
    trainer = trainer_of(keep_best=True)
    played = trainer.agent.learned()
    trainer.advance(run_in(tmp_path))
    for name, value in trainer.best.items():
        assert np.array_equal(value, played[name]) and not np.array_equal(value, trainer.agent.learned()[name]), name


@pytest.mark.slow
def test_the_lstm_learns_to_remember_and_the_cnn_cannot(tmp_path: Path) -> None:
    found = {}
    sizes: dict[str, Any] = {"steps": 15_000, "actors": 16, "rollout": 24, "batches": 8, "width": 32, "log_every": 5000}
    for method, own in (("ppo_lstm", {"sequences": 16}), ("ppo_cnn", {})):
        settings = settings_of(method, **sizes, **own, learning_rate=0.002, entropy=0.01)
        policy = MODULES[method].train(settings, Inputs(), run_in(tmp_path / method))
        environment = settings.environment.model_copy(
            update={"evaluation": EvaluationSettings(protocol="episodic", episodes=200)}
        )
        found[method] = evaluate(policy, environment, method=method, seed=0, step=0)["value"].mean()
    assert found["ppo_lstm"] > 0.9 and found["ppo_cnn"] < 0.65


@pytest.mark.slow
def test_checkpoints_at_odd_moments_change_nothing(tmp_path: Path) -> None:
    settings = settings_of("ppo_lstm", rollout=4, log_every=16)
    assert ends_the_same(lambda run: ppo_lstm.train(settings, Inputs(), run).arrays(), tmp_path, (2, 3, 2)) >= 2


def test_a_run_that_diverges_stops_and_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="diverged"):
        ppo_cnn.train(settings_of(learning_rate=1e30), Inputs(), run_in(tmp_path))


@pytest.mark.quick("ppo_cnn")
@pytest.mark.parametrize("method", sorted(MODULES))
def test_an_update_asks_the_device_nothing(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a GPU is not waited for: on the meta device, what reads a number of a tensor fails."""
    trainer = trainer_of(method)
    moments, done_TE = trainer._play()
    trainer.rollouts += 1
    meta = torch.device("meta")
    trainer.agent.network.to(meta)
    trainer.agent.device = meta
    trainer.optimiser = Adam(trainer.agent.network.named_parameters(), lr=0.1)
    stepped: list[int] = []
    monkeypatch.setattr(Adam, "step", lambda optimiser: stepped.append(len(optimiser.gradients())))
    trainer._learn({name: value.to(meta) for name, value in moments.items()}, done_TE)
    assert len(stepped) == trainer.minibatches > 0 and min(stepped) > 0
    assert all(total.device == meta for total in trainer.sums.values())


def test_the_values_of_later_images_are_discounted_by_gamma_also_behind_the_rollout() -> None:
    trainer = trainer_of(rollout=8, gamma=0.9, gae_lambda=0.5, normalise_rewards=False)
    with torch.no_grad():
        trainer.agent.network.critic.last.bias.fill_(0.3)  # black images are worth nothing without it
    moments, done_TE = trainer._play()
    value_TE = np.concatenate([moments["value"].view(8, 4).numpy(), trainer.agent.value()[None]])
    paid_TE = trainer.rollout._reward_TE
    assert np.abs(value_TE[-1]).min() > 0.1 and not done_TE[-1].any()
    later_E = np.zeros(4)
    for t in range(7, -1, -1):
        on_E = np.where(done_TE[t], 0, 0.9)
        later_E = paid_TE[t] + on_E * value_TE[t + 1] - value_TE[t] + on_E * 0.5 * later_E
        np.testing.assert_allclose(moments["advantage"].view(8, 4)[t], later_E, atol=1e-5)


def test_the_lstm_begins_each_episode_of_training_with_a_state_of_zeros() -> None:
    trainer = trainer_of("ppo_lstm")
    moments, done_TE = trainer._play()
    for name in ("hidden", "cell"):
        state_TEU = moments[name].view(8, 4, 12)
        assert done_TE[:-1].any() and not state_TEU[1:][done_TE[:-1]].any()
        assert state_TEU[1:][~done_TE[:-1]].any(1).all()


def test_an_agent_forgets_the_games_whose_episodes_have_ended_and_no_others() -> None:
    trainer = trainer_of()
    forgotten: list[list[bool]] = []
    trainer.agent.forget = lambda mask_E: forgotten.append(mask_E.tolist())
    _, done_TE = trainer._play()
    assert forgotten == done_TE[done_TE.any(1)].tolist() != []


def test_a_time_limit_ends_the_discounted_return_that_rewards_are_scaled_by(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_worlds.Signal, "horizon_terminates", False)
    trainer = trainer_of(rollout=3, batches=3)
    trainer._play()
    assert trainer.rollout.done_TE[2].all() and not trainer.scale.discounted_E.any()


def test_the_step_size_begins_to_decay_behind_the_first_update() -> None:
    trainer = trainer_of(learning_rate=0.01, learning_rate_schedule={"kind": "exp", "factor": 0.5})
    rates = []
    for _ in range(2):
        moments, done_TE = trainer._play()
        trainer.rollouts += 1
        trainer._learn(moments, done_TE)
        rates.append(trainer.optimiser.lr)
    assert rates == [0.01, 0.005]


def test_of_equally_good_weights_the_first_are_kept() -> None:
    trainer = trainer_of(keep_best=True)
    trainer.recent = np.full((4, 3), 0.5)
    for value in (1.0, 2.0):
        with torch.no_grad():
            trainer.agent.network.actor.last.bias.fill_(value)
        trainer._keep_if_best()
    assert trainer.best["network/actor.last.bias"][0] == 1.0
