"""MiniGrid: the images of the package's own wrappers to the pixel, its rewards and ends, seeding, and exact resume."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from minigrid.wrappers import ImgObsWrapper, RGBImgPartialObsWrapper

from recollect.environments import mini_grid, registry
from recollect.environments.base import World
from recollect.settings.errors import UserError

TASKS = [
    "KeyCorridorS3R1",
    "MemoryS11",
    "RedBlueDoors-6x6",
    "DoorKey-5x5",
    "DoorKey-6x6",
    "Dynamic-Obstacles-5x5",
    "Dynamic-Obstacles-Random-5x5",
    "Unlock",
]
FORWARD, PICK_UP, TOGGLE = 2, 3, 5


def make(task: str, which: list[int], mode: AutoresetMode = AutoresetMode.DISABLED) -> World:
    """Instance `number` with seed `number`."""
    listed = registry.tasks("mini_grid", {"task": task}, "train") * len(which)
    return registry.make_world("mini_grid", {"task": task}, listed, np.array(which, np.uint64), mode)


def plain(task: str) -> gymnasium.Env[np.ndarray, int]:
    """The package's own stack of wrappers."""
    unnamed = {"MemoryS5": ("MemoryS7", {"size": 5})}
    name, options = unnamed.get(task, (task, {}))
    inner = gymnasium.make(f"MiniGrid-{name}-v0", **options)
    return ImgObsWrapper(RGBImgPartialObsWrapper(inner, tile_size=8))


def eager(rng: np.random.Generator, env: Any) -> int:
    """A random action that picks up and opens what it meets more often than chance does."""
    ahead = env.unwrapped.grid.get(*env.unwrapped.front_pos)
    if ahead is not None and env.action_space.n > 3 and rng.random() < 0.5:
        return PICK_UP if ahead.can_pickup() else TOGGLE
    return int(rng.choice(env.action_space.n)) if rng.random() < 0.6 else FORWARD


@pytest.mark.quick("KeyCorridorS3R1", "MemoryS11")
@pytest.mark.parametrize(
    "task", [*TASKS, "MemoryS7", "MemoryS5", "ObstructedMaze-2Dlh", "LavaCrossingS9N2", "Fetch-8x8-N3"]
)
def test_images_rewards_and_ends_are_those_of_the_packages_wrappers(task: str) -> None:
    world, others = make(task, [0, 1, 2]), [plain(task) for _ in range(3)]
    seen, _ = world.reset()
    expected = [env.reset(seed=int(word))[0] for env, word in zip(others, world.get_state()["word"], strict=True)]
    rng, carried, opened = np.random.default_rng(0), 0, 0
    for _ in range(130):
        assert seen.dtype == np.uint8
        for image, theirs in zip(seen, expected, strict=True):
            assert np.array_equal(image, theirs.transpose(2, 0, 1))
        actions = np.array([eager(rng, env) for env in others])
        seen, rewards, terminated, truncated, info = world.step(actions)
        for i, env in enumerate(others):
            expected[i], reward, over, cut, _ = env.step(int(actions[i]))
            assert (rewards[i], terminated[i], truncated[i]) == (np.float32(reward), over, cut and not over)
            if over or cut:
                assert info["success"][i] == (reward > 0)
                assert np.array_equal(seen[i], expected[i].transpose(2, 0, 1))
            inner: Any = env.unwrapped
            carried += inner.carrying is not None
            opened += any(thing is not None and thing.type == "door" and thing.is_open for thing in inner.grid.grid)
        ended = terminated | truncated
        if ended.any():
            seen, _ = world.reset(options={"reset_mask": ended})
            for i in np.flatnonzero(ended):
                expected[i] = others[i].reset(seed=int(world.get_state()["word"][i]))[0]
    # The walks have met what is drawn in a special way.
    if task in ("KeyCorridorS3R1", "DoorKey-5x5", "DoorKey-6x6", "Unlock", "Fetch-8x8-N3", "ObstructedMaze-2Dlh"):
        assert carried
    if task in ("KeyCorridorS3R1", "RedBlueDoors-6x6", "DoorKey-5x5", "DoorKey-6x6"):
        assert opened


def test_the_reward_of_a_success_falls_with_its_step() -> None:
    """MemoryS7, 245 steps: 1 - 0.9 * step / 245 on the cell before the matching object, 0 before the other one."""
    world = make("MemoryS7", list(range(40)))
    world.reset()
    inner: list[Any] = world.inner  # type: ignore[attr-defined]
    to_the_fork = np.array([one.success_pos[0] - one.agent_pos[0] for one in inner])
    down = [one.success_pos[1] > one.agent_pos[1] for one in inner]
    rights = np.arange(40) % 4 == 0  # these go the wrong way
    over = np.zeros(40, bool)
    for t in range(1, 12):
        turn = np.where(np.array(down) ^ rights, 1, 0)
        actions = np.where(t <= to_the_fork, FORWARD, np.where(t == to_the_fork + 1, turn, FORWARD))
        _, rewards, terminated, _, info = world.step(actions)
        arrived = (t == to_the_fork + 2) & ~over
        assert (terminated[~over] == arrived[~over]).all()
        np.testing.assert_allclose(rewards[arrived], np.where(rights, 0, 1 - 0.9 * t / 245)[arrived], rtol=1e-6)
        if arrived.any():
            assert (info["success"][arrived] == ~rights[arrived]).all()
            world.reset(options={"reset_mask": terminated})
        over |= arrived
    assert over.all()


def test_an_instance_depends_on_its_seed_and_actions_only_and_is_new_in_each_episode() -> None:
    together, alone = make("DoorKey-6x6", [3, 4, 5]), make("DoorKey-6x6", [4])
    rng, words = np.random.default_rng(1), set()
    for _ in range(3):
        first, start = together.reset()[0], alone.reset()[0]
        words.add(first[1].tobytes())
        for _ in range(30):
            assert np.array_equal(first[1], start[0])
            actions = rng.integers(0, 7, 3)
            first, start = together.step(actions)[0], alone.step(actions[1:2])[0]
    assert len(words) == 3


@pytest.mark.quick(
    "0-AutoresetMode.SAME_STEP-KeyCorridorS3R1",
    "1-AutoresetMode.DISABLED-KeyCorridorS3R1",
    "57-AutoresetMode.SAME_STEP-Dynamic-Obstacles-Random-5x5",
)
@pytest.mark.parametrize("task", ["Dynamic-Obstacles-Random-5x5", "KeyCorridorS3R1"])
@pytest.mark.parametrize("mode", [AutoresetMode.DISABLED, AutoresetMode.SAME_STEP])
@pytest.mark.parametrize("steps", [0, 1, 57])
def test_a_world_with_a_set_state_goes_on_to_the_bit(task: str, mode: AutoresetMode, steps: int) -> None:
    first, second = make(task, [0, 1, 2], mode), make(task, [0, 1, 2], mode)

    def play(world: World, count: int, seed: int) -> list[Any]:
        rng, found = np.random.default_rng(seed), []
        for _ in range(count):
            if mode is AutoresetMode.DISABLED:
                found.append(world.reset(options={"reset_mask": world.get_state()["ended"]})[0].tolist())
            step = world.step(rng.integers(0, world.single_action_space.n, 3))  # type: ignore[attr-defined]
            found.append([array.tolist() for array in step[:4]])
        return found

    first.reset(seed=5)
    second.reset(seed=6)
    play(first, steps, 1)
    play(second, 9, 2)
    second.set_state(first.get_state())
    assert play(first, 40, 3) == play(second, 40, 3)


def test_moves_only_leaves_out_actions_and_changes_nothing_else() -> None:
    listed, seeds = mini_grid.tasks("train", task="MemoryS7") * 4, np.arange(4, dtype=np.uint64)
    published = mini_grid.MiniGrid(listed, seeds=seeds, task="MemoryS7")
    moves = mini_grid.MiniGrid(listed, seeds=seeds, task="MemoryS7", moves_only=True)
    assert (moves.single_action_space.n, published.single_action_space.n) == (3, 7)  # type: ignore[attr-defined]
    assert np.array_equal(moves.reset()[0], published.reset()[0])
    draws = np.random.default_rng(0)
    for _ in range(20):
        actions = draws.integers(0, 3, 4)
        assert np.array_equal(moves.step(actions)[0], published.step(actions)[0])
        for world in (moves, published):
            world.reset(options={"reset_mask": world.get_state()["ended"]})


def test_an_instance_that_has_not_begun_can_be_looked_at() -> None:
    world = make("MemoryS7", [0, 1])
    images, _ = world.reset(options={"reset_mask": np.array([True, False])})
    assert images[1].any()
    other = make("MemoryS7", [0, 1])
    other.set_state(world.get_state())
    assert np.array_equal(other.reset(options={"reset_mask": np.zeros(2, bool)})[0], images)


def test_no_display_is_opened() -> None:
    import pygame

    pygame.display.quit()  # another test may have opened one
    make("MemoryS7", [0]).reset()
    assert not pygame.display.get_init()


@pytest.mark.parametrize(("task", "hint"), [("MemoryS12", "MemoryS1"), ("Memroy", "known|did you mean")])
def test_an_unknown_task_is_refused_with_a_hint(task: str, hint: str) -> None:
    with pytest.raises(UserError, match=f"there is no task '{task}'") as refused:
        mini_grid.tasks("train", task=task)
    assert refused.value.do
