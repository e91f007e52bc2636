"""Acting in context: cached steps equal the whole window, rows do not depend on each other, actions are drawn as said."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from test_radt import ENDS, play

from recollect.common.draws import uniform
from recollect.common.transformer import TransformerSettings
from recollect.radt.acting import CachedSteps, select_actions
from recollect.radt.decision_transformer import DecisionTransformer, DecisionTransformerSettings
from recollect.radt.experience import Experience


def network(tokens: str, return_to_go: bool) -> DecisionTransformer:
    model = DecisionTransformer(
        DecisionTransformerSettings(
            observation_embedding="one_hot",
            observation_values=(4, 4),
            return_to_go=return_to_go,
            tokens=tokens,
            positions=64,
            timesteps=16,
            transformer=TransformerSettings(width=16, layers=2, heads=2, dropout=0.0),
        ),
        seed=3,
    )
    with torch.no_grad():  # larger weights than at the start, so that every token matters
        for parameter in model.parameters():
            parameter.mul_(4)
    return model.eval()


def episode(rows: int, steps: int, seed: int) -> Experience:
    draws = torch.Generator().manual_seed(seed)
    return Experience(
        observation=torch.randint(0, 4, (rows, steps, 2), generator=draws),
        return_to_go=torch.rand(rows, steps, generator=draws) * 50,
        action=torch.randint(0, 5, (rows, steps), generator=draws),
        reward=torch.randint(0, 2, (rows, steps), generator=draws).float(),
        timestep=torch.arange(steps).expand(rows, -1),
        mask=torch.ones(rows, steps, dtype=torch.bool),
    )


def joined(first: Experience, second: Experience) -> Experience:
    return Experience(*(torch.cat([getattr(first, n), getattr(second, n)], 1) for n in Experience.__dataclass_fields__))


@pytest.mark.parametrize("tokens", ["merged", "interleaved"])
@pytest.mark.parametrize("return_to_go", [True, False])
def test_cached_steps_equal_encoding_the_whole_window(tokens: str, return_to_go: bool) -> None:
    model, earlier, now = network(tokens, return_to_go), episode(3, 4, 1), episode(3, 6, 2)
    cached = CachedSteps(model, 3, 10)
    with torch.no_grad():
        cached.append_whole(earlier)
        for step in range(6):
            before = max(step - 1, 0)
            pair = now.select(slice(None)).last(6)
            pair = Experience(*(getattr(pair, n)[:, [before, step]] for n in Experience.__dataclass_fields__))
            if step == 0:
                pair.mask[:, 0] = False
            logits = cached.append_now(pair)
            window = joined(earlier, Experience(*(getattr(now, n)[:, : step + 1] for n in now.__dataclass_fields__)))
            torch.testing.assert_close(logits, model(window)[0][:, -1], atol=2e-5, rtol=0)


@pytest.mark.parametrize("tokens", ["merged", "interleaved"])
@pytest.mark.parametrize("return_to_go", [True, False])
def test_acting_on_a_window_gives_the_logits_of_its_last_step(tokens: str, return_to_go: bool) -> None:
    model, window = network(tokens, return_to_go), episode(4, 6, 1)
    window.mask[1, :4] = False
    window.mask[3, :5] = False
    with torch.no_grad():
        torch.testing.assert_close(model.act(window), model(window)[0][:, -1], atol=2e-5, rtol=0)


def test_left_padding_changes_nothing() -> None:
    model, window = network("merged", True), episode(2, 5, 4)
    padded = joined(
        Experience(
            observation=torch.zeros(2, 3, 2, dtype=torch.long),
            return_to_go=torch.zeros(2, 3),
            action=torch.full((2, 3), 5),
            reward=torch.zeros(2, 3),
            timestep=torch.zeros(2, 3, dtype=torch.long),
            mask=torch.zeros(2, 3, dtype=torch.bool),
        ),
        window,
    )
    with torch.no_grad():
        torch.testing.assert_close(model(padded)[0][:, 3:], model(window)[0], atol=1e-5, rtol=0)


def test_the_future_is_never_seen() -> None:
    model, window = network("merged", True), episode(2, 6, 5)
    changed = Experience(*(getattr(window, n).clone() for n in window.__dataclass_fields__))
    changed.action[:, 3:] = (changed.action[:, 3:] + 1) % 5
    changed.reward[:, 3:] = 1 - changed.reward[:, 3:]
    with torch.no_grad():
        before, after = model(window)[0], model(changed)[0]
    torch.testing.assert_close(before[:, :4], after[:, :4])  # the action at step 3 is predicted, not read
    assert not torch.allclose(before[:, 4:], after[:, 4:])


def test_greedy_takes_the_largest_and_top_half_one_of_the_best_two() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0, 2.9, -1.0]]).expand(1000, -1)
    chance = (np.arange(1000) + 0.5) / 1000
    assert (select_actions(logits, chance, "greedy") == 1).all()
    drawn = select_actions(logits, chance, "top_half")
    assert set(drawn) == {1, 3}
    expected = np.exp(3.0) / (np.exp(3.0) + np.exp(2.9))
    assert abs((drawn == 1).mean() - expected) < 0.002


def test_sampling_follows_the_softmax() -> None:
    logits = torch.log(torch.tensor([[0.1, 0.2, 0.7]])).expand(10_000, -1)
    drawn = select_actions(logits, (np.arange(10_000) + 0.5) / 10_000, "sample")
    np.testing.assert_allclose(np.bincount(drawn) / 10_000, [0.1, 0.2, 0.7], atol=1e-3)


def test_equal_logits_still_give_an_action() -> None:
    drawn = select_actions(torch.zeros(4, 5), np.array([0.01, 0.3, 0.6, 0.99]), "top_half")
    assert list(drawn) == [0, 1, 3, 4]


def test_where_no_logit_is_above_the_median_all_are_drawn_by_their_softmax() -> None:
    """As released: nothing is cut off, and the lower ones stay less likely."""
    logits = torch.tensor([[0.0, 0.0, 0.0, -1.0, -5.0]]).expand(10_000, -1)
    drawn = select_actions(logits, (np.arange(10_000) + 0.5) / 10_000, "top_half")
    share = np.bincount(drawn, minlength=5) / 10_000
    np.testing.assert_allclose(share, torch.softmax(logits[0].double(), 0), atol=1e-3)


def test_a_row_draws_the_same_whatever_else_is_in_the_batch() -> None:
    seeds = np.array([5, 6, 7], np.uint64)
    together = uniform(seeds, np.array([2, 2, 2]), 1)
    alone = uniform(seeds[1:2], np.array([2]), 1)
    assert together[1] == alone[0]
    assert len(set(together)) == 3
    assert uniform(seeds, np.array([3, 2, 2]), 1)[0] != together[0]


def test_each_episode_aims_at_a_return_of_its_own_less_what_was_paid_since(tiny: Any) -> None:
    """The return is drawn in the units of the world; the network is told it divided by `reward_scale`."""
    policy = tiny().policy(tiny().settings("dt", reward_scale=10.0))
    drawn: list[list[int]] = []
    for row in play(policy, 24, ENDS):
        drawn.append([])
        for episode in filter(None, row.episodes):
            aim, paid = (np.array([step[place] for step in episode]) for place in (1, 3))
            drawn[-1].append(round(10 * aim[0]))
            np.testing.assert_allclose(10 * aim, drawn[-1][-1] - paid.cumsum() + paid, atol=1e-5)
    assert len({tuple(row) for row in drawn}) == 3
    assert any(len(set(row)) > 1 for row in drawn)


def test_a_row_that_begins_another_task_aims_as_one_that_just_began(tiny):
    policy = tiny().policy(tiny().settings("dt"))
    nothing = np.zeros((3, 2), int), np.zeros(3, np.float32), np.zeros(3, bool)
    policy.start(np.arange(3).astype(np.uint64), 12, 4)
    policy.act(*nothing)
    first = policy.target_B.copy()
    for _ in range(2):
        policy.act(nothing[0], nothing[1], np.ones(3, bool))
    assert not np.array_equal(policy.target_B, first)
    policy.reset(np.ones(3, bool))
    policy.act(*nothing)
    np.testing.assert_array_equal(policy.target_B, first)
