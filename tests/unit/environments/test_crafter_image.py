"""Our drawing of Crafter gives the bytes of the package's, and our steps give its game."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import Image

from recollect.environments import crafter, crafter_image

objects = pytest.importorskip("crafter.objects", reason="crafter is not installed")

DIRECTIONS = ((-1, 0), (1, 0), (0, -1), (0, 1))
LIGHTS = (0.0, 0.03, 0.31, np.nextafter(0.5, 0), 0.5, 0.66, 0.97, 1.0)


def begun(word: int, observation: str = "crop") -> crafter.Player:
    player = crafter.Player(crafter.Options(observation=observation, instructions=False))  # type: ignore[arg-type]
    player.begin(word)
    return player


def check(player: crafter.Player) -> np.ndarray:
    """Our images of both heights against the package's; gives the package's."""
    before = player.inner._world.random.get_state()[1].tolist()
    image_CHW = player._image().transpose(2, 0, 1)
    for height in (64, 48):
        drawn_CHW = np.zeros((3, height, 64), np.uint8)
        player._painter.draw(player.word, drawn_CHW)
        np.testing.assert_array_equal(drawn_CHW, image_CHW[:, :height])
    assert player.inner._world.random.get_state()[1].tolist() == before
    return image_CHW


def put(player: crafter.Player, thing: Any) -> None:
    if player.inner._world._obj_map[tuple(thing.pos)] == 0:
        player.inner._world.add(thing)


def any_thing(player: crafter.Player, draws: np.random.Generator, place: tuple[int, int]) -> Any:
    world, person = player.inner._world, player.inner._player
    plant = objects.Plant(world, place)
    plant.grown = int(draws.integers(600))
    ways = np.array(DIRECTIONS)
    kinds = [objects.Cow(world, place), objects.Fence(world, place), plant, objects.Zombie(world, place, person)]
    kinds += [objects.Skeleton(world, place, person), objects.Arrow(world, place, ways[draws.integers(4)])]
    return kinds[draws.integers(len(kinds))]


@pytest.mark.parametrize("word", [0, 7])
def test_every_image_of_an_episode_is_the_packages(word: int) -> None:
    """The player is kept alive over a whole day and night, and sleeps through a part of both."""
    player, draws = begun(word), np.random.default_rng(word)
    lights, slept, images = [], 0, set()
    for step in range(330):
        person = player.inner._player
        person.inventory.update(health=9 - step % 9, food=9, drink=9, energy=9 if step % 40 < 30 else 3)
        person._last_health = person.health
        player.step(6 if step % 40 == 30 else draws.integers(17))
        images.add(check(player).tobytes())
        lights.append(player.inner._world.daylight)
        slept += person.sleeping
    assert min(lights) < 0.1 and max(lights) > 0.9 and slept > 20 and len(images) > 300


def test_every_ground_and_thing_is_drawn_by_day_and_night_awake_and_asleep() -> None:
    """In drawn worlds full of things, at the borders and within; with any number of any item."""
    player, draws = begun(3), np.random.default_rng(3)
    world, person = player.inner._world, player.inner._player
    seen = set()
    for scene in range(80):
        for thing in world.objects:
            if thing is not person:
                world.remove(thing)
        world._mat_map[:] = draws.integers(len(world._mat_names), size=world.area)
        x, y = (int(draws.choice([0, 1, 2, 3, 4, 30, 31, 59, 60, 61, 62, 63])) for _ in range(2))
        if (x, y) != tuple(person.pos):
            world.move(person, (x, y))
        person.facing = DIRECTIONS[draws.integers(4)]
        person.sleeping = scene % 3 == 0
        for item in person.inventory:
            person.inventory[item] = int(draws.integers(-1, 13)) if scene % 4 else 9 * (scene % 8 // 4)
        for _ in range(40):
            place = tuple((np.array([x, y]) + draws.integers((-6, -5), (7, 6))).clip(0, 63))
            put(player, any_thing(player, draws, place))
        world.daylight = np.float64(LIGHTS[scene % len(LIGHTS)])
        player.inner._step = scene
        check(player)
        seen |= {thing.texture for thing in world.objects}
    assert seen == set(crafter_image.THINGS)


@pytest.mark.parametrize("observation", ["crop", "render", "textures"])
def test_steps_are_the_packages_and_looks_what_it_shows(observation: str) -> None:
    """One game is stepped by the package alone, but for the order of creatures (see the head of `crafter.py`)."""
    ours, plain = begun(11, observation), begun(11, observation)
    del plain.inner._player.distance
    draws = np.random.default_rng(11)
    for _ in range(150):
        action = int(draws.integers(17))
        for player in (ours, plain):
            player.inner._player.inventory.update(health=9, food=9, drink=9)
        reward, over = ours.step(action)
        _, plain_reward, plain_over, info = plain.inner.step(action)
        assert (reward, over) == (plain_reward, bool(plain_over))
        assert ours.achievements == info["achievements"] and ours.inner._player.inventory == info["inventory"]
        np.testing.assert_array_equal(ours.inner._sem_view(), info["semantic"])
        np.testing.assert_array_equal(ours.inner._world._obj_map, plain.inner._world._obj_map)
        person = ours.inner._player
        for thing in ours.inner._world.objects:
            assert person.distance(thing) == person.distance(thing.pos) == type(person).distance(person, thing)
        seen = ours.look()
        if observation == "textures":
            x, y = person.pos
            around_XY = np.pad(info["semantic"] + 1, ((4, 4), (3, 3)))[x : x + 9, y : y + 7]
            np.testing.assert_array_equal(seen[:63].reshape(7, 9), around_XY.T)
        else:
            image_CHW = plain._image()[: 48 if observation == "crop" else 64].transpose(2, 0, 1)
            assert seen.dtype == np.uint8
            np.testing.assert_array_equal(seen[: image_CHW.size], image_CHW.ravel())
            rest = list(info["inventory"].values()) if observation == "crop" else []
            assert seen[image_CHW.size :].tolist() == rest


def test_gray_is_pillows_for_every_colour() -> None:
    green, blue = np.meshgrid(*(np.arange(256, dtype=np.int32),) * 2, indexing="ij")
    for red in range(256):
        colour_CHW = np.stack([np.full_like(green, red), green, blue])
        image = Image.fromarray(np.ascontiguousarray(colour_CHW.transpose(1, 2, 0).astype(np.uint8)))
        np.testing.assert_array_equal(crafter_image.gray_of(colour_CHW), np.array(image.convert("L")))


def test_a_person_sees_the_packages_large_image() -> None:
    player = begun(5)
    large = player.render()
    assert large.shape == (378, 378, 3) and (large == player.inner.render((378, 378))).all()
