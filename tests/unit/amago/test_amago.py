"""AMAGO: the loss is the formula, gradients go where they should, padding counts for nothing, an update is what it says."""

from __future__ import annotations

import copy
import math
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from tiny_amago import (
    DISCRETE,
    SHAPES,
    SMALL,
    Fixed,
    computed,
    deterministic,
    draws_of,
    gradients,
    lively,
    padded,
    random_batch,
    small,
    window_of,
)
from torch import Tensor

from recollect.amago import amago, amago_multi_task
from recollect.amago.amago import Agent, distribution_of, loss_of
from recollect.amago.terms import (
    Draws,
    cloning_loss,
    cloning_weight,
    entropy,
    further_metrics,
    log_prob_of_taken,
    metrics_of,
    value_of_drawn,
)
from recollect.settings.errors import UserError

# ---- the loss


@pytest.mark.parametrize("changes", [{}, {"soft_buffer_action": True}, {"popart": False}, {"use_target_actor": False},
                                     {"online_coefficient": 0.0}, {"actor_mask": "upstream"},
                                     {"filter": "exp"}, {"fake_filter": True}])  # fmt: skip
def test_the_loss_is_a_plain_loop_over_the_formula(changes: dict[str, Any]) -> None:
    hp = small(offline_coefficient=0.3, critic_weight=7.0, filter_threshold=0.01, **changes)
    network, target = lively(hp, DISCRETE)
    batch = random_batch()
    draws, popart = draws_of(hp, batch), copy.deepcopy(network.popart)
    frozen = copy.deepcopy(network).train()
    with torch.no_grad():
        s_BLE = frozen.states(window_of(frozen, batch, hp))
    loss, metrics = computed(network.train(), target, batch, hp, DISCRETE)

    def q(critics: Any, s: Tensor) -> Tensor:
        return critics(s[None, None])[:, 0, 0].detach()  # [C, G, A]

    def clipped(p: Tensor) -> Tensor:
        kept = p.clamp(0.001, 0.99)
        return kept / kept.sum()

    G, C = 3, 3
    real = [(b, t) for b in range(3) for t in range(5) if batch.mask_BT[b, t + 1]]
    ys: dict[tuple[int, int, int], float] = {}
    for b, t in real:
        for g, gamma in enumerate((0.5, 0.9, 0.99)):
            acts = target.actor if hp.use_target_actor else network.actor
            pi = clipped(acts(s_BLE[b, t + 1])[g].softmax(-1).detach())
            values = []
            for c in range(C):
                value = float((q(target.critics, s_BLE[b, t + 1])[c, g] * pi).sum())
                if hp.popart:
                    sd = math.sqrt(float(popart.square[g] - popart.mean[g] ** 2))
                    value = sd * (float(popart.weight[g]) * value + float(popart.bias[g])) + float(popart.mean[g])
                values.append(value)
            chosen = [values[int(draws.index_KBTG[k, b, t, g])] for k in range(2)]
            following = min(chosen) if hp.online_coefficient else sum(chosen) / 2
            alive = 0.0 if batch.done_BT[b, t + 1] else 1.0
            ys[b, t, g] = 5.0 * float(batch.reward_BT[b, t + 1]) + gamma * alive * following
    if hp.popart:  # a running mean at its 51st sample
        step = 5e-4 / (1 - (1 - 5e-4) ** 51)
        for g in range(G):
            of_g = np.array([ys[b, t, g] for b, t in real])
            mean, square = float(popart.mean[g]), float(popart.square[g])
            sd = math.sqrt(square - mean**2)
            popart.mean[g] = (1 - step) * mean + step * of_g.mean()
            popart.square[g] = (1 - step) * square + step * (of_g**2).mean()
            new = math.sqrt(float(popart.square[g] - popart.mean[g] ** 2))
            popart.weight[g] *= sd / new
            popart.bias[g] = (sd * float(popart.bias[g]) + mean - float(popart.mean[g])) / new

    def normalised(value: float, g: int) -> float:
        return float(popart.weight[g]) * value + float(popart.bias[g]) if hp.popart else value

    critic, actor, critic_count, actor_count = 0.0, 0.0, 0, 0
    acted = real if hp.actor_mask == "fixed" else [(b, t) for b in range(3) for t in range(5) if batch.mask_BT[b, t]]
    for b, t in acted:
        a = int(batch.previous_action_BT[b, t + 1])
        taken = torch.eye(4)[a] if (b, t) in real else torch.zeros(4)  # a padded action is none, as released
        shown = clipped(taken) if hp.soft_buffer_action else taken
        for g in range(G):
            pi = clipped(network.actor(s_BLE[b, t])[g].softmax(-1).detach())
            each = q(network.critics, s_BLE[b, t])[:, g]
            q_a, q_pi = [float((x * shown).sum()) for x in each], [float((x * pi).sum()) for x in each]
            advantage = sum(q_a) / C - sum(q_pi) / C
            weight = float(advantage > 0.01)
            weight = math.exp(advantage) if hp.filter == "exp" else weight
            weight = 1.0 if hp.fake_filter else weight
            actor += 0.3 * -weight * math.log(float(pi[a]))
            actor += hp.online_coefficient * -min(normalised(x, g) for x in q_pi)
            actor_count += 1
            if (b, t) in real:
                for x in q_a:
                    y = ys[b, t, g]
                    if hp.popart:
                        y = (y - float(popart.mean[g])) / math.sqrt(float(popart.square[g] - popart.mean[g] ** 2))
                    critic += (normalised(x, g) - y) ** 2
                    critic_count += 1
    expected = actor / actor_count + 7.0 * critic / critic_count
    assert len(real) < 15  # the masks take part
    assert float(metrics["actor_loss"]) == pytest.approx(actor / actor_count, rel=1e-4, abs=1e-6)
    assert float(metrics["critic_loss"]) == pytest.approx(critic / critic_count, rel=1e-4)
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("module", [amago, amago_multi_task])
def test_behaviour_cloning_alone_computes_no_critic(module: Any) -> None:
    hp = module.Hyperparameters.model_validate({**SMALL, "fake_filter": True, "online_coefficient": 0.0})
    network, target = lively(hp, DISCRETE, module)
    before = network.popart.mean.clone()
    loss, _ = computed(network.train(), target, random_batch(), hp, DISCRETE, module)
    loss.backward()
    assert all(p.grad is None for p in network.critics.parameters())
    assert all(p.grad is not None for p in network.actor.parameters())
    assert torch.equal(network.popart.mean, before)


@pytest.mark.parametrize("module", [amago, amago_multi_task])
@pytest.mark.parametrize("mask", ["fixed", "upstream"])
def test_behaviour_cloning_alone_has_the_mask_and_the_bound_of_log_probabilities(mask: str, module: Any) -> None:
    plain = {**SMALL, "fake_filter": True, "actor_mask": mask, "offline_coefficient": 0.5}
    alone = module.Hyperparameters.model_validate({**plain, "online_coefficient": 0.0})
    network, target = lively(alone, DISCRETE, module)
    batch = random_batch()
    loss, _ = computed(network.eval(), target, batch, alone, DISCRETE, module)
    window = window_of(network, batch, alone)
    policy = distribution_of(alone, DISCRETE)
    log_pi_BTG = log_prob_of_taken(window, network.actor(network.states(window)[:, :-1]), policy)
    real_BT = window.mask_BL[:, :-1] if mask == "upstream" else window.mask_BL[:, 1:]
    torch.testing.assert_close(loss, -0.5 * log_pi_BTG[real_BT].mean())
    bounded, _ = cloning_loss(window, torch.full_like(log_pi_BTG, -1e6), alone)
    assert float(bounded) == pytest.approx(500.0)


@pytest.mark.parametrize("kind", ["discrete", "continuous"])
@pytest.mark.parametrize(
    ("only", "reached"),
    [
        ({"critic_weight": 0.0, "offline_coefficient": 0.0}, {"encoder", "step", "actor"}),  # pg
        ({"critic_weight": 0.0, "online_coefficient": 0.0}, {"encoder", "step", "actor"}),  # fbc
        ({"online_coefficient": 0.0, "offline_coefficient": 0.0}, {"encoder", "step", "critics"}),  # critic
    ],
)
def test_each_term_trains_what_it_should(kind: str, only: dict[str, float], reached: set[str]) -> None:
    hp = small(filter_threshold=-100.0, **only)
    network, target = lively(hp, SHAPES[kind])
    loss, _ = computed(network.train(), target, random_batch(kind), hp, SHAPES[kind])
    found = gradients(network, loss)
    assert {name for name, value in found.items() if value > 0} == reached
    assert all(p.grad is None for p in target.parameters())


@pytest.mark.parametrize("kind", ["discrete", "continuous"])
def test_the_policy_gradient_reaches_the_encoder_through_the_policy_only(kind: str) -> None:
    hp = small(critic_weight=0.0, offline_coefficient=0.0)
    network, target = lively(hp, SHAPES[kind])
    with torch.no_grad():  # a policy that does not look at the state
        network.actor.layers[0].weight.zero_()
    loss, _ = computed(network.train(), target, random_batch(kind), hp, SHAPES[kind])
    found = gradients(network, loss)
    assert found["actor"] > 0
    assert found["encoder"] == found["step"] == 0


@pytest.mark.parametrize("kind", ["discrete", "continuous"])
def test_the_policy_gradient_raises_the_value_of_what_the_policy_does(kind: str) -> None:
    hp = small(critic_weight=0.0, offline_coefficient=0.0, popart=False)
    network, target = lively(hp, SHAPES[kind])
    batch, losses = random_batch(kind), []
    for _ in range(20):
        loss, _ = computed(network.eval(), target, batch, hp, SHAPES[kind])
        network.zero_grad()
        loss.backward()
        with torch.no_grad():  # the actor alone: what the encoder learns also moves the critics' values
            for p in network.actor.parameters():
                p -= 0.05 * p.grad
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] - 5e-5
    assert all(after < before for before, after in pairwise(losses))


@pytest.mark.parametrize("module", [amago, amago_multi_task])
@pytest.mark.parametrize("kind", ["discrete", "continuous", "binary"])
def test_padding_and_a_longer_companion_change_nothing(kind: str, module: Any) -> None:
    changes = {"online_coefficient": 0.0} if kind == "binary" else {}
    hp = module.Hyperparameters.model_validate({**SMALL, **changes, "filter_threshold": -1e3})
    short = random_batch(kind, lengths=(6, 4))
    long = padded(short, 11)
    found = []
    for batch in (short, long):
        network, target = lively(hp, SHAPES[kind], module)
        policy = distribution_of(hp, SHAPES[kind])
        whole = draws_of(hp, long)
        steps = batch.mask_BT.shape[1] - 1
        draws = Fixed(whole.index_KBTG[:, :, :steps])
        loss, _ = module.loss_of(
            network.train(), target, window_of(network, batch, hp), draws, hp, deterministic(policy)
        )
        loss.backward()
        gradient = torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None])
        moments = (network.popart, network.timestep_encoder.input_norm)
        statistics = torch.cat([each for norm in moments for each in (norm.mean, norm.square)])
        found.append((loss.detach(), gradient, statistics))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["discrete", "continuous"])
def test_values_are_means_over_as_many_draws_as_asked_and_exact_where_actions_are_discrete(kind: str) -> None:
    hp, shape = small(), SHAPES[kind]
    network, _ = lively(hp, shape)
    policy = distribution_of(hp, shape)
    s_BTE = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
    raw_BTGP = network.actor(s_BTE)
    few, alone = (Draws(torch.zeros(0), torch.Generator().manual_seed(5)) for _ in range(2))
    found = amago.q_of_policy(network.critics, s_BTE, raw_BTGP, policy, few, 4)
    single = [amago.q_of_policy(network.critics, s_BTE, raw_BTGP, policy, alone) for _ in range(4)]
    torch.testing.assert_close(found, torch.stack(single).mean(0))
    assert torch.equal(single[0], single[1]) == (kind == "discrete")


def test_draws_of_targets_and_of_the_actor_are_set_apart() -> None:
    """More draws in targets move them and nothing of what the actor's loss reads, and the other way round."""
    batch, moved = random_batch("continuous"), {}
    for name, changes in {"one": {}, "target": {"target_draws": 3}, "value": {"value_draws": 3}}.items():
        hp = small(**changes)
        network, target = lively(hp, SHAPES["continuous"])
        moved[name] = computed(network, target, batch, hp, SHAPES["continuous"])[1]
    assert moved["value"]["critic_loss"] == moved["one"]["critic_loss"] != moved["target"]["critic_loss"]
    assert moved["value"]["actor_loss"] != moved["one"]["actor_loss"]


def test_targets_are_the_least_or_the_mean_of_two_critics_drawn_with_replacement() -> None:
    """The mean where no policy gradient is learned."""
    hp = small(critics=4)
    index = Draws.of(hp, 0, 0, 40, 50, "cpu").index_KBTG
    same = float((index[0] == index[1]).float().mean())
    assert same == pytest.approx(0.25, abs=0.02)
    counts = Counter(index.flatten().tolist())
    assert all(count == pytest.approx(index.numel() / 4, rel=0.05) for count in counts.values())
    q = torch.arange(4.0).view(4, 1, 1, 1).expand(4, 40, 50, 3)
    assert torch.equal(value_of_drawn(q, index, hp), torch.minimum(index[0], index[1]).float())
    cloning = small(critics=4, online_coefficient=0.0)
    assert torch.equal(value_of_drawn(q, index, cloning), (index[0] + index[1]) / 2.0)
    assert len(Draws.of(small(critics=4, critics_in_target=3), 0, 0, 4, 5, "cpu").index_KBTG) == 3


@pytest.mark.parametrize(
    ("filter_", "advantages", "weights"),
    [
        ("binary", [-1.0, 0.0005, 0.002], [0.0, 0.0, 1.0]),
        ("exp", [0.0, 0.5, 9.0], [1.0, math.exp(0.5), math.exp(9.0)]),  # released: beta 1, no upper bound
        ("leaky", [0.0, 0.005, 1.0, -0.05, -9.0], [0.01, 1.010125, 1.50525, 0.00875, 1e-7]),  # ramp + binary
        ("exp, 3", [0.0, 0.5], [1.0, math.exp(1.5)]),
        ("leaky, 4", [0.0, 1.01, 101.0], [0.01, 1.260125, 11.0]),  # 0.01 at 0 whatever the slope, a bound of 10
    ],
)
def test_filters(filter_: str, advantages: list[float], weights: list[float]) -> None:
    name, _, beta = filter_.partition(", ")
    found = cloning_weight(small(filter=name, filter_beta=float(beta) if beta else None), torch.tensor(advantages))
    torch.testing.assert_close(found, torch.tensor(weights), atol=1e-6, rtol=1e-5)


# ---- one update


@pytest.mark.parametrize("targets_first", [False, True])
def test_an_update_is_adamw_on_the_clipped_gradient_and_targets_follow_the_heads(targets_first: bool) -> None:
    hp = small(
        learning_rate=0.01, warmup=4, weight_decay=10.0, gradient_clip=0.05, polyak=0.25, targets_first=targets_first
    )
    agent = Agent(hp, DISCRETE, seed=0, device="cpu")
    other = Agent(hp, DISCRETE, seed=0, device="cpu")
    batch = random_batch()
    for each in (agent, other):  # targets that stand elsewhere, or following what they are would leave them there
        each.target.critics.first_weight.add_(0.1)
    before = {name: p.detach().clone() for name, p in agent.network.named_parameters()}
    network = other.network.train()
    loss, _ = loss_of(
        network, other.target, window_of(network, batch, hp), Draws.of(hp, 0, 0, 3, 5, "cpu"), hp, other.distribution
    )
    loss.backward()
    norm = math.sqrt(sum(float((p.grad**2).sum()) for p in network.parameters() if p.grad is not None))
    assert norm > 0.05
    found = agent.step(batch, 0)
    assert float(found["gradient_norm"]) == pytest.approx(norm, rel=1e-4)
    rate = 0.01 / 4  # the first of four updates of warming up
    for name, p in network.named_parameters():
        g = p.grad * 0.05 / norm
        expected = before[name] * (1 - rate * 10.0) - rate * g / (g.abs() + 1e-8)
        torch.testing.assert_close(agent.network.get_parameter(name).detach(), expected, atol=2e-5, rtol=1e-3)
    weight = agent.target.critics.first_weight
    source = before["critics.first_weight"] if targets_first else agent.network.critics.first_weight.detach()
    torch.testing.assert_close(weight, torch.lerp(before["critics.first_weight"] + 0.1, source, 0.25))


def test_each_update_of_each_seed_draws_dropout_shifts_and_critics_of_its_own() -> None:
    hp, dropout, shifts, critics = small(), list[int](), list[int](), list[str]()
    for seed, counter in ((0, 0), (0, 1), (1, 0)):
        agent = Agent(hp, DISCRETE, seed=seed, device="cpu")
        agent.network.trajectory_encoder.reseed_dropout = dropout.append  # type: ignore[assignment]
        agent.step(random_batch(), counter)
        shifts.append(agent.network.timestep_encoder.augment_draws.initial_seed())
        critics.append(str(Draws.of(hp, seed, counter, 3, 5, "cpu").index_KBTG.tolist()))
    assert [len(set(drawn)) for drawn in (dropout, shifts, critics)] == [3, 3, 3]


@pytest.mark.parametrize(("first_batch", "share"), [("half", 0.5), ("whole", 1.0)])
def test_what_the_first_batch_makes_of_statistics_is_asked_for_popart_and_input_norm_alike(
    first_batch: str, share: float
) -> None:
    network = amago.make_network(small(first_batch=first_batch), DISCRETE, seed=0)
    for statistics in (network.popart, network.timestep_encoder.input_norm):
        statistics.update(torch.full((1, 2, len(statistics.mean)), 3.0), torch.ones(1, 2, dtype=torch.bool))
        torch.testing.assert_close(statistics.mean, torch.full_like(statistics.mean, 3.0 * share), rtol=1e-3, atol=0)


@pytest.mark.parametrize(("warmup", "updates"), [(None, 30), (7, 7), (0, 1)])
def test_the_step_size_rises_over_so_many_updates_and_over_ten_epochs_by_default(
    warmup: int | None, updates: int
) -> None:
    agent = Agent(small(warmup=warmup, updates_per_epoch=3, learning_rate=0.01), DISCRETE, seed=0, device="cpu")
    rates = []
    for counter in (0, updates - 1, 2 * updates):
        agent.step(random_batch(), counter)
        rates.append(agent.optimiser.lr)
    assert rates == pytest.approx([0.01 / updates, 0.01, 0.01])


def test_targets_are_copies_at_first_and_no_part_of_the_optimiser() -> None:
    agent = Agent(small(), DISCRETE, seed=3, device="cpu")
    for name, value in agent.target.named_parameters():
        assert torch.equal(value, agent.network.get_parameter(name))
        assert not value.requires_grad
    trained = {id(p) for p in agent.optimiser.parameters}
    assert not trained & {id(p) for p in agent.target.parameters()}
    assert trained == {id(p) for p in agent.network.parameters()}


@pytest.mark.parametrize("module", [amago, amago_multi_task])
@pytest.mark.parametrize("kind", ["discrete", "continuous"])
def test_an_agent_put_back_makes_the_same_next_update_to_the_bit(module: Any, kind: str) -> None:
    sequence = {**SMALL["sequence"], "dropout": 0.2}
    hp = module.Hyperparameters.model_validate({**SMALL, "sequence": sequence, "learning_rate": 0.01, "warmup": 5})
    agent = module.Agent(hp, SHAPES[kind], seed=0, device="cpu")
    for counter in range(3):
        agent.step(random_batch(kind, counter), counter)
    other = module.Agent(hp, SHAPES[kind], seed=0, device="cpu")
    other.load({name: value.clone() for name, value in agent.arrays().items()})
    for made in (agent, other):
        made.step(random_batch(kind, 3), 3)
    for name, value in agent.arrays().items():
        assert torch.equal(value, other.arrays()[name]), name


def test_settings_that_cannot_learn_are_refused() -> None:
    with pytest.raises(ValueError, match="mixture"):
        small(continuous="mixture")
    with pytest.raises(ValueError, match="heads"):
        small(sequence={"width": 9, "heads": 2})
    with pytest.raises(ValueError, match="drawn actions"):
        amago_multi_task.Hyperparameters(soft_buffer_action=True)
    for discount in (0.0, 1.0, 1.5):
        with pytest.raises(ValueError, match="further_discounts"):
            small(further_discounts=[0.9, discount])
    for bounds in ((0.9, 0.1), (0.5, 0.5), (0.0, 0.9), (0.1, 1.1)):
        with pytest.raises(ValueError, match="probabilities"):
            small(probabilities=bounds)
    for returns in ((100, -100), (5, 5)):
        with pytest.raises(ValueError, match="returns"):
            amago_multi_task.Hyperparameters(returns=returns)


@pytest.mark.parametrize("module", [amago, amago_multi_task])
def test_a_policy_gradient_through_bits_is_refused(module: Any) -> None:
    hp = module.Hyperparameters.model_validate({**SMALL, "online_coefficient": 1.0})
    with pytest.raises(UserError, match="no gradient"):
        module.Agent(hp, SHAPES["binary"], seed=0, device="cpu")


def test_multi_task_critics_read_the_discount_as_asked() -> None:
    read = [
        lively(amago_multi_task.Hyperparameters.model_validate({**SMALL, **changes}), DISCRETE, amago_multi_task)[0]
        for changes in ({}, {"discount_feature": "head"}, {"discount_feature": "seed"})
    ]
    default, head, seed = (network.critics.discount_G for network in read)
    assert torch.equal(default, head)
    torch.testing.assert_close(seed, 10.0 * torch.tensor([0.5, 0.9, 0.99]).log())


def test_probabilities_of_a_discrete_policy_have_the_bounds_that_are_asked_for() -> None:
    policy = distribution_of(small(probabilities=(0.1, 0.7)), DISCRETE)
    found = policy.reparameterised(torch.tensor([100.0, 0.0, 0.0, 0.0]), torch.Generator())
    torch.testing.assert_close(found, torch.tensor([0.7, 0.1, 0.1, 0.1]))


PARTS = ("timestep_encoder", "trajectory_encoder", "actor", "critics")


def weights_of(network: Any, part: str) -> Tensor:
    return torch.cat([p.detach().flatten() for p in network.get_submodule(part).parameters()])


@pytest.mark.parametrize("module", [amago, amago_multi_task])
def test_each_part_of_a_network_begins_elsewhere_with_another_seed(module: Any) -> None:
    hp = module.Hyperparameters.model_validate(SMALL)
    one, same, other = (module.make_network(hp, DISCRETE, seed=seed) for seed in (0, 0, 1))
    for part in PARTS:
        assert torch.equal(weights_of(one, part), weights_of(same, part)), part
        assert not torch.equal(weights_of(one, part), weights_of(other, part)), part


@pytest.mark.parametrize("kind", ["transformer", "ff"])
def test_each_part_of_a_network_has_the_activation_that_is_asked_for(kind: str) -> None:
    read = {"timestep_encoder": window_of, "trajectory_encoder": None, "actor": None, "critics": None}
    outs: list[dict[str, Tensor]] = []
    for activation in ("leaky_relu", "relu"):
        sequence = {**SMALL["sequence"], "kind": kind, "activation": activation}
        hp = small(inputs={**SMALL["inputs"], "activation": activation}, sequence=sequence)
        network = amago.make_network(hp, DISCRETE, seed=0).eval()
        x = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
        steps = window_of(network, random_batch(), hp).steps
        outs.append({name: network.get_submodule(name)(steps if made else x).detach() for name, made in read.items()})
    for name in read:
        assert not torch.allclose(outs[0][name], outs[1][name]), name


# ---- the log


@pytest.mark.parametrize("module", [amago, amago_multi_task])
@pytest.mark.parametrize("kind", ["discrete", "continuous", "binary"])
def test_further_metrics_change_no_bit_of_an_update(kind: str, module: Any) -> None:
    changes = {"online_coefficient": 0.0} if kind == "binary" else {}
    hp = module.Hyperparameters.model_validate({**SMALL, **changes})
    one, other = (module.Agent(hp, SHAPES[kind], seed=0, device="cpu") for _ in range(2))
    for counter in range(2):
        few = one.step(random_batch(kind, counter), counter)
        all_ = other.step(random_batch(kind, counter), counter, further=True)
    further = {"entropy", "learning_rate", "popart_mean", "q_deviation", "target_least", "target_most"}
    further |= {f"q_discount_{discount:g}" for discount in hp.discounts}
    assert all_.keys() - few.keys() == further
    assert all(torch.equal(few[name], all_[name]) for name in few)
    assert all(torch.equal(value, other.arrays()[name]) for name, value in one.arrays().items())
    assert all(math.isfinite(float(all_[name])) for name in further)


def test_metrics_are_of_the_discount_that_acts_over_real_steps() -> None:
    hp = small()
    network, _ = lively(hp, DISCRETE)
    window, draws = window_of(network, random_batch(), hp), torch.Generator().manual_seed(0)
    raw, q = (torch.randn(*shape, generator=draws) for shape in ((3, 5, 3, 4), (3, 3, 5, 3)))
    log_pi, weight, y = (torch.randn(3, 5, 3, generator=draws) for _ in range(3))
    policy, rest = distribution_of(hp, DISCRETE), Draws(torch.zeros(0), draws)
    loss = {"actor_loss": torch.tensor(7.0)}
    found = metrics_of(network, window, policy, raw, log_pi, weight, q, y, loss, rest, further=False)
    real = window.mask_BL[:, 1:].numpy()
    assert {name: float(value) for name, value in found.items()} == pytest.approx(
        {
            "actor_loss": 7.0,
            "cloned": weight.numpy()[real].mean(),  # as the losses, of all discounts
            "q": q.numpy()[:, real, -1].mean(),
            "target": y.numpy()[real, -1].mean(),
            "log_prob": log_pi.numpy()[real, -1].mean(),
            "popart_deviation": math.sqrt(9.0 - 2.0**2),
        },
        rel=1e-5,
    )


def test_further_metrics_are_what_they_say() -> None:
    """Of the discount that acts, over real steps."""
    hp = small()
    network, _ = lively(hp, DISCRETE)
    window, draws = window_of(network, random_batch(), hp), torch.Generator().manual_seed(0)
    raw, q, y = (torch.randn(*shape, generator=draws) for shape in ((3, 5, 3, 4), (3, 3, 5, 3), (3, 5, 3)))
    policy = distribution_of(hp, DISCRETE)
    found = further_metrics(network, window, policy, raw, q, y, Draws(torch.zeros(0), draws))
    real = window.mask_BL[:, 1:]
    assert 0 < int(real.sum()) < real.numel()
    p = policy.probabilities(raw[:, :, -1])[real].numpy()  # type: ignore[attr-defined]
    assert float(found["entropy"]) == pytest.approx(float(np.mean([-(row * np.log(row)).sum() for row in p])), rel=1e-5)
    assert float(found["q_deviation"]) == pytest.approx(float(q[..., -1].numpy().std(0)[real].mean()), rel=1e-5)
    values = {f"q_discount_{discount:g}": q.numpy()[:, real, g].mean() for g, discount in enumerate(hp.discounts)}
    assert {name: float(value) for name, value in found.items() if name in values} == pytest.approx(values, rel=1e-5)
    assert len(values) == 3 and "q_discount_0.99" in values
    last = y[..., -1][real]
    assert (found["target_least"], found["target_most"]) == (last.min(), last.max())
    assert float(found["popart_mean"]) == pytest.approx(2.0)
    normal = distribution_of(hp, SHAPES["continuous"])
    wide, narrow = (torch.tensor([0.0, 0.0, x, x]).expand(200, 4) for x in (0.2, -1.0))
    assert float(entropy(normal, wide, draws).mean()) > float(entropy(normal, narrow, draws).mean())
