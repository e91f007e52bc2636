"""Pictures of MiniGrid's tiles as an agent sees them, and what can truly be said of each: what `dual_encoder` learns from.

A picture is the view of an agent in a made-up place: 7 x 7 tiles of 8 pixels. The agent is at the middle of the lower edge and
looks up. There may be walls around it, doors in the walls, and things on the floor or in its hands. It is dark where the agent
cannot see. Tiles are drawn and hidden by the package minigrid itself.

What is said of a picture is what stands in it, with weights that sum to one. The name of a thing ("key") weighs most, then name
and colour ("red key"), then colour ("red"). Of doors it is also said how they stand ("locked"). Nearer things weigh more. Where
there are no things, the word is "wall" or "floor".

Some pairs of colour and thing, and some cells, are held out: no training picture has them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

VIEW, TILE = 7, 8
AGENT = (3, 6)
"""(x, y) of the agent in its view; it looks towards y = 0."""
COLOURS = ("red", "green", "blue", "purple", "yellow", "grey")
STATES = ("open", "closed", "locked")
THINGS = ("key", "ball", "box", "door", "goal", "lava")
_OF_ONE_COLOUR = ("goal", "lava")
_CARRIED = ("key", "ball", "box")
_ON_FLOOR: tuple[str, ...] = ("key", "key", "ball", "ball", "box", "box", "goal", "lava")
NEARNESS_YX = 1 / (1 + np.abs(np.arange(VIEW)[:, None] - AGENT[1]) + np.abs(np.arange(VIEW) - AGENT[0]))
HELD_OUT_PAIRS = {("purple", "key"), ("grey", "ball"), ("yellow", "box")}
HELD_OUT_CELLS = {(x, y) for x in range(VIEW) for y in range(VIEW) if (x + 3 * y) % 8 == 5 and (x, y) != AGENT}
NAME, BOTH, COLOUR = 0.5, 0.3, 0.2  # how much of a thing's weight goes to each way of saying it


def captions() -> tuple[str, ...]:
    coloured = [name for name in THINGS if name not in _OF_ONE_COLOUR]
    pairs = [f"{colour} {name}" for name in coloured for colour in COLOURS]
    doors = [f"{state} {colour} door" for state in STATES for colour in COLOURS]
    return (*THINGS, *COLOURS, *STATES, *pairs, *doors, "wall", "floor")


@dataclass(frozen=True)
class Thing:
    """What stands on a cell (x, y)."""

    name: str
    colour: str
    x: int
    y: int
    state: str = ""

    def words(self) -> dict[str, float]:
        """What can be said of it, with weights that sum to one."""
        if self.name in _OF_ONE_COLOUR:
            return {self.name: 1.0}
        if self.name == "door":
            whole = f"{self.state} {self.colour} door"
            return {
                "door": NAME,
                f"{self.colour} door": BOTH / 3,
                whole: BOTH / 3,
                self.colour: COLOUR,
                self.state: BOTH / 3,
            }
        return {self.name: NAME, f"{self.colour} {self.name}": BOTH, self.colour: COLOUR}

    @property
    def held_out(self) -> bool:
        return (self.colour, self.name) in HELD_OUT_PAIRS or (self.x, self.y) in HELD_OUT_CELLS


@dataclass(frozen=True)
class Scenes:
    """N pictures.

    Attributes:
        images_NCHW: uint8 [N, 3, 56, 56].
        weights_NC: float32, how much each of `captions()` is said of each picture; rows sum to one.
        seen: the things that can be seen in each.
    """

    images_NCHW: np.ndarray
    weights_NC: np.ndarray
    seen: tuple[tuple[Thing, ...], ...]


def draw_scenes(count: int, draws: np.random.Generator, *, held_out: bool = False, single: bool = False) -> Scenes:
    """Draw pictures.

    Args:
        held_out: the one thing of a `single` picture is of a held-out kind or cell; else no thing is.
        single: exactly one thing can be seen.
    """
    columns = captions()
    images = np.zeros((count, 3, VIEW * TILE, VIEW * TILE), np.uint8)
    weights_NC = np.zeros((count, len(columns)), np.float32)
    seen: list[tuple[Thing, ...]] = []
    while len(seen) < count:
        wanted = draws.integers(1, 3) if single else draws.integers(0, 6)
        image, things, surroundings = _draw(draws, int(wanted))
        # What was wanted may be hidden: only pictures of the kind that is asked for are kept.
        if single and len(things) != 1:
            continue
        if any(thing.held_out for thing in things) != held_out:
            continue
        number = len(seen)
        images[number] = image.transpose(2, 0, 1)
        for word, weight in _said(things, surroundings).items():
            weights_NC[number, columns.index(word)] = weight
        seen.append(things)
    return Scenes(images, weights_NC, tuple(seen))


def _said(things: tuple[Thing, ...], surroundings: str) -> dict[str, float]:
    near = [float(NEARNESS_YX[thing.y, thing.x]) for thing in things]
    share = 0.05 if things else 1.0
    words = {surroundings: share}
    for thing, nearness in zip(things, near, strict=True):
        for word, weight in thing.words().items():
            words[word] = words.get(word, 0.0) + (1 - share) * weight * nearness / sum(near)
    return words


def _draw(draws: np.random.Generator, wanted: int) -> tuple[np.ndarray, tuple[Thing, ...], str]:
    """One picture [H, W, 3], the things that are seen in it, and `wall` or `floor`, whichever is before the agent."""
    from minigrid.core import world_object as objects
    from minigrid.core.grid import Grid

    grid = Grid(VIEW, VIEW)
    # Walls around a room, of which the view may show every side or none.
    left, right, top = int(draws.integers(-2, 3)), int(draws.integers(4, 9)), int(draws.integers(-2, 6))
    for x in range(VIEW):
        for y in range(VIEW):
            if not (left < x < right and y > top):
                grid.set(x, y, objects.Wall())
    for _ in range(int(draws.integers(0, 3))):  # a gap, or a wall that stands free
        x, y = (int(cell) for cell in draws.integers(0, VIEW, 2))
        if (x, y) != AGENT:
            grid.set(x, y, None if isinstance(grid.get(x, y), objects.Wall) else objects.Wall())
    things: dict[tuple[int, int], Thing] = {}
    for _ in range(wanted):
        x, y = AGENT if draws.random() < 0.1 else (int(cell) for cell in draws.integers(0, VIEW, 2))
        names = _ON_FLOOR
        if (x, y) == AGENT:
            names = _CARRIED
        elif isinstance(grid.get(x, y), objects.Wall):
            names = ("door",)
        name = names[int(draws.integers(len(names)))]
        any_colour = COLOURS[int(draws.integers(len(COLOURS)))]
        colour = {"goal": "green", "lava": "red"}.get(name, any_colour)
        state = STATES[int(draws.integers(len(STATES)))] if name == "door" else ""
        things[x, y] = Thing(name, colour, x, y, state)
    for thing in things.values():
        grid.set(thing.x, thing.y, _as_object(thing, objects))

    # What the agent carries hides nothing: it is taken away while it is found out what can be seen.
    carried_thing = grid.get(*AGENT)
    grid.set(*AGENT, None)
    mask = grid.process_vis(AGENT) if draws.random() < 0.8 else np.ones((VIEW, VIEW), bool)
    grid.set(*AGENT, carried_thing)
    image = grid.render(TILE, AGENT, 3, mask)
    seen = tuple(thing for place, thing in sorted(things.items()) if mask[place])
    ahead = grid.get(AGENT[0], AGENT[1] - 1)
    return image, seen, "wall" if isinstance(ahead, objects.Wall) else "floor"


def _as_object(thing: Thing, objects):  # type: ignore[no-untyped-def]
    if thing.name == "door":
        return objects.Door(thing.colour, is_open=thing.state == "open", is_locked=thing.state == "locked")
    if thing.name in _OF_ONE_COLOUR:
        return getattr(objects, thing.name.capitalize())()
    return getattr(objects, thing.name.capitalize())(thing.colour)
