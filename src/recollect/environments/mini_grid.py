"""MiniGrid: small grid worlds with keys, doors, balls and boxes, seen as images of the 7 x 7 cells ahead, as HELM uses them.

The package plays (`minigrid` 3; Chevalier-Boisvert et al. 2023), one environment per instance; what its wrapper
`RGBImgPartialObsWrapper(tile_size=8)` would show is composed here for the whole batch, pixel by pixel the same: rows of
cells that can be seen are looked up in a table of all rows, and tiles, which the package draws once, in another. Its own
observations, of which nobody would look at the first, are never made.

- Upstream is gym-minigrid 1.0.2: the same levels and rewards, but another random generator.
- Mission and direction are not shown, as upstream.

Source: specification 2.1 of HELM; `tests/unit/environments/test_mini_grid.py` has its table of tasks.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from minigrid.core.grid import Grid
from minigrid.core.world_object import Door, Wall, WorldObj
from minigrid.minigrid_env import MiniGridEnv

from recollect.environments.base import Task, WorldOptions
from recollect.environments.replayed import ReplayedWorld
from recollect.settings.errors import UserError, nearest

GYMNASIUM_IDS: dict[str, dict[str, Any]] = {"recollect/MiniGrid-v0": {}}
VIEW, TILE = 7, 8  # cells along a side of an image, pixels along a side of a cell
AGENT = (VIEW - 1, VIEW // 2)  # where the agent stands in an image, row and column, looking up
MARGIN = VIEW - 1  # of wall around a grid
EMPTY, UNSEEN, CODES = 0, 1, 256  # two codes that are no object's; (type * 6 + color) * 3 + state is below 256
AGENT_CODES = CODES  # what the agent carries is drawn in its own cell: these codes follow the others
MOVES = 3  # the first actions
UNNAMED_SIZES = {"MemoryS5": 5}
AHEAD = ((1, 0), (0, 1), (-1, 0), (0, -1))  # by where the agent looks: right, down, left, up
ACTION_NAMES = ("turn left", "turn right", "forward", "pick up", "drop", "toggle", "done")


class Options(WorldOptions):
    """task: what stands between `MiniGrid-` and `-v0` in the package's name of an environment. HELM's are
        KeyCorridorS3R1, MemoryS11, RedBlueDoors-6x6, DoorKey-5x5, DoorKey-6x6, Dynamic-Obstacles-Random-5x5 (or
        Dynamic-Obstacles-5x5; the sources disagree) and Unlock. MemoryS5, which the package can
        make but has no name for, is known, too.
    moves_only: the first three actions only: turn left, turn right, forward. Published: all.
    """

    task: str = "MemoryS11"
    moves_only: bool = False

    @property
    def id(self) -> str:
        """The package's name of it."""
        name = f"MiniGrid-{self.task if self.size is None else 'MemoryS7'}-v0"
        if name not in gymnasium.registry:
            known = [i[9:-3] for i in gymnasium.registry if i.startswith("MiniGrid-") and i.endswith("-v0")]
            where = "options of the world mini_grid: task"
            raise UserError(f"there is no task '{self.task}'", where=where, do=nearest(self.task, known))
        return name

    @property
    def size(self) -> int | None:
        """The side of a room that the package has no name for."""
        return UNNAMED_SIZES.get(self.task)


def tasks(split: str, **options: Any) -> list[Task]:
    """One task, in both splits: levels are drawn anew in every episode."""
    chosen = Options.parse(options, "mini_grid", split)
    assert chosen.id
    return [Task(0, chosen.task, split)]


@cache
def row_tables() -> tuple[np.ndarray, np.ndarray]:
    """How sight spreads in one row of cells, for the seen and the transparent cells of it as bits (cell i is bit i).

    Returns:
        uint8 [16384] each, at ``seen << 7 | transparent``: what is seen of the row in the end, and what this shows of
        the next row ahead. Sight goes from cell to cell, to the right and then to the left, and takes three cells along.
    """
    seen_N, clear_N = np.divmod(np.arange(1 << 2 * VIEW), 1 << VIEW)
    ahead_N = np.zeros_like(seen_N)
    for cells, step in ((range(VIEW - 1), 1), (range(VIEW - 1, 0, -1), -1)):
        for i in cells:
            spreads_N = seen_N & clear_N & (1 << i) > 0
            seen_N |= spreads_N << (i + step)
            ahead_N |= (spreads_N << i) | (spreads_N << (i + step))
    return seen_N.astype(np.uint8), ahead_N.astype(np.uint8)


class Tiles:
    """All things that were met so far: their codes, whether they hide what is behind, and their pictures.

    Attributes:
        opaque_C: bool [256].
        rows_N: the pictures, one row of eight pixels of a channel as one word: code, channel, row; uint64 [512 * 24].
    """

    def __init__(self) -> None:
        self.codes: dict[tuple[int, int, int], int] = {}
        self.opaque_C = np.zeros(CODES, dtype=bool)
        self.rows_N = np.zeros(2 * CODES * 3 * TILE, dtype=np.uint64)
        self._draw(EMPTY, None, seen=True)
        self._draw(UNSEEN, None, seen=False)

    def code(self, thing: WorldObj | None) -> int:
        if thing is None:
            return EMPTY
        key = thing.encode()
        if key not in self.codes:
            kind, color, state = key
            self.codes[key] = code = (kind * 6 + color) * 3 + state  # walls, the first kind of all, have 36
            self.opaque_C[code] = not thing.see_behind()
            self._draw(code, thing, seen=True)
        return self.codes[key]

    def _draw(self, code: int, thing: WorldObj | None, *, seen: bool) -> None:
        for place, direction in ((code, None), (AGENT_CODES + code, 3)):
            drawn_YXC = Grid.render_tile(thing, agent_dir=direction, highlight=seen, tile_size=TILE)
            words_CY = np.ascontiguousarray(drawn_YXC.transpose(2, 0, 1).astype(np.uint8)).view(np.uint64)
            self.rows_N[place * 3 * TILE : (place + 1) * 3 * TILE] = words_CY.ravel()


@cache
def with_plain_numbers(kind: type[MiniGridEnv]) -> type[MiniGridEnv]:
    """The same kind, whose position ahead is two ints. The package adds arrays, which takes a fifth of a step."""

    def front_pos(self: MiniGridEnv) -> tuple[int, int]:
        (x, y), (right, down) = self.agent_pos, AHEAD[self.agent_dir]
        return int(x) + right, int(y) + down

    return type(kind.__name__, (kind,), {"front_pos": property(front_pos)})


class Player:
    """One environment of the package, which makes no observations; see `replayed.Player`."""

    def __init__(self, name: str, size: int | None = None) -> None:
        sized = {} if size is None else {"size": size}
        made = gymnasium.make(name, disable_env_checker=True, **sized).unwrapped
        assert isinstance(made, MiniGridEnv)
        made.__class__ = with_plain_numbers(type(made))  # type: ignore[arg-type]
        self.inner = made
        self.inner.gen_obs = dict  # type: ignore[method-assign]

    def begin(self, word: int) -> None:
        self.inner.reset(seed=word)

    def step(self, action: Any) -> tuple[float, bool]:
        _, reward, over, _, _ = self.inner.step(int(action))
        return float(reward), over

    def render(self) -> np.ndarray:
        return self.inner.get_frame(tile_size=max(TILE, 384 // max(self.inner.width, self.inner.height)))

    def look(self) -> np.ndarray:
        """What is seen of all is composed at once."""
        raise NotImplementedError


@cache
def tiles() -> Tiles:
    """The tiles of all worlds of this process."""
    return Tiles()


class MiniGrid(ReplayedWorld):
    """Observations: uint8 [B, 3, 56, 56], the agent at the bottom in the middle. Actions: the package's (0 left, 1 right,
    2 forward, 3 pick up, 4 drop, 5 toggle, 6 done; Dynamic-Obstacles has the first three). The horizon is the package's.
    """

    options: Options
    options_model = Options

    def _setup(self) -> None:
        players = [Player(self.options.id, self.options.size) for _ in self.tasks]
        self.inner = [player.inner for player in players]
        one = self.inner[0]
        assert isinstance(one.action_space, Discrete)
        actions = MOVES if self.options.moves_only else int(one.action_space.n)
        self.horizon = one.max_steps
        self.single_observation_space = Box(0, 255, (3, VIEW * TILE, VIEW * TILE), np.uint8)
        self.single_action_space = Discrete(actions)
        self._play(players)

        # Of each instance what is looked at in each step: the grid's things, and its doors, whose state alone changes.
        self._things: list[list[WorldObj | None]] = [[] for _ in players]
        self._doors: list[list[tuple[Door, bool, bool]]] = [[] for _ in players]

        # The codes of all cells, with walls around the grid; origin[b] is the first cell of an instance's grid.
        self._tiles = tiles()
        self._see_through = one.see_through_walls
        self._size = (one.height, one.width)
        self._width = one.width + 2 * MARGIN
        height = one.height + 2 * MARGIN
        wall = self._tiles.code(Wall())
        self._code_BYX = np.full((self.num_envs, height, self._width), wall, dtype=np.uint8)
        self._cells = self._code_BYX.reshape(-1)
        first_inside = MARGIN * (self._width + 1)
        self._origin_B = self._row_B * (height * self._width) + first_inside

        # Of a picture [3, row of cells, row of pixels, cell] the word of a tile.
        self._window_4YX = self._windows()
        channel_C111 = np.arange(3)[:, None, None, None]
        self._word_CY1 = channel_C111 * TILE + np.arange(TILE)[:, None]

    def _observe(self) -> np.ndarray:
        agents: list[tuple[int, int, int]] = []
        for b, inner in enumerate(self.inner):
            things = inner.grid.grid
            # Lists of the very same things are compared as fast as pointers are.
            if things != self._things[b] or self._doors_moved(b):
                self._read(b, things)
            (x, y), carried = inner.agent_pos, inner.carrying
            code = EMPTY if carried is None else self._tiles.code(carried)
            agents.append((int(x) + int(y) * self._width, inner.agent_dir, code))
        position_B, direction_B, carried_B = np.array(agents, np.int64).T
        centre_B = self._origin_B + position_B
        where_BYX = centre_B[:, None, None] + self._window_4YX[direction_B]
        code_BYX = self._cells.take(where_BYX).astype(np.intp)
        if not self._see_through:
            self._hide(code_BYX)
        code_BYX[:, *AGENT] = AGENT_CODES + carried_B
        # [B, channel, row of cells, row of pixels, cell]: as the pixels follow one another, eight to a word.
        word_BCYPX = code_BYX[:, None, :, None, :] * (3 * TILE) + self._word_CY1
        return self._tiles.rows_N.take(word_BCYPX).view(np.uint8).reshape(-1, 3, VIEW * TILE, VIEW * TILE)

    def _doors_moved(self, b: int) -> bool:
        doors = self._doors[b]
        return bool(doors) and any(
            door.is_open != was_open or door.is_locked != was_locked for door, was_open, was_locked in doors
        )

    def _read(self, b: int, things: list[WorldObj | None]) -> None:
        self._things[b] = things.copy()
        self._doors[b] = [(thing, thing.is_open, thing.is_locked) for thing in things if isinstance(thing, Door)]
        code = self._tiles.code
        height, width = self._size
        inside = self._code_BYX[b, MARGIN : MARGIN + height, MARGIN : MARGIN + width]
        inside[:] = np.array([code(thing) for thing in things]).reshape(self._size)

    def _hide(self, code_BYX: np.ndarray) -> None:
        """Make what cannot be seen unseen, from the agent's row on ahead."""
        spread_N, ahead_N = row_tables()
        bits_X = 1 << np.arange(VIEW)
        clear_BY = ~self._tiles.opaque_C[code_BYX] @ bits_X
        seen_BY = np.empty_like(clear_BY)
        seen_B: Any = 1 << AGENT[1]
        for row in reversed(range(VIEW)):
            known_B = (seen_B << VIEW) | clear_BY[:, row]
            seen_BY[:, row], seen_B = spread_N[known_B], ahead_N[known_B].astype(np.intp)
        code_BYX[(seen_BY[:, :, None] & bits_X) == 0] = UNSEEN

    def _windows(self) -> np.ndarray:
        """For each direction that the agent looks in, the cells of an image counted from the agent's, int [4, 7, 7]."""
        ahead_Y1 = AGENT[0] - np.arange(VIEW)[:, None]
        right_1X = np.arange(VIEW)[None] - AGENT[1]
        windows = []
        for x, y in AHEAD:
            one_ahead = x + y * self._width
            one_to_the_right = -y + x * self._width  # to the right of (x, y) is (-y, x)
            windows.append(ahead_Y1 * one_ahead + right_1X * one_to_the_right)
        return np.stack(windows)


World = MiniGrid
