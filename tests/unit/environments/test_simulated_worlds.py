"""Meta-World and DMControl: task lists, slots, hidden goals, seeding and resume; in the real packages where they are."""

from __future__ import annotations

import logging
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import fake_suite
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode

from recollect.environments import dm_control, meta_world, registry
from recollect.environments.base import Task, World
from recollect.environments.replayed import ReplayedWorld
from recollect.environments.simulated import SimulatedOptions, SimulatedWorld, needed
from recollect.settings.errors import UserError
from recollect.sources import published_files, source_policies

FAKED: dict[str, Any] = {"only": ["cartpole-swingup", "finger-spin", "walker-run"], "horizon": 9}
SMALL: dict[str, dict[str, Any]] = {
    "fake": FAKED,
    "dm_control": FAKED,
    "meta_world": {"only": ["reach", "assembly", "stick-pull"], "horizon": 9},
}
PACKAGES = {"dm_control": "dm_control", "meta_world": "metaworld"}
real = [
    pytest.param(world, marks=pytest.mark.skipif(find_spec(package) is None, reason=f"{package} is not installed"))
    for world, package in PACKAGES.items()
]


@pytest.fixture
def suite(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[str, dict[str, Any]]:
    """A world and small options of it; `fake` is DMControl with a fake package."""
    name: str = request.param
    if name == "fake":
        fake_suite.install(monkeypatch)
    return ("dm_control" if name == "fake" else name), SMALL[name]


everywhere = pytest.mark.parametrize("suite", ["fake", *real], indirect=True)


def make(suite: tuple[str, dict[str, Any]], which: list[int], **options: Any) -> World:
    name, small = suite
    listed = registry.tasks(name, small, "train")
    return registry.make_world(
        name, {**small, **options}, [listed[i % len(listed)] for i in which], np.array(which, np.uint64)
    )


def play(world: World, which: list[int], steps: int, seed: int) -> list[tuple[list[Any], ...]]:
    """What each step gave, instance by instance; the actions of an instance depend on its number and the step only."""
    found, size = [], world.single_action_space.shape[0]  # type: ignore[index]
    for step in range(steps):
        actions = np.stack([np.random.default_rng([seed, i, step]).uniform(-1, 1, size) for i in which])
        observations, rewards, terminated, truncated, _ = world.step(actions.astype(np.float32))
        assert not terminated.any()
        found.append(tuple(array.tolist() for array in (observations, rewards, truncated)))
        if truncated.any():
            found.append((world.reset(options={"reset_mask": truncated})[0].tolist(),))
    return found


# ---------------------------------------------------------------------------------------------------------- task lists


def test_task_lists_are_the_published_ones_and_need_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in PACKAGES.values():
        monkeypatch.setitem(sys.modules, package, None)
    counts = {name: [len(registry.tasks(name, {}, split)) for split in ("train", "eval")] for name in PACKAGES}
    assert counts == {"meta_world": [45, 5], "dm_control": [11, 5]}
    held_out = [task.name for task in registry.tasks("meta_world", {}, "eval")]
    assert held_out == ["bin-picking", "box-close", "hand-insert", "door-lock", "door-unlock"]
    held_out = [task.name for task in registry.tasks("dm_control", {}, "eval")]
    assert held_out == ["cartpole-balance", "finger-turn_hard", "pendulum-swingup", "reacher-hard", "walker-walk"]
    domains = {"ball_in_cup": 2, "cartpole": 1, "cheetah": 6, "finger": 2, "fish": 5, "hopper": 4, "pendulum": 1}
    domains |= {"point_mass": 2, "reacher": 2, "walker": 6}  # numbers of an action (Tassa et al. 2018)
    tasks = [task for split in ("train", "eval") for task in registry.tasks("dm_control", {}, split)]
    assert all(task.data["actions"] == domains[task.name.partition("-")[0]] for task in tasks)
    for name in PACKAGES:
        tasks = [task for split in ("train", "eval") for task in registry.tasks(name, {}, split)]
        assert len({task.name for task in tasks}) == len(tasks)
        for task in tasks:  # a random policy earns less than the data on average, and those less than at best
            random, mean = task.data["normalisation"]["data_normalised"]
            assert 0 <= random < mean <= task.data["target_return"] <= 2000, task.name
            assert mean < task.data["target_return"] or task.name == "pick-place"  # of whose data the mean is not known


def test_episodes_are_as_long_as_published() -> None:
    """RA-DT, specification 1.6 and 1.7."""
    assert (meta_world.Options().horizon, dm_control.Options().horizon) == (200, 1000)


def test_some_tasks_can_be_chosen_and_an_unknown_one_is_refused() -> None:
    chosen = {"only": ["reach", "door-lock", "push"]}
    assert [(t.index, t.name) for t in meta_world.tasks("train", **chosen)] == [(0, "push"), (1, "reach")]
    assert [(t.index, t.name) for t in meta_world.tasks("eval", **chosen)] == [(0, "door-lock")]
    with pytest.raises(UserError, match="no task 'reech'") as refused:
        meta_world.tasks("train", only=["reech"])
    assert "reach" in refused.value.do


@pytest.mark.parametrize("world", PACKAGES)
def test_a_missing_package_is_named_with_what_to_do(world: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGES[world]]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, PACKAGES[world], None)
    tasks = registry.tasks(world, {}, "train")
    with pytest.raises(UserError, match=f"needs the package '{PACKAGES[world]}'") as refused:
        registry.make_world(world, {}, tasks[:1], np.zeros(1, np.uint64))
    assert "FAMILY=control" in refused.value.do and "--sdm conda" in refused.value.do


# --------------------------------------------------------------------------------------------- observations and actions


def test_slots_are_the_published_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes of the 24 observation types, from the released wrapper (RA-DT, specification 1.7)."""
    sizes = [14, 27, 8, 5, 2, 1, 21, 1, 3, 1, 12, 3, 3, 16, 8, 4, 4, 3, 4, 2, 2, 14, 45, 1]
    assert [dm_control.ENDS[name] - first for name, first in dm_control.SLOTS.items()] == sizes
    assert sum(sizes) == 204
    assert dm_control.GOAL == [54, 55, 56, 79, 80, 81, 136, 137, 138, 139, 142, 143]
    fake_suite.install(monkeypatch)
    monkeypatch.setenv("MUJOCO_GL", "egl")  # of somebody who renders
    own = make(("dm_control", FAKED), [0, 1]).own_entries()  # type: ignore[attr-defined]
    assert [entries.tolist() for entries in own] == [
        [*range(41, 47), 142, 143, 203],
        [41, 142, 143, 203],
    ]  # zero or not
    assert os.environ["MUJOCO_GL"] == "egl"
    monkeypatch.delenv("MUJOCO_GL")
    make(("dm_control", FAKED), [0])
    assert os.environ["MUJOCO_GL"] == "disabled"
    seen = dm_control.in_slots({"velocity": [1, 2], "height": 7.0, "to_target": np.array([[3.0, 4.0]])})
    assert {i: seen[i].item() for i in np.flatnonzero(seen)} == {14: 1, 15: 2, 142: 3, 143: 4, 203: 7}


@everywhere
def test_a_hidden_goal_is_zero_and_all_else_is_unchanged(suite: tuple[str, dict[str, Any]]) -> None:
    goal = list(meta_world.GOAL if suite[0] == "meta_world" else dm_control.GOAL)
    hidden, shown = make(suite, [0, 1, 2]), make(suite, [0, 1, 2], goal="shown")
    with_goal, without = shown.reset()[0], hidden.reset()[0]
    for _ in range(2):
        assert (without[:, goal] == 0).all()
        if suite[0] == "meta_world":
            assert (with_goal[:, goal] != 0).any(1).all()
        with_goal[:, goal] = 0
        np.testing.assert_array_equal(with_goal, without)
        action = np.full((3, *hidden.single_action_space.shape), 0.5, np.float32)  # type: ignore[misc]
        with_goal, without = shown.step(action)[0], hidden.step(action)[0]
    # Bounds of zero: published data that show the goal are outside of this world.
    assert (hidden.single_observation_space.high[goal] == 0).all()  # type: ignore[attr-defined]


@everywhere
def test_dimensions_that_a_task_lacks_change_nothing(suite: tuple[str, dict[str, Any]]) -> None:
    one, other = make(suite, [0, 1, 2]), make(suite, [0, 1, 2])
    first, second = one.reset()[0], other.reset()[0]
    assert first.dtype == np.float32
    size = one.single_action_space.shape[0]  # type: ignore[index]
    for step in range(5):
        np.testing.assert_array_equal(first, second)
        action = np.random.default_rng(step).uniform(-1, 1, (3, size)).astype(np.float32)
        changed = action.copy()
        for row, task in enumerate(one.tasks):
            changed[row, task.data.get("actions", size) :] = -0.25
        first, second = one.step(action)[0], other.step(changed)[0]


@pytest.mark.parametrize(
    "action", [np.zeros(6), np.zeros((2, 5)), np.full((2, 6), 1.5), np.full((2, 6), np.nan), np.zeros((2, 6), int)]
)
def test_actions_outside_of_the_space_are_refused(action: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_suite.install(monkeypatch)
    world = make(("dm_control", FAKED), [0, 1])
    world.reset()
    with pytest.raises(UserError, match=r"numbers in \[-1, 1\]"):
        world.step(action)


# ------------------------------------------------------------------------------------------------- seeding and resume


@everywhere
def test_an_instance_does_not_depend_on_who_else_is_there_or_on_what_was_played_before(
    suite: tuple[str, dict[str, Any]],
) -> None:
    which = [0, 1, 2, 1]
    together = make(suite, which)
    starts = together.reset(seed=3)[0]
    rows = play(together, which, 14, 7)
    for place, number in enumerate(which):
        alone = make(suite, [number])
        alone.reset(seed=11)
        play(alone, [number], 4, 5)
        seeds, draws = (together.get_state()[name][place : place + 1] for name in ("seeds", "draws"))
        state = {**alone.get_state(), "seeds": seeds, "draws": draws * 0, "ended": np.ones(1, bool)}
        alone.set_state(state)
        assert alone.reset()[0].tolist() == [starts[place].tolist()]
        for mine, theirs in zip(play(alone, [number], 14, 7), rows, strict=True):
            assert [array[0] for array in mine] == [array[place] for array in theirs]


@everywhere
@pytest.mark.parametrize("steps", [0, 4, 9, 13])
def test_a_resumed_world_goes_on_to_the_bit(suite: tuple[str, dict[str, Any]], steps: int) -> None:
    which = [0, 1, 2]
    first, second = make(suite, which), make(suite, which)
    first.reset()
    second.reset(seed=99)
    play(first, which, steps, 1)
    play(second, which, 3, 2)
    second.set_state(first.get_state())
    assert play(first, which, 12, 3) == play(second, which, 12, 3)


@everywhere
def test_initial_states_are_random_or_always_the_same(suite: tuple[str, dict[str, Any]]) -> None:
    everyone = np.arange(3)
    for kind, alike in (("random", False), ("fixed", True)):
        world = make(suite, [0, 1, 2], initial_states=kind, goal="shown")
        starts = [world.reset()[0] for _ in range(3)]
        other = make(suite, [3, 4, 5], initial_states=kind, goal="shown").reset()[0]
        for episode in (*starts[1:], other):
            assert [bool((episode[i] == starts[0][i]).all()) for i in everyone] == [alike] * 3


@everywhere
def test_episodes_are_cut_at_the_horizon(suite: tuple[str, dict[str, Any]]) -> None:
    name, small = suite
    tasks = registry.tasks(name, small, "train")
    world = registry.make_world(name, small, tasks, np.arange(3, dtype=np.uint64), AutoresetMode.SAME_STEP)
    world.reset()
    action = np.full((3, *world.single_action_space.shape), 0.5, np.float32)  # type: ignore[misc]
    for step in range(1, 19):
        observations, _, terminated, truncated, info = world.step(action)
        assert not terminated.any() and truncated.tolist() == [step % 9 == 0] * 3
        if step % 9 == 0:
            assert (info["final_obs"] != observations).any(1).all()
            assert ("success" in info) == (name == "meta_world")


class Paid(ReplayedWorld):
    """Instance 0 is paid at every step and ends at its second one, 1 ends there unpaid, and 2 is paid and cut off there."""

    class Paying:
        def __init__(self, pays: float, ends: bool) -> None:
            self.pays, self.ends = pays, ends

        def begin(self, word: int) -> None:
            self.time = 0

        def step(self, action: Any) -> tuple[float, bool]:
            self.time += 1
            return self.pays, self.ends and self.time == 2

        def look(self) -> np.ndarray:
            return np.array([self.time], np.int64)

    def _setup(self) -> None:
        self.horizon = 2
        self.single_observation_space, self.single_action_space = Box(0, 2, (1,), np.int64), Discrete(2)
        self._play([self.Paying(1, True), self.Paying(0, True), self.Paying(1, False)])


def test_success_is_an_end_of_ones_own_with_a_reward() -> None:
    world = Paid([Task(i, "t", "train") for i in range(3)], seeds=np.arange(3))
    world.reset()
    assert "success" not in world.step(np.zeros(3, np.int64))[4]
    _, _, terminated, truncated, info = world.step(np.zeros(3, np.int64))
    assert (terminated.tolist(), truncated.tolist()) == ([True, True, False], [False, False, True])
    assert info["success"].tolist() == [True, False, False]


class Solved(SimulatedWorld):
    """Instance i is solved for one step of its first episode: after step i + 1 of 3."""

    knows_success = True
    options_model = SimulatedOptions

    class Counting:
        def __init__(self, at: int) -> None:
            self.at, self.episode = at, -1  # -1: every world begins its players once before the first reset

        def begin(self, word: int) -> None:
            self.episode, self.time = self.episode + 1, 0

        def step(self, action: np.ndarray) -> tuple[float, bool]:
            self.time += 1
            return 0.0, self.episode == 1 and self.time == self.at

        def look(self) -> np.ndarray:
            return np.array([self.time], np.float32)

    def _setup(self) -> None:
        self.horizon = 3
        players = [self.Counting(i + 1) for i in range(self.num_envs)]
        self._simulate(players, observation_size=1, action_size=1, goal_entries=())


@pytest.mark.parametrize("mode", [AutoresetMode.DISABLED, AutoresetMode.SAME_STEP])
def test_success_is_of_an_episode_that_was_solved_at_any_of_its_steps_and_of_no_later_one(mode: AutoresetMode) -> None:
    tasks = [Task(i, "t", "train") for i in range(4)]
    world, told = Solved(tasks, seeds=np.arange(4), autoreset_mode=mode, goal="shown"), []
    world.reset()
    for step in range(1, 7):
        *_, truncated, info = world.step(np.zeros((4, 1), np.float32))
        if step % 3 == 0:
            assert truncated.all()
            told.append(info["success"])
            if mode is AutoresetMode.DISABLED:
                world.reset()
    assert [success.tolist() for success in told] == [[True, True, True, False], [False] * 4]


# --------------------------------------------------------------------------------------------------- the real packages


@pytest.mark.skipif(find_spec("metaworld") is None, reason="metaworld is not installed")
def test_scripted_policies_solve_their_tasks_and_earn_about_what_the_published_data_do() -> None:
    """Measured with metaworld 3.1.1: 49 of 50 solved (not door-open from this state), 1019 and 1205 a task on average."""
    for split, solved, mean in (("train", 40, 1019), ("eval", 4, 1205)):
        tasks = registry.tasks("meta_world", {}, split)
        world = registry.make_world("meta_world", {}, tasks, np.arange(len(tasks), dtype=np.uint64))
        world.reset()
        returns = np.zeros(len(tasks))
        for _ in range(world.horizon):
            _, rewards, _, _, info = world.step(world.scripted_actions())  # type: ignore[attr-defined]
            returns += rewards
        assert info["success"].sum() >= solved
        assert returns.mean() == pytest.approx(mean, rel=0.1)


@pytest.mark.skipif(find_spec("dm_control") is None, reason="dm_control is not installed")
def test_a_random_policy_earns_about_what_is_published() -> None:
    """Published: means of 10 episodes."""
    tasks = registry.tasks("dm_control", {}, "train")
    world = registry.make_world("dm_control", {}, tasks, np.arange(len(tasks), dtype=np.uint64))
    world.reset()
    returns, rng = np.zeros(len(tasks)), np.random.default_rng(0)
    for _ in range(world.horizon):
        returns += world.step(rng.uniform(-1, 1, (len(tasks), 6)).astype(np.float32))[1]
    published = {task.name: task.data["normalisation"]["data_normalised"][0] for task in tasks}
    found = dict(zip(published, returns.tolist(), strict=True))
    for name in ("walker-stand", "walker-run", "cartpole-swingup"):  # little depends on the start
        assert found[name] == pytest.approx(published[name], rel=0.6), name
    assert found["hopper-stand"] < 20 and found["finger-spin"] < 20


@pytest.mark.skipif(find_spec("metaworld") is None, reason="metaworld is not installed")
def test_annealed_histories_of_meta_world_get_better() -> None:
    options = {"only": ["drawer-close", "plate-slide"], "initial_states": "random"}
    tasks = registry.tasks("meta_world", options, "train")
    settings = source_policies.Hyperparameters(policy="noise_annealed", transitions=1200)
    arrays = source_policies.generate("meta_world", options, tasks, settings, seed=0)
    assert arrays["action"].dtype == np.float32 and arrays["action"].shape == (2400, 4)
    assert np.abs(arrays["action"]).max() <= 1 and (arrays["observation"][:, 36:] == 0).all()
    returns = arrays["reward"].reshape(2, 6, 200).sum(2)
    assert (returns[:, -1] > 2 * returns[:, 0]).all()


@pytest.mark.slow
def test_a_random_source_plays_continuous_actions_and_resumes_its_own_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_suite.install(monkeypatch)
    tasks = registry.tasks("dm_control", FAKED, "train")
    settings = source_policies.Hyperparameters(transitions=2000)
    arrays = source_policies.generate("dm_control", FAKED, tasks, settings, seed=0)
    action = arrays["action"].reshape(3, 2000, 6)
    assert np.abs(action).max() <= 1 and np.abs(action.mean((0, 1))).max() < 0.05
    np.testing.assert_allclose(action.std((0, 1)), 1 / np.sqrt(3), rtol=0.03)
    alone = source_policies.generate("dm_control", FAKED, tasks[1:2], settings, seed=0)
    np.testing.assert_array_equal(alone["action"], action[1])
    with pytest.raises(UserError, match="no scripted expert"):
        source_policies.generate(
            "dm_control", FAKED, tasks, source_policies.Hyperparameters(policy="noise_annealed"), seed=0
        )


# ------------------------------------------------------------------------------------------------------ published data


@pytest.mark.parametrize("shown", [False, True])
def test_published_files_of_a_simulated_world_are_read_and_refused_where_they_show_a_hidden_goal(
    shown: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the layout of one npz per task with the shapes of a replay buffer (RA-DT, specification 2.3)."""
    fake_suite.install(monkeypatch)
    tasks, rng = registry.tasks("dm_control", FAKED, "train"), np.random.default_rng(0)
    for task in tasks:
        observations = rng.normal(size=(18, 1, 204)).astype(np.float32)
        observations[:, :, dm_control.GOAL] *= shown
        done = np.arange(18)[:, None] % 9 == 8
        actions, rewards = rng.uniform(-1, 1, (18, 1, 6)).astype(np.float32), rng.random((18, 1), np.float32)
        np.savez(tmp_path / f"{task.name}.npz", observations=observations, actions=actions, rewards=rewards, dones=done)
    settings = published_files.Hyperparameters(folder=str(tmp_path), files="{name}")
    if shown:
        with pytest.raises(UserError, match="observations"):
            published_files.generate("dm_control", FAKED, tasks, settings, seed=0)
    else:
        arrays = published_files.generate("dm_control", FAKED, tasks, settings, seed=0)
        assert arrays["action"].shape == (54, 6) and arrays["observation"].shape == (54, 204)
        np.testing.assert_array_equal(arrays["action"][36:], actions[:, 0])


def test_a_package_that_logs_at_its_import_adds_nothing_to_what_a_program_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As dm_control does. Snakemake's lines would come twice, once in the format of the new handler."""
    (tmp_path / "loud_package.py").write_text("import logging\nlogging.info('here I am')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(logging.root, "handlers", [])
    needed("loud_package", "loud")
    assert logging.root.handlers == []
