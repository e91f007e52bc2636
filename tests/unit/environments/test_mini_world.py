"""MiniWorld: rewards of the published tasks, images that are an instance's own, seeding and resume, where the package is."""

from __future__ import annotations

import sys
from functools import partial
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from recollect.environments import mini_world, registry
from recollect.environments.base import World
from recollect.settings.errors import UserError

TASKS = ["CollectHealth", "FourRooms", "MazeS3Fast", "PickupObjects", "PutNext", "Sign", "TMaze", "YMaze"]
with_miniworld = pytest.mark.skipif(find_spec("miniworld") is None, reason="miniworld is not installed")


def make(task: str, which: list[int]) -> World:
    """Instance `number` with seed `number`."""
    listed = registry.tasks("mini_world", {"task": task}, "train") * len(which)
    return registry.make_world("mini_world", {"task": task}, listed, np.array(which, np.uint64))


def play(world: World, which: list[int], steps: int, seed: int) -> list[Any]:
    """What each step gave each instance; its actions depend on its number and the step only."""
    found, actions = [], int(world.single_action_space.n)  # type: ignore[attr-defined]
    for step in range(steps):
        done = world.get_state()["ended"]
        if done.any():
            world.reset(options={"reset_mask": done})
        given = np.array([np.random.default_rng([seed, n, step]).integers(actions) for n in which])
        images, rewards, terminated, *_ = world.step(given)
        found.append([(image.tobytes(), *x) for image, *x in zip(images, rewards, terminated, strict=True)])
    return found


def test_a_missing_package_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyglet", None)
    tasks = registry.tasks("mini_world", {}, "train")
    with pytest.raises(UserError, match="needs the package 'pyglet'") as refused:
        registry.make_world("mini_world", {}, tasks, np.zeros(1, np.uint64))
    assert "FAMILY=miniworld" in refused.value.do


def test_an_unknown_task_is_refused() -> None:
    with pytest.raises(UserError, match="'CollectHealth', 'FourRooms'"):
        registry.tasks("mini_world", {"task": "TMase"}, "train")


@with_miniworld
@pytest.mark.parametrize("task", TASKS)
def test_the_package_has_the_published_horizons_and_actions(task: str) -> None:
    world = make(task, [0, 1, 2])  # of which one may face a wall
    inner: Any = world.players[0].inner  # type: ignore[attr-defined]
    assert (world.horizon, world.single_action_space.n) == (inner.max_episode_steps, inner.action_space.n)  # type: ignore[attr-defined]
    images, _ = world.reset()
    assert images.shape == (3, 3, 60, 80) and images.dtype == np.uint8 and images.std() > 5


@with_miniworld
@pytest.mark.parametrize("task", ["MazeS3Fast", "Sign"])
def test_an_instance_sees_its_own_rooms_whoever_else_stands_in_the_batch(task: str) -> None:
    which = [0, 1, 2]
    together = make(task, which)
    together.reset()
    rows = play(together, which, 12, 1)
    for place in (0, 2):
        alone = make(task, [place])
        alone.reset()
        for mine, theirs in zip(play(alone, [place], 12, 1), rows, strict=True):
            assert mine[0] == theirs[place]
    assert len({row[0] for row in rows[0]}) == 3 or task == "Sign"


@with_miniworld
def test_images_are_those_that_the_package_draws() -> None:
    """Of an environment whose list of still things is drawn last, so that no other one is in its way."""
    world = make("MazeS3Fast", [0])
    images, _ = world.reset()
    player: Any = world.players[0]  # type: ignore[attr-defined]
    player.inner._render_static()
    assert np.array_equal(player.draw().transpose(2, 0, 1), images[0])


@with_miniworld
@pytest.mark.parametrize("task", TASKS)
def test_images_are_those_that_the_package_reads(task: str) -> None:
    world = make(task, [0, 1, 2])
    images, _ = world.reset()
    draws = np.random.default_rng(4)
    for _ in range(10):
        for player, image in zip(world.players, images, strict=True):  # type: ignore[attr-defined]
            ours = player.image.resolve
            player.image.resolve = partial(type(player.image).resolve, player.image)
            mini_world._drawn.list = player.list
            assert np.array_equal(player.draw().transpose(2, 0, 1), image)
            player.image.resolve = ours
        images, _, terminated, *_ = world.step(draws.integers(3, size=3))
        if terminated.any():
            break


def test_what_is_seen_is_of_now_drawn_once_and_with_the_list_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    now, drawn = [0], []

    def draw() -> np.ndarray:
        drawn.append(mini_world._drawn.list)
        return np.full((60, 80, 3), [now[0], 100, 200], np.uint8)

    def step(action: int) -> tuple[Any, ...]:
        now[0] += action
        return None, 0.5, action == 2, False, {}

    monkeypatch.setattr(mini_world._drawn, "list", 1)
    player = mini_world.Player.__new__(mini_world.Player)
    player.list, player.seen, player.draw = 7, None, draw
    player.inner = SimpleNamespace(reset=lambda seed: now.__setitem__(0, seed), step=step)
    for do, shade in ((partial(player.begin, 3), 3), (partial(player.step, 2), 5), (partial(player.begin, 9), 9)):
        assert do() in (None, (0.5, True))
        for _ in range(2):
            mini_world._drawn.list = 1  # another one's
            assert player.look().shape == mini_world.SHAPE
            assert [np.unique(colour).tolist() for colour in player.look()] == [[shade], [100], [200]]
    assert drawn == [7] * 3


@with_miniworld
def test_what_opengl_could_not_do_is_told() -> None:
    world = make("TMaze", [0])
    world.reset()
    world.players[0].gl.glEnable(0xFFFF)  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="error 0x500"):
        world.step(np.array([0]))


@with_miniworld
def test_a_world_with_a_set_state_goes_on_to_the_bit() -> None:
    first, second = make("CollectHealth", [0, 1]), make("CollectHealth", [0, 1])
    first.reset(seed=5)
    second.reset(seed=6)
    play(first, [0, 1], 30, 1)
    second.set_state(first.get_state())
    assert play(first, [0, 1], 25, 2) == play(second, [0, 1], 25, 2)


@with_miniworld
@pytest.mark.parametrize(
    ("task", "low", "high"),
    [
        ("Sign", (4.4, 4.4), (4.6, 5.6)),
        ("TMaze", (-0.6, -1.6), (7.6, 1.6)),
        ("YMaze", (-8.75, -1.6), (-1.55, 1.6)),
    ],
)
def test_the_agent_begins_where_the_released_package_has_it(
    task: str, low: tuple[float, float], high: tuple[float, float]
) -> None:
    """gym_miniworld/miniworld.py:885 at ff61a67: its radius, 0.4, inside of what the task asks for."""
    player = mini_world.Player(task)
    for word in range(40):
        player.begin(word)
        place = player.inner.agent.pos[[0, 2]]
        assert (np.array(low) - 1e-6 <= place).all() and (place <= np.array(high) + 1e-6).all()
        if task == "TMaze":  # in the last two metres of an arm that ends at 8
            box = player.inner.box
            assert 6 + box.radius <= abs(box.pos[2]) <= 8 - box.radius
        assert player.inner.entities.count(player.inner.agent) == 1


@with_miniworld
def test_passages_are_begun_in_as_often_as_their_floor_is_large() -> None:
    """Four of 2 x 2 metres beside four rooms of 6 x 6."""
    player, often = mini_world.Player("FourRooms"), 0
    for word in range(200):
        player.begin(word)
        x, _, z = player.inner.agent.pos
        often += bool(abs(x) < 1 or abs(z) < 1)
    assert 8 <= often <= 36  # 20 wanted, 6 where rooms are drawn before places are refused


class Room(SimpleNamespace):
    def point_inside(self, place: Any) -> bool:
        return bool(self.min_x <= place[0] <= self.max_x and self.min_z <= place[2] <= self.max_z)


def test_things_stand_a_radius_inside_of_their_bounds_and_rooms_are_drawn_by_their_floor() -> None:
    rooms = [
        Room(min_x=0.0, max_x=6.0, min_z=0.0, max_z=6.0),
        Room(min_x=6.0, max_x=8.0, min_z=0.0, max_z=2.0),
        Room(min_x=6.0, max_x=6.25, min_z=3.0, max_z=6.0),  # narrower than a thing
    ]
    inner: Any = SimpleNamespace(rooms=rooms, entities=[], wall_segs=[], np_random=np.random.default_rng(0))
    inner.intersect = lambda thing, place, free: False

    def static() -> None:
        inner.wall_segs, inner.room_probs = [1], np.array([36, 4, 0.75]) / 40.75

    def place(thing: Any, pos: Any = None, dir: Any = None) -> Any:
        thing.pos = pos
        inner.entities.append(thing)
        return thing

    inner.place_entity, inner._gen_static_data = place, static
    placed = mini_world.inside_of_bounds(inner)
    found = np.array([placed(SimpleNamespace(radius=0.4), min_x=None).pos for _ in range(4000)])
    assert len(inner.entities) == 4000
    small, narrow = found[:, 0] > 6, (found[:, 0] > 6) & (found[:, 2] >= 3)
    inside = found[small & ~narrow]
    assert inside[:, 0].min() >= 6.4 and inside[:, 0].max() <= 7.6 and inside[:, 2].max() <= 1.6
    assert found[~small].min(0)[0] >= 0.4 and found[~small].max(0)[0] <= 5.6
    assert len(inside) / 4000 == pytest.approx(4 / 40.75, abs=0.02)
    assert narrow.mean() == pytest.approx(0.75 * 0.25 / 0.55 / 40.75, abs=0.006)
    bound = [placed(SimpleNamespace(radius=0.4), room=rooms[0], max_z=2.0).pos[2] for _ in range(200)]
    assert min(bound) >= 0.4 and max(bound) <= 1.6
    assert placed(SimpleNamespace(radius=0.4), pos=(0, 0, 0)).pos == (0, 0, 0)


class Ending:
    """A stand-in for a player, whose episodes end at once with one reward."""

    def __init__(self, task: str) -> None:
        self.reward = -100.0 if task == "CollectHealth" else 0.9

    def begin(self, word: int) -> None:
        pass

    def step(self, action: Any) -> tuple[float, bool]:
        return self.reward, True

    def look(self) -> np.ndarray:
        return np.zeros(mini_world.SHAPE, np.uint8)


def test_collect_health_which_only_death_ends_has_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mini_world, "Player", Ending)
    for task in TASKS:
        world = make(task, [0])
        world.reset()
        *_, info = world.step(np.array([0]))
        assert ("success" in info) == (task != "CollectHealth"), task
        assert task == "CollectHealth" or info["success"].tolist() == [True]


def test_actions_are_called_what_they_do_in_their_task() -> None:
    named = {task: registry.action_names("mini_world", {"task": task}) for task in TASKS}
    assert [len(names) for names in named.values()] == [8, 3, 3, 5, 8, 4, 3, 3]
    assert named["PickupObjects"][3] == "back" and named["Sign"][3] == "end"


def test_tasks_have_the_published_steps_and_actions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Specification 2.4."""
    monkeypatch.setattr(mini_world, "Player", Ending)
    worlds: list[Any] = [make(task, [0]) for task in TASKS]
    steps, actions = [1000, 250, 300, 400, 250, 20, 280, 280], [8, 3, 3, 5, 8, 4, 3, 3]
    assert [world.horizon for world in worlds] == steps
    assert [world.single_action_space.n for world in worlds] == actions


@with_miniworld
def test_doing_nothing_in_collect_health_costs_two() -> None:
    """Specification 2.4: 49 x 2 - 100, and the episode is over."""
    world = make("CollectHealth", [0])
    world.reset()
    rewards = []
    for _ in range(50):
        _, reward, terminated, *_ = world.step(np.array([7]))
        rewards.append(float(reward[0]))
    assert rewards == [2.0] * 49 + [-100.0] and terminated[0]


@with_miniworld
def test_action_three_ends_sign_without_a_reward() -> None:
    world = make("Sign", [0])
    world.reset()
    _, reward, terminated, truncated, info = world.step(np.array([3]))
    assert (reward[0], terminated[0], truncated[0], info["success"][0]) == (0.0, True, False, False)
