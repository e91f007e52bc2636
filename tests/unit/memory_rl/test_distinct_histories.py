"""Reading what histories share once gives the numbers and gradients of reading every row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from recollect.common import distinct_histories as module
from recollect.common.contract import Facts
from recollect.common.distinct_histories import DistinctHistories, distinct_histories, distinct_tokens
from recollect.common.feedforward import TokenEmbedder
from recollect.memory_rl import dqn
from recollect.memory_rl.heads import Head
from recollect.memory_rl.history_policy import HistoryNetwork
from recollect.memory_rl.replay import Batch
from recollect.memory_rl.sequence import HistoryEncoder, SequenceSettings, make_sequence_model
from recollect.memory_rl.stacked import stacked

B, T, ACTIONS = 12, 17, 4
Tokens = tuple[Tensor, Tensor, Tensor]


def walks(wrong: float, seed: int = 0, *, length: int = T) -> Tokens:
    """Episodes in which most actions are the same one, as in a T-Maze; two kinds of first observations."""
    draws = np.random.default_rng(seed)
    action = np.where(draws.random((B, length)) < wrong, draws.integers(ACTIONS, size=(B, length)), 0)
    action[:, 0] = ACTIONS  # none yet
    observation = np.zeros((B, length, 3), np.uint8)
    observation[:, 0, 0] = draws.integers(2, size=B)
    observation[:, 1:, 1] = np.cumsum(action[:, 1:] == 0, 1) == length // 2
    reward = np.where(action == 1, -0.1, 0.0).astype(np.float32)
    return torch.as_tensor(action), torch.as_tensor(reward), torch.as_tensor(observation)


def network(kind: str, layers: int = 1, seed: int = 0, **chosen: Any) -> HistoryNetwork:
    draws = torch.Generator().manual_seed(seed)
    embedder = TokenEmbedder(
        ACTIONS, 3, action_embedding=6, reward_embedding=4, observation_embedding=6, generator=draws
    )
    settings = SequenceSettings(kind=kind, width=16, layers=layers, **{"dropout": 0.0, **chosen})  # type: ignore[arg-type]
    sequence = make_sequence_model(settings, embedder.width, context=T, seed=seed)
    return HistoryNetwork(HistoryEncoder(embedder, sequence), Head(16, ACTIONS, (8,), last_range=0.1, generator=draws))


def learned(net: HistoryNetwork, tokens: Tokens, histories: DistinctHistories | None) -> list[Tensor]:
    """Outputs, and the gradient of a loss that weighs each of them differently."""
    outputs_BTA = net(*tokens, histories)
    weights = torch.linspace(-1, 1, outputs_BTA.numel()).view_as(outputs_BTA)
    return [outputs_BTA, *torch.autograd.grad((outputs_BTA * weights).square().sum(), list(net.parameters()))]


KINDS = [("lstm", 1), ("lstm", 3), ("gru", 1), ("rnn", 2), ("gpt", 2), ("ff", 2)]


@pytest.mark.parametrize(("kind", "layers"), KINDS)
@pytest.mark.parametrize("wrong", [0.0, 0.03, 0.08])
def test_outputs_and_gradients_are_those_of_reading_every_row(
    kind: str, layers: int, wrong: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STEPS", 4)
    monkeypatch.setattr(module, "CALL", 0)
    net, tokens = network(kind, layers), walks(wrong)
    histories = net.encoder.distinct(*tokens)
    assert histories is not None or (kind, wrong) == ("gpt", 0.08)  # few rows are the same from end to end
    for found, expected in zip(learned(net, tokens, histories), learned(net, tokens, None), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kind", "layers"), [("lstm", 1), ("lstm", 2), ("gpt", 1), ("ff", 1)])
def test_networks_that_are_trained_together_read_each_their_own_rows(
    kind: str, layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one there is more to read than of the others."""
    monkeypatch.setattr(module, "STEPS", 4)
    monkeypatch.setattr(module, "CALL", 0)
    together = stacked([network(kind, layers, seed) for seed in range(3)])
    tokens = tuple(map(torch.cat, zip(walks(0.0), walks(0.04, 1), walks(0.0, 2), strict=True)))
    histories = together.encoder.distinct(*tokens)
    assert histories is not None and histories.networks == 3
    for found, expected in zip(learned(together, tokens, histories), learned(together, tokens, None), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_an_input_that_no_token_depends_on_makes_no_history_another() -> None:
    action, reward, observation = walks(1.0)
    reward = torch.zeros_like(reward)
    observation = torch.zeros_like(observation)
    embedder = TokenEmbedder(ACTIONS, 3, action_embedding=0, reward_embedding=4, observation_embedding=6)
    encoder = HistoryEncoder(embedder, make_sequence_model(SequenceSettings(kind="lstm"), 10, context=T))
    histories = encoder.distinct(action, reward, observation)
    assert histories is not None and len(histories.token_N) == T


def test_no_step_of_a_history_is_read_twice_within_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a piece for each step, as many tokens are read as there are different beginnings."""
    monkeypatch.setattr(module, "STEPS", 1)
    monkeypatch.setattr(module, "CALL", 0)
    tokens = walks(0.05)
    histories = distinct_histories(tokens)
    assert histories is not None
    rows = [np.concatenate([part.numpy().reshape(B, T, -1) for part in tokens], 2)[:, : t + 1] for t in range(T)]
    beginnings = sum(len({row.tobytes() for row in beginning}) for beginning in rows)
    assert len(histories.token_N) == sum(piece.histories * piece.steps for piece in histories.pieces) == beginnings
    assert beginnings < B * T / 2


def test_a_token_finds_its_own_and_tokens_are_read_once_without_memory() -> None:
    tokens = walks(0.1)
    histories = distinct_tokens(tokens)
    assert histories is not None
    for part in tokens:
        torch.testing.assert_close(histories.spread(histories.taken(part)), part)
    different = {tuple(np.concatenate([p[b, t].reshape(-1) for p in tokens])) for b in range(B) for t in range(T)}
    assert len(histories.token_N) == len(different) and len(histories.pieces) == 1


def test_rows_that_share_little_are_read_as_they_are() -> None:
    assert network("lstm").encoder.distinct(*walks(1.0)) is None
    action, reward, observation = walks(0.0)
    reward = torch.as_tensor(np.random.default_rng(0).random((B, T), np.float32))
    for kind in ("lstm", "ff"):
        assert network(kind).encoder.distinct(action, reward, observation) is None


@pytest.mark.parametrize(("length", "wrong", "pieces"), [(3, 0.01, 1), (17, 0.01, 1), (400, 0.0, 1), (400, 0.002, 3)])
def test_a_piece_ends_where_histories_part(length: int, wrong: float, pieces: int) -> None:
    net, tokens = network("lstm"), walks(wrong, length=length)
    histories = net.encoder.distinct(*tokens)
    assert histories is not None and len(histories.pieces) == pieces
    torch.testing.assert_close(net(*tokens, histories), net(*tokens))


def test_models_that_draw_and_recurrent_ones_that_are_not_stacked_share_nothing() -> None:
    tokens = walks(0.0)
    assert network("gpt", dropout=0.1).encoder.distinct(*tokens) is None  # each row has a dropout of its own
    together = stacked([network("gru", seed=seed) for seed in range(2)])
    assert together.encoder.distinct(*map(torch.cat, zip(tokens, tokens, strict=True))) is None


def test_an_update_is_that_of_reading_every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a DQN, with targets: what is logged, and the weights behind some updates."""
    chosen: dict[str, Any] = {"sequence": {"kind": "lstm", "width": 12}, "head": [8], "batch_size": B}
    facts = Facts(observation_size=3, observation_values=(), actions=ACTIONS, horizon=T - 1)
    action, reward, observation = walks(0.03)
    ends = torch.zeros(B, T - 1)
    ends[:, -1] = 1
    batch = Batch(observation, action[:, 1:], reward[:, 1:], ends, torch.ones(B, T - 1))
    found = []
    for shares in (True, False):
        learner = dqn.DQN(dqn.Hyperparameters(**chosen), facts, seed=0, device="cpu")
        for model in (learner.network, learner.target):
            if not shares:
                monkeypatch.setattr(model.encoder, "distinct", lambda *tokens: None)
        seen = [learner.step(batch, counter) for counter in range(4)]
        found.append(
            [torch.stack([torch.as_tensor(v) for one in seen for v in one.values()]), *learner.online.parameters()]
        )
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
