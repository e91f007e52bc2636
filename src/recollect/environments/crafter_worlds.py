"""New worlds of Crafter: cell for cell, creature for creature and draw for draw those of the package, about ten times as fast.

The package asks for noise cell by cell. Here the noise of all cells is computed at once (`simplex_noise.py`), and so is what
follows from it without a draw. Only the cells whose ground or creature is drawn are gone through, in the package's order: x by
x, of an x all y. It draws no number that it does not need, so how many a cell takes depends on those that it drew before.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from recollect.environments.simplex_noise import Points, permutation
from recollect.environments.simulated import needed

Chances = Sequence[tuple[float, str]]
EVEN = ((1, 1), (1, 1))
# Noise that the package asks for: its z, its size in cells, and for x and y by what a cell's number is multiplied and divided.
LAYERS = {
    "start": (8, 3, EVEN),
    "water": (3, 15, EVEN),
    "water, fine": (3, 5, EVEN),
    "mountain": (0, 15, EVEN),
    "mountain, fine": (0, 5, EVEN),
    "cave": (6, 7, EVEN),
    "tunnel along y": (7, 3, ((2, 1), (1, 5))),
    "tunnel along x": (7, 3, ((1, 5), (2, 1))),
    "coal": (1, 8, EVEN),
    "iron": (2, 6, EVEN),
    "lava": (6, 5, EVEN),
    "beach": (4, 9, EVEN),
    "forest": (5, 7, EVEN),
}
CLOSE = 1e-9  # to a threshold: there the last bit of an exponential may decide
WALKABLE = ("grass", "path", "sand")
# What is drawn for a cell, in this order: it is there if the number drawn is above its threshold.
GROUNDS: Chances = ((0.85, "coal"), (0.75, "iron"), (0.994, "diamond"), (0.8, "tree"))
CREATURES: Chances = ((0.985, "Cow"), (0.993, "Zombie"), (0.95, "Skeleton"))


def begin(game: Any, word: int) -> None:
    """What `reset` of the package's `Env` does with this word as its seed, in its first episode; nothing is drawn to be seen."""
    objects, world = needed("crafter.objects", "crafter", family="amago"), game._world
    game._seed, game._episode, game._step = word, 1, 0
    world.reset(seed=hash((word, 1)) % (2**31 - 1))
    game._update_time()
    width, height = world.area
    game._player = player = objects.Player(world, (width // 2, height // 2))
    game._last_health = player.health
    game._unlocked = set()
    world.add(player)
    tunnel_XY = lay_grounds(world)
    for x, y, kind in creatures(world, tunnel_XY):
        others = () if kind == "Cow" else (player,)
        world.add(getattr(objects, kind)(world, (x, y), *others))


@lru_cache(maxsize=1)
def _points(area: tuple[int, int]) -> Points:
    """Of all layers, one after the other, each cell by cell."""
    x_XY, y_XY = np.indices(area)
    places: list[tuple[np.ndarray, ...]] = []
    for z, size, ((x_times, x_part), (y_times, y_part)) in LAYERS.values():
        x, y = (x_times * x_XY / x_part) / size, (y_times * y_XY / y_part) / size
        places.append((x.ravel(), y.ravel(), np.full(x.size, float(z))))
    return Points(*(np.concatenate(axis) for axis in zip(*places, strict=True)))


@lru_cache(maxsize=1)
def _from_the_middle(area: tuple[int, int]) -> np.ndarray:
    """How far cells are from where the player begins, [X, Y]."""
    x_XY, y_XY = np.indices(area)
    distance_XY: np.ndarray = np.sqrt((x_XY - area[0] // 2) ** 2 + (y_XY - area[1] // 2) ** 2)
    return distance_XY


def _heights(start: Any, water: Any, mountain: Any) -> tuple[Any, Any, Any]:
    """Of arrays or of a cell: the share that is the start's meadow, of the water and of the mountain."""
    start = 1 / (1 + np.exp(-start))
    water = water - 2 * start
    return start, water, mountain - (4 * start + 0.3 * water)


def lay_grounds(world: Any) -> np.ndarray:
    """Write the grounds of all cells, where the package's world has drawn nothing yet; where tunnels are, bool [X, Y]."""
    area = tuple(world.area)
    layers = _points(area).noise(permutation(world.random.randint(0, 2**31 - 1)))
    noise = dict(zip(LAYERS, layers.reshape(len(LAYERS), *area), strict=True))
    from_noise = (
        4 - _from_the_middle(area) + 2 * noise["start"],
        noise["water"] + 0.15 * noise["water, fine"] + 0.1,
        (noise["mountain"] + 0.3 * noise["mountain, fine"]) / (1 + 0.3),
    )
    start, water, mountain = heights = _heights(*from_noise)
    thresholds = ((start, (0.5,)), (mountain, (0.15, 0.18, 0.3)), (water, (0.25, 0.3, 0.35)))
    close_XY = np.zeros(area, bool)
    for height, values in thresholds:
        for value in values:
            close_XY |= np.abs(height - value) < CLOSE
    for cell in zip(*close_XY.nonzero(), strict=True):  # hardly ever one
        for height, alone in zip(heights, _heights(*(part[cell] for part in from_noise)), strict=True):
            height[cell] = alone

    number = world._mat_ids
    rock, land = mountain > 0.15, start <= 0.5
    rock &= land
    land &= ~rock
    high = mountain > 0.3
    cave = (noise["cave"] > 0.15) & high
    tunnel = ((noise["tunnel along x"] > 0.4) | (noise["tunnel along y"] > 0.4)) & rock & ~cave
    stone = rock & ~cave & ~tunnel
    sand = land & (water > 0.25) & (water <= 0.35) & (noise["beach"] > -0.2)
    sea = land & (water > 0.3) & ~sand
    meadow = land & ~sand & ~sea
    grounds = world._mat_map
    grounds[:] = number["grass"]
    grounds[rock] = number["path"]
    grounds[stone] = number["stone"]
    grounds[stone & high & (noise["lava"] > 0.35)] = number["lava"]
    grounds[sand] = number["sand"]
    grounds[sea] = number["water"]
    can_be = (
        stone & (noise["coal"] > 0),
        stone & (noise["iron"] > 0.4),
        stone & (mountain > 0.18),
        meadow & (noise["forest"] > 0),
    )
    for x, y, ground in _drawn(world, can_be, GROUNDS):
        grounds[x, y] = number[ground]
    return tunnel


def creatures(world: Any, tunnel_XY: np.ndarray) -> list[tuple[int, int, str]]:
    """Draw where creatures are and of which kind, in the package's order."""
    grounds, number, distance = world._mat_map, world._mat_ids, _from_the_middle(tuple(world.area))
    grass, path, sand = (grounds == number[name] for name in WALKABLE)
    can_be = grass & (distance > 3), (grass | path | sand) & (distance > 10), path & tunnel_XY
    return _drawn(world, can_be, CREATURES)


def _drawn(world: Any, can_be: Sequence[np.ndarray], chances: Chances) -> list[tuple[int, int, str]]:
    """Cell by cell: draw for the first thing that can be there, if it is not drawn for the next one.

    can_be: where each of the things can be, bool [X, Y]. The world's generator is left where the package leaves it.
    """
    bits_XY = np.zeros(world.area, np.uint8)
    for n, can_XY in enumerate(can_be):
        bits_XY |= can_XY.view(np.uint8) << n
    tries = [[thing for n, thing in enumerate(chances) if bits >> n & 1] for bits in range(2 ** len(chances))]
    cells = bits_XY.ravel().nonzero()[0]
    bits = bits_XY.ravel()[cells].tolist()
    before = world.random.get_state()
    draws = world.random.uniform(size=sum(int(can_XY.sum()) for can_XY in can_be)).tolist()
    at, height, found = 0, world.area[1], []
    for cell, can in zip(cells.tolist(), bits, strict=True):
        for threshold, thing in tries[can]:
            number = draws[at]
            at += 1
            if number > threshold:
                found.append((*divmod(cell, height), thing))
                break
    world.random.set_state(before)
    world.random.uniform(size=at)
    return found
