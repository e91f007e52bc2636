"""The image that an agent sees of Crafter: byte for byte what the package's `render` gives, many times as fast.

The package puts an image together anew, pixel by pixel, at every look. Here each tile (a ground, or a thing on a ground) is
put together once. By day light changes a pixel by its own colour alone, so only the tiles in sight are lit. At night every
pixel has noise of its own, so the whole picture is.

Numbers are computed in the package's order of operations and in its types: other orders round otherwise. Images are
[C, H, W]. The package's own [x, y, C] are turned once, when tiles are made.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from PIL import Image

UNIT = 7  # pixels of a cell
COLUMNS, ROWS, ITEM_ROWS = 9, 7, 2  # cells of the picture of the world, below which are items
LEFT, ABOVE = COLUMNS // 2, ROWS // 2  # cells beside the player
WIDTH, HEIGHT = COLUMNS * UNIT, ROWS * UNIT
AMOUNTS = 11  # 0 to 9, and any more
OUTSIDE = 127  # the gray beyond the world's border
DAY = 0.5  # darker than that is night, when there is noise
DARKNESS_C11 = np.array([0, 16, 64])[:, None, None]
DREAM_C11 = np.array([0, 0, 16])[:, None, None]
CELL_H = np.arange(HEIGHT) // UNIT
STRIP_CH1 = (np.arange(3)[:, None] * UNIT + np.arange(HEIGHT) % UNIT)[..., None]
DIRECTIONS = ("left", "right", "up", "down")
THINGS = (
    *("player-sleep", *(f"player-{way}" for way in DIRECTIONS), *(f"arrow-{way}" for way in DIRECTIONS)),
    *("cow", "zombie", "skeleton", "plant", "plant-ripe", "fence"),
)


class Tiles:
    """All tiles of an image, made of the package's textures. Worlds can share them."""

    def __init__(self, game: Any) -> None:
        """game: the package's `Env`."""
        textures, names = game._textures, game._world._mat_names
        cell = (UNIT, UNIT)
        grounds = [textures.get(names[i], cell)[..., :3] for i in range(len(names))]
        self.first = {thing: (n + 1) * len(grounds) for n, thing in enumerate(THINGS)}  # that thing on ground 0
        tiles = [*grounds, *(over(ground, textures.get(thing, cell)) for thing in THINGS for ground in grounds)]
        self.outside = len(tiles)
        tiles.append(np.full((*cell, 3), OUTSIDE, np.uint8))
        self.plain_NCHW = upright(tiles)
        # Pillow's own mixing of a gray and a colour to 40 percent of the colour: [256, 256]
        all_values = np.arange(256, dtype=np.uint8)
        gray, colour = (
            Image.fromarray(np.ascontiguousarray(v)) for v in np.meshgrid(all_values, all_values, indexing="ij")
        )
        self.pale = np.array(Image.blend(gray, colour, 0.4)).ravel()
        self.night_NCHW = self.darkened(self.plain_NCHW.astype(np.int32))
        self.item_NCHW = upright(self._items(textures, tuple(game._player.inventory)))
        # How strong noise is, by the place: the package's own, as exponentials round by the array's layout.
        self.noisy_HW = np.ascontiguousarray(game._local_view._vignette((WIDTH, HEIGHT, 3), 0.5).T)

    @staticmethod
    def _items(textures: Any, names: Iterable[str]) -> Iterable[np.ndarray]:
        """The cells of each item, `AMOUNTS` of each; then an empty one."""
        empty = np.zeros((UNIT, UNIT, 3), np.uint8)
        for name in names:
            yield empty
            for amount in range(1, AMOUNTS):
                picture = empty.copy()
                number = str(amount) if amount < 10 else "unknown"
                for texture, share, at in ((name, 0.8, 0.1), (number, 0.6, 0.4)):
                    size, start = int(share * UNIT), int(at * UNIT)
                    part = picture[start : start + size, start : start + size]
                    part[:] = over(part, textures.get(texture, (size, size)))
                yield picture
        yield empty

    def darkened(self, colours: np.ndarray) -> np.ndarray:
        """As it is in the dark: paler and bluer. int32 [.., 3, H, W] to float64."""
        pale = self.pale.take((gray_of(colours) << 8)[..., None, :, :] + colours)
        dark = 0.5 * pale
        dark += 0.5 * DARKNESS_C11
        return dark


class Painter:
    """Draws what the player of one game sees."""

    _shared: ClassVar[Tiles | None] = None  # by all games: the package has one set of textures

    def __init__(self, game: Any, noise: np.random.RandomState) -> None:
        """game: the package's `Env`. noise: that of the night, seeded anew for every image by `word` and step."""
        self.game, self.noise = game, noise

    @cached_property
    def tiles(self) -> Tiles:
        Painter._shared = Painter._shared or Tiles(self.game)
        return Painter._shared

    @cached_property
    def _lit_NCHW(self) -> np.ndarray:
        """Of which those in sight are overwritten at every look."""
        return self.tiles.plain_NCHW.copy()

    def draw(self, word: int, image_CHW: np.ndarray) -> None:
        """Draw into uint8 zeros [3, H, 64], as much of the image's height as there is place."""
        rows = min(image_CHW.shape[1], HEIGHT)
        numbers, world = self._numbers(), self.game._world
        picture_CHW = self._night(word, numbers, rows) if world.daylight < DAY else self._day(numbers, rows)
        image_CHW[:, :rows, :WIDTH] = picture_CHW  # cuts fractions off
        if image_CHW.shape[1] > HEIGHT:
            amounts = np.clip(list(self.game._player.inventory.values()), 0, AMOUNTS - 1)
            numbers = np.full(ITEM_ROWS * COLUMNS, len(self.tiles.item_NCHW) - 1)
            numbers[: len(amounts)] = np.arange(len(amounts)) * AMOUNTS + amounts
            items = laid(self.tiles.item_NCHW, numbers.reshape(ITEM_ROWS, COLUMNS), ITEM_ROWS * UNIT)
            image_CHW[:, HEIGHT : HEIGHT + ITEM_ROWS * UNIT, :WIDTH] = items

    def _numbers(self) -> np.ndarray:
        """The tiles in sight, [7, 9]."""
        world, tiles = self.game._world, self.tiles
        x, y = self.game._player.pos.tolist()
        numbers = around(world._mat_map, x, y, tiles.outside)
        thing_YX = around(world._obj_map, x, y, 0)
        for j, i in zip(*(places.tolist() for places in thing_YX.nonzero()), strict=True):
            numbers[j, i] += tiles.first[world._objects[thing_YX[j, i]].texture]
        return numbers

    def _day(self, numbers: np.ndarray, rows: int) -> np.ndarray:
        tiles, light = self.tiles, self.game._world.daylight
        seen = list(set(numbers.ravel().tolist()))
        lit = light * tiles.plain_NCHW[seen] + (1 - light) * tiles.night_NCHW[seen]
        self._lit_NCHW[seen] = asleep(lit) if self.game._player.sleeping else lit
        return laid(self._lit_NCHW, numbers, rows)

    def _night(self, word: int, numbers: np.ndarray, rows: int) -> np.ndarray:
        tiles, light = self.tiles, self.game._world.daylight
        plain_CHW = laid(tiles.plain_NCHW, numbers, rows)
        self.noise.seed([word, self.game._step])
        noise_HW = np.ascontiguousarray(self.noise.uniform(32, 127, (WIDTH, HEIGHT)).T[:rows])
        strength_HW = 2 * (0.5 - light) * tiles.noisy_HW[:rows]
        clear_CHW = plain_CHW.astype(np.float64)
        noisy_CHW = (1 - strength_HW) * clear_CHW
        noisy_CHW += strength_HW * noise_HW
        night_CHW = tiles.darkened(noisy_CHW.astype(np.int32))
        night_CHW *= 1 - light
        clear_CHW *= light
        clear_CHW += night_CHW
        return asleep(clear_CHW) if self.game._player.sleeping else clear_CHW


def around(map_XY: np.ndarray, x: int, y: int, outside: int) -> np.ndarray:
    """What a map says of the cells around one, int64 [7, 9]; of those beyond the border it is `outside`."""
    left, top = x - LEFT, y - ABOVE
    inside_XY = map_XY[max(left, 0) : left + COLUMNS, max(top, 0) : top + ROWS]
    width, height = inside_XY.shape
    right, down = max(-left, 0), max(-top, 0)
    found_YX = np.full((ROWS, COLUMNS), outside, np.int64)
    found_YX[down : down + height, right : right + width] = inside_XY.T
    return found_YX


def over(ground: np.ndarray, texture: np.ndarray) -> np.ndarray:
    """A texture on a ground, uint8; its fourth channel, if it has one, says how much it hides."""
    if texture.shape[-1] != 4:
        return texture
    share, above, below = (part.astype(np.float32) / 255 for part in (texture[..., 3:], texture[..., :3], ground))
    return (255 * (share * above + (1 - share) * below)).astype(np.uint8)


def upright(tiles: Iterable[np.ndarray]) -> np.ndarray:
    """From [x, y, C] to [N, C, H, W]."""
    return np.ascontiguousarray(np.stack(list(tiles)).transpose(0, 3, 2, 1))


def laid(tile_NCHW: np.ndarray, numbers: np.ndarray, rows: int) -> np.ndarray:
    """Tiles by their numbers [rows of cells, 9], uint8 [3, rows, 63]."""
    strips = tile_NCHW.reshape(-1).view(f"V{UNIT}")  # a tile's row of a channel
    index = (numbers * (3 * UNIT))[CELL_H[:rows]] + STRIP_CH1[:, :rows]
    return strips.take(index).view(np.uint8).reshape(3, rows, WIDTH)


def gray_of(colours: np.ndarray) -> np.ndarray:
    """Pillow's gray of int32 colours [.., 3, H, W], 0 to 255."""
    red, green, blue = (colours[..., c, :, :] for c in range(3))
    return (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16


def asleep(lit: np.ndarray) -> np.ndarray:
    """Gray and dark: what a sleeper sees of float64 [.., 3, H, W]."""
    return 0.5 * gray_of(lit.astype(np.int32))[..., None, :, :] + 0.5 * DREAM_C11
