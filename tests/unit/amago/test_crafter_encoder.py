"""Crafter's time step encoder (AMAGO, specification 4.7): as large as described, and it reads each part as what it is."""

from __future__ import annotations

from typing import Any

import fake_amago_packages
import numpy as np
import pytest
import torch

from recollect.amago.network import WorldShape
from recollect.amago.texture_embedder import TextureEmbedder
from recollect.amago.timestep_encoders import InputSettings, Steps, TimestepEncoder, rl2_width
from recollect.environments import registry
from recollect.settings.errors import UserError

PUBLISHED: dict[str, Any] = {"encoder": "crafter", "hidden": "twice", "goals": "token", "goal_width": 64}
RL2 = 17 + 3
TOKENS = 257 * 16 + 64 * (16 + 64 + 2) + (64 * 64 + 64) + 2 * 64  # table, RNN, linear, LayerNorm


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_amago_packages.install(monkeypatch)


def shape_of(observation: str) -> WorldShape:
    options = {"observation": observation, "horizon": 20}
    world: Any = registry.make_world("crafter", options, registry.tasks("crafter", options, "train"), np.zeros(1))
    return WorldShape.of(world)


def encoder_of(observation: str, **changes: Any) -> tuple[TimestepEncoder, WorldShape]:
    shape = shape_of(observation)
    return TimestepEncoder(InputSettings(**{**PUBLISHED, **changes}), shape.steps, seed=0).eval(), shape


def seen(observation: str, seed: int = 0) -> np.ndarray:
    """Two observations [2, D] as the world gives them."""
    options = {"observation": observation, "horizon": 20}
    task = registry.tasks("crafter", options, "train")
    world = registry.make_world("crafter", options, task * 2, np.arange(2) + seed)
    world.reset()
    return world.step(np.array([5, 1]))[0]


def encoded(encoder: TimestepEncoder, shape: WorldShape, observation_BD: np.ndarray, rl2: float = 0.0) -> torch.Tensor:
    B = len(observation_BD)
    assert rl2_width(shape.steps, "seed") == RL2
    parts = shape.parts(observation_BD, torch.device("cpu"))
    steps = Steps(rl2=torch.full((B, RL2), rl2), time=torch.zeros(B, dtype=torch.int64), **parts)
    return encoder(steps).detach()


def linear(a: int, b: int) -> int:
    return a * b + b


@pytest.mark.parametrize(
    ("observation", "seeing", "numbers"),
    [
        # Nature's convolutions leave 64 x 2 x 4 of 48 x 64 pixels and 64 x 4 x 4 of 64 x 64; inventory; nothing else.
        ("crop", (3 * 64 * 32 + 32) + (32 * 16 * 64 + 64) + (64 * 9 * 64 + 64) + linear(512, 256) + 512, 256 + 16),
        ("render", (3 * 64 * 32 + 32) + (32 * 16 * 64 + 64) + (64 * 9 * 64 + 64) + linear(1024, 256) + 512, 256),
        ("textures", 65 * 4 + linear(252, 192) + linear(192, 192) + 2 * 192, 192 + 21),
    ],
)
def test_it_is_as_large_as_described(observation: str, seeing: int, numbers: int) -> None:
    encoder, shape = encoder_of(observation)
    read = numbers + RL2 + 64  # and the goals
    perceptron = linear(read, 2 * read) + linear(2 * read, 2 * read) + linear(2 * read, 256) + 2 * 256
    assert sum(p.numel() for p in encoder.parameters()) == seeing + TOKENS + perceptron
    assert encoded(encoder, shape, seen(observation)).shape == (2, 256)
    assert encoder.input_norm is not None and encoder.input_norm.mean.shape == (RL2,)


def test_ids_of_textures_are_embedded() -> None:
    """Two cells that change places change what comes out, and an id's number is no amount: only its row of the table counts."""
    encoder, shape = encoder_of("textures")
    assert shape.steps.ids == 63 and encoder.textures is not None
    one = seen("textures")[:1]
    before = encoded(encoder, shape, one)
    swapped = one.copy()
    unlike = int(np.flatnonzero(one[0, :63] != one[0, 0])[0])
    swapped[0, [0, unlike]] = one[0, [unlike, 0]]
    assert not torch.equal(encoded(encoder, shape, swapped), before)
    renamed = one.copy()
    renamed[0, 0] = 64
    with torch.no_grad():
        encoder.textures.table[64] = encoder.textures.table[int(one[0, 0])]
    assert torch.equal(encoded(encoder, shape, renamed), before)


def test_textures_go_through_two_layers_with_an_activation_between() -> None:
    made, ids = TextureEmbedder(3, torch.Generator().manual_seed(0)), torch.tensor([[0.0, 64.0, 5.0]])
    flat = torch.cat([made.table[0], made.table[64], made.table[5]])
    inner = made.first.weight @ flat + made.first.bias
    out = made.second.weight @ torch.where(inner > 0, inner, 0.01 * inner) + made.second.bias
    torch.testing.assert_close(made(ids)[0], (out - out.mean()) / out.std(correction=0), atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("observation", ["crop", "textures"])
def test_the_inventory_goes_in_as_tenths_and_is_not_normalised(observation: str) -> None:
    encoder, shape = encoder_of(observation)
    read: list[torch.Tensor] = []
    encoder.layers[0].register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
    rows = seen(observation)
    assert encoder.input_norm is not None
    encoder.input_norm.mean.fill_(3.0)  # if it were of the inventory, too, that would move
    encoded(encoder, shape, rows)
    at = 192 + 2 if observation == "textures" else 0  # behind textures and facing, or first
    inventory = [[0.9] * 4 + [0.0] + [wood] + [0.0] * 10 for wood in (0.1, 0.0)]  # the first collected wood
    torch.testing.assert_close(read[0][:, at : at + 16].detach(), torch.tensor(inventory))
    behind = 16 if observation == "crop" else 192 + 21
    assert float(read[0][:, behind : behind + RL2].detach().max()) < -2  # rl2, zeros here, was centred


def test_ids_are_refused_by_the_encoder_that_would_take_them_for_amounts() -> None:
    with pytest.raises(UserError, match="63 of the 84 numbers are ids of textures") as refused:
        encoder_of("textures", encoder="plain", hidden=(8,))
    assert "crafter" in refused.value.do
    with pytest.raises(ValueError, match="only the encoder 'crafter'"):
        InputSettings(hidden="twice")


def test_hidden_widths_can_be_given() -> None:
    encoder, _ = encoder_of("crop", hidden=(24, 12))
    assert [layer.weight.shape[0] for layer in encoder.layers] == [24, 12, 256]
