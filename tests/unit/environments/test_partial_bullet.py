"""PyBullet's robots of which half is seen: masks, ends, resume; against PyBullet's own environments where they are."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any

import fake_bullet
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from recollect.environments import partial_bullet, registry
from recollect.environments.base import World
from recollect.environments.partial_bullet import ROBOTS, Simulator
from recollect.settings.errors import UserError

WORLD = "partial_bullet"
needs_bullet = pytest.mark.skipif(find_spec("pybullet") is None, reason="pybullet is not installed")
# Specification 1.6: full size, actions, and what is seen of positions and of velocities.
PUBLISHED = {
    "hopper": (15, 3, [0, 1, 2, 6, 7, 8, 10, 12, 14], [3, 4, 5, 9, 11, 13]),
    "walker": (22, 6, [0, 1, 2, 6, 7, 8, 10, 12, 14, 16, 18, 20, 21], [3, 4, 5, 9, 11, 13, 15, 17, 19]),
    "ant": (
        28,
        8,
        [0, 1, 2, 6, 7, 8, 10, 12, 14, 16, 18, 20, 22, 24, 25, 26, 27],
        [3, 4, 5, 9, 11, 13, 15, 17, 19, 21, 23],
    ),
    "cheetah": (
        26,
        6,
        [0, 1, 2, 6, 7, 8, 10, 12, 14, 16, 18, 20, 21, 22, 23, 24, 25],
        [3, 4, 5, 9, 11, 13, 15, 17, 19],
    ),
}


@pytest.fixture(params=["fake", pytest.param("real", marks=needs_bullet)])
def bullet(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The simulator: a fake one everywhere, the real one where it is installed."""
    if request.param == "fake":
        fake_bullet.install(monkeypatch)
    return str(request.param)


def make(robot: str, seeds: list[int], mode: AutoresetMode = AutoresetMode.DISABLED, **options: Any) -> World:
    options = {"robot": robot, **options}
    (task,) = registry.tasks(WORLD, options, "train")
    return registry.make_world(WORLD, options, [task] * len(seeds), np.array(seeds, np.uint64), mode)


def play(world: World, steps: int, seed: int) -> list[list[Any]]:
    """What each step gave; who falls begins again."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(steps):
        actions = rng.uniform(-1, 1, (world.num_envs, *world.single_action_space.shape)).astype(np.float32)  # type: ignore[misc]
        *arrays, _ = world.step(actions)
        found.append([array.tolist() for array in arrays])
        if (ended := arrays[2] | arrays[3]).any():
            found.append([world.reset(options={"reset_mask": ended})[0].tolist()])
    return found


@pytest.mark.parametrize("robot", PUBLISHED)
def test_what_is_seen_is_the_published_half(robot: str, bullet: str) -> None:
    size, actions, positions, velocities = PUBLISHED[robot]
    assert ROBOTS[robot].size == size
    everything, _ = make(robot, [3], observation="all").reset()
    assert everything.shape == (1, size) and everything.dtype == np.float32
    for observation, seen in (("positions", positions), ("velocities", velocities)):
        world = make(robot, [3], observation=observation)
        np.testing.assert_array_equal(world.reset()[0], everything[:, seen])
        assert world.single_action_space.shape == (actions,)


@pytest.mark.parametrize("steps", [0, 3, 17])
def test_a_resumed_world_goes_on_to_the_bit(bullet: str, steps: int) -> None:
    first, second = (make("hopper", [1, 2, 3], horizon=20) for _ in range(2))
    first.reset()
    second.reset(seed=9)
    play(first, steps, 1)
    play(second, 5, 2)
    second.set_state(first.get_state())
    assert play(first, 25, 3) == play(second, 25, 3)


def test_an_episode_follows_from_its_word_whatever_was_played_before(bullet: str) -> None:
    used, fresh = (Simulator(ROBOTS["cheetah"], "all") for _ in range(2))
    actions = np.random.default_rng(0).uniform(-1, 1, (12, 6)).astype(np.float32)
    used.begin(5)
    for action in actions[:7]:
        used.step(-action)
    used.contact_F[:] = 1  # it ended on all its feet
    used.begin(8)
    fresh.begin(8)
    first = fresh.look()
    np.testing.assert_array_equal(used.look(), first)
    for action in actions:
        assert used.step(action) == fresh.step(action)
        assert (used.look() == fresh.look()).all()
    fresh.begin(9)
    assert (fresh.look() != first).any()
    if bullet == "fake":
        fresh.inner.speed[:] = 80  # of which a tenth is seen, 5 at most
        assert fresh._observe()[partial_bullet.BODY + 1 : -6 : 2].tolist() == [5] * 6


def test_a_fall_ends_an_episode_but_not_the_cheetahs_and_the_horizon_cuts_it_off(bullet: str) -> None:
    """Full throttle makes all of them fall; a fall at the last step is cut off, as everything is at the horizon."""
    ended = {}
    for robot in ROBOTS:
        world = make(robot, [0], horizon=60)
        world.reset()
        action = np.ones((1, ROBOTS[robot].joints), np.float32)
        ends = False
        while not ends:
            _, _, terminated, truncated, info = world.step(action)
            assert "success" not in info
            ends = bool(terminated[0] or truncated[0])
        ended[robot] = (int(world.get_state()["timestep"][0]), bool(terminated[0]))
    assert ended["cheetah"] == (60, False)
    assert ended["hopper"][0] < 60 and ended["hopper"][1] and ended["walker"][1]
    shorter = make("hopper", [0], horizon=ended["hopper"][0])
    shorter.reset()
    for _ in range(ended["hopper"][0]):
        _, _, terminated, truncated, _ = shorter.step(np.ones((1, 3), np.float32))
    assert (terminated[0], truncated[0]) == (False, True)


def test_a_new_episode_within_a_step_keeps_the_last_observation(bullet: str) -> None:
    world = make("hopper", [0, 1], AutoresetMode.SAME_STEP, horizon=9)
    world.reset()
    for _ in range(40):
        observations, _, terminated, truncated, info = world.step(np.ones((2, 3), np.float32))
        ended = terminated | truncated
        if ended.any():
            assert (info["final_obs"] != observations).any(1).tolist() == ended.tolist()
            assert (world.get_state()["timestep"] == 0).tolist() == ended.tolist()


def test_tasks_need_no_package_and_a_missing_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pybullet", None)
    assert [task.name for task in registry.tasks(WORLD, {"robot": "ant", "observation": "velocities"}, "eval")] == [
        "ant_velocities"
    ]
    with pytest.raises(UserError, match="needs the package 'pybullet'") as refused:
        make("ant", [0])
    assert "FAMILY=pybullet" in refused.value.do and "--sdm conda" in refused.value.do
    for wrong in ({"robot": "spider"}, {}, {"robot": "ant", "goal": "hidden"}):
        with pytest.raises(UserError, match="options of the world partial_bullet"):
            registry.tasks(WORLD, wrong, "train")


UPRIGHT = [
    ("ant", 0.27, 9, [1, 1, 1, 1], True),  # however it leans
    ("ant", 0.26, 0, [0, 0, 0, 0], False),
    ("cheetah", -9, 0.99, [1, 0, 0, 1, 0, 0], True),  # on its feet, however low
    ("cheetah", 0, -1, [0] * 6, False),
    *(("cheetah", 0, 0, [i == place for i in range(6)], False) for place in (1, 2, 4, 5)),  # shins and thighs
    ("hopper", 0.81, -0.99, [1], True),
    ("hopper", 0.8, 0, [0], False),
    ("hopper", 0.9, -1, [0], False),
    ("walker", 0.81, 0.99, [1, 1], True),
    ("walker", 0.8, 0, [0, 0], False),
    ("walker", 0.9, 1, [0, 0], False),
]


@pytest.mark.parametrize(("robot", "height", "pitch", "contacts", "alive"), UPRIGHT)
def test_a_robot_is_upright_as_in_pybullet(
    robot: str, height: float, pitch: float, contacts: list[int], alive: bool
) -> None:
    """`alive_bonus` of pybullet_envs/robot_locomotors.py."""
    assert ROBOTS[robot].alive(height, pitch, np.array(contacts)) == alive


@pytest.mark.parametrize(
    ("robot", "torques"),
    [
        ("ant", [250] * 8),
        ("cheetah", [108, 81, 54, 126, 54, 27]),
        ("hopper", [75] * 3),
        ("walker", [12, 12, 40, 40, 40, 40]),
    ],
)
def test_motors_are_as_strong_as_in_pybullet_and_joints_begin_near_the_middle(
    robot: str, torques: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Power of a robot times strength of its motors there (the stand-in has those with a name first)."""
    fake_bullet.install(monkeypatch)
    simulator, angles = Simulator(ROBOTS[robot], "all"), []
    links = [motor.part.link for motor in (simulator.begin(0), simulator.motors)[1]]
    for word in range(40):
        simulator.begin(word)
        angles += simulator.inner.angle[links].tolist()
    assert 0.08 < max(angles) <= 0.1 and -0.1 <= min(angles) < -0.08
    simulator.step(np.ones(len(torques), np.float32))
    assert simulator.inner.torque[links].tolist() == pytest.approx(torques)


def test_what_pays_is_progress_staying_upright_and_little_effort(monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs of PyBullet: 2 of power, 0.1 of torque, 0.1 for each joint at its limit; a contact is seen a step later."""
    fake_bullet.install(monkeypatch)
    simulator = Simulator(ROBOTS["hopper"], "all")
    simulator.begin(3)
    action = np.array([0.5, -0.25, 1], np.float32)
    for _ in range(60):
        before, contacts = simulator.distance, simulator.contact_F.tolist()
        reward, fallen = simulator.step(action)
        seen = simulator.look()
        assert seen[-1:].tolist() == contacts
        joints, speeds = seen[8:14:2], seen[9:14:2]
        upright = seen[0] + simulator.first_height > 0.8 and abs(seen[7]) < 1
        expected = (1 if upright else -1) + (before - simulator.distance) / 0.0165
        expected -= 2 * np.abs(action * speeds).mean() + 0.1 * np.square(action).mean()
        expected -= 0.1 * (np.abs(joints) > 0.99).sum()
        assert reward == pytest.approx(expected, abs=1e-4) and fallen != upright
    assert fallen and (np.abs(joints) > 0.99).any()


# ------------------------------------------------------------------------------- against PyBullet's own environments


def upstream_environments(monkeypatch: pytest.MonkeyPatch) -> Any:
    """PyBullet's own environments, which ask for a gym of old; they take little of it."""
    seeding = {"np_random": lambda seed=None: (np.random.default_rng(seed), seed)}
    registration = {
        "registry": SimpleNamespace(env_specs={}),
        "make": None,
        "spec": None,
        "register": lambda *a, **k: 0,
    }
    contents: dict[str, dict[str, Any]] = {
        "gym": {"Env": object, "__version__": "0.21.0"},
        "gym.spaces": {"Box": lambda *a, **k: None},
        "gym.utils": {},
        "gym.utils.seeding": seeding,
        "gym.envs": {},
        "gym.envs.registration": registration,
        "pkg_resources": {"parse_version": lambda text: [int(part) for part in text.split(".")]},
    }
    for name, content in contents.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
        parent, _, own = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], own, module)
    for name in [name for name in sys.modules if name.partition(".")[0] == "pybullet_envs"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", list(sys.path))
    import pybullet_envs.gym_locomotion_envs as upstream

    return upstream


@needs_bullet
@pytest.mark.parametrize(
    ("robot", "name"), [("ant", "Ant"), ("cheetah", "HalfCheetah"), ("hopper", "Hopper"), ("walker", "Walker2D")]
)
def test_it_is_pybullets_own_environment_to_the_bit(robot: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = getattr(upstream_environments(monkeypatch), f"{name}BulletEnv")()
    theirs.reset()  # in the first episode the floor is no part of the robot yet
    ours = Simulator(ROBOTS[robot], "all")
    for word in range(3):
        theirs.robot.np_random = np.random.default_rng(word)
        ours.begin(word)
        np.testing.assert_array_equal(ours.look(), theirs.reset())
        rng = np.random.default_rng(word)
        for _ in range(100):
            action = rng.uniform(-1, 1, ROBOTS[robot].joints).astype(np.float32) * (word > 0)
            seen, reward, done, _ = theirs.step(action)
            paid, fell = ours.step(action)
            np.testing.assert_array_equal(ours.look(), seen)
            assert paid == reward and (fell and ROBOTS[robot].falls) == done
            if done:
                break


def test_the_module_is_a_world() -> None:
    assert WORLD in registry.world_names() and registry.world_class(WORLD) is partial_bullet.PartialBullet


@needs_bullet
def test_the_simulator_prints_nothing_into_what_others_read() -> None:
    program = """
from recollect.environments.partial_bullet import ROBOTS, Simulator
print("before")
simulator = Simulator(ROBOTS["hopper"], "positions")
print("after")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "before\nafter\n"
