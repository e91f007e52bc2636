"""HELM's networks: sizes to the parameter, initial weights, and what the heads read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from recollect.helm.small_impala import ActorCritic, NormedHead, SmallImpala
from recollect.settings.errors import UserError

# Specification 4.1: shape, actions, convolution output, parameters of HELM's kind, of CNN-PPO, of LSTM-PPO.
PUBLISHED = [
    ((3, 9, 9), 4, (128, 2, 2), 1_873_733, 1_218_373, 727_733),
    ((3, 56, 56), 7, (128, 5, 5), 4_734_152, 4_078_792, 908_600),
    ((3, 60, 80), 3, (128, 6, 8), 7_748_292, 7_092_932, 1_096_500),
    ((3, 64, 64), 15, (128, 6, 6), 6_176_976, 5_521_616, 999_744),
    ((80, 80, 3), 11, (128, 18, 18), 43_826_892, 43_171_532, 3_352_380),
]


def drawn(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.quick("shape0-4-maps0-1873733-1218373-727733", "shape1-7-maps1-4734152-4078792-908600")
@pytest.mark.parametrize(("shape", "actions", "maps", "helm", "cnn", "lstm"), PUBLISHED)
def test_parameter_counts_are_the_published_ones(
    shape: tuple[int, ...], actions: int, maps: tuple[int, ...], helm: int, cnn: int, lstm: int
) -> None:
    chosen: list[tuple[dict[str, int], int]] = [
        ({"width": 1024, "channel_scale": 4, "history": 1024}, helm),
        ({"width": 1024, "channel_scale": 4}, cnn),
        ({"width": 256, "channel_scale": 1, "units": 256}, lstm),
    ]
    for settings, count in chosen:
        network = ActorCritic(shape, actions, **settings)
        assert sum(p.numel() for p in network.parameters()) == count
    encoder = SmallImpala(shape, 8, channel_scale=4)
    image = torch.zeros(1, *shape, dtype=torch.uint8)
    seen = {}
    encoder.second.register_forward_hook(lambda module, given, made: seen.update(shape=made.shape[1:]))
    assert encoder(image).shape == (1, 8)
    assert tuple(seen["shape"]) == maps


def test_images_with_channels_at_either_end_are_seen_alike() -> None:
    first, last = (SmallImpala(shape, 6, channel_scale=1, generator=drawn()) for shape in ((3, 9, 9), (9, 9, 3)))
    images = torch.randint(0, 256, (4, 3, 9, 9), dtype=torch.uint8, generator=drawn(1))
    torch.testing.assert_close(first(images), last(images.permute(0, 2, 3, 1)))
    assert first(images).min() >= 0 and first(images).max() > 0


def test_bytes_become_numbers_from_0_to_1() -> None:
    encoder = SmallImpala((3, 9, 9), 6, channel_scale=1, generator=drawn())
    white = torch.full((1, 3, 9, 9), 255, dtype=torch.uint8)
    x = F.relu(encoder.second(F.relu(encoder.first(torch.ones(1, 3, 9, 9)))))
    torch.testing.assert_close(encoder(white), F.relu(encoder.linear(x.flatten(1))))


def test_initial_weights_are_orthogonal_with_gain_root_two_and_biases_zero() -> None:
    head = NormedHead(64, 16, 5, generator=drawn())
    for layer in (head.hidden, head.last):
        torch.testing.assert_close(layer.weight @ layer.weight.T, 2 * torch.eye(len(layer.weight)), atol=1e-5, rtol=0)
        assert not layer.bias.any()
    encoder = SmallImpala((3, 56, 56), 1024, channel_scale=4, generator=drawn())
    for layer, fans in ((encoder.first, 3 * 64 + 64 * 64), (encoder.linear, 3200 + 1024)):
        bound = 2**0.5 * (6 / fans) ** 0.5
        assert 0.99 * bound < layer.weight.abs().max() <= bound and not layer.bias.any()


def test_the_heads_norm_has_no_parameters_and_no_eye_for_scale() -> None:
    head = NormedHead(8, 16, 3, generator=drawn())
    assert [name for name, _ in head.named_parameters()] == ["hidden.weight", "hidden.bias", "last.weight", "last.bias"]
    x = torch.randn(5, 8, generator=drawn(2))
    torch.testing.assert_close(head(x), head(10 * x), atol=1e-4, rtol=1e-4)


def test_the_history_comes_in_front_of_the_image() -> None:
    network = ActorCritic((3, 9, 9), 4, width=6, channel_scale=1, history=5, generator=drawn())
    images = torch.randint(0, 256, (4, 3, 9, 9), dtype=torch.uint8, generator=drawn(1))
    history = torch.randn(4, 5, generator=drawn(2))
    log, value = network(images, history)
    read = torch.cat([history, network.encoder(images)], 1)
    torch.testing.assert_close(log, network.actor(read).log_softmax(1))
    torch.testing.assert_close(value, network.critic(read)[:, 0])
    assert log.exp().sum(1).tolist() == pytest.approx([1] * 4)


def test_weights_are_a_function_of_the_seed_and_the_global_generator_is_left_alone() -> None:
    before = torch.random.get_rng_state()
    made = [ActorCritic((3, 9, 9), 4, width=6, channel_scale=1, units=7, generator=drawn(s)) for s in (0, 0, 1)]
    assert torch.equal(before, torch.random.get_rng_state())
    for name, value in made[0].named_parameters():
        assert torch.equal(value, made[1].get_parameter(name))
        assert ("bias" in name and "lstm" not in name) or not torch.equal(value, made[2].get_parameter(name))
    assert 0.99 * 7**-0.5 < made[0].lstm.weight_hh_l0.abs().max() <= 7**-0.5


@pytest.mark.parametrize("shape", [(3, 30, 12), (3, 12, 30)])
def test_images_too_small_for_two_convolutions_on_one_side_are_refused(shape: tuple[int, int, int]) -> None:
    with pytest.raises(UserError, match="too small"):
        SmallImpala(shape, 8, channel_scale=1)


@pytest.mark.parametrize(
    ("shape", "least"), [(lambda side: (3, side, side), 20), (lambda side: (side, side, 3), 12)], ids=["first", "last"]
)
def test_the_message_about_small_images_names_the_sizes_that_work(shape: Any, least: int) -> None:
    for side in range(4, 25):
        if 6 <= side <= 9 or side >= least:
            image = torch.zeros(1, *shape(side), dtype=torch.uint8)
            assert SmallImpala(shape(side), 8, channel_scale=1)(image).shape == (1, 8)
        else:
            with pytest.raises(UserError, match="too small") as error:
                SmallImpala(shape(side), 8, channel_scale=1)
            assert f"images are 6 to 9, or at least {least}, pixels" in error.value.do
