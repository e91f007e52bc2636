"""AMAGO's smaller parts: normalisation that moves nothing it should not, heads that pick the right value, exact labels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from recollect.amago.ensembles import ActionCritics, DiscreteCritics, MultiGammaActor
from recollect.amago.goal_embedders import FeedForwardGoals, TokenGoals
from recollect.amago.images import ImageNetwork, random_shift
from recollect.amago.input_norm import InputNorm
from recollect.amago.policy_distributions import Beta, Binary, ClippedSoftmax, SquashedNormal, TanhMixture
from recollect.amago.popart import PopArt
from recollect.amago.timestep_encoders import InputSettings, Steps, StepShape, TimestepEncoder, rl2_vector
from recollect.amago.value_bins import ValueBins
from recollect.settings.errors import UserError


def draws(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# ---- InputNorm and PopArt


def test_input_norm_brings_features_to_mean_0_and_deviation_1() -> None:
    norm, real = InputNorm(3, beta=0.05).train(), torch.ones(64, 8, dtype=torch.bool)
    centre, scale = torch.tensor([5.0, -100.0, 0.0]), torch.tensor([2.0, 30.0, 0.2])
    for step in range(200):
        out = norm(centre + scale * torch.randn(64, 8, 3, generator=draws(step)), real)
    assert out.mean((0, 1)).abs().max() < 0.2
    torch.testing.assert_close(out.std((0, 1)), torch.ones(3), atol=0.1, rtol=0)


def test_the_released_order_normalises_only_in_part() -> None:
    """The fixed point of specification 1.2: the statistics settle at mean / (1 + sigma), sigma = sqrt(deviation)."""
    norm, real = InputNorm(1, beta=0.05, order="upstream").train(), torch.ones(64, 8, dtype=torch.bool)
    for step in range(600):
        norm(10.0 + 4.0 * torch.randn(64, 8, 1, generator=draws(step)), real)
    assert float(norm.deviation) == pytest.approx(2.0, rel=0.15)
    assert float(norm.mean) == pytest.approx(10.0 / 3.0, rel=0.15)


def test_input_norm_counts_real_steps_only_and_learns_only_while_training() -> None:
    x = torch.randn(4, 6, 2, generator=draws())
    mask = torch.arange(6) < torch.tensor([6, 3, 1, 4])[:, None]
    norm, other = InputNorm(2).train(), InputNorm(2).train()
    norm(x, mask)
    real = x[mask][None]
    other(real, torch.ones(1, len(real[0]), dtype=torch.bool))
    torch.testing.assert_close(norm.mean, other.mean)
    torch.testing.assert_close(norm.square, other.square)
    before = norm.mean.clone()
    norm.eval()(x + 100, mask)
    assert torch.equal(norm.mean, before)


def test_a_feature_that_never_varies_is_only_centred() -> None:
    norm, real = InputNorm(1, beta=0.5).train(), torch.ones(1, 4, dtype=torch.bool)
    for _ in range(60):  # what the statistics begin with wears off
        norm(torch.full((1, 4, 1), 3.0), real)
    assert float(norm.eval()(torch.full((1, 1, 1), 3.5))) == pytest.approx(0.5, abs=1e-4)


def test_a_feature_is_divided_by_its_deviation_from_a_hundredth_on() -> None:
    norm = InputNorm(2).eval()
    norm.mean.copy_(torch.tensor([3.0, 3.0]))
    norm.square.copy_(9 - 1e-5 + torch.tensor([0.008, 0.02]) ** 2)
    x = torch.full((1, 1, 2), 3.001)
    torch.testing.assert_close(norm(x)[0, 0], torch.tensor([0.001, 0.05]), rtol=0.02, atol=1e-6)


def test_predictions_do_not_move_when_popart_statistics_do() -> None:
    popart, q, real = PopArt(3), torch.randn(4, 5, 3, generator=draws()), torch.ones(6, 7, dtype=torch.bool)
    for step in range(20):
        before = popart(q)
        popart.update((step + 1) * torch.randn(6, 7, 3, generator=draws(step)) + torch.tensor([0.0, 50.0, -4.0]), real)
        torch.testing.assert_close(popart(q), before, atol=1e-3, rtol=1e-4)
    assert float(popart.deviation.max()) > 1.5  # they did move


def test_popart_learns_the_mean_and_deviation_of_the_targets_per_discount() -> None:
    popart, real = PopArt(2, beta=0.02), torch.ones(32, 16, dtype=torch.bool)
    real[:, 8:] = False
    for step in range(400):
        target = torch.tensor([3.0, -70.0]) + torch.tensor([2.0, 0.5]) * torch.randn(32, 16, 2, generator=draws(step))
        target[:, 8:] = 1e6  # padding
        popart.update(target, real)
    torch.testing.assert_close(popart.mean, torch.tensor([3.0, -70.0]), atol=0.1, rtol=0)
    torch.testing.assert_close(popart.deviation, torch.tensor([2.0, 0.5]), rtol=0.1, atol=0)
    torch.testing.assert_close(popart.normalise(torch.tensor([5.0, -70.0])), torch.tensor([1.0, 0.0]), atol=0.2, rtol=0)


def test_the_deviation_of_targets_that_hardly_vary_is_no_less_than_a_ten_thousandth() -> None:
    popart = PopArt(3)
    popart.mean.copy_(torch.tensor([0.0, 0.0, 5.0]))
    popart.square.copy_(torch.tensor([9e-6, 1e-12, 25.0]))
    torch.testing.assert_close(popart.deviation, torch.tensor([3e-3, 1e-4, 1e-4]))


def test_popart_that_is_off_is_the_identity() -> None:
    popart, q = PopArt(2, enabled=False), torch.randn(3, 2, generator=draws())
    popart.update(q[None], torch.ones(1, 3, dtype=torch.bool))
    assert torch.equal(popart(q), q)
    assert torch.equal(popart.normalise(q), q)
    assert torch.equal(popart.normalised(q), q)


# ---- heads


def critics_of(kind: str, bins: int | None = None) -> Any:
    options: dict[str, Any] = {"critics": 3, "hidden": (8, 7), "activation": "leaky_relu", "draws": draws()}
    if kind == "discrete":
        return DiscreteCritics(5, 2, 4, **options)
    return ActionCritics(5, (0.9, 0.99), 4, bins=bins, **options)


def plain(critics: Any, c: int, x: torch.Tensor) -> torch.Tensor:
    """One critic as a plain perceptron."""
    h = len(critics.first_bias) // critics.critics
    x = critics.first_weight[c * h : (c + 1) * h] @ x + critics.first_bias[c * h : (c + 1) * h]
    for weight, bias in zip(critics.weights, critics.biases, strict=True):
        x = torch.nn.functional.leaky_relu(x) @ weight[c] + bias[c, 0]
    return x


def test_critics_begin_as_the_released_layers_do() -> None:
    """Of einops' EinMix: weights uniform within the root of three over how many numbers a layer reads, biases of one over it."""
    critics = DiscreteCritics(50, 7, 10, critics=4, hidden=(200, 20), activation="relu", draws=draws())
    made = [(50, critics.first_weight, 3), (50, critics.first_bias, 1)]
    made += zip((200, 20), critics.weights, (3, 3), strict=True)
    made += zip((200, 20), critics.biases, (1, 1), strict=True)
    for reads, parameter, over in made:
        assert float(parameter.detach().abs().max()) * math.sqrt(reads / over) == pytest.approx(1.0, abs=0.06)
        assert float(parameter.detach().std()) * math.sqrt(3 * reads / over) == pytest.approx(1.0, abs=0.15)


def test_discrete_critics_are_one_perceptron_each_and_discounts_stand_before_actions() -> None:
    critics, s = critics_of("discrete"), torch.randn(2, 3, 5, generator=draws(1))
    out = critics(s)
    assert out.shape == (3, 2, 3, 2, 4)
    for c in range(3):
        torch.testing.assert_close(out[c, 1, 2].flatten(), plain(critics, c, s[1, 2]))


@pytest.mark.parametrize("bins", [None, 6])
def test_critics_of_actions_read_state_discount_and_action(bins: int | None) -> None:
    critics, s = critics_of("continuous", bins), torch.randn(2, 3, 5, generator=draws(1))
    action = torch.rand(2, 3, 2, 4, generator=draws(2)) * 2 - 1
    out, features = critics(s, action), [10 * math.log(g) for g in (0.9, 0.99)]
    for c in range(3):
        for g in range(2):
            x = torch.cat([s[1, 2], torch.tensor([features[g]]), action[1, 2, g]])
            expected = plain(critics, c, x)
            torch.testing.assert_close(out[c, 1, 2, g], expected if bins else expected[0])
    several = critics(s, torch.stack([action, -action]))
    torch.testing.assert_close(several[:, 0], out)


def test_actions_at_the_border_are_as_those_just_inside() -> None:
    critics, s = critics_of("continuous"), torch.randn(1, 1, 5, generator=draws(1))
    assert torch.equal(critics(s, torch.ones(1, 1, 2, 4)), critics(s, torch.full((1, 1, 2, 4), 0.999)))


@pytest.mark.parametrize("kind", ["discrete", "continuous"])
def test_frozen_critics_give_gradient_to_what_they_read_and_not_to_themselves(kind: str) -> None:
    critics, s = critics_of(kind), torch.randn(2, 3, 5, generator=draws(1)).requires_grad_()
    action = torch.zeros(2, 3, 2, 4, requires_grad=True)
    arguments = (s,) if kind == "discrete" else (s, action)
    critics(*arguments, frozen=True).square().sum().backward()
    assert all(parameter.grad is None for parameter in critics.parameters())
    assert float(s.grad.abs().max()) > 0  # type: ignore[union-attr]
    assert kind == "discrete" or float(action.grad.abs().max()) > 0  # type: ignore[union-attr]


def test_an_actor_gives_parameters_per_discount() -> None:
    actor = MultiGammaActor(5, 3, 4, (8,), "relu", draws())
    s = torch.randn(2, 6, 5, generator=draws(1))
    whole = torch.relu(s @ actor.layers[0].weight.T + actor.layers[0].bias) @ actor.layers[1].weight.T
    torch.testing.assert_close(actor(s)[..., 1, :], (whole + actor.layers[1].bias)[..., 4:8])


# ---- distributions


def test_a_clipped_softmax_keeps_its_probabilities_inside_the_bounds_before_they_are_divided() -> None:
    policy, raw = ClippedSoftmax(3), torch.tensor([100.0, 0.0, -100.0])
    torch.testing.assert_close(policy.probabilities(raw), torch.tensor([0.99, 0.001, 0.001]) / 0.992)
    assert float(policy.log_prob(raw, torch.tensor(2))) == pytest.approx(math.log(0.001 / 0.992))
    raw = torch.tensor([0.3, -0.2, 0.1], requires_grad=True)
    policy.log_prob(raw, torch.tensor(0)).backward()
    expected = torch.tensor([1.0, 0.0, 0.0]) - raw.detach().softmax(-1)  # as of a softmax, where nothing is clipped
    torch.testing.assert_close(raw.grad, expected)


@pytest.mark.parametrize(
    ("policy", "size"),
    [(ClippedSoftmax(4), 4), (SquashedNormal(2), 2), (TanhMixture(2), 2), (Beta(2), 2), (Binary(3), 3)],
)
def test_draws_are_from_the_density_that_is_given(policy: Any, size: int) -> None:
    """The mean of 1 / density over draws is the volume of what can be drawn; for masses, of the number of outcomes."""
    raw = 0.4 * torch.randn(policy.parameters, generator=draws(3))
    if isinstance(policy, SquashedNormal):
        raw[2:] += 0.7  # wide enough to reach all of the box that is looked at
    if isinstance(policy, TanhMixture):
        raw[5:].view(5, 4)[:, 2:] += 0.7
    count = 4000 if isinstance(policy, Beta) else 20_000  # whose draws are made one by one
    uniform = torch.rand(count, policy.uniforms, generator=draws(4), dtype=torch.float64)
    action = policy.drawn(raw.expand(count, -1), uniform)
    log_prob = policy.log_prob(raw.expand(count, -1), action)
    if policy.kind == "binary":
        log_prob, volume = log_prob * size, 2.0**size  # it is averaged over bits
    elif policy.kind == "discrete":
        volume = float(size)
    else:
        assert float(action.abs().max()) <= 1.0
        inside = (action.abs() < 0.9).all(-1)
        log_prob, volume = torch.where(inside, log_prob, torch.inf), 1.8**size
    assert float((-log_prob.double()).exp().mean()) == pytest.approx(volume, rel=0.08)


@pytest.mark.parametrize("policy", [ClippedSoftmax(4), SquashedNormal(2), Beta(2)])
def test_several_draws_at_once_have_the_distribution_of_draws_one_by_one(policy: Any) -> None:
    raw = 0.4 * torch.randn(policy.parameters, generator=draws(3))
    uniform = torch.rand(3000, policy.uniforms, generator=draws(4), dtype=torch.float64)
    one_by_one = policy.drawn(raw.expand(3000, -1), uniform).double()
    first, second = policy.several(raw.expand(20_000, -1), 2, draws(5))
    assert first.shape == (20_000, *one_by_one.shape[1:]) and not torch.equal(first, second)
    for moment in (1, 2):
        torch.testing.assert_close(
            (first.double() ** moment).mean(0), (one_by_one**moment).mean(0), atol=0.05, rtol=0.05
        )


@pytest.mark.parametrize("policy", [SquashedNormal(2), Beta(2)])
def test_gradients_pass_through_reparameterised_draws(policy: Any) -> None:
    raw = torch.zeros(50, policy.parameters, requires_grad=True)
    action = policy.reparameterised(raw, draws())
    assert float(action.detach().abs().max()) < 1
    action.sum().backward()
    assert float(raw.grad[:, : policy.size].min()) > 0  # type: ignore[index]


def test_the_released_mixture_is_a_switch() -> None:
    ours, theirs = TanhMixture(1), TanhMixture(1, upstream=True)
    raw = torch.zeros(ours.parameters)
    raw[5:] = 4.0  # every mean and log deviation
    assert float(ours.mode(raw)) < 1.0 < float(theirs.mode(raw))
    assert float(ours._parts(raw)[2].max()) <= math.exp(2.0)
    # amago/nets/actor_critic.py:145 and amago/agent.py:392
    assert float(theirs._parts(raw)[2].max()) == pytest.approx(math.exp(12.5))
    assert float(theirs._parts(torch.zeros_like(raw))[2].max()) == pytest.approx(math.exp(-1.5))
    border, beyond, inside = (theirs.log_prob(0.1 * raw, torch.tensor([x])) for x in (0.995, 1.0, 0.991))
    assert border == beyond != inside


@pytest.mark.parametrize("policy", [SquashedNormal(1), TanhMixture(1), Beta(1)])
def test_actions_of_the_buffer_are_read_as_no_further_out_than_099(policy: Any) -> None:
    raw = 0.4 * torch.randn(policy.parameters, generator=draws(3))
    border, inside, beyond = (policy.log_prob(raw, torch.tensor([x])) for x in (0.99, 0.985, 1.0))
    assert border == beyond != inside


def test_a_beta_policy_has_one_mode_and_is_uniform_at_its_widest() -> None:
    at = torch.tensor([[-0.9], [0.0], [0.9]])
    torch.testing.assert_close(
        Beta(1).log_prob(torch.full((3, 2), -50.0), at), torch.full((3,), math.log(0.5)), atol=1e-3, rtol=0
    )


def test_a_mixture_has_five_modes() -> None:
    assert TanhMixture(2).parameters == 5 * (1 + 2 * 2)


def test_standard_deviations_stay_in_their_bounds() -> None:
    policy = SquashedNormal(1)
    widest, narrowest = (policy.drawn(torch.tensor([0.0, x]), torch.tensor([0.8413447])) for x in (1e3, -1e3))
    assert float(widest) == pytest.approx(math.tanh(math.exp(2.0)), rel=1e-3)
    assert float(narrowest) == pytest.approx(math.tanh(math.exp(-5.0)), rel=1e-2)


# ---- bins


@pytest.mark.parametrize("space", ["symlog", "linear"])
def test_two_hot_labels_give_their_value_back(space: Any) -> None:
    bins = ValueBins(-100.0, 1000.0, 33, space=space)
    values = torch.tensor([-100.0, -37.5, 0.0, 0.01, 5.0, 999.0, 1000.0])
    label = bins.label(values)
    torch.testing.assert_close(label.sum(-1), torch.ones(7))
    assert int((label > 0).sum(-1).max()) <= 2
    torch.testing.assert_close(bins.value(label.clamp(min=1e-30).log()), values, atol=2e-3, rtol=1e-4)


def test_two_hot_puts_the_larger_weight_on_the_nearer_bin() -> None:
    label = ValueBins(0.0, 10.0, 11, space="linear").label(torch.tensor(3.2))
    torch.testing.assert_close(label[3:5], torch.tensor([0.8, 0.2]), atol=1e-5, rtol=0)


def test_returns_outside_count_as_the_nearest_end() -> None:
    bins = ValueBins(-1.0, 1.0, 5, space="linear")
    assert torch.equal(bins.label(torch.tensor([50.0, -50.0])), torch.eye(5)[[4, 0]])


def test_the_mean_of_an_hl_gauss_label_is_within_one_bin() -> None:
    bins = ValueBins(-100.0, 1000.0, 64, space="linear", labels="hl_gauss")
    values = torch.linspace(-60, 900, 50)
    label = bins.label(values)
    torch.testing.assert_close(label.sum(-1), torch.ones(50))
    assert float((bins.value(label.clamp(min=1e-30).log()) - values).abs().max()) < bins.step
    assert int((label[25] > 0.01).sum()) > 2  # it is spread over more than the two neighbours


def test_an_hl_gauss_label_is_a_gaussian_of_three_quarters_of_a_bin() -> None:
    label = ValueBins(0.0, 20.0, 21, space="linear", labels="hl_gauss").label(torch.tensor(10.0))
    within = [math.erf(edge / (0.75 * math.sqrt(2))) for edge in (0.5, 1.5)]
    assert float(label[10]) == pytest.approx(within[0], rel=1e-4)
    assert float(label[9] + label[11]) == pytest.approx(within[1] - within[0], rel=1e-4)


# ---- time steps, goals, images


def test_the_rl2_vector_of_both_layouts() -> None:
    shape = StepShape(vector=1, kind="discrete", actions=3, horizon=10)
    previous, reward = torch.tensor([-1, 2]), torch.tensor([0.0, 0.5])
    time, begins = torch.tensor([0, 4]), torch.tensor([True, False])
    seed = rl2_vector(InputSettings(), shape, previous, reward, time, begins)
    torch.testing.assert_close(seed, torch.tensor([[1.0, 0, 0, 1, 1, 1], [0, 0.5, 0.4, 0, 0, 1]]))
    head = rl2_vector(InputSettings(layout="head"), shape, previous, reward, time, begins)
    torch.testing.assert_close(head, torch.tensor([[0.0, 0, 0, 0], [0.5, 0, 0, 1]]))
    hidden = rl2_vector(InputSettings(hide_rewards=True), shape, previous, reward, time, begins)
    assert float(hidden[1, 1]) == 0
    assert float(hidden[1, 2]) == pytest.approx(0.4)
    continuous = StepShape(vector=1, kind="continuous", actions=2, horizon=10)
    previous = torch.tensor([[-2.0, -2.0], [0.5, -1.0]])
    assert rl2_vector(InputSettings(), continuous, previous, reward, time, begins)[0, 3:].tolist() == [-2, -2]
    assert rl2_vector(InputSettings(layout="head"), continuous, previous, reward, time, begins)[0, 1:].tolist() == [
        0,
        0,
    ]
    bits = StepShape(vector=1, kind="binary", actions=2, horizon=10)
    previous = torch.tensor([[-1, -1], [1, 0]])
    for layout, first in (("seed", 3), ("head", 1)):
        found = rl2_vector(InputSettings.model_validate({"layout": layout}), bits, previous, reward, time, begins)
        assert found[:, first:].tolist() == [[0, 0], [1, 0]]


def test_hiding_the_rl2_vector_hides_it_from_image_encoders_too() -> None:
    shape = StepShape(vector=0, kind="discrete", actions=3, horizon=10, image=(3, 40, 40))
    settings = InputSettings(hidden=(8,), width=8, hide_rl2=True)
    encoder = TimestepEncoder(settings, shape, seed=0).eval()
    image = torch.randint(0, 256, (1, 2, 3, 40, 40), generator=draws(), dtype=torch.uint8)
    outs = []
    for action in (0, 2):
        rl2 = rl2_vector(
            settings, shape, torch.full((1, 2), action), torch.rand(1, 2, generator=draws(action)),
            torch.zeros(1, 2, dtype=torch.int64), torch.zeros(1, 2, dtype=torch.bool),
        )  # fmt: skip
        outs.append(encoder(Steps(None, rl2, torch.zeros(1, 2), image)).detach())
    assert torch.equal(outs[0], outs[1])
    other = encoder(Steps(None, rl2, torch.zeros(1, 2), 255 - image)).detach()
    assert float((other - outs[0]).abs().max()) > 1e-3


@pytest.mark.parametrize(("encoder", "image", "order"), [("plain", (), "upstream"), ("plain", (3, 40, 40), "fixed"),
                                                         ("crafter", (48, 64, 3), "upstream")])  # fmt: skip
def test_the_seed_codes_order_of_statistics_is_that_of_its_encoders(
    encoder: str, image: tuple[int, ...], order: str
) -> None:
    """amago/nets/tstep_encoders.py:83 and :143; examples/07_crafter_with_instructions.py:90."""
    shape = StepShape(
        vector=0 if encoder == "plain" and image else 2, kind="discrete", actions=3, horizon=10, image=image
    )
    settings = InputSettings.model_validate({"encoder": encoder, "width": 8, "input_norm": "upstream"})
    norm = TimestepEncoder(settings, shape, seed=0).input_norm
    assert norm is not None and norm.order == order


def test_features_of_an_image_are_read_as_a_normed_linear_layer_gives_them() -> None:
    shape = StepShape(vector=2, kind="discrete", actions=3, horizon=10, image=(3, 40, 40))
    encoder, read = TimestepEncoder(InputSettings(hidden=(8,), width=8), shape, seed=0).eval(), list[torch.Tensor]()
    encoder.layers[0].register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
    image = torch.randint(0, 256, (1, 2, 3, 40, 40), generator=draws(), dtype=torch.uint8)
    vector, rl2 = torch.randn(1, 2, 2, generator=draws()), torch.randn(1, 2, 6, generator=draws(1))
    encoder(Steps(vector, rl2, torch.zeros(1, 2), image))
    assert encoder.cnn is not None and encoder.input_norm is not None
    features = encoder.image_linear(encoder.cnn(image))
    expected = (features - features.mean(-1, keepdim=True)) / (
        features.var(-1, correction=0, keepdim=True) + 1e-5
    ).sqrt()
    numbers = encoder.input_norm.normalised(torch.cat([vector, rl2], -1))
    torch.testing.assert_close(read[0], torch.cat([numbers, expected], -1), atol=1e-4, rtol=1e-4)


def test_token_goals_read_each_sequence_as_if_it_stood_alone() -> None:
    embedder = TokenGoals(8, draws())
    goals = torch.tensor([[[-1.0, -1], [5, 7]], [[5.0, 7], [-3, -3]], [[-1.0, -1], [5, 7]]])
    together = embedder(goals).detach()
    for i in range(3):
        torch.testing.assert_close(together[i], embedder(goals[i : i + 1])[0].detach(), atol=1e-6, rtol=1e-5)
    assert torch.equal(together[0], together[2])
    assert float((together[0] - together[1]).abs().max()) > 0.1
    assert FeedForwardGoals(2, 2, 8, draws())(goals).shape == (3, 8)


def test_token_goals_are_read_by_a_tanh_network() -> None:
    embedder, goals = TokenGoals(8, draws()), torch.tensor([[[-1.0, -1], [5, 7]], [[5.0, 7], [-3, -3]]])
    cells, state = embedder.cells, torch.zeros(2, 64)
    for token in embedder.table[goals.flatten(1).long() + 128].unbind(1):
        seen = token @ cells.weight_ih_l0.T + cells.bias_ih_l0
        state = (seen + state @ cells.weight_hh_l0.T + cells.bias_hh_l0).tanh()
    torch.testing.assert_close(embedder(goals), embedder.norm(embedder.out(state)), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["nature", "drq", "gridworld", "impala"])
def test_only_nature_and_drq_begin_with_orthogonal_centres_and_zeros_around_them(kind: Any) -> None:
    layers = [
        layer for layer in ImageNetwork(kind, (3, 64, 64), draws()).modules() if isinstance(layer, torch.nn.Conv2d)
    ]
    for layer in layers:
        weight, centre = layer.weight.detach().clone(), layer.kernel_size[0] // 2
        middle = weight[:, :, centre, centre]
        gram = middle @ middle.T if len(middle) <= middle.shape[1] else middle.T @ middle
        is_orthogonal = torch.allclose(gram, gram[0, 0] * torch.eye(len(gram)), atol=1e-5)
        weight[:, :, centre, centre] = 0.0
        assert layer.bias is not None
        found = (is_orthogonal, not weight.any(), not layer.bias.any())
        assert found == ((True, True, True) if kind in ("nature", "drq") else (False, False, False))


@pytest.mark.parametrize(("kind", "width"), [("nature", 64 * 4 * 4), ("drq", 32 * 25 * 25), ("gridworld", 48 * 61 * 61),
                                             ("impala", 32 * 8 * 8)])  # fmt: skip
def test_image_networks_take_both_orders_of_axes(kind: Any, width: int) -> None:
    first, last = (ImageNetwork(kind, shape, draws()) for shape in ((3, 64, 64), (64, 64, 3)))
    image = torch.randint(0, 256, (2, 3, 64, 64), generator=draws(1), dtype=torch.uint8)
    out = first(image)
    assert out.shape == (2, width)
    assert first.width == width
    torch.testing.assert_close(last(image.permute(0, 2, 3, 1)), out)


def test_groups_are_normalised_behind_each_residual_sum_of_impala() -> None:
    network = ImageNetwork("impala", (3, 16, 16), draws())
    x, convolve = torch.randn(2, 16, 8, 8, generator=draws(1)), torch.nn.functional.conv2d
    block: Any = network.layers[2]
    inner = convolve(torch.nn.functional.leaky_relu(x), block.first.weight, block.first.bias, padding=1)
    whole = x + convolve(torch.nn.functional.leaky_relu(inner), block.second.weight, block.second.bias, padding=1)
    groups = whole.unflatten(1, (4, 4)).flatten(2)
    expected = (groups - groups.mean(-1, keepdim=True)) / (groups.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(block(x), expected.view_as(x), atol=1e-5, rtol=1e-4)


def test_images_that_are_too_small_are_refused() -> None:
    with pytest.raises(UserError, match="too small"):
        ImageNetwork("nature", (3, 20, 20), draws())


def test_random_shifts_move_each_image_by_at_most_four_pixels() -> None:
    """As in the released code, whose draws are of (batch * time) images."""
    image = torch.zeros(40, 3, 1, 16, 16, dtype=torch.uint8)
    image[..., 8, 8] = 200
    moved = random_shift(image, draws())
    assert torch.equal(moved[:10], image[:10])  # the first quarter stays, and hardly any of the others by chance
    places = np.argwhere(moved.numpy()[:, :, 0] == 200)
    assert len(places) == 40 * 3
    by_BT2 = places[:, 2:].reshape(40, 3, 2) - 8
    assert by_BT2[10:].any(2).mean() > 0.9
    assert (by_BT2[10:, 1:] != by_BT2[10:, :1]).any(2).mean() > 0.9
    assert set(by_BT2[10:].flatten().tolist()) == set(range(-4, 5))


def test_of_a_batch_that_is_no_multiple_of_four_as_many_sequences_are_moved_as_released() -> None:
    images = torch.randint(256, (18, 5, 1, 16, 16), generator=draws(), dtype=torch.uint8)
    is_moved_B = (random_shift(images, draws()) != images).flatten(1).any(1)
    assert is_moved_B.tolist() == [False] * 5 + [True] * 13  # 18 less a quarter of 18, rounded up


def test_feed_forward_goals_are_a_normed_perceptron_of_all_their_numbers() -> None:
    goals = FeedForwardGoals(3, 2, 8, torch.Generator().manual_seed(0))
    shown = torch.randn(5, 4, 3, 2, generator=torch.Generator().manual_seed(1))
    h = torch.nn.functional.leaky_relu(
        torch.nn.functional.linear(shown.reshape(5, 4, 6), goals.first.weight, goals.first.bias)
    )
    expected = torch.nn.functional.layer_norm(
        torch.nn.functional.linear(h, goals.second.weight, goals.second.bias), (8,)
    )
    assert goals.first.out_features == 4
    np.testing.assert_allclose(goals(shown).detach(), expected.detach(), atol=1e-6)


@pytest.mark.parametrize("raw", [[6.0, 0.0, -1.0, 0.5], [1.0, 1.0, -1.0, 0.0]])
def test_gradients_of_clipped_probabilities_are_those_of_the_released_code(raw: list[float]) -> None:
    """It gives what it clipped and divided to torch's Categorical, which divides again, and now with the sum's gradient."""
    raw_A, values_A = torch.tensor(raw, requires_grad=True), torch.tensor([3.0, 2.9, 2.0, 2.5])
    kept_A = torch.distributions.Categorical(logits=raw_A).probs.clamp(0.001, 0.99)
    released = torch.distributions.Categorical(probs=kept_A / kept_A.sum().detach())
    policy = ClippedSoftmax(4)
    pairs = [
        ((policy.probabilities(raw_A) * values_A).sum(), (released.probs * values_A).sum()),
        (policy.log_prob(raw_A, torch.tensor(0)), released.log_prob(torch.tensor(0))),
    ]
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs)
        (grad,), (expected,) = torch.autograd.grad(ours, raw_A), torch.autograd.grad(theirs, raw_A, retain_graph=True)
        torch.testing.assert_close(grad, expected, rtol=1e-4, atol=1e-7)
