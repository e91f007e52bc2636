"""AMAGO-2's agent: its loss is the formula, and the scale of returns does not matter to its critics."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tiny_amago import (
    DISCRETE,
    SHAPES,
    SMALL,
    Fixed,
    computed,
    draws_of,
    gradients,
    lively,
    random_batch,
    window_of,
)
from torch import Tensor

from recollect.amago import amago, amago_multi_task
from recollect.amago.amago import distribution_of


@pytest.mark.parametrize(("targets", "values"), [(1, 3), (2, 1)])
def test_multi_task_losses_are_a_plain_loop_over_the_formula(targets: int, values: int) -> None:
    """Values are means over K draws of the policy, for the advantage three as in AMAGO-2; the draws are made again here."""
    content = {**SMALL, "bins": 9, "returns": [-50.0, 50.0], "target_draws": targets, "value_draws": values}
    hp = amago_multi_task.Hyperparameters.model_validate(content)
    network, target = lively(hp, DISCRETE, amago_multi_task)
    batch, policy = random_batch(), distribution_of(hp, DISCRETE)
    index = draws_of(hp, batch).index_KBTG
    s_BLE = copy.deepcopy(network).train().states(window_of(network, batch, hp)).detach()
    loss, _ = amago_multi_task.loss_of(
        network.train(), target, window_of(network, batch, hp), Fixed(index), hp, policy  # type: ignore[arg-type]
    )  # fmt: skip
    bins, generator = hp.value_bins, torch.Generator().manual_seed(0)
    next_uniform, own_uniform = (torch.rand(count, 3, 5, 3, 1, generator=generator) for count in (targets, values))
    several: list[bool] = []

    def logits(critics: Any, s: Tensor, g: int, a: int) -> Tensor:
        actions = torch.eye(4)[a].expand(1, 1, 3, 4)
        return critics(s[None, None], actions)[:, 0, 0, g].detach()

    def values_of(critics: Any, s: Tensor, g: int, raw: Tensor, uniform_K1: Tensor) -> Tensor:
        """Of each critic, the mean over draws."""
        actions = [int(policy.drawn(raw, uniform_1)) for uniform_1 in uniform_K1]
        several.append(len(set(actions)) > 1)
        return torch.stack([bins.value(logits(critics, s, g, a)) for a in actions]).mean(0)

    critic, actor, count = 0.0, 0.0, 0
    for b in range(3):
        for t in range(5):
            if not batch.mask_BT[b, t + 1]:
                continue
            for g, gamma in enumerate((0.5, 0.9, 0.99)):
                raw_next = target.actor(s_BLE[b, t + 1])[g].detach()
                each = values_of(target.critics, s_BLE[b, t + 1], g, raw_next, next_uniform[:, b, t, g])
                following = float(each[index[:, b, t, g]].mean())
                alive = 0.0 if batch.done_BT[b, t + 1] else 1.0
                y = 5.0 * float(batch.reward_BT[b, t + 1]) + gamma * alive * following
                a = int(batch.previous_action_BT[b, t + 1])
                out = logits(network.critics, s_BLE[b, t], g, a)
                critic -= float((bins.label(torch.tensor(y)) * out.log_softmax(-1)).sum(-1).mean())
                raw = network.actor(s_BLE[b, t])[g].detach()
                v = float(values_of(network.critics, s_BLE[b, t], g, raw, own_uniform[:, b, t, g]).mean())
                positive = float(float(bins.value(out).mean()) - v > 0)
                actor -= positive * float(policy.log_prob(raw, torch.tensor(a)))
                count += 1
    assert any(several)  # draws differ, so that their mean is not one of them
    assert float(loss.detach()) == pytest.approx((actor + 10.0 * critic) / count, rel=1e-3)


def test_the_multi_task_critic_does_not_feel_the_scale_of_other_tasks() -> None:
    """Cross-entropy on symlog bins: returns a thousand times larger give gradients of the same size."""
    norms = []
    for multiplier in (1.0, 1000.0):
        hp = amago_multi_task.Hyperparameters.model_validate({**SMALL, "reward_multiplier": multiplier})
        network, target = lively(hp, DISCRETE, amago_multi_task)
        computed(network.train(), target, random_batch(), hp, DISCRETE, amago_multi_task)[0].backward()
        norms.append(float(network.critics.weights[-1].grad.norm()))
    assert 0.3 < norms[1] / norms[0] < 3


@pytest.mark.parametrize("kind", ["discrete", "continuous"])
def test_the_online_term_of_the_multi_task_agent_trains_the_actor_and_not_the_critics(kind: str) -> None:
    content = {**SMALL, "online_coefficient": 1.0, "offline_coefficient": 0.0, "critic_weight": 0.0}
    hp = amago_multi_task.Hyperparameters.model_validate(content)
    network, target = lively(hp, SHAPES[kind], amago_multi_task)
    loss, _ = computed(network.train(), target, random_batch(kind), hp, SHAPES[kind], amago_multi_task)
    found = gradients(network, loss)
    assert found["actor"] > 0
    assert found["critics"] == 0


def test_with_regression_the_multi_task_loss_over_numbers_is_that_of_amago() -> None:
    """The paper's Dep/Dep; the sign of an advantage is the same in units of critics and of returns."""
    changes = {
        "online_coefficient": 0.0,
        "offline_coefficient": 0.3,
        "filter_threshold": 0.0,
        "discount_feature": "seed",
    }
    batch, found = random_batch("continuous"), []
    for module, more in ((amago, {}), (amago_multi_task, {"critic_loss": "regression"})):
        hp = module.Hyperparameters.model_validate({**SMALL, **changes, "target_draws": 2, "value_draws": 3, **more})
        network, target = lively(hp, SHAPES["continuous"], module)
        found.append(computed(network, target, batch, hp, SHAPES["continuous"], module)[1])
    for name in ("actor_loss", "critic_loss", "cloned", "q", "target"):
        torch.testing.assert_close(found[1][name], found[0][name], rtol=1e-4, atol=1e-5)
    assert 0 < float(found[0]["cloned"]) < 1


def test_bins_and_labels_are_those_that_are_asked_for() -> None:
    asked = {"bins": 11, "returns": (0.0, 10.0), "bin_space": "linear"}
    sharp, spread = (amago_multi_task.Hyperparameters(**asked, labels=labels) for labels in ("two_hot", "hl_gauss"))
    torch.testing.assert_close(sharp.value_bins.label(torch.tensor(4.0)), torch.eye(11)[4])
    assert int((spread.value_bins.label(torch.tensor(4.0)) > 0.01).sum()) > 2
    assert amago_multi_task.Hyperparameters(bins=11).value_bins.symlog and not sharp.value_bins.symlog


def test_discrete_draws_of_the_online_term_are_straight_through_gumbel_softmax_of_temperature_one_half() -> None:
    """One-hot, each action as often as the policy takes it; the gradient is that of the softmax."""
    policy, weights = distribution_of(amago_multi_task.Hyperparameters(), DISCRETE), torch.arange(4.0)
    ours, theirs = (torch.tensor([0.5, 0.0, -0.5, 1.0]).repeat(4000, 1).requires_grad_() for _ in range(2))
    action = amago_multi_task.differentiable(ours, policy, torch.Generator().manual_seed(0))
    numbers = torch.rand(4000, 4, generator=torch.Generator().manual_seed(0))
    chances = policy.reparameterised(theirs, torch.Generator())
    soft = ((chances.log() + torch.distributions.Gumbel(0.0, 1.0).icdf(numbers)) / 0.5).softmax(-1)
    for each in (action, soft):
        (each @ weights).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-5, rtol=1e-3)
    hard = action.detach().round(decimals=4)
    assert ((hard == 1).sum(-1) == 1).all() and ((hard == 0).sum(-1) == 3).all()
    torch.testing.assert_close(hard.mean(0), chances[0].detach(), atol=0.03, rtol=0)


def test_the_online_term_is_of_the_mean_over_draws() -> None:
    """Released code (head): agent.py, MultiTaskAgent: the mean over K_a draws, then the least of the critics."""
    changes = {"online_coefficient": 1.0, "offline_coefficient": 0.0, "critic_weight": 0.0, "value_draws": 4}
    hp = amago_multi_task.Hyperparameters.model_validate({**SMALL, **changes})
    shape = SHAPES["continuous"]
    network, target = lively(hp, shape, amago_multi_task)
    batch, policy = random_batch("continuous"), distribution_of(hp, shape)
    s_BTE = copy.deepcopy(network).train().states(window_of(network, batch, hp)).detach()[:, :-1]
    asked: list[Tensor] = []

    def reparameterised(raw: Tensor, draws: torch.Generator) -> Tensor:
        asked.append(policy.drawn(raw, torch.rand(*raw.shape[:-1], policy.uniforms, generator=draws)))
        return asked[-1]

    policy.reparameterised = reparameterised  # type: ignore[method-assign]
    loss, _ = amago_multi_task.loss_of(
        network.train(), target, window_of(network, batch, hp), draws_of(hp, batch), hp, policy
    )
    assert len(asked) == 4
    values = [hp.value_bins.value(network.critics(s_BTE, action)) for action in asked]
    gained_BTG = network.popart.normalise(torch.stack(values).mean(0)).amin(0)
    real = torch.as_tensor(batch.mask_BT[:, 1:])
    torch.testing.assert_close(loss.detach(), -gained_BTG[real].mean().detach())
