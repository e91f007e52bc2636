"""AMAGO's networks are as large as the released ones, but for what docs/amago.md says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fake_amago_packages
import pytest

from recollect.amago import amago
from recollect.amago.amago import make_network
from recollect.amago.network import WorldShape, world_shape
from recollect.amago.timestep_encoders import StepShape
from recollect.settings.loading import merge
from recollect.settings.resolve import resolve
from recollect.settings.schema import EnvironmentSettings

ROOT = Path(__file__).resolve().parents[3]
GRID = {"hidden": [128, 128], "width": 64}
LANDER = WorldShape(StepShape(vector=8, kind="discrete", actions=4, horizon=500))  # the world itself needs Box2D
# What the released seed code (commit 514c1c2) counts when it builds these models: time step encoder, trajectory encoder, actor,
# critics, and all that is trained; specification 10. Then our environment and method, what differs from our command, and why
# ours has fewer: rows of the table of positions (released horizons are longer by so many steps).
COUNTED: list[tuple[str, str, dict[str, Any], tuple[int, int, int, int], int, int]] = [
    ("amago_dark_key_door", "amago_transformer", {}, (26_697, 2_520_100, 140_579, 562_316), 3_249_692, 0),
    ("amago_dark_key_door", "amago_transformer", {"sequence": {"width": 128, "layers": 2}},
     (26_697, 471_064, 107_811, 431_244), 1_036_816, 0),
    ("amago_tmaze_400", "amago_transformer", {}, (34_697, 466_584, 106_012, 424_048), 1_031_341, 0),
    ("amago_tmaze_10000", "amago_transformer", {}, (34_697, 1_695_384, 106_012, 424_048), 2_260_141, 0),
    ("amago_maze_15", "amago_transformer", {"inputs": {"width": 64}, "sequence": {"width": 256}},
     (31_164, 2_494_500, 140_579, 562_316), 3_228_559, 0),
    ("amago_meta_world_reach", "amago_transformer", {}, (419_593, 2_697_508, 145_976, 532_484), 3_795_561, 1),
    ("amago_gym", "amago_ff", {}, (403_209, 1_183_232, 138_780, 555_120), 2_280_341, 0),
]  # fmt: skip


@pytest.fixture(autouse=True)
def faked(monkeypatch: pytest.MonkeyPatch, in_the_repository: None) -> None:
    fake_amago_packages.install(monkeypatch)


def parts(hp: amago.Hyperparameters, shape: WorldShape) -> tuple[int, ...]:
    network = make_network(hp, shape, seed=0)
    each = (network.timestep_encoder, network.trajectory_encoder, network.actor, network.critics)
    return tuple(sum(p.numel() for p in module.parameters()) for module in each)


def sized(inputs: dict[str, Any], sequence: tuple[int, int], **more: Any) -> amago.Hyperparameters:
    width, layers = sequence
    return amago.Hyperparameters.model_validate(
        {"inputs": inputs, "sequence": {"width": width, "layers": layers, **more}}
    )


@pytest.mark.parametrize(("env", "method", "changes", "released", "trained", "rows"), COUNTED)
def test_the_commands_networks_have_as_many_parameters_as_the_released_ones(
    env: str, method: str, changes: dict[str, Any], released: tuple[int, ...], trained: int, rows: int
) -> None:
    """Without goals the released encoder keeps a goal embedder that is off: 9 parameters, and a zero for the first layer."""
    settings = resolve("paper", env, method, 42)
    hp = amago.Hyperparameters.model_validate(merge(settings.method.hyperparameters.model_dump(), changes))
    shape = LANDER if env == "amago_gym" else world_shape(settings.environment)
    off = 0 if shape.steps.goals else 9 + int(hp.inputs.hidden[0])
    encoder, sequence, *heads = parts(hp, shape)
    assert (encoder + off, sequence + rows * hp.sequence.width, *heads) == released
    assert encoder + sequence + sum(heads) == trained - off - rows * hp.sequence.width


def test_the_page_says_how_many_the_commands_have() -> None:
    page = (ROOT / "docs/amago.md").read_text(encoding="utf-8")
    for env, *_, trained, rows in (COUNTED[0], COUNTED[2], COUNTED[5]):
        settings = resolve("paper", str(env), "amago_transformer", 42)
        ours = sum(parts(settings.method.hyperparameters, world_shape(settings.environment)))
        assert f"{ours:,} against {trained:,}" in page
        assert ours < int(trained) and rows in (0, 1)


def test_popgyms_table_of_positions_is_the_released_one() -> None:
    """Specification 4.2: a horizon of 10,000, 10,001 rows, 2.56 million parameters, windows of at most 2000 steps."""
    settings = resolve("paper", "amago_popgym_AutoencodeMedium", "amago_transformer", 42)
    ours, hp = settings.environment, settings.method.hyperparameters
    own = EnvironmentSettings.model_validate({**ours.model_dump(), "options": {**ours.options, "horizon": None}})
    assert (hp.context_of(10_000), hp.save_length_of(10_000)) == (2000, 2000)
    more = parts(hp, world_shape(ours))[1] - parts(hp, world_shape(own))[1]
    assert more == (10_001 - 208) * 256


def test_the_newer_layout_has_as_many_as_the_newer_code() -> None:
    """Counted in commit 2d85600: no time, no reset flag, fixed positions."""
    head = {**GRID, "layout": "head"}
    shape = WorldShape(StepShape(vector=4, kind="discrete", actions=5, horizon=500))
    assert parts(sized(head, (256, 3), positions="sinusoid"), shape) == (26_304, 2_391_844, 140_579, 562_316)
    shape = WorldShape(StepShape(vector=2, kind="discrete", actions=4, horizon=401))
    found = parts(sized({**head, "width": 128}, (128, 2), positions="sinusoid"), shape)
    assert found == (34_304, 415_128, 106_012, 424_048)
    assert sum(found) == 979_492
