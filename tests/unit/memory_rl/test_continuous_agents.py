"""TD3 and SAC on histories: the losses are the formulas, what is frozen gets no gradient, they resume and learn."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import fake_worlds
import numpy as np
import pandas as pd
import pytest
import torch
from playing import play

from recollect.artifacts.run import Run
from recollect.common.contract import Facts, Inputs, facts_of
from recollect.common.learning_curve import make_worlds
from recollect.memory_rl import sac, td3
from recollect.memory_rl.continuous_actor_critic import normal
from recollect.memory_rl.history_policy import reseed_dropout
from recollect.memory_rl.replay import Batch
from recollect.settings.errors import UserError
from recollect.settings.schema import EnvironmentSettings, MethodSettings, Settings

FACTS = Facts(observation_size=2, observation_values=(), actions=0, horizon=5, action_size=2)
METHODS = [td3, sac]


def name_of(method: Any) -> str:
    return str(method.__name__.rpartition(".")[2])


def small(method: Any, kind: str = "lstm", **changes: Any) -> Any:
    content: dict[str, Any] = {
        "sequence": {"kind": kind, "width": 8, "dropout": 0.0, **changes.pop("sequence", {})},
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
    return method.Hyperparameters.model_validate(content)


def settings_of(method: Any, hp: Any, world: str = "aim") -> Settings:
    environment = EnvironmentSettings(name="aim", world=world, options={})
    agent = MethodSettings(name="agent", algorithm=name_of(method), data="online", hyperparameters=hp)
    return Settings(scale="smoke", seed=0, environment=environment, method=agent)


def run_in(folder: Path) -> Run:
    return Run(folder, folder / "checkpoints", settings_text="same")


def random_batch(seed: int = 0, n: int = 5, windows: int = 3) -> Batch:
    draws = np.random.default_rng(seed)
    mask = np.arange(n) < draws.integers(1, n + 1, windows)[:, None]
    return Batch(
        torch.as_tensor(draws.normal(size=(windows, n + 1, 2)).astype(np.float32)),
        torch.as_tensor(draws.uniform(-1, 1, (windows, n, 2)).astype(np.float32)),
        torch.as_tensor(draws.normal(size=(windows, n)).astype(np.float32)),
        torch.as_tensor((draws.random((windows, n)) < 0.3).astype(np.float32)),
        torch.as_tensor(mask.astype(np.float32)),
    )


def online_and_target(method: Any, hp: Any) -> tuple[Any, Any]:
    found = [method.make_actor_critic(hp, FACTS, seed=seed) for seed in (0, 1)]
    with torch.no_grad():
        for model in found:
            for head in (model.actor.head, *model.critics):
                head.last.weight.mul_(200)
    return found[0], found[1]


def noise_for(method: Any) -> tuple[torch.Tensor, ...]:
    """Of the target's actions, and of SAC's own."""
    draws = torch.Generator().manual_seed(5)
    both = normal((3, 6, 2), draws), normal((3, 5, 2), draws)
    return both[:1] if method is td3 else both


@pytest.mark.parametrize("method", METHODS, ids=name_of)
@pytest.mark.parametrize("kind", ["gpt", "lstm"])
@pytest.mark.parametrize("shared", [True, False])
def test_the_losses_are_a_plain_loop_over_the_formulas(method: Any, kind: str, shared: bool) -> None:
    hp = small(method, kind, discount=0.9, shared_encoder=shared, freeze_all=False, freeze_critic=False)
    online, target = online_and_target(method, hp)
    batch, A, alpha = random_batch(), 2, 0.1
    first, second = noise_for(sac)
    critic, actor, entropy, count = 0.0, 0.0, 0.0, 0

    def policy(model: Any, h: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, float]:
        outputs = model.actor.head(h).double()
        if method is td3:
            return outputs.tanh(), 0.0
        spread = outputs[A:].exp()
        raw = outputs[:A] + spread * noise
        normal = torch.distributions.Normal(outputs[:A], spread).log_prob(raw)
        return raw.tanh(), float((normal - (1 - raw.tanh() ** 2).log()).sum())

    with torch.no_grad():
        for b in range(3):
            for k in range(1, 6):
                if not batch.mask_BT[b, k - 1]:
                    continue

                def state(encoder: Any, last: int, b: int = b) -> torch.Tensor:
                    actions = torch.cat([torch.zeros(1, A), batch.action_BT[b, :last]])[None]
                    rewards = torch.tensor([[0.0, *batch.reward_BT[b, :last].tolist()]])
                    return encoder(actions, rewards, batch.observation_BTD[b : b + 1, : last + 1])[0, -1]

                def q(model: Any, h: torch.Tensor, action: torch.Tensor) -> list[float]:
                    return [float(head(torch.cat([h, action.float()]))) for head in model.critics]

                def reads(model: Any, last: int) -> torch.Tensor:
                    return state(model.actor.encoder if shared else model.critic_encoder, last)

                acts = target if method is td3 else online
                following, log_pi = policy(acts, state(acts.actor.encoder, k), first[b, k])
                if method is td3:
                    following = (following + (0.2 * first[b, k]).clamp(-0.5, 0.5)).clamp(-1, 1)
                v = min(q(target, reads(target, k), following)) - alpha * log_pi
                y = float(batch.reward_BT[b, k - 1]) + (0.0 if batch.terminal_BT[b, k - 1] else 0.9 * v)
                critic += sum((value - y) ** 2 for value in q(online, reads(online, k - 1), batch.action_BT[b, k - 1]))
                own, log_pi = policy(online, state(online.actor.encoder, k - 1), second[b, k - 1])
                actor += alpha * log_pi - min(q(online, reads(online, k - 1), own))
                entropy -= log_pi
                count += 1
    assert count < 15
    expected = (critic + actor) / count
    if method is sac:
        expected += alpha * (entropy / count + A)
    critic_loss, actor_loss, metrics = method.losses_of(online, target, batch, hp, *noise_for(method))
    assert float((critic_loss + actor_loss).detach()) == pytest.approx(expected, rel=1e-4)
    assert float(metrics["actor_loss"]) == pytest.approx(actor / count, rel=1e-4)


@pytest.mark.parametrize("method", METHODS, ids=name_of)
@pytest.mark.parametrize(
    ("changes", "critics", "encoder"),
    [
        ({"freeze_all": True}, False, False),
        ({"freeze_all": True, "freeze_critic": False}, False, False),
        ({"freeze_all": False, "freeze_critic": True}, False, True),
        ({"freeze_all": False, "freeze_critic": False}, True, True),
        ({"freeze_all": False, "freeze_critic": False, "shared_encoder": False}, False, True),
        ({"freeze_all": True, "shared_encoder": False}, False, True),
    ],
    ids=["freeze_all", "freeze_all alone", "freeze_critic", "free", "separate", "separate whatever freeze_all says"],
)
def test_the_actors_loss_reaches_only_what_is_not_frozen(
    method: Any, changes: Any, critics: bool, encoder: bool
) -> None:
    hp = small(method, **changes)
    online, target = online_and_target(method, hp)
    method.losses_of(online, target, random_batch(), hp, *noise_for(method))[1].backward()

    def reached(module: torch.nn.Module) -> bool:
        return any(p.grad is not None and bool(p.grad.abs().max() > 1e-6) for p in module.parameters())

    assert reached(online.actor.head)
    assert reached(online.critics) == critics
    assert reached(online.actor.encoder) == encoder
    assert online.critic_encoder is None or not reached(online.critic_encoder)
    assert all(p.requires_grad for p in online.parameters())


def weights_of(module: Any) -> torch.Tensor:
    return torch.cat([own.detach().flatten() for own in module.parameters() if own.dim() > 1])


@pytest.mark.parametrize("network", ["torch", "flax"])
def test_twin_critics_and_encoders_begin_apart_and_targets_as_what_they_follow(network: str) -> None:
    """Equal twins would stay equal, and the smaller of their values be that of either."""
    learner = td3.TD3(small(td3, network=network, shared_encoder=False), FACTS, seed=0, device="cpu")
    online = learner.online
    for one, other in (online.critics, (online.actor.encoder, online.critic_encoder)):
        assert (weights_of(one) == weights_of(other)).float().mean() < 0.01
    for name, value in learner.target.state_dict().items():
        assert torch.equal(value, online.state_dict()[name]), name


def test_each_of_two_encoders_drops_out_by_itself() -> None:
    learner = td3.TD3(small(td3, "gpt", sequence={"dropout": 0.5}, shared_encoder=False), FACTS, seed=0, device="cpu")
    encoders: Any = learner.online.actor.encoder, learner.online.critic_encoder
    kept = []
    for seed in (7, 7, 8):
        reseed_dropout(learner.online, seed)
        kept.append([encoder.sequence.transformer.dropout.keep((1000,), 0.5) for encoder in encoders])
    assert 0.4 < float((kept[0][0] == kept[0][1]).float().mean()) < 0.6
    for here, again, other in zip(*kept, strict=True):
        assert torch.equal(here, again) and not torch.equal(here, other)


def test_the_density_of_a_squashed_gaussian_integrates_to_one() -> None:
    outputs, raw = torch.tensor([0.3, -0.4]).double(), torch.linspace(-7, 7, 20_001).double()
    noise = (raw[:, None] - 0.3) / math.exp(-0.4)
    action, log_pi = sac.drawn(outputs.expand(len(raw), 2), noise)
    assert float(torch.trapezoid(log_pi.exp(), action[:, 0])) == pytest.approx(1.0, abs=1e-4)
    for mean in (60.0, -60.0):
        extreme = sac.drawn(torch.tensor([[mean, 9.0]]), torch.ones(1, 1))
        assert bool(torch.isfinite(extreme[1]).all())


@pytest.mark.parametrize(("asked", "used"), [(-30.0, -20.0), (-20.0, -20.0), (1.5, 1.5), (9.0, 2.0)])
def test_the_log_deviation_of_a_gaussian_is_kept_between_minus_20_and_2(asked: float, used: float) -> None:
    action, log_pi = sac.drawn(torch.tensor([[0.0, asked]]), torch.full((1, 1), 0.01))
    assert float(action) == pytest.approx(math.tanh(0.01 * math.exp(used)), rel=1e-5)
    slope = math.log(1 - math.tanh(0.01 * math.exp(used)) ** 2)
    assert float(log_pi) == pytest.approx(-0.00005 - used - 0.5 * math.log(2 * math.pi) - slope, rel=1e-5)


@pytest.mark.parametrize(("asked", "goal"), [(None, -2.0), (-0.5, -0.5)])
def test_a_temperature_is_learned_to_the_entropy_that_is_asked_for(asked: float | None, goal: float) -> None:
    hp = small(sac, target_entropy=asked)
    online, target = online_and_target(sac, hp)
    _, actor_loss, metrics = sac.losses_of(online, target, random_batch(), hp, *noise_for(sac))
    actor_loss.backward()
    wanted = 0.1 * (float(metrics["entropy"]) - goal)  # the slope in the temperature's logarithm
    assert float(online.log_alpha.grad) == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize("method", METHODS, ids=name_of)
def test_exploration_stays_in_the_box_and_is_random(method: Any) -> None:
    learner = getattr(method, method.__name__.rpartition(".")[2].upper())(small(method), FACTS, seed=0, device="cpu")
    outputs = torch.full((500, 2 if method is td3 else 4), 2.0)
    action = learner.explore(outputs, np.zeros(500), np.random.default_rng(0))
    assert action.shape == (500, 2) and action.dtype == np.float32
    assert np.abs(action).max() <= 1 and action.std() > 0.01
    # Far from the edges: what is added to a td3's action, and the deviation that a sac's outputs name.
    outputs = (
        torch.zeros(5000, 2)
        if method is td3
        else torch.tensor([0.0, 0.0, math.log(0.3), math.log(0.3)]).expand(5000, 4)
    )
    action = learner.explore(outputs, np.zeros(5000), np.random.default_rng(0))
    spread = action.std(0) if method is td3 else np.arctanh(action).std(0)
    np.testing.assert_allclose(spread, 0.1 if method is td3 else 0.3, rtol=0.05)
    assert abs(np.corrcoef(action.T)[0, 1]) < 0.1  # each number of an action has noise of its own


READ_BY_TARGETS: list[tuple[Any, bool, set[str]]] = [
    (td3, True, {"actor", "critics"}),
    (td3, False, {"actor", "critics", "critic_encoder"}),
    (sac, True, {"actor", "critics"}),
    (sac, False, {"critics", "critic_encoder"}),  # its next actions are the online actor's
]


@pytest.mark.parametrize(("method", "shared", "read"), READ_BY_TARGETS)
def test_there_is_no_copy_that_no_target_reads(method: Any, shared: bool, read: set[str]) -> None:
    learner = getattr(method, name_of(method).upper())(
        small(method, shared_encoder=shared), FACTS, seed=0, device="cpu"
    )
    assert {name.partition(".")[0] for name in learner.target.state_dict()} == read


@pytest.mark.parametrize(("method", "outputs"), [(td3, 1), (sac, 2)])
def test_a_policy_is_loaded_again_whose_outputs_for_each_number_of_an_action_are_one_or_a_deviation_beside_it(
    method: Any, outputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_worlds.install(monkeypatch)
    settings = settings_of(method, small(method))
    facts = facts_of(settings.environment)
    actor = method.make_actor_critic(settings.method.hyperparameters, facts, seed=0).actor
    arrays = {name: value.numpy() for name, value in actor.state_dict().items()}
    loaded = method.load_policy(settings, arrays, Inputs())
    assert loaded.arrays().keys() == arrays.keys()
    assert len(arrays["head.last.weight"]) == outputs * facts.action_size


def test_the_warm_ups_actions_fill_the_box(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_worlds.install(monkeypatch)
    trainer = td3.make_trainer(settings_of(td3, small(td3, actors=200)))
    action = trainer.play_round(warming=True, count=200).action_BT
    assert np.abs(action).max() <= 1 and np.abs(action.mean((0, 1))).max() < 0.1
    np.testing.assert_allclose(action.std((0, 1)), 1 / math.sqrt(3), rtol=0.05)


@pytest.mark.parametrize("method", METHODS, ids=name_of)
def test_what_an_update_draws_is_its_own(method: Any) -> None:
    learner = getattr(method, name_of(method).upper())(small(method), FACTS, seed=3, device="cpu")
    other = getattr(method, name_of(method).upper())(small(method), FACTS, seed=4, device="cpu")
    drawn = [*learner.noise(4, 5, 0), *learner.noise(4, 5, 1), *other.noise(4, 5, 0)]
    numbers = torch.cat([part.flatten() for part in drawn])
    assert len(numbers.unique()) > 0.99 * len(numbers)
    for again, here in zip(learner.noise(4, 5, 0), drawn, strict=False):
        assert torch.equal(again, here)


@pytest.mark.parametrize("kind", ["lstm", "gpt", "ff"])
def test_a_flax_network_begins_orthogonal_with_biases_of_zero_and_one_that_learns_per_gate(kind: str) -> None:
    """As networks/initializer.py and networks/seq_models/recurrence.py of branch pybullet_jax (b6c68ef) have it."""
    hp = small(td3, kind, network="flax", shared_encoder=False, head=[8])
    model = td3.make_actor_critic(hp, FACTS, seed=0)
    checked = 0
    for name, parameter in model.named_parameters():
        if "transformer" in name:
            continue
        assert parameter.requires_grad == ("bias_ih" not in name)
        if "bias" in name:
            assert not parameter.any(), name
            continue
        for matrix in parameter.detach().split(8) if "cells" in name else [parameter.detach()]:
            wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
            torch.testing.assert_close(wide @ wide.T, torch.eye(len(wide)), atol=1e-5, rtol=0)
            checked += 1
    assert checked >= 4 + 3 * 2 + {"lstm": 16, "gpt": 0, "ff": 2}[kind]
    assert model.actor.encoder.embedder.observation_first
    plain = td3.make_actor_critic(small(td3, kind), FACTS, seed=0)
    assert not plain.actor.encoder.embedder.observation_first and all(p.requires_grad for p in plain.parameters())


@pytest.mark.parametrize("method", METHODS, ids=name_of)
def test_discrete_actions_are_refused(method: Any) -> None:
    with pytest.raises(UserError, match="continuous actions"):
        method.make_trainer(settings_of(method, small(method), "tmaze"))


@pytest.mark.quick("td3")
@pytest.mark.parametrize("method", METHODS, ids=name_of)
def test_a_stopped_run_goes_on_bit_exactly_and_its_policy_is_loaded_again(
    method: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_worlds.install(monkeypatch)
    changes = {"actors": 2, "sampled_seq_len": 2, "evaluate_every": 3, "sequence": {"dropout": 0.1}}
    settings = settings_of(method, small(method, "gpt", **changes))
    straight = run_in(tmp_path / "straight")
    expected = method.train(settings, Inputs(), straight).arrays()
    first, run = method.make_trainer(settings), run_in(tmp_path / "stopped")
    while first.at.updates < 12:
        first.advance(run)
    run.save(first.at.updates, *first.saved())
    first.advance(run)
    again = run_in(tmp_path / "stopped")
    policy = method.train(settings, Inputs(), again)
    assert again.resumed
    for name, value in expected.items():
        assert policy.arrays()[name].tobytes() == value.tobytes(), name
    pd.testing.assert_frame_equal(again.table(), straight.table())
    loaded, taken = method.load_policy(settings, policy.arrays(), Inputs()), []
    for each in (policy, loaded):
        each.start(np.zeros(3, np.uint64), 4, 1)
        for done in (False, True):
            action = each.act(np.full((3, 2), 0.5, np.float32), np.ones(3, np.float32), np.full(3, done))
        taken.append(action)
    np.testing.assert_array_equal(*taken)
    assert taken[0].shape == (3, 2)


@pytest.mark.slow
@pytest.mark.parametrize("method", [pytest.param(td3, marks=pytest.mark.slow), sac], ids=name_of)
def test_it_learns_to_aim_at_a_remembered_number(method: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_worlds.install(monkeypatch)
    changes = {
        "head": [32],
        "observation_embedding": 8,
        "action_embedding": 8,
        "actors": 32,
        "warmup_episodes": 512,
        "train_episodes": 2048,
        "updates_per_step": 0.06,
        "batch_size": 32,
        "learning_rate": 0.003,
        "polyak": 0.05,
        "discount": 0.5,
        "evaluate_every": 10**6,
        "replay_transitions": 10**5,
    }
    settings = settings_of(method, small(method, "gpt", sequence={"width": 16}, **changes))
    policy = method.train(settings, Inputs(), run_in(tmp_path))
    scores = play(make_worlds(settings.environment, 99, 1, 64)[1], policy)
    assert scores.return_E.mean() > 3.2  # of 4; without memory at most 2.5
