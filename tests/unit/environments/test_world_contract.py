"""What every world promises: independence of instances, exact resume, masks, modes, errors, gymnasium's rules."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from itertools import cycle
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from recollect.environments import checker, counter_rng, registry
from recollect.environments.base import Task, World
from recollect.settings.errors import UserError
from recollect.settings.loading import names
from recollect.settings.resolve import environment_settings

WORLDS: list[tuple[str, dict[str, Any]]] = [
    ("dark_room", {"width": 4, "height": 3}),
    ("key_door", {"width": 3, "height": 4, "key_reset": "sticky", "final_step_reward": "zero"}),
    ("tmaze", {"variant": "active", "length": 4}),
    ("maze_runner", {"size": 7, "horizon": 20, "most_goals": 2}),
    ("visual_match", {"variant": "active", "explore_steps": 4, "length": 7, "reward_steps": 5, "respawn": 2}),
    ("key_to_door", {"explore_steps": 5, "length": 6, "reward_steps": 4, "apple_reward_high": 3.0}),
    ("random_maze", {"smallest": 24, "horizon": 12}),
    ("mini_grid", {"task": "MemoryS7"}),
    ("continuous_recognition", {"trials": 5, "stimuli": 9, "horizon": 25}),
]
# Their episodes may end before the horizon, or they tell more at each step.
OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("meta_key_door", {"size": 3, "episode_steps": 6, "rollout_steps": 20, "randomize_actions": True}),
    ("meta_key_door", {"size": 3, "episode_steps": 6, "rollout_steps": 20, "timing": "head", "show_reset": True}),
    ("goal_maze", {"size": 7, "horizon": 20, "most_goals": 2, "randomize_actions": True}),
    ("alchemy", {"trials": 3, "trial_steps": 6}),
    ("frozen_lake_meta", {"size": 3, "attempts": 3, "hard": True, "slip": 0.2}),
    ("package_delivery", {"length": 12, "horizon": 25}),
    ("wind", {"horizon": 15}),
]
IDS = [gymnasium_id for gymnasium_id, _, _ in registry.gymnasium_ids()]
RANDOM_STARTS = [world for world in WORLDS if world[0] not in ("maze_runner", "continuous_recognition")]
ROOMS = ("dark_room", "key_door")
# Each world in one of the modes, as what they do is of all worlds.
IN_MODES = list(zip(WORLDS + OTHERS, cycle((AutoresetMode.DISABLED, AutoresetMode.SAME_STEP)), strict=False))


def make(
    name: str, options: dict[str, Any], which: Sequence[int], mode: AutoresetMode = AutoresetMode.DISABLED
) -> World:
    """Instance `number` plays task `number` (around the list) with seed `number`; task 0 of a room starts at random."""
    listed = registry.tasks(name, options, "train")
    if name in ROOMS:
        goal = {"goal": (0, 0), "key": (1, 1), "door": (0, 0)}
        listed = [Task(0, "start", "train", goal), *listed]
    chosen = [listed[number % len(listed)] for number in which]
    return registry.make_world(name, options, chosen, np.array(which, dtype=np.uint64), mode)


@pytest.mark.parametrize(("world", "mode"), IN_MODES)
def test_a_trace_does_not_depend_on_who_else_stands_in_the_batch(
    world: tuple[str, dict[str, Any]], mode: AutoresetMode
) -> None:
    """The checker resets instances at steps of their own."""
    assert list(checker.alone_as_together(partial(make, *world, mode=mode), [5, 0, 3], 30)) == []


@pytest.mark.parametrize(("world", "mode"), IN_MODES)
def test_a_world_with_a_set_state_continues_identically(world: tuple[str, dict[str, Any]], mode: AutoresetMode) -> None:
    assert list(checker.resumed(partial(make, *world, mode=mode), [0, 3, 0, 5], 34)) == []


@pytest.mark.parametrize("env", names("environments"))
def test_every_environment_that_can_be_made_here_passes_the_check(env: str) -> None:
    chosen = environment_settings("smoke", env)
    found = checker.findings(chosen.world, chosen.options, chosen.evaluation.splits)
    lacks = ("install", "Python of its own", "there is no ROM")  # a package, a Python, or a game
    if any(word in one.what + one.do for word in lacks for one in found):
        pytest.skip(found[0].what)
    assert found == []


@pytest.mark.parametrize(("name", "options"), WORLDS + OTHERS)
def test_what_follows_a_seed_does_not_depend_on_what_was_played_before(name: str, options: dict[str, Any]) -> None:
    world = make(name, options, range(12))

    def played() -> list[np.ndarray]:
        seen = [world.reset(seed=4)[0]]
        world.single_action_space.seed(1)
        for _ in range(15):
            observations, rewards, terminated, truncated, _ = world.step(
                np.stack([world.single_action_space.sample() for _ in range(12)])
            )
            seen += [observations, rewards, terminated, truncated]
            world.reset(options={"reset_mask": terminated | truncated})
        return seen

    for first, again in zip(played(), played(), strict=True):
        np.testing.assert_array_equal(first, again)


def test_new_streams_forget_all_that_lasts_from_episode_to_episode_without_a_line_in_the_world() -> None:
    class Counting(registry.world_class("wind")):  # type: ignore[misc]
        """Counts the episodes of an instance, from 10."""

        def _setup(self) -> None:
            super()._setup()
            self._episode_B = self._keep("episode", np.full(self.num_envs, 10))

        def _begin(self, index_N: np.ndarray) -> None:
            super()._begin(index_N)
            self._episode_B[index_N] += 1

    world = Counting(registry.tasks("wind", {}, "train")[:1] * 3, seeds=np.arange(3))
    world.reset()
    world.reset()
    world.reset(seed=1, options={"reset_mask": np.array([False, True, False])})
    assert world.get_state()["episode"].tolist() == [12, 11, 12]
    assert world.get_state()["timestep"].tolist() == [0, 0, 0]


@pytest.mark.parametrize(("name", "options"), RANDOM_STARTS)
def test_reset_with_a_seed_repeats_and_an_empty_mask_changes_nothing(name: str, options: dict[str, Any]) -> None:
    world = make(name, options, list(range(12)) * 4)

    def after_reset(seed: int | None = None) -> list[Any]:
        observations, _ = world.reset(seed=seed)
        drawn = world.get_state()[{"tmaze": "goal", "mini_grid": "word"}.get(name, "position")]
        return [observations.tolist(), drawn.tolist()]

    first = [after_reset(seed=4), after_reset()]
    assert [after_reset(seed=4), after_reset()] == first
    assert first[0] != first[1]
    assert after_reset(seed=5) != first[0]
    before = world.get_state()
    world.reset(options={"reset_mask": np.zeros(48, dtype=bool)})
    after = world.get_state()
    assert all((before[key] == after[key]).all() for key in before)


@pytest.mark.parametrize(("name", "options"), WORLDS)
def test_same_step_gives_the_final_and_the_first_observation(name: str, options: dict[str, Any]) -> None:
    world = make(name, options, [0, 1, 2], AutoresetMode.SAME_STEP)
    world.reset()
    action = np.ones(3, dtype=np.int64)
    for _ in range(3):  # let instance 1 be three steps behind the others
        world.step(action)
    world.reset(options={"reset_mask": np.array([False, True, False])})
    for step in range(3, 2 * world.horizon):
        before = world.get_state()["timestep"].tolist()
        observations, _, terminated, truncated, info = world.step(action)
        ends = [t + 1 == world.horizon for t in before]
        assert (terminated | truncated).tolist() == ends, step
        assert world.get_state()["timestep"].tolist() == [0 if t + 1 == world.horizon else t + 1 for t in before]
        assert (info["_final_obs"].tolist() if any(ends) else info) == (ends if any(ends) else {})
        if any(ends):
            for i in np.flatnonzero(~info["_final_obs"]):
                assert info["final_obs"][i].tolist() == observations[i].tolist()


def test_final_observation_is_where_the_episode_ended() -> None:
    options = {"width": 4, "height": 1}
    task = Task(0, "t", "train", {"goal": (3, 0)})
    world = registry.make_world("dark_room", options, [task], np.zeros(1), AutoresetMode.SAME_STEP)
    world.reset()
    for _ in range(3):
        world.step(np.array([1]))
    observations, rewards, _, truncated, info = world.step(np.array([1]))
    assert truncated.tolist() == [True]
    assert rewards.tolist() == [1.0]
    assert info["final_obs"].tolist() == [[0, 3]]
    assert observations.tolist() == [[0, 0]]


@pytest.mark.parametrize("steps", [3, 12])
def test_a_set_state_counts_the_steps_that_are_left_without_a_reset(steps: int) -> None:
    options = {"width": 4, "height": 3}
    first, second = make("dark_room", options, [1, 2]), make("dark_room", options, [1, 2])
    stay = np.full(2, 4)
    first.reset()
    for _ in range(steps):
        first.step(stay)
    second.set_state(first.get_state())
    for t in range(steps + 1, 13):
        assert second.step(stay)[3].tolist() == [t == 12] * 2
    with pytest.raises(UserError, match="2 of 2 instances"):
        second.step(stay)


def test_a_masked_reset_with_a_seed_gives_an_instance_the_stream_of_its_place() -> None:
    world, other = make("dark_room", {}, [0] * 6), make("dark_room", {}, [0] * 6)
    everyone = world.reset(seed=9)[0]
    other.reset(seed=1)
    mask = np.array([False, True, False, False, True, False])
    assert other.reset(seed=9, options={"reset_mask": mask})[0][mask].tolist() == everyone[mask].tolist()
    assert len({tuple(cell) for cell in everyone.tolist()}) > 1


class Countdown(World):
    """Ends instance i after i + 1 steps, or at the horizon of 3."""

    def __init__(self, count: int, mode: AutoresetMode, horizon_terminates: bool) -> None:
        self.horizon_terminates = horizon_terminates  # type: ignore[misc]
        named = [Task(i, "t", "train") for i in range(count)]
        super().__init__(named, seeds=np.zeros(count), autoreset_mode=mode)

    def _setup(self) -> None:
        self.horizon = 3
        self.single_observation_space = Box(0, 9, (1,), np.int32)
        self.single_action_space = Discrete(2)

    def _begin(self, index_N: np.ndarray) -> None:
        pass

    def _advance(self, actions_B: np.ndarray, last_B: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
        return np.zeros(self.num_envs, dtype=np.float32), self._timestep_B > np.arange(self.num_envs)

    def _observe(self) -> np.ndarray:
        return self._timestep_B[:, None].copy()


@pytest.mark.parametrize("horizon_terminates", [False, True])
def test_an_episode_that_ends_by_itself_is_terminated_and_never_also_truncated(horizon_terminates: bool) -> None:
    world = Countdown(4, AutoresetMode.SAME_STEP, horizon_terminates)
    world.reset()
    steps = [world.step(np.zeros(4, dtype=np.int64)) for _ in range(3)]
    assert [step[2].tolist() for step in steps] == [
        [True, False, False, False],
        [True, True, False, False],
        [True, False, True, horizon_terminates],
    ]
    assert [step[3].tolist() for step in steps] == [[False] * 4, [False] * 4, [False] * 3 + [not horizon_terminates]]
    assert [step[4]["final_obs"][0].tolist() for step in steps] == [[1], [1], [1]]
    assert [step[0].ravel().tolist() for step in steps] == [[0, 1, 1, 1], [0, 0, 2, 2], [0, 1, 0, 0]]


@pytest.mark.parametrize("horizon_terminates", [False, True])
def test_what_a_world_cuts_at_the_horizon_is_truncated_and_nothing_else(horizon_terminates: bool) -> None:
    class Cut(Countdown):
        """Cuts instance 3 at the horizon, where instance 4 comes to its end by time alone."""

        def _advance(self, actions_B: np.ndarray, last_B: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
            self._cut_B = (self._timestep_B == 3) & (np.arange(self.num_envs) == 3)
            return super()._advance(actions_B, last_B)

    world = Cut(5, AutoresetMode.SAME_STEP, horizon_terminates)
    world.reset()
    *_, (_, _, terminated, truncated, _) = [world.step(np.zeros(5, dtype=np.int64)) for _ in range(3)]
    assert terminated[2:].tolist() == [True, False, horizon_terminates]
    assert truncated[2:].tolist() == [False, True, not horizon_terminates]


def test_returned_arrays_are_never_written_again() -> None:
    world = make("dark_room", {"width": 4, "height": 3}, [1, 2, 3])
    kept = [world.reset()[0]]
    kept += [array for array in world.step(np.array([1, 2, 1])) if isinstance(array, np.ndarray)]
    copies = [array.copy() for array in kept]
    world.step(np.array([2, 1, 2]))
    world.reset()
    assert all((one == other).all() for one, other in zip(kept, copies, strict=True))


@pytest.mark.parametrize(("name", "options"), WORLDS)
def test_stepping_an_ended_or_never_reset_instance_is_refused(name: str, options: dict[str, Any]) -> None:
    world = make(name, options, [0, 1, 2])
    action = np.zeros(3, dtype=np.int64)
    with pytest.raises(UserError, match="3 of 3 instances"):
        world.step(action)
    world.reset()
    world.step(action)
    world.reset(options={"reset_mask": np.array([True, False, True])})
    for _ in range(world.horizon - 1):
        world.step(action)
    with pytest.raises(UserError, match=r"1 of 3 instances .*\(instances 1\)"):
        world.step(action)
    world.reset(options={"reset_mask": np.array([False, True, False])})
    _, _, terminated, truncated, _ = world.step(action)
    assert (terminated | truncated).tolist() == [True, False, True]


@pytest.mark.parametrize(
    "actions", [[0, 1], [0, 1, 5], [0, -1, 2], [0.0, 1.0, 2.0], [[0], [1], [2]], [True, False, True]]
)
def test_bad_actions_are_refused(actions: list[Any]) -> None:
    world = make("dark_room", {}, [1, 2, 3])
    world.reset()
    with pytest.raises(UserError, match=r"0\.\.4"):
        world.step(np.array(actions))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64])
def test_any_integer_type_of_actions_does(dtype: Any) -> None:
    world = make("dark_room", {"width": 4, "height": 4}, [1, 2, 3])
    world.reset()
    assert world.step(np.array([1, 2, 4], dtype=dtype))[0].tolist() == [[0, 1], [1, 0], [0, 0]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reset_mask": [1, 0, 1]}, "bool array"),
        ({"reset_mask": np.ones(2, dtype=bool)}, r"shape \(3,\)"),
        ({"mask": np.ones(3, dtype=bool)}, "reset_mask"),
    ],
)
def test_bad_reset_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make("dark_room", {}, [1, 2, 3]).reset(options=options)


def test_bad_states_are_refused_and_change_nothing() -> None:
    world = make("key_door", {}, [1, 2])
    world.reset()
    earlier = world.get_state()
    world.step(np.array([1, 2]))
    now = world.get_state()
    assert any((now[name] != earlier[name]).any() for name in now)
    with pytest.raises(UserError, match="has_key"):
        world.set_state({name: array for name, array in earlier.items() if name != "has_key"})
    with pytest.raises(UserError, match="expected"):
        world.set_state(make("key_door", {}, [1, 2, 3]).get_state())
    with pytest.raises(UserError, match="'draws' is int64"):
        world.set_state({name: array.astype(np.int64) if name == "draws" else array for name, array in earlier.items()})
    assert all((world.get_state()[name] == now[name]).all() for name in now)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("dark_room", {"widht": 4}, "did you mean 'width'"),
        ("dark_room", {"width": "4"}, "valid integer"),
        ("dark_room", {"width": 0}, "greater than or equal to 1"),
        ("key_door", {"key_reset": "stick"}, "'per_episode' or 'sticky'"),
        ("tmaze", {"variant": "lazy"}, "'passive' or 'active'"),
        ("maze_runner", {"most_goals": 0}, "greater than or equal to 1"),
        ("maze_runner", {"fewest_goals": 3, "most_goals": 2}, "fewest_goals 3 exceeds most_goals 2"),
        ("visual_match", {"apples": 23}, "less than or equal to 22"),
        ("visual_match", {"color_map": "per_run"}, "'per_episode', 'per_instance', 'per_world' or 'shared'"),
        ("key_to_door", {"reward_rom": "cca"}, "did you mean 'reward_room'"),
        ("dark_rom", {}, "did you mean 'dark_room'"),
        ("base", {}, "no world named 'base'"),
    ],
)
def test_bad_names_and_options_are_refused_with_a_hint(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        registry.tasks(name, options, "train")


def test_bad_splits_seeds_tasks_and_modes_are_refused() -> None:
    with pytest.raises(UserError, match="did you mean 'train'"):
        registry.tasks("dark_room", {}, "trian")
    listed = registry.tasks("dark_room", {}, "train")
    with pytest.raises(UserError, match="one seed per task"):
        registry.make_world("dark_room", {}, listed, np.zeros(3))
    with pytest.raises(UserError, match="at least one task"):
        registry.make_world("dark_room", {}, [], np.zeros(0))
    with pytest.raises(UserError, match="SAME_STEP"):
        registry.make_world("dark_room", {}, listed[:1], np.zeros(1), AutoresetMode.NEXT_STEP)
    with pytest.raises(UserError, match="no goal inside the room"):
        registry.make_world("dark_room", {"width": 3, "height": 3}, listed, np.zeros(80))
    listed = registry.tasks("maze_runner", {}, "train")
    with pytest.raises(UserError, match="no goals on free cells of a maze of 7 x 7"):
        registry.make_world("maze_runner", {"size": 7}, listed, np.zeros(100))
    with pytest.raises(UserError, match="no task 80"):
        gymnasium.make("recollect/DarkRoom-v0", task=80)


@pytest.mark.parametrize("gymnasium_id", IDS)
def test_registered_worlds_pass_gymnasiums_checker_without_a_warning(gymnasium_id: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make(gymnasium_id).unwrapped)


@pytest.mark.parametrize("gymnasium_id", IDS)
def test_batch_equals_gymnasiums_vector_of_single_worlds(gymnasium_id: str) -> None:
    batch = gymnasium.make_vec(gymnasium_id, num_envs=3, vectorization_mode="vector_entry_point")
    singles = [partial(gymnasium.make, gymnasium_id, task=task.index) for task in batch.tasks]
    loop = SyncVectorEnv(singles, autoreset_mode=AutoresetMode.SAME_STEP)
    assert batch.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert batch.single_observation_space == loop.single_observation_space
    loop.reset(seed=1)
    for env, seed in zip(loop.envs, counter_rng.instance_seeds(0, 3), strict=True):
        env.unwrapped.world.begin_streams(np.arange(1), seed[None])
    np.testing.assert_array_equal(batch.reset(seed=0)[0], loop.reset()[0])
    batch.action_space.seed(2)
    for _ in range(30):
        actions = batch.action_space.sample()
        ours, theirs = batch.step(actions), loop.step(actions)
        for mine, other in zip(ours[:4], theirs[:4], strict=True):
            np.testing.assert_array_equal(mine, other)
        assert batch.observation_space.contains(ours[0])
    loop.close()


def test_single_world_plays_the_asked_task() -> None:
    env = gymnasium.make("recollect/DarkRoom-v0", width=20, height=20, split="eval", task=0)
    env.reset(seed=0)
    rewards = [env.step(action)[1] for action in [1] * 16 + [2] * 12]
    assert rewards == [0.0] * 27 + [1.0]  # the goal is at x = 16, y = 12
    batch = gymnasium.make_vec("recollect/DarkRoom-v0", num_envs=82, vectorization_mode="vector_entry_point")
    assert [task.index for task in batch.tasks] == [*range(80), 0, 1]  # type: ignore[attr-defined]


def test_single_worlds_without_a_seed_begin_each_somewhere_else_and_go_on_from_there() -> None:
    worlds = []
    for _ in range(2):
        env = gymnasium.make("recollect/Wind-v0")
        env.reset()
        worlds.append(env.unwrapped.world)  # type: ignore[attr-defined]
        first = worlds[-1].get_state()
        env.reset()
        again = worlds[-1].get_state()
        assert (again["seeds"], again["draws"]) == (first["seeds"], 2 * first["draws"])
    assert (worlds[0].get_state()["wind"] != worlds[1].get_state()["wind"]).all()


def test_what_a_single_world_tells_where_it_ends_is_no_batch() -> None:
    env = gymnasium.make("recollect/KeyToDoor-v0", explore_steps=1, length=1)
    env.reset(seed=0)
    told: dict[str, Any] = {}
    while not told:
        *_, told = env.step(0)
    assert told.keys() == {"success"} and np.ndim(told["success"]) == 0


FORGETFUL: list[tuple[str, dict[str, Any]]] = [
    ("dark_room", {"width": 4, "height": 3}),
    ("key_door", {"width": 3, "height": 4}),
    ("tmaze", {"variant": "active", "length": 4}),
    ("maze_runner", {"size": 7, "horizon": 20, "most_goals": 2}),
    ("visual_match", {"explore_steps": 2, "length": 9, "reward_steps": 5, "respawn": 3}),
    ("key_to_door", {"explore_steps": 5, "length": 9, "reward_steps": 4, "respawn": 3}),
    ("random_maze", {"smallest": 5, "largest": 7, "horizon": 12}),
    ("continuous_recognition", {"trials": 5, "stimuli": 9, "horizon": 15}),
    ("meta_key_door", {"size": 3, "episode_steps": 6, "rollout_steps": 20, "timing": "head"}),
    ("goal_maze", {"size": 7, "horizon": 20, "most_goals": 2, "goals_shown": "before"}),
    ("alchemy", {"trials": 3, "trial_steps": 6}),
    ("frozen_lake_meta", {"size": 2, "attempts": 3, "hard": True}),
    ("package_delivery", {"length": 10, "most_packages": 3, "goals_shown": "before", "horizon": 90}),
    ("wind", {"horizon": 15}),
]


@pytest.mark.parametrize(("name", "options"), FORGETFUL)
def test_an_episode_is_the_same_after_others_as_in_a_new_world(name: str, options: dict[str, Any]) -> None:
    """The random stream is wound back; nothing else may be left of what was played."""

    def episode(world: Any, seed: int) -> list[np.ndarray]:
        draws, alive = np.random.default_rng(seed), np.ones(64, bool)
        found = [world.reset()[0]]
        while alive.any():
            box = world.single_action_space.shape
            action = (
                draws.uniform(-1, 1, (64, *box)).astype(np.float32)
                if box
                else draws.integers(world.single_action_space.n, size=64)
            )
            seen, reward, terminated, truncated, info = world.step(action)
            over = terminated | truncated
            found += [seen[alive], reward[alive], over[alive]]
            found += [info["success"][alive & over]] if "success" in info else []
            alive &= ~over
            if over.any() and alive.any():
                world.reset(options={"reset_mask": over})
        return found

    tasks = registry.tasks(name, options, "train")
    seeds = np.arange(64, dtype=np.uint64)
    played, new = (registry.make_world(name, options, [tasks[b % len(tasks)] for b in seeds], seeds) for _ in range(2))
    episode(played, 1)
    state = played.get_state()
    state["draws"][:] = 0
    played.set_state(state)
    for one, other in zip(episode(played, 2), episode(new, 2), strict=True):
        np.testing.assert_array_equal(one, other)
