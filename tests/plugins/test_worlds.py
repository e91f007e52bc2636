"""Psychlab and Avalon: what their packages are asked, with small stand-ins, and what is said where they are missing."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from recollect.environments import registry
from recollect.environments.base import World
from recollect.settings import catalogue
from recollect.settings.errors import UserError
from recollect.settings.resolve import environment_settings
from recollect.stages.stage import Job
from recollect.stages.worlds import check_worlds

LEVEL = "contributed/dmlab30/psychlab_continuous_recognition"


class Lab:
    """Stands in for `deepmind_lab.Lab`: looking left pays 1, and the third answer ends the episode."""

    def __init__(self, level: str, observations: list[str], config: dict[str, str], renderer: str = "software") -> None:
        assert (level, observations) == (LEVEL, ["RGB_INTERLEAVED"])
        assert all(isinstance(value, str) for value in config.values())
        assert (config["width"], config["height"], config["fps"]) == ("80", "80", "30")
        self.config, self.steps = config, []  # type: ignore[var-annotated]

    def close(self) -> None:
        self.closed = True

    def reset(self, episode: int = -1, seed: int | None = None) -> None:
        self.rng, self.answers, self.shade = np.random.default_rng(seed), 0, 0

    def step(self, action: np.ndarray, num_steps: int = 1) -> float:
        assert action.dtype == np.intc and action.shape == (7,) and num_steps == 4 and self.is_running()
        self.shade = (self.shade + int(self.rng.integers(100))) % 256
        self.answers += abs(int(action[0])) == 60
        return float(action[0] == -60)

    def is_running(self) -> bool:
        return self.answers < 3

    def observations(self) -> dict[str, np.ndarray]:
        assert self.is_running(), "the Lab has nothing to show after the end"
        image = np.full((80, 80, 3), self.shade, np.uint8)
        image[:10, :, 0] = 7  # the upper rows
        return {"RGB_INTERLEAVED": image}


class AvalonEnv:
    """Stands in for Avalon's environment: images on their heads, an old gym's four results."""

    def __init__(self, parameters: Any) -> None:
        self.parameters = parameters
        self.world_generator = SimpleNamespace(set_seed=lambda seed: setattr(self, "rng", np.random.default_rng(seed)))

    def close(self) -> None:
        self.closed = True

    def seed(self, seed: int) -> None:
        self.seeded = seed

    def reset(self) -> dict[str, np.ndarray]:
        self.shade, self.steps = int(self.rng.integers(200)), 0
        return self.seen()

    def step(self, action: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], float, bool, dict[str, Any]]:
        assert action["real"].shape == (18,) and abs(action["real"]).max() <= 1
        assert action["discrete"].shape == (3,) and set(action["discrete"].tolist()) <= {0, 1}
        self.shade, self.steps = (self.shade + 1 + 5 * int(action["discrete"][2])) % 256, self.steps + 1
        return self.seen(), float(action["real"][0]), self.steps == 6, {}

    def seen(self) -> dict[str, np.ndarray]:
        image = np.full((96, 96, 4), self.shade, np.uint8)
        image[-10:, :, 0], image[..., 3] = 7, 99  # the upper rows, in the end; depth
        return {"rgbd": image, "frame_id": np.zeros(1)}


@pytest.fixture(autouse=True)
def installed(plugins: None) -> None:
    """Both plug-ins."""


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both packages."""
    lab = ModuleType("deepmind_lab")
    lab.Lab = Lab  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "deepmind_lab", lab)
    found = ModuleType("avalon.agent.godot.godot_gym")
    found.GodotEnvironmentParams = lambda **given: SimpleNamespace(**given)  # type: ignore[attr-defined]
    found.TrainingProtocolChoice = {f"SINGLE_TASK_{name}": name for name in ("EAT", "NAVIGATE")}  # type: ignore[attr-defined]
    found.AvalonEnv = AvalonEnv  # type: ignore[attr-defined]
    for name in ("avalon", "avalon.agent", "avalon.agent.godot"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, found.__name__, found)


def make(name: str, count: int, **options: Any) -> World:
    listed = registry.tasks(name, options, "train") * count
    return registry.make_world(name, options, listed, np.arange(count, dtype=np.uint64))


def actions(world: World, rng: np.random.Generator) -> np.ndarray:
    if hasattr(world.single_action_space, "n"):
        return rng.integers(0, world.single_action_space.n, world.num_envs)
    return rng.uniform(-1, 1, (world.num_envs, 21)).astype(np.float32)


@pytest.mark.parametrize("name", ["psychlab", "avalon"])
def test_a_world_plays_and_goes_on_from_a_state(name: str, packages: None) -> None:
    first, second = make(name, 3), make(name, 3)
    shape = (3, 3, 80, 80) if name == "psychlab" else (3, 3, 96, 96)
    images = first.reset()[0]
    assert images.shape == shape and images.dtype == np.uint8
    assert (images[:, 0, :10] == 7).all()  # the right way up
    played: list[list[Any]] = [[], []]
    rng, ends = np.random.default_rng(0), 0
    for t in range(40):
        if t == 25:
            second.set_state(first.get_state())
        given = actions(first, rng)
        for world, found in ((first, played[0]), (second, played[1])) if t >= 25 else ((first, played[0]),):
            images, rewards, terminated, truncated, info = world.step(given)
            ends += int(terminated.sum())
            if terminated.any():
                assert ("success" in info) == (name == "avalon") and not truncated.any()
                if name == "avalon":
                    assert (info["success"] == (terminated & (rewards > 0))).all()
                images = world.reset(options={"reset_mask": terminated})[0]
            if t >= 25:
                found.append((images.tolist(), rewards.tolist(), terminated.tolist()))
    assert played[0] == played[1] and ends > 3
    first.close()
    inner = [player.lab if name == "psychlab" else player.inner for player in first.players]  # type: ignore[attr-defined]
    assert all(one.closed for one in inner)


def test_psychlab_asks_the_level_for_what_helm_had(packages: None) -> None:
    world = make("psychlab", 1, dataset_path="dummy", channels_last=True)
    assert world.reset()[0].shape == (1, 80, 80, 3)
    assert world.horizon == 300 * 30 / 4  # seconds, frames, and how often an action is repeated
    lab = world.players[0].lab  # type: ignore[attr-defined]
    assert lab.config["datasetPath"] == "dummy"
    assert "datasetPath" not in make("psychlab", 1).players[0].lab.config  # type: ignore[attr-defined]
    assert [world.step(np.array([action]))[1][0] for action in (4, 6, 7)] == [0.0, 1.0, 0.0]


def test_avalon_makes_the_asked_task_and_bits_of_the_last_three_numbers(packages: None) -> None:
    world = make("avalon", 2, task="NAVIGATE", difficulty=0.25, depth=True)
    images = world.reset()[0]
    assert images.shape == (2, 4, 96, 96) and (images[:, 3] == 99).all()
    parameters = world.players[1].inner.parameters  # type: ignore[attr-defined]
    assert (parameters.training_protocol, parameters.initial_difficulty, parameters.env_index) == ("NAVIGATE", 0.25, 1)
    assert len({player.inner.seeded for player in world.players}) == 2  # type: ignore[attr-defined]
    action = np.zeros((2, 21), np.float32)
    action[0, 20] = 0.5
    after = world.step(action)[0].astype(int)
    assert [(after[b, 1, 50, 0] - images[b, 1, 50, 0]) % 256 for b in range(2)] == [6, 1]


@pytest.mark.parametrize(
    ("name", "package", "do"),
    [("psychlab", "deepmind_lab", "continuous_recognition"), ("avalon", "avalon-rl", "install_godot_binary")],
)
def test_a_missing_package_stops_a_run_before_any_job_with_what_to_do(
    name: str, package: str, do: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "deepmind_lab", None)
    monkeypatch.setitem(sys.modules, "avalon", None)
    of = ("paper", name, "ppo", "0")
    with pytest.raises(UserError, match=f"needs the package '{package}'") as refused:
        check_worlds([Job("run", *of)])
    assert do in refused.value.do
    check_worlds([Job("figure", *of)])  # what does not play needs nothing
    with pytest.raises(UserError, match=package):
        make(name, 1)


def test_unknown_options_are_refused() -> None:
    with pytest.raises(UserError, match="no task 'NAVIGAT', did you mean 'NAVIGATE'"):
        registry.tasks("avalon", {"task": "NAVIGAT"}, "train")
    with pytest.raises(UserError, match="did you mean 'dataset_path'"):
        registry.tasks("psychlab", {"datasetpath": "x"}, "train")


@pytest.mark.parametrize(("env", "world"), [("psychlab", "psychlab"), ("avalon_SURVIVE", "avalon")])
def test_worlds_of_x_nobody_has_are_configured_too(env: str, world: str) -> None:
    settings = environment_settings("paper", env)
    assert settings.world == world and len(registry.tasks(world, settings.options, "eval")) == 1


@pytest.mark.parametrize(("env", "plugin"), [("psychlab", "psychlab"), ("avalon_SURVIVE", "avalon")])
def test_without_the_plug_in_it_is_said_what_to_install(
    env: str, plugin: str, monkeypatch: pytest.MonkeyPatch, root: Path
) -> None:
    monkeypatch.setattr(catalogue, "_plugins", lambda: {})
    monkeypatch.chdir(root)
    with pytest.raises(UserError, match=f"no configuration named '{env}'") as refused:
        environment_settings("paper", env)
    assert f"pip install ./plugins/{plugin}" in refused.value.do


@pytest.mark.parametrize("name", ["avalon", "psychlab"])
def test_the_package_declares_the_plug_in_and_ships_its_configuration(name: str, root: Path) -> None:
    folder = root / "plugins" / name
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    package = f"recollect_{name}"
    assert project["project"]["entry-points"]["recollect.plugins"] == {name: package}
    shipped = project["tool"]["setuptools"]
    assert shipped["packages"] == [package] and shipped["package-data"] == {package: ["config/*/*.yaml"]}
    assert list((folder / package).glob("config/*/*.yaml"))
