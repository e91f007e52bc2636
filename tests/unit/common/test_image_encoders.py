"""Image encoders: the published networks, weights from a seed or a sealed file, and clear words where they do not fit."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recollect.artifacts.sealed import write_arrays
from recollect.common.image_encoders.registry import BATCH, ImageEncoder
from recollect.settings.catalogue import known
from recollect.settings.errors import UserError
from recollect.settings.schema import ImageSettings


def images(count: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(256, size=(count, *shape), dtype=np.uint8)


def impala(weights: dict[str, Tensor], x: Tensor) -> Tensor:
    """The network of Espeholt et al. 2018 (large), written plainly."""
    for block in range(3):
        names = [f"blocks.{4 * block}", *(f"blocks.{4 * block + r}.{c}" for r in (2, 3) for c in ("first", "second"))]
        conv, *pairs = [(weights[f"{n}.weight"], weights[f"{n}.bias"]) for n in names]
        x = F.max_pool2d(F.conv2d(x, *conv, padding=1), 3, 2, 1)
        for first, second in (pairs[:2], pairs[2:]):
            x = x + F.conv2d(F.conv2d(x.relu(), *first, padding=1).relu(), *second, padding=1)
    return F.linear(x.relu().flatten(1), weights["linear.weight"], weights["linear.bias"]).relu()


def nature(weights: dict[str, Tensor], x: Tensor) -> Tensor:
    """The network of Mnih et al. 2015, written plainly."""
    for layer, stride in ((0, 4), (2, 2), (4, 1)):
        x = F.conv2d(x, weights[f"convolutions.{layer}.weight"], weights[f"convolutions.{layer}.bias"], stride).relu()
    return F.linear(x.flatten(1), weights["linear.weight"], weights["linear.bias"]).relu()


@pytest.mark.parametrize(("name", "plain"), [("impala", impala), ("nature", nature)])
def test_an_encoder_is_its_paper_s_network_on_numbers_from_0_to_1(name: str, plain: Any) -> None:
    encoder = ImageEncoder(ImageSettings(encoder=name, width=24), (3, 37, 41))
    frames = images(4, 3, 37, 41)
    expected = plain(encoder.network.state_dict(), torch.from_numpy(frames).float() / 255)
    found = encoder(frames)
    assert found.shape == (4, 24) and found.dtype == np.float32 and (found >= 0).all()
    assert (found > 0.01).mean() > 0.2 and found.std(0).max() > 0.01  # random features say something of the image
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-5)


def test_parameter_counts_are_the_published_ones() -> None:
    def count(encoder: ImageEncoder) -> int:
        return sum(parameter.numel() for parameter in encoder.network.parameters())

    # Procgen's IMPALA agent has 626 256: these and linear heads of 15 actions and one value on 256 features.
    of_procgen = ImageEncoder(ImageSettings(encoder="impala", width=256), (3, 64, 64))
    assert count(of_procgen) + 257 * (15 + 1) == 626_256
    # DQN on Atari has 1 687 206 with 6 actions.
    of_atari = ImageEncoder(ImageSettings(encoder="nature", width=512), (4, 84, 84))
    assert count(of_atari) + 513 * 6 == 1_687_206


def test_random_weights_depend_on_the_seed_and_touch_no_global_generator() -> None:
    frames, before = images(2, 3, 8, 8), torch.random.get_rng_state()

    def encoded(seed: int) -> np.ndarray:
        return ImageEncoder(ImageSettings(width=8, seed=seed), (3, 8, 8))(frames)

    assert encoded(1).tobytes() == encoded(1).tobytes() != encoded(2).tobytes()
    assert torch.equal(before, torch.random.get_rng_state())


def test_random_weights_are_lecun_normal_and_biases_zero() -> None:
    weights = ImageEncoder(ImageSettings(width=64), (3, 16, 16)).network.state_dict()
    for name in ("blocks.4.weight", "linear.weight"):
        assert float(weights[name].std()) == pytest.approx(weights[name][0].numel() ** -0.5, rel=0.05)
    assert not any(value.any() for name, value in weights.items() if name.endswith("bias"))


def test_channels_may_stand_first_or_last_and_batches_do_not_matter() -> None:
    frames = images(BATCH + 3, 3, 8, 9)
    first = ImageEncoder(ImageSettings(width=8), (3, 8, 9))
    last = ImageEncoder(ImageSettings(width=8, channels="last"), (8, 9, 3))
    whole = first(frames)
    np.testing.assert_allclose(last(np.moveaxis(frames, 1, 3)), whole, atol=1e-5)
    np.testing.assert_allclose(first(frames[-5:]), whole[-5:], atol=1e-5)
    assert first(frames[:0]).shape == (0, 8)


def test_weights_come_from_a_sealed_file(tmp_path: Path) -> None:
    path, frames = tmp_path / "weights.safetensors", images(2, 3, 8, 8)
    trained = ImageEncoder(ImageSettings(width=8, seed=3), (3, 8, 8))
    arrays = {name: value.numpy() for name, value in trained.network.state_dict().items()}
    write_arrays(path, arrays, kind="image encoder")
    chosen = ImageSettings(width=8, weights=str(path))
    assert ImageEncoder(chosen, (3, 8, 8))(frames).tobytes() == trained(frames).tobytes()
    with pytest.raises(UserError, match=r"'linear.bias' has shape \(8,\), expected \(9,\)"):
        ImageEncoder(chosen.model_copy(update={"width": 9}), (3, 8, 8))
    write_arrays(path, {n: a for n, a in arrays.items() if n != "linear.bias"}, kind="image encoder")
    with pytest.raises(UserError, match=r"'linear.bias' has shape None"):
        ImageEncoder(chosen, (3, 8, 8))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match="cut short"):
        ImageEncoder(chosen, (3, 8, 8))


@pytest.mark.parametrize(
    ("settings", "shape", "message"),
    [
        ({"encoder": "impalla"}, (3, 8, 8), "did you mean 'impala'"),
        ({"encoder": "nature"}, (3, 35, 64), "35 x 64 are too small"),
        ({"encoder": "nature"}, (3, 64, 35), "64 x 35 are too small"),
        ({}, (8, 8, 3), "set channels: last"),
        ({"channels": "last"}, (3, 64, 64), "set channels: first"),
        ({}, (6,), "are no images"),
    ],
)
def test_what_cannot_be_encoded_is_refused(settings: dict[str, Any], shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        ImageEncoder(ImageSettings(**settings), shape)


@pytest.mark.parametrize("frames", [images(2, 3, 8, 9), images(2, 3, 8, 8).astype(np.float32)])
def test_other_images_than_it_was_made_for_are_refused(frames: np.ndarray) -> None:
    with pytest.raises(UserError, match=r"images are uint8 of shape \(3, 8, 8\)"):
        ImageEncoder(ImageSettings(width=8), (3, 8, 8))(frames)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sorted(known("image encoder")) == ["efficientnet_b3", "impala", "nature"]
    monkeypatch.setitem(sys.modules, "torchvision", None)
    monkeypatch.delitem(sys.modules, "recollect.common.image_encoders.efficientnet_b3", raising=False)
    with pytest.raises(UserError, match="needs the package 'torchvision', which is not installed"):
        ImageEncoder(ImageSettings(encoder="efficientnet_b3", width=1536), (3, 64, 64))


def test_efficientnet_takes_trained_weights_only_and_gives_the_features_before_the_classifier(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def efficientnet_b3(weights: None) -> nn.Module:  # a stand-in with the parts of torchvision's
        net = nn.Module()
        net.features = nn.Sequential(nn.Conv2d(3, 1536, 1), nn.BatchNorm2d(1536))
        net.avgpool, net.classifier = nn.AdaptiveAvgPool2d(1), nn.Linear(1536, 1000)
        return net

    stand_in = SimpleNamespace(models=SimpleNamespace(efficientnet_b3=efficientnet_b3))
    monkeypatch.setitem(sys.modules, "torchvision", stand_in)
    monkeypatch.delitem(sys.modules, "recollect.common.image_encoders.efficientnet_b3", raising=False)
    settings = ImageSettings(encoder="efficientnet_b3", width=1536)
    with pytest.raises(UserError, match="no sense with random weights"):
        ImageEncoder(settings, (1, 8, 8))
    with pytest.raises(UserError, match="set width: 1536"):
        ImageEncoder(settings.model_copy(update={"width": 512}), (1, 8, 8))
    trained = efficientnet_b3(None).eval()
    arrays = {f"features.{name}": np.asarray(value) for name, value in trained.features.state_dict().items()}
    write_arrays(tmp_path / "b3.safetensors", arrays, kind="image encoder")
    encoder = ImageEncoder(settings.model_copy(update={"weights": str(tmp_path / "b3.safetensors")}), (1, 8, 8))
    frames = images(2, 1, 8, 8)
    grey = torch.from_numpy(np.repeat(frames, 3, 1)).float() / 255
    with torch.no_grad():
        np.testing.assert_allclose(encoder(frames), trained.features(grey).mean((2, 3)).numpy(), atol=1e-5)
