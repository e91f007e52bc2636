"""What agents on histories read: optional inputs, contexts shorter than an episode, rows that begin anew, attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fake_bullet
import numpy as np
import pytest
import torch

from recollect.artifacts.run import Run
from recollect.common.contract import Facts, Traced
from recollect.memory_rl import td3
from recollect.memory_rl.dqn import Hyperparameters, make_network
from recollect.memory_rl.history_policy import HistoryPolicy
from recollect.memory_rl.sequence import SequenceSettings, make_sequence_model
from recollect.settings.errors import UserError
from recollect.settings.loading import validated
from recollect.settings.schema import EnvironmentSettings, MethodSettings, Settings

HORIZON = 9
FACTS = Facts(observation_size=3, observation_values=(), actions=4, horizon=HORIZON)


def policy_of(kind: str = "gpt", **changes: Any) -> HistoryPolicy:
    widths = {"action_embedding": 4, "reward_embedding": 2, "observation_embedding": 6, **changes}
    width = sum(widths[f"{name}_embedding"] for name in ("action", "reward", "observation"))
    hp = Hyperparameters.model_validate(
        {"sequence": {"kind": kind, "width": width, "layers": 2}, "head": [8], **widths}
    )
    network = make_network(hp, FACTS, seed=1)
    with torch.no_grad():  # as initialised, little would show in the outputs
        for parameter in network.parameters():
            parameter.mul_(2)
    return HistoryPolicy(network.eval())


def lived(seed: int, rows: int = 2) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    draws = np.random.default_rng(seed)
    seen = draws.normal(size=(HORIZON, rows, 3)).astype(np.float32)
    return seen, draws.normal(size=(HORIZON, rows)).astype(np.float32), draws.integers(0, 4, (HORIZON, rows))


def outputs(policy: HistoryPolicy, seen: np.ndarray, reward: np.ndarray, action: np.ndarray) -> np.ndarray:
    """Outputs [T, B, A] of an episode in which these actions were taken."""
    policy.start(np.zeros(seen.shape[1], np.uint64))
    found = []
    for step in range(len(seen)):
        found.append(policy.outputs(seen[step], reward[step], np.zeros(seen.shape[1], bool)).numpy())
        policy.took(action[step])
    return np.stack(found)


@pytest.mark.parametrize("kind", ["gpt", "lstm", "gru", "rnn", "ff"])
@pytest.mark.parametrize("absent", ["action", "reward", None])
def test_an_input_is_read_where_it_has_a_width_and_only_there(kind: str, absent: str | None) -> None:
    policy = policy_of(kind, **({f"{absent}_embedding": 0} if absent else {}))
    seen, reward, action = lived(0)
    before = outputs(policy, seen, reward, action)
    for name in ("action", "reward"):
        others = {"action": action, "reward": reward}
        others[name] = np.array(others[name])
        others[name][3] = (others[name][3] + 1) % 4 if name == "action" else 5.0
        change = np.abs(outputs(policy, seen, others["reward"], others["action"]) - before).max((1, 2))
        first = 3 + (name == "action")  # an action is seen at the next step, its reward with what followed it
        assert not change[:first].any()
        assert (change[first] > 1e-6) == (name != absent)
        assert kind == "ff" or (change[first + 1 :] > 1e-7).all() == (name != absent)


def encoded(policy: HistoryPolicy, lived_through: tuple[np.ndarray, np.ndarray, np.ndarray], window: int) -> np.ndarray:
    """Outputs [T, B, A], each from the last tokens alone, encoded from their first one."""
    seen, reward, action = lived_through
    encoder = policy.network.encoder
    taken = np.concatenate([np.full((1, 2), 4), action[:-1]])
    paid = np.concatenate([np.zeros((1, 2), np.float32), reward[1:]])  # the first token has no reward
    with torch.no_grad():
        tokens = encoder.embedder(*(torch.as_tensor(part).swapaxes(0, 1) for part in (taken, paid, seen)))
        last = [encoder.sequence(tokens[:, max(0, end - window) : end])[:, -1] for end in range(1, HORIZON + 1)]
        return torch.stack([policy.network.head(h_BH) for h_BH in last]).numpy()


@pytest.mark.parametrize("n", [2, 5, HORIZON - 1])
def test_beyond_its_training_window_a_gpt_acts_on_the_last_tokens_counted_from_zero(n: int) -> None:
    policy, lived_through = policy_of(sampled_seq_len=n), lived(1)
    np.testing.assert_allclose(outputs(policy, *lived_through), encoded(policy, lived_through, n + 1), atol=1e-4)


@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn"])
def test_a_recurrent_model_acts_on_the_whole_episode_whatever_its_training_window(kind: str) -> None:
    """As released, on PyBullet too."""
    policy, lived_through = policy_of(kind, sampled_seq_len=2), lived(1)
    found = outputs(policy, *lived_through)
    np.testing.assert_allclose(found, encoded(policy, lived_through, HORIZON), atol=1e-4)
    assert np.abs(found - encoded(policy, lived_through, 3))[3:].max() > 1e-3


@pytest.mark.parametrize("kind", ["gpt", "lstm", "gru", "rnn"])
@pytest.mark.parametrize("n", [-1, 4])
def test_rows_whose_episodes_end_at_different_steps_do_not_disturb_each_other(kind: str, n: int) -> None:
    seen, reward, action = lived(2)
    policy = policy_of(kind, sampled_seq_len=n)
    alone = outputs(policy, seen, reward, action)
    anew = outputs(policy, seen[3:], reward[3:], action[3:])
    policy.start(np.zeros(2, np.uint64))
    for step in range(HORIZON):
        found = policy.outputs(seen[step], reward[step], np.array([step == 3, False])).numpy()
        policy.took(action[step])
        np.testing.assert_allclose(found[1], alone[step, 1], atol=1e-4)
        np.testing.assert_allclose(found[0], alone[step, 0] if step < 3 else anew[step - 3, 0], atol=1e-4)


@pytest.mark.parametrize("value", [0, -2])
def test_a_window_of_no_transitions_is_refused_and_minus_one_is_the_whole_episode(value: int) -> None:
    with pytest.raises(UserError, match=r"must be -1 \(a whole episode\) or at least 1"):
        validated(Hyperparameters, {"sampled_seq_len": value}, where="test")
    windows = [Hyperparameters.model_validate({"sampled_seq_len": n}).window(HORIZON) for n in (-1, 1, 4, 100)]
    assert windows == [HORIZON, 1, 4, HORIZON]


def test_an_agent_that_would_see_nothing_is_refused() -> None:
    blind = {"observation_embedding": 0, "action_embedding": 0}
    with pytest.raises(UserError, match="an agent must see something"):
        validated(Hyperparameters, blind, where="test")
    seeing = {**blind, "reward_embedding": 4, "sequence": {"width": 4}}
    assert Hyperparameters.model_validate(seeing).reward_embedding == 4


def test_a_gpt_as_wide_as_its_tokens_is_asked_for_before_anything_runs() -> None:
    with pytest.raises(UserError, match="a gpt of width 24 cannot read tokens of width 128, the sum of the three"):
        validated(Hyperparameters, {"sequence": {"width": 24}}, where="test")
    assert Hyperparameters.model_validate({"sequence": {"kind": "lstm", "width": 24}}).sequence.width == 24


# ------------------------------------------------------------------------------------------------------------ attention


@torch.no_grad()
@pytest.mark.parametrize(("context", "slides"), [(10, False), (4, True)])
def test_attention_while_stepping_is_that_of_the_whole_pass(context: int, slides: bool) -> None:
    settings = SequenceSettings(width=8, layers=2, heads=2)
    model: Any = make_sequence_model(settings, 8, context=context, slides=slides, seed=0).eval()
    for block in model.transformer.blocks:
        block.qkv.weight.mul_(40)
    x = torch.randn(3, 9, 8, generator=torch.Generator().manual_seed(0))
    state, lengths = model.initial_state(3), [0, 0, 0]
    for step in range(9):
        if step == 5:
            state, lengths[1] = model.reset(state, np.array([False, True, False])), 0
        _, state = model.step(x[:, step], state)
        lengths = [length + 1 for length in lengths]
        before = state.cache.lengths_B.clone()
        rows = torch.tensor([2, 1])
        found = model.attention(state, rows)
        assert found.shape == (2, 2, context) and torch.equal(state.cache.lengths_B, before)
        for place, row in enumerate(rows.tolist()):
            size = min(lengths[row], context)
            window = x[row : row + 1, step + 1 - size : step + 1] + model.positions.table_LD[:size]
            _, maps = model.transformer(window, return_attention=True)
            expected = torch.stack([each[0, :, -1].mean(0) for each in maps.self_BHTT])
            torch.testing.assert_close(found[place, :, context - size :], expected, atol=1e-5, rtol=0)
            assert not found[place, :, : context - size].any()
    assert (found - 1 / context).abs().max() > 0.05  # not uniform


def test_a_gpts_policy_says_what_it_reads_and_a_recurrent_one_only_what_it_makes_of_it() -> None:
    seen, reward, action = lived(3)
    for kind in ("gpt", "lstm"):
        policy = policy_of(kind)
        last = outputs(policy, seen, reward, action)[-1]
        assert isinstance(policy, Traced)
        np.testing.assert_array_equal(policy.traced(np.array([1]))["outputs"], last[1:])
        maps = policy.maps(np.array([1]))
        assert (set(maps) == {"history_attention"}) == (kind == "gpt")
        if maps:
            assert maps["history_attention"].shape == (1, 2, HORIZON + 1)
            np.testing.assert_allclose(maps["history_attention"].sum(-1), 1, atol=2e-3)


# ------------------------------------------------------------------------------------------------------ budgets in steps


@pytest.mark.quick("True")
@pytest.mark.parametrize("warmup_learns", [False, True])
def test_a_budget_in_steps_does_not_depend_on_how_early_episodes_end(
    warmup_learns: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `warmup_learns` as in the released loop: main.py:254-281 of branch pybullet_jax (b6c68ef)."""
    fake_bullet.install(monkeypatch)
    T = 25
    hp = td3.Hyperparameters.model_validate(
        {
            "sequence": {"kind": "lstm", "width": 8}, "observation_embedding": 4, "action_embedding": 4, "head": [8],
            "budget": "steps", "warmup_episodes": 2, "train_episodes": 6, "evaluate_every": 1, "evaluation_episodes": 2,
            "initial_burst": False, "warmup_learns": warmup_learns, "updates_per_step": 0.3, "batch_size": 4, "sampled_seq_len": 3,
            "replay_transitions": 400, "replay_episodes": 2,
        }
    )  # fmt: skip
    environment = EnvironmentSettings(
        name="hopper", world="partial_bullet", options={"robot": "hopper", "observation": "velocities", "horizon": T}
    )
    agent = MethodSettings(name="td3_lstm", algorithm="td3", data="online", hyperparameters=hp)
    settings = Settings(scale="smoke", seed=0, environment=environment, method=agent)
    trainer = td3.make_trainer(settings)
    run = Run(tmp_path, tmp_path / "checkpoints", settings_text="same")
    evaluated, rounds = [], []
    while not trainer.done:
        before = (trainer.at.env_steps, trainer.at.updates_due, trainer.at.evaluations)
        trainer.advance(run)
        if trainer.at.env_steps > before[0]:
            rounds.append((before[0], trainer.at.env_steps - before[0], trainer.at.updates_due))
        if trainer.at.evaluations > before[2]:
            evaluated.append(trainer.at.env_steps)
    lengths = [length for _, length, _ in rounds]
    assert min(lengths) < T and trainer.at.episodes == len(rounds) > 8  # they do end early
    assert 8 * T <= trainer.at.env_steps < 9 * T
    for start, length, due in rounds:
        is_after = start + length >= 2 * T if warmup_learns else start >= 2 * T
        assert due == (int(np.ceil(0.3 * length)) if is_after else 0)
    # Without: as the warm-up ends none is due.
    assert [steps // T for steps in evaluated] == [*([1, 2] if warmup_learns else []), 3, 4, 5, 6, 7, 8]
