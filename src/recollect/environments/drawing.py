"""Pictures of worlds for people. Agents never see them; they are drawn only when asked for, and drawing changes nothing.

A world's method ``picture(b)`` says what stands where in instance b, as the arguments of :func:`grid`, or gives an image. A world
that says nothing but shows images to its agent is drawn as the agent sees it.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from recollect.environments.faults import file_of
from recollect.settings.errors import UserError

SIDE = 384  # pixels along the longer side of a picture, or a little less
LARGEST = 96  # pixels along a side of a cell
MOST = 48  # cells along a side; of a larger world those around the agent are drawn
FINER = 3  # edges are smoothed: all is drawn so many times as large at first
FLOOR, WALL, LINE, AGENT = (255, 255, 255), (139, 146, 156), (217, 221, 227), (0, 114, 178)
# Of each thing its colour and its outline; in a cell, x and y go from -1 to 1. What is not listed is a green disc.
Outline = Sequence[tuple[float, float]]
SPIKES = [(0.42 if i % 2 else 0.9, i * np.pi / 5) for i in range(10)]
DIAMOND = ((0, -0.8), (0.8, 0), (0, 0.8), (-0.8, 0))
OUTLINES: dict[str, tuple[tuple[int, int, int], Outline]] = {
    "goal": ((213, 94, 0), [(radius * np.sin(angle), -radius * np.cos(angle)) for radius, angle in SPIKES]),
    "key": ((230, 159, 0), ((0, -0.8), (0.8, 0.7), (-0.8, 0.7))),
    "door": ((140, 86, 30), ((-0.6, -0.85), (0.6, -0.85), (0.6, 0.85), (-0.6, 0.85))),
    "sign": ((204, 121, 167), DIAMOND),
    "fork": ((86, 180, 233), DIAMOND),
    "hole": ((31, 62, 102), ((-0.95, -0.95), (0.95, -0.95), (0.95, 0.95), (-0.95, 0.95))),
}
Mark = tuple[str, float, float]


def drawn(world: Any, b: int) -> np.ndarray:
    """A picture of one instance of a world, uint8 [H, W, 3].

    Raises:
        UserError: the world says nothing of how it looks and shows no images, or its package cannot draw it.
    """
    where = f"world {type(world).__module__.rpartition('.')[2]}"
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # some packages print text in place of a picture
            shown = world.picture(b)
    except UserError:
        raise
    except NotImplementedError as error:  # what gymnasium's base class says
        do = (
            "give its class `render`, which returns an image uint8 [H, W, 3], and `rgb_array` among the `render_modes` of its "
            "`metadata` (docs/adding.md); or choose another environment"
        )
        raise UserError("this environment has no pictures", where=file_of(world), do=do) from error
    except Exception as error:  # a package fails in its own way
        do = "install what it names; MuJoCo also wants MUJOCO_GL=egl (or osmesa) to be set before the start"
        raise UserError(f"its package cannot draw it: {type(error).__name__}: {error}", where=where, do=do) from error
    if isinstance(shown, dict):
        try:
            return grid(**shown)
        except (TypeError, ValueError, IndexError) as error:
            what = f"what `picture` returns cannot be drawn: {error}"
            do = "return a dictionary of the arguments of recollect.environments.drawing.grid (docs/adding.md)"
            raise UserError(what, where=f"{file_of(world)}: picture", do=do) from error
    if shown is None and is_image(world.single_observation_space):
        shown = world._observe()[b]
    if np.ndim(shown) != 3:  # nothing, or text
        do = "give its class a method `picture` (docs/adding.md), or choose another environment"
        raise UserError("this world cannot be drawn", where=where, do=do)
    return enlarged(np.asarray(shown))


def grid(
    cells: tuple[int, int],
    *,
    agent: Sequence[float] | None = None,
    marks: Iterable[Mark] = (),
    faint: Iterable[Mark] = (),
    walls: np.ndarray | None = None,
    colors: np.ndarray | None = None,
) -> np.ndarray:
    """A grid of cells from above, uint8 [H, W, 3].

    Args:
        cells: rows and columns.
        agent: its row and column, which may lie between cells; None: there is nobody.
        marks: what stands there: its name (`goal`, or `goal 2`, which is drawn with its number), row and column.
        faint: marks that no longer count, or not yet: their outlines are drawn.
        walls: bool [rows, columns].
        colors: of the cells, in place of floor and walls; uint8 [rows, columns, 3].
    """
    if colors is None:
        colors = np.full((*cells, 3), FLOOR, np.uint8)
        if walls is not None:
            colors[walls] = WALL
    middle = (0.0, 0.0) if agent is None else agent
    (first_row, rows), (first_column, columns) = (_window(middle[axis], cells[axis]) for axis in (0, 1))
    colors = colors[first_row : first_row + rows, first_column : first_column + columns]
    cell = min(SIDE // max(rows, columns), LARGEST) * FINER
    canvas = Image.fromarray(np.ascontiguousarray(colors.repeat(cell, 0).repeat(cell, 1)))
    pen = ImageDraw.Draw(canvas)
    for place in range(1, max(rows, columns)):
        pen.line([(0, place * cell), (columns * cell, place * cell)], LINE, FINER)
        pen.line([(place * cell, 0), (place * cell, rows * cell)], LINE, FINER)

    def at(row: float, column: float, outline: Outline) -> list[tuple[float, float]]:
        x, y = (column - first_column + 0.5) * cell, (row - first_row + 0.5) * cell
        return [(x + dx * cell / 2, y + dy * cell / 2) for dx, dy in outline]

    disc = ((-0.7, -0.7), (0.7, 0.7))
    for is_faint, listed in ((True, faint), (False, marks)):
        for name, row, column in listed:
            kind, _, number = name.partition(" ")
            color, outline = OUTLINES.get(kind, ((0, 158, 115), ()))
            look: dict[str, Any] = {"outline": color, "width": FINER} if is_faint else {"fill": color}
            if outline:
                pen.polygon(at(row, column, outline), **look)
            else:
                pen.ellipse(at(row, column, disc), **look)
            if number and not is_faint:
                pen.text(at(row, column, [(0, 0)])[0], number, FLOOR, font_size=cell / 3, anchor="mm")
    if agent is not None:
        for radius, color in ((0.55, FLOOR), (0.45, AGENT)):
            pen.ellipse(at(agent[0], agent[1], ((-radius, -radius), (radius, radius))), color)
    return np.array(canvas.reduce(FINER))


def enlarged(image: np.ndarray) -> np.ndarray:
    """An image [H, W, C] or [C, H, W] of one or three channels as uint8 [H, W, 3], a small one with larger pixels."""
    if image.shape[-1] not in (1, 3):
        image = np.moveaxis(image, 0, -1)
    times = max(1, SIDE // max(image.shape[:2]))
    pixels = np.broadcast_to(image, (*image.shape[:2], 3)).astype(np.uint8)
    return np.ascontiguousarray(pixels.repeat(times, 0).repeat(times, 1))


def is_image(space: Any) -> bool:
    return space.dtype == np.uint8 and len(space.shape or ()) == 3


def _window(place: float, size: int) -> tuple[int, int]:
    """The first of the cells that are drawn along one side, and how many."""
    count = min(size, MOST)
    return min(max(int(place) - count // 2, 0), size - count), count
