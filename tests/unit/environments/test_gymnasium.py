"""Any environment of gymnasium as a world: by its id alone, a stranger's package, dictionaries with images, ends and limits."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode
from processes import runs, wait_until
from tiny_amago import collector_of, settings_of

from recollect.amago.network import WorldShape
from recollect.common.contract import facts_of
from recollect.environments import registry
from recollect.evaluation.episodic import evaluate
from recollect.settings.errors import UserError
from recollect.settings.layers import gymnasium_id
from recollect.settings.resolve import environment_mapping, environment_settings
from recollect.settings.schema import EnvironmentSettings, EvaluationSettings

PACKAGE = '''
import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete


class Camera(gymnasium.Env):
    """An image and a number; ends at 0 after `ends` steps, and is cut by itself after `cut`."""

    observation_space = Dict({"number": Box(-1, 1, (2,), np.float32), "screen": Box(0, 255, (4, 5, 3), np.uint8)})
    action_space = Discrete(3, start=-1)

    def __init__(self, ends=99, cut=99):
        self.ends, self.cut = ends, cut

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.shade = 0, int(self.np_random.integers(256))
        return self.seen(0), {}

    def seen(self, action):
        image = np.full((4, 5, 3), (self.shade + self.time) % 256, np.uint8)
        return {"number": np.array([action, 0.5], np.float32), "screen": image}

    def step(self, action):
        self.time += 1
        self.shade = (self.shade + int(self.np_random.integers(9))) % 256
        info = {"is_success": self.shade >= 128, "shade": self.shade}
        return self.seen(action), float(action), self.time == self.ends, self.time == self.cut, info


class Walk(gymnasium.Env):
    """Says how far it came; odd seeds do not succeed, and say so under the name that others use. Action 1 says more."""

    observation_space = Box(-1, 1, (1,), np.float32)
    action_space = Discrete(2)

    def __init__(self, cut=4):
        self.cut = cut

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.seed_ = 0, seed
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.time += 1
        info = {"is_success": self.seed_ % 2 == 0, "steps gone": self.time, "word": "far"}
        if action == 1:
            info["told"] = self.time
        return np.zeros(1, np.float32), 1.0, self.time == 2 + self.seed_ % 3, self.time == self.cut, info


class Count(gymnasium.Env):
    """Pays the whole number that is done."""

    observation_space = Box(0, 255, (4, 5, 3), np.uint8)
    action_space = Box(0, 10, (1,), np.int64)

    def reset(self, *, seed=None, options=None):
        return np.zeros((4, 5, 3), np.uint8), {}

    def step(self, action):
        return np.zeros((4, 5, 3), np.uint8), float(action[0]), False, False, {}


gymnasium.register("camera_things/Count-v0", Count, max_episode_steps=7)
gymnasium.register("camera_things/Camera-v0", Camera, max_episode_steps=7)
gymnasium.register("camera_things/Walk-v0", Walk, max_episode_steps=7)
gymnasium.register("Unlimited-v0", Camera)
'''
CAMERA = "camera_things/Camera-v0"


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package of somebody's, which registers its environments when it is imported."""
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "camera_things.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(str(tmp_path / "packages"))
    # Processes that play are started anew, and must find it, too.
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))
    importlib.invalidate_caches()
    yield
    sys.modules.pop("camera_things", None)
    for name in (CAMERA, "camera_things/Count-v0", "camera_things/Walk-v0", "Unlimited-v0"):
        gymnasium.registry.pop(name, None)


def make(count: int, mode: AutoresetMode = AutoresetMode.DISABLED, **options: Any) -> Any:
    listed = registry.tasks("gymnasium", options, "train")
    return registry.make_world("gymnasium", options, listed * count, np.arange(count, dtype=np.uint64), mode)


def test_an_id_is_an_environment_without_a_file(workdir: Path) -> None:
    settings = environment_settings("smoke", "gym.CartPole-v1")
    assert (settings.name, settings.world, settings.title) == ("gym.CartPole-v1", "gymnasium", "CartPole-v1")
    facts = facts_of(settings)
    assert (facts.observation_size, facts.actions, facts.horizon) == (4, 2, 500)  # the horizon is its own time limit
    there = environment_settings("smoke", "gym.camera_things.Camera-v0")
    assert there.options["id"] == CAMERA and facts_of(there).horizon == 7
    assert [gymnasium_id(name) for name in ("A-v0", "b.A-v0", "c.b.A-v0")] == ["A-v0", "b/A-v0", "c:b/A-v0"]
    (workdir / "config/scales/own.yaml").write_text(
        "description: Own.\nseeds: [0]\nenvironments:\n"
        "  gym: {evaluation: {episodes: 3}}\n  gym.CartPole-v1: {options: {horizon: 20}}\n"
    )
    assert environment_mapping("own", "gym.CartPole-v1")["options"] == {"id": "CartPole-v1", "horizon": 20}
    assert environment_mapping("own", "gym.Acrobot-v1")["evaluation"]["episodes"] == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"id": "CartPol-v1"}, "did you mean 'CartPole-v1'"),
        ({"id": "no_such_package/Camera-v0"}, "knows no such id, and there is no package 'no_such_package' to import"),
        ({"id": "camera_things/Camra-v0"}, "did you mean 'camera_things/Camera-v0'"),
        ({"id": "camera_things/CartPole-v1"}, "knows no such id after `import camera_things`"),
        ({"id": CAMERA, "arguments": {"end": 3}}, "unexpected keyword argument 'end'"),
        ({"id": "CartPole-v1", "observation": "image"}, "there is no image"),
        ({"id": "camera_things/Count-v0", "observation": "numbers"}, "there is only an image"),
    ],
)
def test_what_cannot_be_made_is_said_with_the_nearest_id(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make(1, **options)


def test_a_package_may_register_without_a_namespace_and_an_id_may_name_its_module() -> None:
    assert make(1, id="Unlimited-v0", package="camera_things").horizon == 1000
    assert make(1, id="camera_things/Unlimited-v0").horizon == 1000
    assert make(1, id="camera_things:Unlimited-v0").horizon == 1000


def test_an_image_and_numbers_are_kept_apart() -> None:
    world = make(2, id=CAMERA)
    seen = world.reset()[0]
    shapes = {name: shape for name, (_, shape) in world.observation_parts.items()}
    assert shapes == {"image": (4, 5, 3), "numbers": (2,)} and seen.shape == (2, 62) and seen.dtype == np.float32
    assert world.observation_space.contains(seen)
    image, numbers = (seen[:, where] for where, _ in world.observation_parts.values())
    assert (image == image[:, :1]).all() and numbers.tolist() == [[0, 0.5]] * 2
    shape = WorldShape.of(world)  # as AMAGO meets it: the image goes through a convolutional network
    assert (shape.steps.image, shape.steps.vector) == ((4, 5, 3), 2)
    assert shape.image_part == slice(0, 60)
    alone = make(2, id=CAMERA, observation="image")
    assert alone.single_observation_space == Box(0, 255, (4, 5, 3), np.uint8)
    assert (alone.reset()[0].reshape(2, -1) == image).all() and not hasattr(alone, "observation_parts")
    bare = make(2, id=CAMERA, observation="numbers")
    assert bare.reset()[0].tolist() == numbers.tolist() and not hasattr(bare, "observation_parts")


def test_an_action_of_whole_numbers_is_the_nearest_one() -> None:
    world = make(1, id="camera_things/Count-v0")
    world.reset()
    for action, number in ((-1, 0), (-0.95, 0), (0.08, 5), (0.12, 6), (0.99, 10), (1, 10)):
        assert world.step(np.array([[action]], np.float32))[1].tolist() == [number]


def test_an_end_is_terminated_and_a_limit_is_truncated() -> None:
    """The environment's own end, its own cut, and the time limit that the horizon stands for."""
    for arguments, expected in (
        ({}, (False, True, 7)),
        ({"ends": 4}, (True, False, 4)),
        ({"cut": 3}, (False, True, 3)),
    ):
        world = make(1, id=CAMERA, arguments=arguments)
        world.reset()
        for step in range(1, 8):
            _, reward, terminated, truncated, _ = world.step(np.array([2]))
            assert reward.tolist() == [1.0]  # its third action is called 1
            if (terminated | truncated).any():
                assert (terminated.tolist()[0], truncated.tolist()[0], step) == expected
                break
        with pytest.raises(UserError, match="1 of 1 instances"):
            world.step(np.array([2]))


def test_cut_and_end_at_the_same_step_is_an_end_and_a_batch_goes_on_by_itself() -> None:
    world = make(2, AutoresetMode.SAME_STEP, id=CAMERA, arguments={"ends": 3, "cut": 3})
    world.reset()
    for step in range(1, 7):
        _, _, terminated, truncated, info = world.step(np.array([0, 2]))
        assert terminated.tolist() == [step % 3 == 0] * 2 and not truncated.any()
        if terminated.any():
            assert info["final_obs"][:, 60:].tolist() == [[-1, 0.5], [1, 0.5]]


def test_processes_play_and_tell_the_same_and_go_on_from_a_state() -> None:
    here, there = (make(3, id=CAMERA, metrics=["shade"], processes=apart) for apart in (False, True))
    try:
        assert here.reset()[0].tolist() == there.reset()[0].tolist()
        for step in range(9):
            ended = here._ended_B.copy()
            if ended.any():
                for world in (here, there):
                    world.reset(options={"reset_mask": ended})
            if step == 3:  # let one be behind the others
                for world in (here, there):
                    world.reset(options={"reset_mask": np.array([False, True, False])})
            if step == 5:
                there.set_state(here.get_state())
            actions = np.arange(3) % 3
            ours, theirs = here.step(actions), there.step(actions)
            assert [part.tolist() for part in ours[:4]] == [part.tolist() for part in theirs[:4]], step
            np.testing.assert_equal(ours[4], theirs[4])
            np.testing.assert_array_equal([here.first_BM, here.latest_BM], [there.first_BM, there.latest_BM])
            assert ("success" in theirs[4]) == (step == 6), step
        assert np.isfinite(there.latest_BM).sum() == 2  # the third began anew and has not ended
    finally:
        there.close()


OWNER = """
import os, signal, sys, time
import numpy as np
from recollect.environments import registry

if __name__ == "__main__":
    options = {"id": "CartPole-v1", "processes": True}
    tasks = registry.tasks("gymnasium", options, "train") * 2
    world = registry.make_world("gymnasium", options, tasks, np.arange(2, dtype=np.uint64))
    world.reset()
    stopped = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.append(1))
    print(*(process.pid for process in world.inner.processes), flush=True)
    while len(stopped) < 2:
        time.sleep(0.05)
    time.sleep(0.5)
    world.step(np.array([0, 1]))
    print(int(world.get_state()["timestep"].sum()), flush=True)
    sys.exit(75)
"""


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    script = tmp_path / "owner.py"
    script.write_text(OWNER)
    process = subprocess.Popen(
        [sys.executable, script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    yield process
    process.kill()
    process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("told", [(signal.SIGINT, signal.SIGTERM), ()], ids=["told", "killed"])
def test_processes_go_on_until_their_job_has_saved_and_end_with_it(
    owner: subprocess.Popen[str], told: tuple[signal.Signals, ...]
) -> None:
    """What stops a job goes to all its processes, as Ctrl-C from a terminal or SIGTERM from SLURM; a kill goes to it alone."""
    assert owner.stdout is not None
    pids = [int(pid) for pid in owner.stdout.readline().split()]
    assert len(pids) == 2 and all(map(runs, pids))
    for number in told:
        os.killpg(owner.pid, number)
        time.sleep(0.1)  # or the second is told first
    if not told:
        owner.kill()
    else:
        assert owner.stdout.readline().strip() == "2" and owner.wait(timeout=60) == 75
    wait_until(lambda: not any(map(runs, pids)), "its processes end with it")


@pytest.mark.slow
def test_a_process_that_dies_is_reported_and_the_others_end() -> None:
    world = make(2, id="CartPole-v1", processes=True)
    world.reset()
    pids = [process.pid for process in world.inner.processes]
    os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(UserError, match="a process that plays an environment has ended"):
        for _ in range(3):
            world.step(np.array([0, 1]))
    world.close()
    assert not any(map(runs, pids))


WALK: dict[str, Any] = {"id": "camera_things/Walk-v0", "metrics": ["steps gone"]}


def walk(count: int, **options: Any) -> Any:
    chosen = {**WALK, **options}
    listed = registry.tasks("gymnasium", chosen, "eval")
    return registry.make_world("gymnasium", chosen, listed * count, np.arange(count, dtype=np.uint64))


def test_success_and_further_numbers_of_info_are_kept_where_episodes_end() -> None:
    """By themselves, or cut by the horizon as those of four steps are."""
    world = walk(3, horizon=3)
    world.reset(options={"reset_mask": np.ones(3, bool)})
    words_B = world.get_state()["word"].copy()
    length_B = 2 + words_B % 3
    for step in range(1, 4):
        *_, terminated_B, truncated_B, info = world.step(np.zeros(3, np.int64))
        ended_B = terminated_B | truncated_B
        assert (terminated_B == (length_B == step)).all() and (ended_B == (np.minimum(length_B, 3) == step)).all()
        if ended_B.any():
            np.testing.assert_array_equal(info["success"][ended_B], (words_B % 2 == 0)[ended_B])
        assert np.isnan(world.first_BM[:, 0]).tolist() == (np.minimum(length_B, 3) > step).tolist()
        if step < 3:
            world.reset(options={"reset_mask": ended_B})
    np.testing.assert_array_equal(world.first_BM[:, 0], np.minimum(length_B, 3))
    assert truncated_B.any() and terminated_B.any()
    world.reset(options={"reset_mask": np.ones(3, bool)})
    assert np.isnan(world.first_BM).all() and not np.isnan(world.latest_BM).any()


def test_a_metric_that_an_episode_does_not_tell_is_nan() -> None:
    """It is told by the action 1. What a later episode tells is no number of the first."""
    world = make(2, **WALK | {"metrics": ["told"], "arguments": {"cut": 1}})
    world.reset()
    nan = np.nan
    for actions, told_B in (([1, 0], [1, nan]), ([0, 1], [nan, 1]), ([0, 0], [nan, nan])):
        world.step(np.array(actions))
        np.testing.assert_array_equal(world.latest_BM.T, [told_B])
        np.testing.assert_array_equal(world.first_BM.T, [[1, nan]])
        for one in ([True, False], [False, True]):
            world.reset(options={"reset_mask": np.array(one)})
    world.reset()  # all begin anew
    assert "success" in world.step(np.array([0, 1]))[4]
    np.testing.assert_array_equal(world.first_BM.T, [[nan, 1]])
    world.reset()
    play = world.inner.step
    world.inner.step = lambda actions: (*play(actions)[:4], {})  # it has no success for ever because it had one
    assert "success" not in world.step(np.array([1, 1]))[4] and np.isnan(world.latest_BM).all()


def test_a_metric_that_no_environment_tells_is_refused_with_the_nearest_that_one_tells() -> None:
    """At the first end that is an environment's own: of an episode that the horizon cuts, it need not know that it ended."""
    for metrics in (["steps gon"], ["steps gone", "steps gon"]):
        world = make(1, **WALK | {"metrics": metrics, "horizon": 2, "arguments": {"cut": 2}})
        world.reset()
        world.step(np.zeros(1, np.int64))
        with pytest.raises(UserError, match="its info has no 'steps gon'") as refused:
            world.step(np.zeros(1, np.int64))
        assert refused.value.do.startswith("did you mean 'steps gone'?")
    cut = make(1, **WALK | {"metrics": ["steps gon"], "horizon": 1})
    cut.reset()
    assert cut.step(np.zeros(1, np.int64))[3].tolist() == [True]


def test_a_word_is_no_metric() -> None:
    world = walk(6, metrics=["word"])
    world.reset(options={"reset_mask": np.ones(6, bool)})
    with pytest.raises(UserError, match=r"info\['word'\] is not one number"):
        for _ in range(4):
            *_, ended_B, _, _ = world.step(np.zeros(6, np.int64))
            world.reset(options={"reset_mask": ended_B})


def test_scores_have_a_row_of_each_number_of_info_and_episode() -> None:
    environment = EnvironmentSettings(
        name="walk", world="gymnasium", options=WALK, evaluation=EvaluationSettings(protocol="episodic", episodes=5)
    )

    class Still:
        def start(self, seeds_B: np.ndarray, horizon: int, episodes: int) -> None: ...

        def act(self, observation_BD: np.ndarray, reward_B: np.ndarray, done_B: np.ndarray) -> np.ndarray:
            return np.zeros(len(reward_B), np.int64)

    table = evaluate(Still(), environment, method="still", seed=0, step=0)  # type: ignore[arg-type]
    by_metric = {metric: rows["value"].to_numpy() for metric, rows in table.groupby("metric")}
    assert by_metric.keys() == {"return", "success", "steps gone"}
    np.testing.assert_array_equal(by_metric["steps gone"], by_metric["return"])
    assert set(by_metric["success"]) <= {0.0, 1.0} and len(by_metric["success"]) == 5


@pytest.mark.parametrize("truncation", ["end", "bootstrap"])
def test_amago_looks_beyond_an_environments_own_truncation_if_asked_and_logs_what_it_says(truncation: str) -> None:
    """Of episodes of two steps all have ended; after three, those that are cut there have not."""
    collector, _ = collector_of(settings_of(("gymnasium", {**WALK, "arguments": {"cut": 3}}), truncation=truncation))
    finished = collector.collect(40)
    lengths = [len(trajectory["time"]) - 1 for trajectory in finished]
    ends = [bool(trajectory["done"][-1]) for trajectory in finished]
    assert {2, 3} == set(lengths)
    assert all(end for end, length in zip(ends, lengths, strict=True) if length == 2)
    beyond = [not end for end, length in zip(ends, lengths, strict=True) if length == 3]
    assert any(beyond) == (truncation == "bootstrap") and not all(beyond)
    results = collector.results()
    assert results["training_steps gone"] == pytest.approx(np.mean(lengths))
    assert 0 < results["training_success"] < 1
