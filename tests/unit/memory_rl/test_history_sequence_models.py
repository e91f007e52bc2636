"""Sequence models: stepping is the whole pass, nothing looks ahead, sizes are the paper's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from recollect.common.distinct_images import distinct_rows
from recollect.common.feedforward import ImageEmbedder, TokenEmbedder
from recollect.common.sequence_models import RecurrentSequence
from recollect.memory_rl.heads import POLICY_HEAD_RANGE, Head
from recollect.memory_rl.sequence import HistoryEncoder, SequenceSettings, make_sequence_model
from recollect.memory_rl.stacked import stacked
from recollect.settings.errors import UserError

KINDS = ["gpt", "lstm", "gru", "rnn", "ff"]
WIDTH, LENGTH = 8, 12


def model_of(kind: str, **more: object) -> torch.nn.Module:
    settings = SequenceSettings(kind=kind, width=WIDTH, layers=2, heads=2, dropout=0.1)  # type: ignore[arg-type]
    return make_sequence_model(settings, WIDTH, context=LENGTH, seed=3, **more).eval()  # type: ignore[arg-type]


def inputs(batch: int, length: int) -> torch.Tensor:
    return torch.randn(batch, length, WIDTH, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_no_output_depends_on_later_tokens_and_only_memory_depends_on_earlier_ones(kind: str) -> None:
    model, x = model_of(kind), inputs(1, LENGTH)
    before = model(x)
    changed = x.clone()
    changed[:, 6, :4] += 3.0  # not a constant, which a LayerNorm would not see
    after = model(changed)
    torch.testing.assert_close(after[:, :6], before[:, :6], atol=1e-6, rtol=0)
    remembers = (after[:, 7:] - before[:, 7:]).abs().max() > 1e-7
    assert bool(remembers) == (kind != "ff")


@torch.no_grad()
@pytest.mark.parametrize("positions", ["sinusoid", "learned"])
def test_beyond_its_context_a_gpt_encodes_the_last_tokens_from_position_zero(positions: str) -> None:
    context = 5
    settings = SequenceSettings(width=WIDTH, layers=2, dropout=0.1, positions=positions)  # type: ignore[arg-type]
    model = make_sequence_model(settings, WIDTH, context=context, slides=True, seed=0).eval()
    x, state = inputs(2, LENGTH), None
    state = model.initial_state(2)
    lengths = [0, 0]
    for t in range(LENGTH):
        if t == 8:  # one row starts anew while the other is beyond the context
            state, lengths[0] = model.reset(state, np.array([True, False])), 0
        h, state = model.step(x[:, t], state)
        for row in range(2):
            lengths[row] += 1
            window = x[row : row + 1, max(0, t + 1 - min(lengths[row], context)) : t + 1]
            torch.testing.assert_close(h[row], model(window)[0, -1], atol=1e-5, rtol=0)
    state = model.reset(state, np.array([True, True]))
    assert state.cached
    h, state = model.step(x[:, 0], state)
    torch.testing.assert_close(h, model(x[:, :1])[:, 0], atol=1e-5, rtol=0)


def test_a_gpt_that_may_not_slide_says_that_its_context_is_full() -> None:
    model = model_of("gpt")
    state = model.initial_state(1)
    x = inputs(1, 1)[:, 0]
    with pytest.raises(UserError):
        for _ in range(LENGTH + 1):
            _, state = model.step(x, state)
    with pytest.raises(UserError, match="context of 12"):
        model(inputs(1, LENGTH + 1))


def test_a_gpt_refuses_tokens_of_another_width() -> None:
    with pytest.raises(UserError, match="sum of the embedding widths"):
        make_sequence_model(SequenceSettings(width=16), 8, context=4)


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_depend_on_the_seed_only_and_no_global_generator_is_touched(kind: str) -> None:
    before = torch.get_rng_state()
    first, second = model_of(kind), model_of(kind)
    other = make_sequence_model(SequenceSettings(kind=kind, width=WIDTH), WIDTH, context=4, seed=4)  # type: ignore[arg-type]
    assert torch.equal(torch.get_rng_state(), before)
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)
    assert any(
        not torch.equal(a, b) for a, b in zip(other.parameters(), first.parameters(), strict=False) if a.std() > 0
    )


def test_dropout_is_a_function_of_its_seed_and_off_in_evaluation() -> None:
    model, x = model_of("gpt").train(), inputs(4, LENGTH)
    model.reseed_dropout(7)
    first = model(x)
    assert not torch.equal(model(x), first)
    model.reseed_dropout(7)
    assert torch.equal(model(x), first)
    model.eval()
    assert torch.equal(model(x), model(x))


def test_recurrent_weights_are_orthogonal_and_biases_zero_or_uniform() -> None:
    stack = RecurrentSequence("lstm", 6, 8, 2, generator=torch.Generator().manual_seed(0))
    for name, parameter in stack.cells.named_parameters():
        if name.startswith("bias"):
            assert not parameter.any()
        else:  # tall matrices have orthonormal columns
            torch.testing.assert_close(parameter.T @ parameter, torch.eye(parameter.shape[1]), atol=1e-5, rtol=0)
    biased: Any = make_sequence_model(SequenceSettings(kind="lstm", width=8, forget_bias=1.0), 6, context=4)
    total = biased.cells.bias_ih_l0 + biased.cells.bias_hh_l0
    assert torch.equal(total, torch.tensor([0.0] * 8 + [1.0] * 8 + [0.0] * 16))
    uniform = RecurrentSequence("gru", 6, 64, init="uniform", generator=torch.Generator().manual_seed(0))
    for parameter in uniform.parameters():  # as PyTorch's own begin: by the width, whatever the inputs are
        assert 0.95 / 8 < float(parameter.detach().abs().max()) <= 1 / 8


def test_a_gpt_begins_as_the_released_one() -> None:
    """Weights of deviation 0.02, however many layers there are; a learned table of deviation 1 (specification, section 3)."""
    settings = SequenceSettings(width=64, layers=4, heads=2, positions="learned")
    for name, parameter in make_sequence_model(settings, 64, context=64).named_parameters():
        if parameter.dim() > 1:
            wanted = 1.0 if name.endswith("table_LD") else 0.02
            assert float(parameter.detach().std()) == pytest.approx(wanted, rel=0.05), name
        else:
            assert bool((parameter == float("norm" in name and name.endswith("weight"))).all()), name


def test_what_embeds_and_what_has_no_memory_begins_as_pytorchs_own_layers() -> None:
    """Uniform in +-1/sqrt(inputs), weights and biases: as `nn.Linear` and `nn.Conv2d` begin."""
    widths = {"action_embedding": 16, "reward_embedding": 400, "observation_embedding": 32}
    draws = torch.Generator().manual_seed(0)
    parts = [TokenEmbedder(64, 100, **widths, generator=draws)]
    parts.append(TokenEmbedder(64, 75, **widths, image_shape=(3, 5, 5), generator=draws))
    memoryless = make_sequence_model(SequenceSettings(kind="ff", width=64, layers=2), 16, context=4)
    checked = 0
    for layer in (one for part in (*parts, memoryless) for one in part.modules()):
        if not isinstance(layer, torch.nn.Linear | torch.nn.Conv2d):
            continue
        inputs = layer.in_features if isinstance(layer, torch.nn.Linear) else 4 * layer.in_channels
        for values in (own.detach() for own in layer.parameters()):
            largest = float(values.abs().max()) * math.sqrt(inputs)
            assert 0.7 < largest <= 1 and (len(values.flatten()) < 90 or largest > 0.95)
        checked += 1
    assert checked == 3 + 5 + 2


def test_heads_scale_hidden_weights_by_their_output_width() -> None:
    draws = torch.Generator().manual_seed(0)
    head = Head(1024, 4, (256, 64), generator=draws)
    first, second = head.hidden
    for layer, out in ((first, 256), (second, 64)):
        largest = float(layer.weight.detach().abs().max())  # type: ignore[union-attr, operator]
        assert 0.98 / math.sqrt(out) < largest <= 1 / math.sqrt(out)
        assert torch.equal(layer.bias, torch.full((out,), 0.1))  # type: ignore[arg-type]
    for part in (head.last.weight, head.last.bias):
        assert float(part.detach().abs().max()) <= 3e-3
    textbook = Head(1024, 4, (256,), fan="input", last_range=POLICY_HEAD_RANGE, generator=draws)
    assert float(textbook.hidden[0].weight.detach().abs().max()) <= 1 / 32  # type: ignore[union-attr, operator, arg-type]
    assert float(textbook.last.weight.detach().abs().max()) <= 1e-3


def test_tokens_hold_action_reward_and_observation_in_that_order_and_no_action_is_the_zero_vector() -> None:
    embedder = TokenEmbedder(4, 2, action_embedding=3, reward_embedding=2, observation_embedding=5)
    assert embedder.width == 10
    token = embedder(torch.tensor([4]), torch.tensor([0.5]), torch.tensor([[0.1, -1.0]]))[0]
    assert embedder.action is not None and embedder.reward is not None and embedder.observation is not None
    torch.testing.assert_close(token[:3], embedder.action.linear.bias.relu())
    torch.testing.assert_close(token[3:5], embedder.reward(torch.tensor([0.5])))
    torch.testing.assert_close(token[5:], embedder.observation(torch.tensor([0.1, -1.0])))
    blind = TokenEmbedder(4, 2, action_embedding=0, reward_embedding=0, observation_embedding=5)
    assert blind.width == 5 and blind.action is None and blind.reward is None


def test_images_are_divided_by_255_and_embedded_per_token() -> None:
    embedder = ImageEmbedder((3, 5, 5), 100)
    images = torch.randint(0, 256, (2, 3, 75), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    out = embedder(images)
    assert out.shape == (2, 3, 100)
    alone = embedder.linear(
        torch.relu(embedder.second(torch.relu(embedder.first(images[1, 2].view(1, 3, 5, 5) / 255.0)))).flatten(1)
    )
    torch.testing.assert_close(out[1, 2], alone[0])


@pytest.mark.parametrize("members", [1, 3])
def test_images_are_compared_as_bytes_alone_and_in_an_ensemble(members: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def embedder(seed: int) -> TokenEmbedder:
        draws = torch.Generator().manual_seed(seed)
        widths = {"action_embedding": 0, "reward_embedding": 0, "observation_embedding": 8}
        return TokenEmbedder(4, 75, **widths, image_shape=(3, 5, 5), generator=draws)

    compared: list[torch.dtype] = []
    monkeypatch.setattr(
        "recollect.common.feedforward.distinct_rows", lambda rows: (compared.append(rows.dtype), distinct_rows(rows))[1]
    )
    draws = torch.Generator().manual_seed(9)
    images = torch.randint(0, 256, (20, 75), generator=draws).to(torch.uint8)
    observation = images[torch.randint(0, 20, (members * 16, 10), generator=draws)]
    action, reward = torch.zeros(members * 16, 10, dtype=torch.int64), torch.zeros(members * 16, 10)
    tokens = stacked([embedder(seed) for seed in range(members)])(action, reward, observation)
    assert compared == [torch.uint8] * members
    alone = [embedder(seed)(action[:16], reward[:16], part) for seed, part in enumerate(observation.chunk(members))]
    assert torch.equal(tokens, torch.cat(alone))


# ---- parameter counts of the paper's code (specification, section 3)

DQN = {"gpt": (64, 64, 128), "lstm": (32, 16, 128)}
PUBLISHED = [
    ("gpt", 1, 298_884),
    ("gpt", 2, 497_156),
    ("gpt", 4, 893_700),
    ("lstm", 1, 191_156),
    ("lstm", 2, 323_252),
    ("lstm", 4, 587_444),
]
PUBLISHED_IMAGES = [
    ("gpt", 1, 414_660),
    ("gpt", 2, 535_960),
    ("gpt", 4, 778_560),
    ("lstm", 1, 432_424),
    ("lstm", 2, 564_520),
    ("lstm", 4, 828_712),
]


def parameters(*modules: torch.nn.Module) -> int:
    return sum(p.numel() for module in modules for p in module.parameters())


@pytest.mark.parametrize(("kind", "layers", "published"), PUBLISHED)
def test_parameter_counts_of_the_t_maze_agents(kind: str, layers: int, published: int) -> None:
    observation, action, width = DQN[kind]
    embedder = TokenEmbedder(4, 2, action_embedding=action, reward_embedding=0, observation_embedding=observation)
    settings = SequenceSettings(kind=kind, width=width, layers=layers)  # type: ignore[arg-type]
    encoder = HistoryEncoder(embedder, make_sequence_model(settings, embedder.width, context=52))
    assert parameters(encoder, Head(encoder.output_width, 4)) == published


@pytest.mark.parametrize(("kind", "layers", "published"), PUBLISHED_IMAGES)
def test_parameter_counts_of_the_image_agents(kind: str, layers: int, published: int) -> None:
    embedder = TokenEmbedder(
        4, 75, action_embedding=0, reward_embedding=0, observation_embedding=100, image_shape=(3, 5, 5)
    )
    assert parameters(embedder) == 15_132
    width = 100 if kind == "gpt" else 128
    settings = SequenceSettings(kind=kind, width=width, layers=layers)  # type: ignore[arg-type]
    encoder = HistoryEncoder(embedder, make_sequence_model(settings, embedder.width, context=91))
    heads = [Head(encoder.output_width, 4) for _ in range(3)]
    assert parameters(encoder, *heads) == published


@pytest.mark.parametrize("shape", [(3, 2, 2), (2, 2, 3), (3, 1, 4)])
def test_images_that_are_too_small_are_refused(shape: tuple[int, int, int]) -> None:
    with pytest.raises(UserError, match="too small for two convolutions"):
        ImageEmbedder(shape, 8)
