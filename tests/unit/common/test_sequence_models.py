"""Every sequence model of every paper keeps the promises of the one interface, so that any method may use any of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tiny_amago import DISCRETE, random_batch, small

from recollect.amago.amago import Agent
from recollect.amago.trajectory_encoders import TrajectoryEncoderSettings, make_trajectory_encoder
from recollect.common.feedforward import TokenEmbedder
from recollect.common.masked_mean import masked_mean, masked_means
from recollect.common.sequence_models import SequenceModel
from recollect.memory_rl.heads import Head
from recollect.memory_rl.history_policy import HistoryNetwork, HistoryPolicy
from recollect.memory_rl.sequence import HistoryEncoder, SequenceSettings, make_sequence_model

WIDTH, LENGTH, ROWS = 8, 9, 3
MODELS = [f"memory_rl {kind}" for kind in ("gpt", "lstm", "gru", "rnn", "ff")]
MODELS += ["memory_rl sliding gpt", "amago transformer", "amago gru", "amago ff"]


def model_of(name: str) -> SequenceModel:
    paper, _, kind = name.partition(" ")
    shape: Any = {"kind": kind.removeprefix("sliding "), "width": WIDTH, "layers": 2, "heads": 2}
    if paper == "amago":
        settings = TrajectoryEncoderSettings(**shape)
        return make_trajectory_encoder(settings, WIDTH, horizon=LENGTH, context=LENGTH, seed=0).eval()
    slides = kind.startswith("sliding")
    context = 4 if slides else LENGTH
    return make_sequence_model(SequenceSettings(**shape), WIDTH, context=context, slides=slides).eval()


def tokens(rows: int = ROWS) -> torch.Tensor:
    return torch.randn(rows, LENGTH, WIDTH, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
@pytest.mark.parametrize("name", [name for name in MODELS if "sliding" not in name])
def test_stepping_with_a_row_that_is_reset_equals_the_whole_pass(name: str) -> None:
    model, x = model_of(name), tokens()
    assert (model.input_width, model.output_width) == (WIDTH, WIDTH)
    whole, late = model(x), model(x[:1, 4:])
    state = model.initial_state(ROWS)
    for t in range(LENGTH):
        if t == 4:
            state = model.reset(state, np.arange(ROWS) == 0)
        h, state = model.step(x[:, t], state)
        torch.testing.assert_close(h[1:], whole[1:, t], atol=1e-5, rtol=0)
        torch.testing.assert_close(h[0], whole[0, t] if t < 4 else late[0, t - 4], atol=1e-5, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("reset", [False, True])
def test_a_state_that_was_saved_goes_on_to_the_bit(name: str, reset: bool) -> None:
    model, x = model_of(name), tokens()
    state = model.initial_state(ROWS)
    for t in range(6):
        if reset and t == 3:
            state = model.reset(state, np.arange(ROWS) == 1)
        _, state = model.step(x[:, t], state)
    other = model.state_from({key: value.copy() for key, value in model.state_arrays(state).items()})
    for t in range(6, LENGTH):
        h, state = model.step(x[:, t], state)
        again, other = model.step(x[:, t], other)
        assert torch.equal(h, again)


@pytest.mark.parametrize("name", MODELS)
def test_memory_rls_policy_acts_with_the_models_of_either_paper(name: str) -> None:
    embedder = TokenEmbedder(4, 2, action_embedding=3, reward_embedding=0, observation_embedding=WIDTH - 3)
    network = HistoryNetwork(HistoryEncoder(embedder, model_of(name)), Head(WIDTH, 4))
    policy = HistoryPolicy(network.eval())
    seen = np.random.default_rng(0).normal(size=(LENGTH, ROWS, 2)).astype(np.float32)
    for _ in range(2):  # the second start finds a state that was used
        policy.start(np.arange(ROWS, dtype=np.uint64))
        found = [policy.act(seen[t], np.zeros(ROWS), np.zeros(ROWS, bool)) for t in range(LENGTH)]
    policy.start(np.arange(1, dtype=np.uint64))
    for t in range(LENGTH):
        assert policy.act(seen[t, :1], np.zeros(1), np.zeros(1, bool))[0] == found[t][0]


@pytest.mark.parametrize("name", [name for name in MODELS if "sliding" not in name])
def test_amagos_agent_acts_and_learns_with_the_models_of_either_paper(name: str) -> None:
    agent = Agent(small(), DISCRETE, seed=0, device="cpu")
    agent.network.trajectory_encoder = model_of(name)
    assert np.isfinite(float(agent.step(random_batch(), 0)["critic_loss"]))
    policy, other = agent.policy(), agent.policy()
    policy.start(np.arange(ROWS, dtype=np.uint64))
    seen = np.random.default_rng(0).normal(size=(LENGTH, ROWS, 3)).astype(np.float32)
    for t in range(LENGTH):
        if t == 5:
            other.load_state({key: value.copy() for key, value in policy.state_arrays().items()})
        action_B = policy.act(seen[t], np.zeros(ROWS), np.zeros(ROWS, bool))
        if t >= 5:
            assert (action_B == other.act(seen[t], np.zeros(ROWS), np.zeros(ROWS, bool))).all()


def test_a_masked_mean_counts_what_the_mask_keeps_and_broadcasts_it() -> None:
    x = torch.arange(12.0).view(2, 3, 2)
    mask = torch.tensor([[True, False, True], [False, False, False]])
    assert float(masked_mean(x, mask[..., None])) == float(x[mask].mean())
    assert float(masked_mean(x[..., 0], mask.float())) == float(x[..., 0][mask].mean())
    assert float(masked_mean(x, torch.zeros(2, 3, 1))) == 0.0


def test_each_members_masked_mean_is_over_its_own_rows() -> None:
    """Members whose masks keep much, little and nothing."""
    x = torch.randn(6, 4, 2, generator=torch.Generator().manual_seed(0))
    mask = torch.zeros(6, 4, dtype=torch.bool)
    mask[:2], mask[3, 1] = True, True
    expected = torch.stack([x[:2].mean(), x[3, 1].mean(), torch.tensor(0.0)])
    torch.testing.assert_close(masked_means(x, mask[..., None], 3), expected)
