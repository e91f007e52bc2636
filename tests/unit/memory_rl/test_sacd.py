"""SAC-Discrete on histories: the losses are the formulas, what is frozen gets no gradient, a stopped run goes on exactly."""

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
from recollect.common.feedforward import ImageEmbedder
from recollect.common.learning_curve import make_worlds
from recollect.memory_rl import dqn, sacd
from recollect.memory_rl.replay import Batch
from recollect.memory_rl.sacd import SACD, Hyperparameters, losses_of, make_actor_critic, make_trainer
from recollect.settings.errors import UserError
from recollect.settings.schema import EnvironmentSettings, MethodSettings, Settings

FACTS = Facts(observation_size=2, observation_values=(), actions=4, horizon=5)


def loss_of(
    online: Any, target: Any, batch: Batch, hp: Hyperparameters
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    critic_loss, actor_loss, metrics = losses_of(online, target, batch, hp)
    return critic_loss + actor_loss, metrics


def small(kind: str = "gpt", model: Any = Hyperparameters, **changes: Any) -> Any:
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
    return model.model_validate(content)


def settings_of(
    hp: Any, world: str = "tmaze", options: dict[str, Any] | None = None, algorithm: str = "sacd"
) -> Settings:
    if options is None:
        options = {"variant": "passive", "length": 4} if world == "tmaze" else {}
    environment = EnvironmentSettings(name="maze", world=world, options=options)
    method = MethodSettings(name="agent", algorithm=algorithm, data="online", hyperparameters=hp)
    return Settings(scale="smoke", seed=0, environment=environment, method=method)


def run_in(folder: Path) -> Run:
    return Run(folder, folder / "checkpoints", settings_text="same")


def random_batch(seed: int = 0, n: int = 5, windows: int = 3) -> Batch:
    draws = np.random.default_rng(seed)
    mask = np.arange(n) < draws.integers(1, n + 1, windows)[:, None]
    return Batch(
        torch.as_tensor(draws.normal(size=(windows, n + 1, 2)).astype(np.float32)),
        torch.as_tensor(draws.integers(4, size=(windows, n))),
        torch.as_tensor(draws.normal(size=(windows, n)).astype(np.float32)),
        torch.as_tensor((draws.random((windows, n)) < 0.3).astype(np.float32)),
        torch.as_tensor(mask.astype(np.float32)),
    )


def online_and_target(hp: Hyperparameters) -> tuple[Any, Any]:
    """With outputs that differ from each other, so that a wrong index shows."""
    found = [make_actor_critic(hp, FACTS, seed=seed) for seed in (0, 1)]
    with torch.no_grad():
        for model in found:
            for head in (model.actor.head, *model.critics):
                head.last.weight.mul_(300)
    return found[0], found[1]


# ---- the losses


@pytest.mark.parametrize("kind", ["gpt", "lstm", "ff"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"target_encoder": True},
        {"shared_encoder": False},
        {"freeze_critic": False},
        {"target_entropy": 0.7},
    ],
    ids=str,
)
def test_the_losses_are_a_plain_loop_over_the_formulas(kind: str, changes: Any) -> None:
    hp = small(
        kind, sequence={"dropout": 0.0}, discount=0.9, alpha=0.3, reward_embedding=3, action_embedding=1, **changes
    )
    online, target = online_and_target(hp)
    alpha = 0.3
    if hp.target_entropy is not None:
        with torch.no_grad():
            online.log_alpha.fill_(math.log(0.6))
        alpha = 0.6
    batch = random_batch()
    critic, actor, entropy, count = 0.0, 0.0, 0.0, 0
    for b in range(3):
        for k in range(1, 6):  # transition k: from token k - 1 to token k
            if not batch.mask_BT[b, k - 1]:
                continue

            def state(encoder: Any, last: int, b: int = b) -> torch.Tensor:
                """h after tokens 0..last."""
                actions = torch.tensor([[4, *batch.action_BT[b, :last].tolist()]])
                rewards = torch.tensor([[0.0, *batch.reward_BT[b, :last].tolist()]])
                return encoder(actions, rewards, batch.observation_BTD[b : b + 1, : last + 1])[0, -1].detach()

            def policy(last: int) -> list[float]:
                return online.actor.head(state(online.actor.encoder, last)).softmax(-1).tolist()

            reads, target_reads = online.actor.encoder, online.actor.encoder
            if not hp.shared_encoder:
                reads, target_reads = online.critic_encoder, target.critic_encoder
            elif hp.target_encoder:
                target_reads = target.actor.encoder
            following = [q(state(target_reads, k)).tolist() for q in target.critics]
            v = sum(p * (min(following[0][a], following[1][a]) - alpha * math.log(p)) for a, p in enumerate(policy(k)))
            y = float(batch.reward_BT[b, k - 1]) + (0.0 if batch.terminal_BT[b, k - 1] else 0.9 * v)
            present = [q(state(reads, k - 1)).tolist() for q in online.critics]
            taken = int(batch.action_BT[b, k - 1])
            critic += sum((q[taken] - y) ** 2 for q in present)
            for a, p in enumerate(policy(k - 1)):
                actor += p * (alpha * math.log(p) - min(present[0][a], present[1][a]))
                entropy -= p * math.log(p)
            count += 1
    assert count < 15  # the masks take part
    expected = (0.5 if hp.shared_encoder else 1.0) * critic / count + actor / count
    if hp.target_entropy is not None:
        expected -= alpha * (-entropy / count + 0.7 * math.log(4))
    loss, metrics = loss_of(online, target, batch, hp)
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-4)
    assert float(metrics["critic_loss"]) == pytest.approx(critic / count, rel=1e-4)
    assert float(metrics["entropy"]) == pytest.approx(entropy / count, rel=1e-4)


def gradients_of_the_actors_loss(hp: Hyperparameters) -> dict[str, float]:
    """Largest gradient of each part by the actor's loss alone: the critics' errors are made zero by an empty target."""
    online, target = online_and_target(hp)
    full = loss_of(online, target, random_batch(), hp)
    names, parameters = zip(*online.named_parameters(), strict=True)
    whole = torch.autograd.grad(full[0], parameters, allow_unused=True)
    again, other = online_and_target(hp)
    h = again.critic_states(sacd.tokens(random_batch(), again.actor))
    batch, n = random_batch(), 5
    q1, q2 = (q[:, :n].gather(-1, batch.action_BT[..., None])[..., 0] for q in again.q(h))
    y = value_targets(again, other, batch, hp)
    share = 0.5 if hp.shared_encoder else 1.0
    critics = share * sacd.masked_mean((q1 - y) ** 2 + (q2 - y) ** 2, batch.mask_BT)
    alone = torch.autograd.grad(critics, list(again.parameters()), allow_unused=True)
    found: dict[str, float] = {}
    for name, a, b in zip(names, whole, alone, strict=True):
        part = (
            name.rpartition(".")[0].partition(".")[0] if not name.startswith("actor") else ".".join(name.split(".")[:2])
        )
        rest = (torch.zeros(1) if a is None else a) - (torch.zeros(1) if b is None else b)
        found[part] = max(found.get(part, 0.0), float(rest.abs().max()))
    return found


@torch.no_grad()
def value_targets(online: Any, target: Any, batch: Batch, hp: Hyperparameters) -> torch.Tensor:
    parts = sacd.tokens(batch, online.actor)
    h = online.actor.encoder(*parts)
    pi = online.actor.head(h).softmax(-1)
    least = torch.minimum(*target.q(h if hp.shared_encoder else target.critic_encoder(*parts)))
    value = (pi * (least - hp.alpha * pi.log())).sum(-1)[:, 1:]
    return batch.reward_BT + (1 - batch.terminal_BT) * hp.discount * value


@pytest.mark.parametrize("kind", ["gpt", "lstm"])
def test_a_frozen_critic_gets_no_gradient_from_the_actor(kind: str) -> None:
    found = gradients_of_the_actors_loss(small(kind, sequence={"dropout": 0.0}))
    assert found["critics"] < 1e-6
    assert found["actor.head"] > 1e-3 and found["actor.encoder"] > 1e-3


def test_a_critic_that_is_not_frozen_gets_one_and_so_does_the_encoder_through_it() -> None:
    frozen, free = (gradients_of_the_actors_loss(small("lstm", freeze_critic=freeze)) for freeze in (True, False))
    assert free["critics"] > 1e-3
    assert free["actor.head"] == pytest.approx(frozen["actor.head"], abs=1e-6)
    assert free["actor.encoder"] != pytest.approx(frozen["actor.encoder"], rel=1e-3)


@pytest.mark.parametrize("freeze", [True, False])
def test_separate_encoders_learn_from_their_own_loss_only(freeze: bool) -> None:
    found = gradients_of_the_actors_loss(small("lstm", shared_encoder=False, freeze_critic=freeze))
    assert found["critics"] < 1e-6 and found["critic_encoder"] < 1e-6
    assert found["actor.encoder"] > 1e-3


@pytest.mark.parametrize("shared", [True, False])
def test_critics_step_first_only_where_encoders_are_apart(shared: bool) -> None:
    after = []
    for first in (True, False):
        learner = SACD(small("lstm", shared_encoder=shared, critics_first=first), FACTS, seed=0, device="cpu")
        for counter in range(2):
            learner.step(random_batch(), counter)
        after.append(list(learner.online.parameters()))
    assert all(torch.equal(here, there) for here, there in zip(*after, strict=True)) == shared


READ_BY_TARGETS: list[tuple[dict[str, Any], set[str]]] = [
    ({}, {"critics"}),
    ({"target_encoder": True}, {"critics", "actor"}),
    ({"shared_encoder": False}, {"critics", "critic_encoder"}),
    ({"shared_encoder": False, "target_encoder": True}, {"critics", "critic_encoder"}),
    ({"shared_encoder": False, "critics_first": True}, {"critics", "critic_encoder"}),
]


@pytest.mark.parametrize(("changes", "read"), READ_BY_TARGETS)
def test_a_step_moves_the_target_by_polyak_and_there_is_no_copy_that_nothing_reads(
    changes: dict[str, Any], read: set[str]
) -> None:
    hp = small("lstm", polyak=0.25, learning_rate=0.01, target_entropy=0.5, **changes)
    learner = SACD(hp, FACTS, seed=0, device="cpu")
    before = {name: value.clone() for name, value in learner.target.state_dict().items()}
    metrics = learner.step(random_batch(), 0)
    assert {"critic_loss", "actor_loss", "q1", "q2", "entropy", "alpha", "gradient_norm"} == set(metrics)
    assert {name.partition(".")[0] for name in before} == read
    for name, followed in learner.target.state_dict().items():
        now = learner.online.state_dict()[name]
        torch.testing.assert_close(followed, before[name] + 0.25 * (now - before[name]), atol=1e-6, rtol=1e-5)
        if "action" not in name:
            assert not torch.equal(now, before[name]), name


def test_a_learned_temperature_starts_at_1_and_falls_while_the_policy_is_too_random() -> None:
    found = []
    for share in (0.1, 1.0):
        learner = SACD(small("lstm", target_entropy=share, learning_rate=0.01), FACTS, seed=0, device="cpu")
        found.append([float(learner.step(random_batch(), i)["alpha"]) for i in range(5)])
    assert found[0][0] == found[1][0] == 1.0
    assert found[0] == sorted(found[0], reverse=True) and found[0][4] < 0.97
    assert found[1][4] == pytest.approx(1.0, abs=0.05)  # a fresh policy is almost uniform
    fixed = SACD(small("lstm"), FACTS, seed=0, device="cpu")
    assert [float(fixed.step(random_batch(), i)["alpha"]) for i in range(2)] == pytest.approx([0.1, 0.1])


@pytest.mark.parametrize(("kind", "layers", "published"), [("gpt", 1, 414_660), ("lstm", 2, 564_520)])
def test_an_agent_of_images_has_the_published_number_of_parameters(kind: str, layers: int, published: int) -> None:
    width = 100 if kind == "gpt" else 128
    hp = Hyperparameters.model_validate(
        {
            "sequence": {"kind": kind, "layers": layers, "width": width},
            "observation_embedding": 100,
            "action_embedding": 0,
        }
    )
    images = Facts(observation_size=75, observation_values=(), actions=4, horizon=90, image_shape=(3, 5, 5))
    assert sum(p.numel() for p in make_actor_critic(hp, images, seed=0).parameters()) == published


def test_the_logarithm_of_a_chance_is_its_own_down_to_1e_8_and_then_finite() -> None:
    hp = small("ff", sequence={"dropout": 0.0})
    online, target = online_and_target(hp)
    with torch.no_grad():
        online.actor.head.last.weight.zero_()
    for rest, near in ((-13.0, 0.02), (-17.0, 0.08), (-200.0, 0.02)):  # beside a chance of almost 1, which is rounded
        with torch.no_grad():
            online.actor.head.last.bias.copy_(torch.tensor([0.0, rest, rest, rest]))
        loss, metrics = loss_of(online, target, random_batch(), hp)
        chance = math.exp(rest) / (1 + 3 * math.exp(rest))
        entropy = -3 * chance * math.log(chance) - (1 - 3 * chance) * math.log1p(-3 * chance)
        assert float(metrics["entropy"]) == pytest.approx(entropy, rel=near, abs=1e-12)
        assert math.isfinite(float(loss.detach()))


# ---- acting


def test_exploration_draws_from_the_policy() -> None:
    logits = torch.tensor([[0.0, 1.0, -2.0, 0.5]]).expand(20_000, 4)
    draws = np.random.default_rng(0)
    action_B = SACD(small(), FACTS, seed=0, device="cpu").explore(logits, np.zeros(20_000), draws)
    np.testing.assert_allclose(np.bincount(action_B, minlength=4) / 20_000, logits[0].softmax(-1), atol=0.01)


def test_exploration_draws_from_a_policy_of_large_outputs_too() -> None:
    learner, outputs = SACD(small(), FACTS, seed=0, device="cpu"), torch.tensor([0.0, 0.0, 2000.0, 0.0])
    drawn = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    assert learner.explored(outputs.expand(3, 4), drawn).tolist() == [2, 2, 2]
    assert [learner.explore_one(outputs.numpy(), 0, np.random.default_rng(seed)) for seed in range(3)] == [2, 2, 2]


def test_continuous_actions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_worlds.install(monkeypatch)
    with pytest.raises(UserError, match="continuous"):
        make_trainer(settings_of(small(), "aim"))
    with pytest.raises(UserError, match="continuous"):
        dqn.make_trainer(settings_of(small(model=dqn.Hyperparameters), "aim", algorithm="dqn"))


# ---- images


@pytest.mark.parametrize("last", [False, True])
def test_images_stay_bytes_in_the_replay_and_are_encoded_once_per_step(
    last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_worlds.install(monkeypatch)
    settings = settings_of(small(actors=6, action_embedding=0, observation_embedding=8), "signal", {"last": last})
    trainer = make_trainer(settings)
    assert facts_of(settings.environment).image_shape == ((5, 4, 3) if last else (3, 5, 4))
    encoded: list[int] = []
    forward = ImageEmbedder.forward
    monkeypatch.setattr(
        ImageEmbedder, "forward", lambda self, x: (encoded.append(x[..., 0].numel()), forward(self, x))[1]
    )
    trainer.at.episodes = trainer.hp.warmup_episodes
    trainer._collect()
    assert encoded == [6, 6, 6]
    assert trainer.replay.observation.dtype == torch.uint8
    batch = trainer.replay.sample(8, 3, seed=0, counter=0)
    images = batch.observation_BTD[:, 0].view(8, *((5, 4, 3) if last else (3, 5, 4)))
    channels = images.amax((1, 2) if last else (2, 3))
    assert set(map(tuple, channels.tolist())) <= {(255, 0, 0), (0, 0, 255)}
    assert not batch.observation_BTD[:, 1:].any()


def test_an_image_means_the_same_with_channels_first_and_last() -> None:
    first, last = (ImageEmbedder(s, 6, generator=torch.Generator().manual_seed(0)) for s in ((3, 5, 4), (5, 4, 3)))
    image = torch.randint(0, 256, (2, 3, 5, 4), generator=torch.Generator().manual_seed(1)).to(torch.uint8)
    torch.testing.assert_close(first(image.flatten(1)), last(image.permute(0, 2, 3, 1).flatten(1)))


LEARNING = {
    "head": [32],
    "warmup_episodes": 64,
    "actors": 64,
    "updates_per_step": 0.03,
    "batch_size": 32,
    "learning_rate": 0.003,
    "polyak": 0.05,
    "evaluate_every": 10**6,
    "replay_transitions": 10**5,
}


@pytest.mark.slow
@pytest.mark.parametrize("method", [sacd, dqn])
def test_it_learns_to_remember_an_image(method: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_worlds.install(monkeypatch)
    sequence = {"width": 16, "dropout": 0.0}
    changes = {"observation_embedding": 16, "action_embedding": 0, "train_episodes": 2048, "updates_per_step": 0.06}
    hp = small("gpt", method.Hyperparameters, sequence=sequence, **LEARNING | changes)
    settings = settings_of(hp, "signal", algorithm=method.__name__.rpartition(".")[2])
    policy = method.train(settings, Inputs(), run_in(tmp_path))
    assert play(make_worlds(settings.environment, 99, 1, 64)[1], policy).return_E.mean() == 1.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("gpt", {"alpha": 0.03, "train_episodes": 3200}),
        pytest.param("lstm", {"train_episodes": 3840, "updates_per_step": 0.08}, marks=pytest.mark.slow),
    ],
)
def test_it_learns_to_remember_the_sign(kind: str, changes: Any, tmp_path: Path) -> None:
    changes = {"observation_embedding": 16, "action_embedding": 16, **changes}
    sequence = {"width": 32, "dropout": 0.0}
    hp = small(kind, sequence=sequence, **LEARNING | changes)
    settings = settings_of(hp, options={"variant": "passive", "length": 3})
    policy = sacd.train(settings, Inputs(), run_in(tmp_path))
    assert play(make_worlds(settings.environment, 99, 1, 64)[1], policy).return_E.mean() == 1.0


# ---- resuming and the policy file


CASES = [
    ("gpt", {"evaluate_every": 3, "target_entropy": 0.5}, [3, 17]),
    ("lstm", {"actors": 3, "evaluate_every": 3, "sampled_seq_len": 3, "shared_encoder": False}, [1, 14]),
    ("gpt", {"actors": 2, "sampled_seq_len": 2, "replay_transitions": 30, "shared_encoder": False}, [13]),
]


@pytest.mark.quick("gpt-changes0-stops0")
@pytest.mark.parametrize(("kind", "changes", "stops"), CASES)
def test_a_stopped_run_goes_on_bit_exactly(kind: str, changes: Any, stops: list[int], tmp_path: Path) -> None:
    settings = settings_of(small(kind, **changes))
    straight = run_in(tmp_path / "straight")
    expected = sacd.train(settings, Inputs(), straight).arrays()
    for stop in stops:
        first, run = make_trainer(settings), run_in(tmp_path / f"stopped_{stop}")
        while first.at.updates < stop:
            first.advance(run)
        run.save(first.at.updates, *first.saved())
        for _ in range(5):  # work that is lost
            if not first.done:
                first.advance(run)
        again = run_in(tmp_path / f"stopped_{stop}")
        arrays = sacd.train(settings, Inputs(), again).arrays()
        assert again.resumed and arrays.keys() == expected.keys()
        for name, value in expected.items():
            assert arrays[name].tobytes() == value.tobytes(), (stop, name)
        pd.testing.assert_frame_equal(again.table(), straight.table())


def test_a_policy_file_holds_the_actor_only_and_is_loaded_again(tmp_path: Path) -> None:
    settings = settings_of(small())
    policy = sacd.train(settings, Inputs(), run_in(tmp_path))
    arrays = policy.arrays()
    assert {name.partition(".")[0] for name in arrays} == {"encoder", "head"}
    again = sacd.load_policy(settings, arrays, Inputs())
    observation = np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)
    taken = []
    for each in (policy, again):
        each.start(np.zeros(6, np.uint64), 5, 1)
        taken.append(each.act(observation, np.zeros(6, np.float32), np.zeros(6, bool)))
    np.testing.assert_array_equal(*taken)
    with pytest.raises(UserError, match="does not fit"):
        sacd.load_policy(settings_of(small("lstm")), arrays, Inputs())
