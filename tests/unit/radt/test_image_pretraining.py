"""An image encoder learns what histories of images have in them, and what a kill costs is nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fake_worlds
import numpy as np
import pytest
import torch
from odd_clock import ends_the_same

from recollect.artifacts.run import Run
from recollect.common.histories import Histories
from recollect.common.image_encoders.registry import ImageEncoder, blank_network
from recollect.radt import dt, image_pretraining
from recollect.radt.image_pretraining import train_encoder
from recollect.settings.errors import UserError
from recollect.settings.schema import EnvironmentSettings, ImageSettings, MethodSettings, Settings

IMAGES = ImageSettings(encoder="impala", width=8)


@pytest.fixture(autouse=True)
def worlds(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_worlds.install(monkeypatch)


def histories_of(seed: int = 0) -> Histories:
    """60 episodes in which the action is the color of the picture, of which the channels alone tell."""
    draws = np.random.default_rng(seed)
    color_N = draws.integers(2, size=180)
    images = np.zeros((180, 3, 5, 4), np.uint8)
    images[np.arange(180), 2 * color_N] = draws.integers(60, 255, (180, 5, 4))
    step = np.arange(180)
    arrays = {
        "observation": images,
        "action": color_N.astype(np.int8),
        "reward": np.zeros(180, np.float32),
        "done": step % 3 == 2,
        "task": np.zeros(180, np.int32),
        "episode": (step // 3).astype(np.int32),
    }
    return Histories(arrays)


def settings_of(steps: int, **optimised: Any) -> Settings:
    network = {"width": 16, "layers": 1, "heads": 2, "dropout": 0.1, "positions": 16, "timesteps": 4}
    optimisation = {"steps": steps, "batch_size": 16, "learning_rate": 0.003, "warmup": 2, "clip": 1.0, **optimised}
    chosen = dt.Hyperparameters.model_validate({"network": network, "optimisation": optimisation, "context": 3})
    environment = EnvironmentSettings(name="signal", world="signal", images=IMAGES)
    method = MethodSettings(name="dt", algorithm="dt", data="histories", hyperparameters=chosen)
    return Settings(scale="tiny", environment=environment, method=method, seed=0)


@pytest.mark.slow
def test_it_learns_to_tell_pictures_apart_and_its_weights_fit_the_encoder(tmp_path: Path) -> None:
    run = Run(tmp_path, tmp_path / "checkpoints", settings_text="same")
    weights = train_encoder(settings_of(60), histories_of(), run)
    table = run.table()
    loss = table[table["metric"] == "loss"]["value"].to_numpy()
    assert loss[:5].mean() > 0.6 and loss[-5:].mean() < 0.4  # of two colors: 0.69 knows nothing
    encoder = ImageEncoder(IMAGES, (3, 5, 4))
    before = {name: weight.clone() for name, weight in encoder.network.state_dict().items()}
    assert weights.keys() == before.keys()
    assert all(not torch.equal(weights[name], before[name]) for name in weights)
    fresh = histories_of(seed=1)
    encoder.network.load_state_dict(weights)
    seen_NW, color_N = encoder(fresh.observation), np.asarray(fresh.action)
    middles = np.stack([seen_NW[color_N == color].mean(0) for color in (0, 1)])
    nearest_N = np.linalg.norm(seen_NW[:, None] - middles, axis=2).argmin(1)
    assert (nearest_N == color_N).mean() > 0.95


def test_a_killed_training_ends_with_the_same_weights(tmp_path: Path) -> None:
    def train(run: Run) -> dict[str, Any]:
        return {name: weight.numpy() for name, weight in train_encoder(settings_of(8), histories_of(), run).items()}

    assert ends_the_same(train, tmp_path, stops=(3, 6)) >= 1


def test_batches_of_different_numbers_of_images_are_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each number would be compiled anew, up to eight of them."""
    told: dict[str, Any] = {}
    monkeypatch.setattr(image_pretraining, "train_supervised", lambda model, **given: told.update(given))
    settings = settings_of(2, compile=True)
    train_encoder(settings, histories_of(), None)  # type: ignore[arg-type]
    assert settings.method.hyperparameters.optimisation.compile and not told["settings"].compile
    assert len({len(told["batch_of"](step)[1]) for step in range(9)}) > 1


def test_vectors_are_refused() -> None:
    arrays = {**histories_of().arrays(), "observation": np.zeros((180, 2), np.float32)}
    with pytest.raises(UserError, match="an image encoder learns from images"):
        train_encoder(settings_of(2), Histories(arrays), None)  # type: ignore[arg-type]


def test_the_encoder_is_the_one_that_acting_policies_see_with() -> None:
    names = list(blank_network(IMAGES, (3, 5, 4)).state_dict())
    assert names == list(ImageEncoder(IMAGES, (3, 5, 4)).network.state_dict())


@pytest.mark.parametrize("channels", ["first", "last"])
def test_learning_starts_from_the_random_encoder_of_the_seed_and_shows_it_what_acting_does(
    monkeypatch: pytest.MonkeyPatch, channels: str
) -> None:
    """A random encoder that is never trained has the weights that training starts from."""
    told: dict[str, Any] = {}
    monkeypatch.setattr(image_pretraining, "train_supervised", lambda model, **given: told.update(given, model=model))
    arrays = histories_of().arrays()
    if channels == "last":
        arrays["observation"] = np.ascontiguousarray(arrays["observation"].transpose(0, 2, 3, 1))
    weights = []
    for seed in (0, 1):
        images = IMAGES.model_copy(update={"channels": channels, "seed": seed})
        settings = settings_of(2)
        environment = settings.environment.model_copy(update={"images": images})
        weights.append(train_encoder(settings.model_copy(update={"environment": environment}), Histories(arrays), None))  # type: ignore[arg-type]
        acting = ImageEncoder(images, arrays["observation"].shape[1:])
        assert all(torch.equal(weights[-1][name], weight) for name, weight in acting.network.state_dict().items())
    assert any(not torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    window, images_N = told["batch_of"](0)
    told["model"].network.forward = lambda seen: seen
    shown = told["model"](window, images_N).observation
    np.testing.assert_allclose(shown[window.mask].detach().numpy(), acting(images_N.numpy()), atol=1e-5)
    assert not shown[~window.mask].any()


def test_rewards_and_returns_are_divided_as_the_settings_of_dt_say(monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, Any] = {}
    monkeypatch.setattr(image_pretraining, "train_supervised", lambda model, **given: told.update(given))
    settings = settings_of(2)
    chosen = settings.method.hyperparameters.model_copy(update={"reward_scale": 4.0})
    method = settings.method.model_copy(update={"hyperparameters": chosen})
    arrays = {**histories_of().arrays(), "reward": np.ones(180, np.float32)}
    train_encoder(settings.model_copy(update={"method": method}), Histories(arrays), None)  # type: ignore[arg-type]
    window, _ = told["batch_of"](0)
    assert set(window.reward[window.mask].tolist()) == {0.25}
    assert window.return_to_go.max() == 0.75  # of three rewards


def test_which_pictures_are_learned_from_depends_on_the_seed_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, Any] = {}
    monkeypatch.setattr(image_pretraining, "train_supervised", lambda model, **given: told.update(given))
    batches = []
    for seed in (0, 0, 1):
        train_encoder(settings_of(2).model_copy(update={"seed": seed}), histories_of(), None)  # type: ignore[arg-type]
        batches.append(told["batch_of"](0)[1].numpy().tobytes())
    assert batches[0] == batches[1] != batches[2]
