"""An environment of images goes through every stage: its histories are encoded once, and so is what a policy sees."""

from __future__ import annotations

import functools
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fast_yaml
import numpy as np
import pytest

from recollect.artifacts.sealed import manifest_path, read_arrays, read_table, verify, write_arrays
from recollect.common.contract import facts_of, world_as_met
from recollect.common.histories import Histories
from recollect.common.image_encoders.registry import ImageEncoder
from recollect.common.parts_on_disk import encode_in_parts
from recollect.environments import registry
from recollect.evaluation.in_context import play_in_context
from recollect.settings.errors import UserError
from recollect.settings.resolve import environment_settings
from recollect.stages import embed_images, inputs, paths, provenance, stage, train_images
from recollect.stages.evaluate import evaluate
from recollect.stages.generate import generate
from recollect.stages.plan import maker, plan
from recollect.stages.stage import Job
from recollect.stages.table import STAGES
from recollect.stages.train import train

ENV, WIDTH, EPISODES, STEPS, ROWS = "picture_corridor", 24, 6, 20, 32
WORLD = '''
"""A corridor of six cells, each with a picture of its own; one of them pays. Which one is never shown."""
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode

from recollect.environments.base import Task, check_split
from recollect.environments.base import World as BaseWorld

PICTURES = np.random.default_rng(0).integers(256, size=(6, 8, 8, 3), dtype=np.uint8)


def tasks(split: str, **options: Any) -> list[Task]:
    check_split(split, "picture_corridor")
    return [Task(i, f"goal_{goal}", split, {"goal": goal}) for i, goal in enumerate((0, 4, 5) if split == "train" else (1,))]


class PictureCorridor(BaseWorld):
    def _setup(self):
        self.horizon = 20
        self.single_observation_space = Box(0, 255, (8, 8, 3), np.uint8)
        self.single_action_space = Discrete(3)
        self._goal_B = np.array([task.data["goal"] for task in self.tasks])
        self._cell_B = self._keep("cell", np.zeros(self.num_envs, np.int16))

    def _begin(self, index_N):
        self._cell_B[index_N] = 2

    def _advance(self, actions_B, last_B):
        self._cell_B[:] = np.clip(self._cell_B + actions_B - 1, 0, 5)
        return (self._cell_B == self._goal_B).astype(np.float32), None

    def _observe(self):
        return PICTURES[self._cell_B]


World = PictureCorridor
'''
ENVIRONMENT = {
    "world": ENV,
    "images": {"encoder": "impala", "width": WIDTH, "channels": "last"},
    "source": {"algorithm": "published_files", "hyperparameters": {"folder": "files", "layout": "episodes"}},
    "evaluation": {"episodes": 2},
}
LEARNING = {
    "network": {"width": 16, "layers": 1, "heads": 2, "tokens": "merged", "positions": 64, "timesteps": 20},
    "optimisation": {"steps": 4, "batch_size": 4, "warmup": 1, "evaluate_every": 4},
    "context": 20,
}
SCALE = {"description": "Pictures.", "seeds": [0], "methods": {m: {"hyperparameters": LEARNING} for m in ("dt", "dpt")}}
KILLED = """
import functools, os, sys, time
os.environ["RECOLLECT_MINE"] = sys.argv[1]
from recollect.common import parts_on_disk
from recollect.stages import embed_images, stage
encode_in_parts = parts_on_disk.encode_in_parts
stage.code_fingerprint = lambda *modules: "code"

def slowly(frames, encode, folder, **known):
    def slow(part):
        time.sleep(0.02)
        return encode(part)
    return encode_in_parts(frames, slow, folder, rows={rows}, **known)

parts_on_disk.encode_in_parts = slowly
embed_images.embed_images("mini", "{env}")
""".replace("{rows}", str(ROWS)).replace("{env}", ENV)


@pytest.fixture
def pictures(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with histories of images, and the world that they come from."""
    folder = workdir / "worlds"
    folder.mkdir()
    (folder / f"{ENV}.py").write_text(WORLD)
    monkeypatch.setenv("RECOLLECT_MINE", str(folder))
    # The fingerprint of the code looks into the package's own folder only.
    monkeypatch.setattr(stage, "code_fingerprint", lambda *modules: "code")
    monkeypatch.setattr("recollect.common.parts_on_disk.encode_in_parts", functools.partial(encode_in_parts, rows=ROWS))
    (workdir / "config/environments" / f"{ENV}.yaml").write_text(fast_yaml.dump(ENVIRONMENT))
    (workdir / "config/scales/mini.yaml").write_text(fast_yaml.dump(SCALE))
    for task in registry.tasks(ENV, {}, "train"):
        (workdir / "files" / task.name).mkdir(parents=True)
        for episode in range(EPISODES):
            np.savez(workdir / "files" / task.name / f"{episode}.npz", **played(task, episode))
    generate("mini", ENV)
    yield workdir
    sys.path.remove(str(workdir))
    for module in ("worlds", f"worlds.{ENV}"):
        sys.modules.pop(module, None)


def played(task: Any, seed: int) -> dict[str, np.ndarray]:
    """An episode of random actions, as the released converter writes it."""
    world = registry.make_world(ENV, {}, [task], np.zeros(1, np.uint64))
    actions, states, rewards = np.random.default_rng(seed).integers(3, size=STEPS), [], []
    observation, _ = world.reset()
    for action in actions:
        states.append(observation[0])
        observation, reward, *_ = world.step(np.array([action]))
        rewards.append(reward[0])
    return {
        "states": np.array(states),
        "actions": actions,
        "rewards": np.array(rewards, np.float32),
        "dones": np.arange(STEPS) == STEPS - 1,
    }


@pytest.mark.slow
def test_histories_are_encoded_and_methods_learn_from_them_and_play_so(pictures: Path) -> None:
    environment = environment_settings("mini", ENV)
    raw = Histories.open(paths.histories("mini", ENV))
    assert raw.observation.shape == (3 * EPISODES * STEPS, 8, 8, 3) and raw.observation.dtype == np.uint8
    facts = facts_of(environment)
    assert (facts.observation_size, facts.observation_values, facts.actions, facts.horizon) == (WIDTH, (), 3, STEPS)
    with pytest.raises(UserError, match="an input is missing") as error:
        train("mini", ENV, "dt", 0)
    assert str(paths.encoded_histories("mini", ENV)) in str(error.value)

    embed_images.embed_images("mini", ENV)
    encoded = Histories.open(paths.encoded_histories("mini", ENV))
    assert environment.images is not None
    encoder = ImageEncoder(environment.images, (8, 8, 3))
    assert len(np.unique(encoded.observation, axis=0)) == len(np.unique(raw.observation, axis=0)) == 6
    np.testing.assert_allclose(encoded.observation, encoder(raw.observation), atol=1e-5)
    for name in ("action", "reward", "done", "task", "episode"):
        np.testing.assert_array_equal(getattr(encoded, name), getattr(raw, name))
    assert not list(paths.image_checkpoints("mini", ENV).glob("rows_*"))

    for method in ("dt", "dpt"):
        train("mini", ENV, method, 0)
        evaluate("mini", ENV, method, 0)
        scores = read_table(paths.scores("mini", ENV, method, 0), kind="scores")
        assert len(scores) == 2 and scores["value"].between(0, STEPS).all()


def test_while_acting_policies_see_what_they_have_learned_from(pictures: Path) -> None:
    environment = environment_settings("mini", ENV)
    embed_images.embed_images("mini", ENV)
    learned = np.unique(Histories.open(paths.encoded_histories("mini", ENV)).observation, axis=0)
    seen: list[np.ndarray] = []

    class Watching:
        device = "cpu"

        def start(self, seeds_B: np.ndarray, horizon: int, episodes: int) -> None:
            self.draws = np.random.default_rng(0)

        def reset(self, mask_B: np.ndarray) -> None: ...

        def act(self, observation_BD: np.ndarray, reward_B: np.ndarray, done_B: np.ndarray) -> np.ndarray:
            seen.append(observation_BD)
            return self.draws.integers(3, size=len(observation_BD))

    tasks = registry.tasks(ENV, {}, "eval")
    play_in_context(Watching(), environment, tasks, seed=0)  # type: ignore[arg-type]
    assert len(seen) == 2 * STEPS
    distance = np.abs(np.concatenate(seen)[:, None] - learned).max(2).min(1)
    assert distance.max() < 1e-5 < np.abs(learned[0] - learned[1]).max()
    met = world_as_met(environment, tasks, np.zeros(1, np.uint64))
    assert met.single_observation_space.shape == (WIDTH,) and met.horizon == STEPS


@pytest.mark.slow
def test_killed_while_encoding_it_goes_on_and_ends_with_the_same_bytes(
    pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = paths.image_checkpoints("mini", ENV)
    child = subprocess.Popen([sys.executable, "-c", KILLED, str(pictures / "worlds")], stderr=subprocess.PIPE)
    until = time.monotonic() + 60
    while len(list(parts.glob("rows_*.manifest.json"))) < 3 and child.poll() is None and time.monotonic() < until:
        time.sleep(0.002)
    child.send_signal(signal.SIGKILL)
    _, said = child.communicate()
    assert child.returncode == -signal.SIGKILL, said
    standing = len(list(parts.glob("rows_*.manifest.json")))
    whole = -(-3 * EPISODES * STEPS // ROWS)
    assert 3 <= standing < whole and not paths.encoded_histories("mini", ENV).exists()

    calls: list[int] = []
    real = ImageEncoder.__call__
    monkeypatch.setattr(ImageEncoder, "__call__", lambda self, frames: calls.append(len(frames)) or real(self, frames))
    target = paths.encoded_histories("mini", ENV)
    embed_images.embed_images("mini", ENV)
    assert len(calls) == whole - standing
    resumed = target.read_bytes(), manifest_path(target).read_bytes()
    target.unlink()
    calls.clear()
    embed_images.embed_images("mini", ENV)
    assert len(calls) == whole and (target.read_bytes(), manifest_path(target).read_bytes()) == resumed


def test_trained_weights_are_an_input_of_all_that_encodes(pictures: Path) -> None:
    weights = Path("data/encoders/impala.safetensors")
    trained = ImageEncoder(environment_settings("mini", ENV).images, (8, 8, 3))  # type: ignore[arg-type]
    write_arrays(weights, {n: 2 * v.numpy() for n, v in trained.network.state_dict().items()}, kind="image encoder")
    path = pictures / "config/environments" / f"{ENV}.yaml"
    chosen = {**ENVIRONMENT, "images": {**ENVIRONMENT["images"], "weights": str(weights)}}  # type: ignore[dict-item]
    path.write_text(fast_yaml.dump(chosen))
    embed_images.embed_images("mini", ENV)
    target = paths.encoded_histories("mini", ENV)
    assert str(weights) in verify(target)["provenance"]["inputs"]
    assert not np.allclose(
        read_arrays(target)["observation"], trained(read_arrays(paths.histories("mini", ENV))["observation"])
    )
    assert inputs.train_inputs("mini", ENV, "dt") == {"histories": target, "image_encoder": weights}
    assert inputs.playing_inputs("mini", ENV, "dt") == {"image_encoder": weights}
    assert inputs.embed_inputs("mini", ENV, "radt")["histories"] == target
    weights.unlink()
    with pytest.raises(UserError, match=r"impala\.safetensors"):
        train("mini", ENV, "dt", 0)


def test_an_encoder_changes_neither_the_histories_nor_other_environments(pictures: Path) -> None:
    before = provenance.generate_settings("mini", ENV), provenance.train_settings("mini", ENV, "dt")
    images, learned = provenance.image_settings("mini", ENV), train_images.settings("mini", ENV)
    path = pictures / "config/environments" / f"{ENV}.yaml"
    path.write_text(path.read_text().replace(f"width: {WIDTH}", "width: 25"))
    assert provenance.generate_settings("mini", ENV) == before[0]
    assert provenance.train_settings("mini", ENV, "dt") != before[1]
    assert provenance.image_settings("mini", ENV) != images
    assert train_images.settings("mini", ENV) != learned
    assert inputs.train_inputs("mini", "dark_room_10x10", "dt")["histories"] == paths.histories(
        "mini", "dark_room_10x10"
    )


def test_environments_without_images_and_unknown_encoders_are_refused(pictures: Path) -> None:
    with pytest.raises(UserError, match="nothing says how the images"):
        embed_images.embed_images("smoke", "dark_room_10x10")
    path = pictures / "config/environments" / f"{ENV}.yaml"
    path.write_text(path.read_text().replace("encoder: impala", "encoder: impalla"))
    with pytest.raises(UserError, match="'impala'"):
        environment_settings("mini", ENV)


def test_the_rules_encode_images_before_anything_learns(pictures: Path) -> None:
    figure = {"kind": "in_context_curve", "environments": [ENV], "methods": ["dt"], "options": {"metric": "return"}}
    (pictures / "config/figures/pictures.yaml").write_text(fast_yaml.dump(figure))
    assert plan("mini", ["pictures"]).files("embed_images") == [paths.encoded_histories("mini", ENV)]
    assert plan("mini", ["pictures"]).files("generate") == [paths.histories("mini", ENV)]
    assert plan("demo", ["radt_dark_room_10x10"]).files("embed_images") == []


def test_an_encoder_is_trained_on_the_histories_before_they_are_encoded_with_it(pictures: Path) -> None:
    path = pictures / "config/environments" / f"{ENV}.yaml"
    random = read_arrays_of_encoded(ENVIRONMENT, path)
    images = {**ENVIRONMENT["images"], "weights": "data/{scale}/{env}/image_encoder.safetensors"}  # type: ignore[dict-item]
    path.write_text(fast_yaml.dump({**ENVIRONMENT, "images": images}))
    job, weights = Job("train_images", "mini", ENV), paths.image_encoder("mini", ENV)
    assert inputs.embed_images_inputs("mini", ENV)["image_encoder"] == weights and maker(weights, "mini") == job
    with pytest.raises(UserError, match="an input is missing"):
        embed_images.embed_images("mini", ENV)
    assert train_images.train_images("mini", ENV) is False
    assert STAGES["train_images"].is_made(job)
    assert set(read_table(paths.image_encoder_log("mini", ENV), kind="train")["metric"]) >= {"loss", "action_accuracy"}
    embed_images.embed_images("mini", ENV)
    encoded = Histories.open(paths.encoded_histories("mini", ENV))
    encoder = ImageEncoder(environment_settings("mini", ENV).images, (8, 8, 3))  # type: ignore[arg-type]
    np.testing.assert_allclose(
        encoded.observation, encoder(read_arrays(paths.histories("mini", ENV))["observation"]), atol=1e-5
    )
    assert not np.allclose(encoded.observation, random)
    train("mini", ENV, "dt", 0)
    assert weights.as_posix() in verify(paths.policy("mini", ENV, "dt", 0))["provenance"]["inputs"]


def read_arrays_of_encoded(environment: dict[str, Any], path: Path) -> np.ndarray:
    """What a random encoder makes of the histories."""
    path.write_text(fast_yaml.dump(environment))
    embed_images.embed_images("mini", ENV)
    found = np.array(read_arrays(paths.encoded_histories("mini", ENV))["observation"])
    paths.encoded_histories("mini", ENV).unlink()
    return found
