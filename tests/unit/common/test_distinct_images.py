"""Images that are the same are encoded once, with the features and gradients of encoding all."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from recollect.common.distinct_images import DistinctImages, RolloutFeatures, distinct_rows
from recollect.common.feedforward import ImageEmbedder
from recollect.helm.small_impala import SmallImpala


@pytest.mark.parametrize("different", [1, 5, 20, 40])
@pytest.mark.parametrize("shape", [(12,), (4, 3)])
def test_features_and_gradients_are_those_of_encoding_all_images(different: int, shape: tuple[int, ...]) -> None:
    draws = np.random.default_rng(different)
    few = draws.integers(0, 256, (different, 3, 20, 20), dtype=np.uint8)
    images = torch.from_numpy(few[draws.permutation(np.arange(40) % different)])
    encoder = SmallImpala((3, 20, 20), 8, channel_scale=1, generator=torch.Generator().manual_seed(0))
    encoded: list[int] = []
    encoder.register_forward_pre_hook(lambda _, given: encoded.append(len(given[0])))
    chosen = torch.from_numpy(draws.permutation(40)[:12]).view(shape)
    weights = torch.from_numpy(draws.standard_normal((*shape, 8)).astype(np.float32))

    found = DistinctImages(images).features(encoder, chosen)
    (found * weights).sum().backward()
    gradients = [parameter.grad.clone() for parameter in encoder.parameters()]  # type: ignore[union-attr]
    encoder.zero_grad()
    expected = encoder(images[chosen.flatten()]).view(*shape, 8)
    (expected * weights).sum().backward()

    torch.testing.assert_close(found, expected)
    for own, parameter in zip(gradients, encoder.parameters(), strict=True):
        torch.testing.assert_close(own, parameter.grad, rtol=1e-4, atol=1e-5)
    present = len(np.unique(images[chosen.flatten()].flatten(1).numpy(), axis=0))
    assert encoded == [present if different <= 20 else 12, 12]


@pytest.mark.parametrize(("different", "once"), [(1, True), (33, True), (96, True), (97, False), (200, False)])
def test_rooms_are_embedded_as_if_every_image_were_encoded(different: int, once: bool) -> None:
    """200 images of Memory-RL's rooms, in a batch of sequences."""
    draws = np.random.default_rng(different)
    few = draws.integers(0, 256, (different, 75), dtype=np.uint8)
    images = torch.from_numpy(few[draws.permutation(np.arange(200) % different)]).view(8, 25, 75)
    embedder = ImageEmbedder((3, 5, 5), 6, generator=torch.Generator().manual_seed(0))
    encoded: list[int] = []
    embedder.first.register_forward_pre_hook(lambda _, given: encoded.append(len(given[0])))
    weights = torch.from_numpy(draws.standard_normal((8, 25, 6)).astype(np.float32))

    found = embedder(images)
    (found * weights).sum().backward()
    gradients = [parameter.grad.clone() for parameter in embedder.parameters()]  # type: ignore[union-attr]
    embedder.zero_grad()
    expected = torch.cat([embedder(row) for row in images[:, None]])  # so few are not compared
    (expected * weights).sum().backward()

    torch.testing.assert_close(found, expected)
    for own, parameter in zip(gradients, embedder.parameters(), strict=True):
        torch.testing.assert_close(own, parameter.grad, rtol=1e-4, atol=1e-4)
    assert encoded == [-(-different // 32) * 32 if once else 200, *[25] * 8]


def test_distinct_rows_give_back_every_row() -> None:
    rows = torch.randint(0, 3, (500, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    first_M, place_N = distinct_rows(rows)
    assert torch.equal(rows[first_M][place_N], rows)
    assert len(first_M) == 96 and len(np.unique(rows.numpy(), axis=0)) == 81
    assert int(place_N.max()) == 80  # what fills up is never asked for


def test_while_a_rollout_lasts_an_acting_agent_encodes_each_image_once() -> None:
    draws = np.random.default_rng(0)
    few = draws.integers(0, 256, (6, 3, 20, 20), dtype=np.uint8)
    encoder = SmallImpala((3, 20, 20), 8, channel_scale=1, generator=torch.Generator().manual_seed(0))
    encoded: list[int] = []
    encoder.register_forward_pre_hook(lambda _, given: encoded.append(len(given[0])))
    features = RolloutFeatures(encoder)
    for _ in range(2):
        with features.rollout():
            for _ in range(12):
                images = torch.from_numpy(few[draws.integers(0, 6, 5)])
                found = features(images)
                counted = len(encoded)
                torch.testing.assert_close(found, encoder(images))
                del encoded[counted:]
        assert sum(encoded) == 6, (
            "what was learned meanwhile changes the features, so the next rollout encodes them anew"
        )
        encoded.clear()
        with torch.no_grad():
            encoder.linear.bias += 1
    torch.testing.assert_close(features(images), encoder(images))  # behind the rollout nothing is remembered


def test_images_that_seldom_come_again_are_encoded_as_they_come() -> None:
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (40, 5, 3, 20, 20), dtype=np.uint8))
    encoder = SmallImpala((3, 20, 20), 8, channel_scale=1, generator=torch.Generator().manual_seed(0))
    features = RolloutFeatures(encoder)
    with features.rollout():
        for step_images in images[:4]:
            features(step_images)
        encoded: list[int] = []
        encoder.register_forward_pre_hook(lambda _, given: encoded.append(len(given[0])))
        for again in (4, 4, 5):
            torch.testing.assert_close(features(images[again]), encoder(images[again]))
    assert encoded == [5] * 6
