"""MiniWorld: 3D rooms seen by an agent that walks in them, eight tasks, as HELM uses them.

The package plays (`miniworld` 2.1; Chevalier-Boisvert et al. 2023) and OpenGL draws, without a display: on a GPU, or by
Mesa in software. No randomisation of textures or light. The family `miniworld` has the package; see envs/miniworld.yaml.

- Upstream is gym-miniworld of 2022: the same physics, rewards and horizons, another random generator; PickupObjs is
  called PickupObjects now. Upstream draws into an invisible window and needs a display.
- The package places agent and things in other areas than upstream. Ours places them as upstream, see `inside_of_bounds`.
- The package keeps what stands still in OpenGL's list number 1, which all its environments of a process share: each
  would show the walls of the one that began last. Ours have a list each.
- Depths, which nobody looks at, are not read. OpenGL is asked for errors once an image, not at each of its fifty calls.
- `Sign` gives the image alone; the number of the goal is not shown, as upstream. Its sign always reads BLUE.
- `CollectHealth` has no success: it ends by the agent's death or by its time limit.
- Images follow from the state to the bit on the same machine and driver only.

Source: specification 2.4 of HELM.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import io
from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
from gymnasium.spaces import Box, Discrete

from recollect.environments.base import Task, WorldOptions
from recollect.environments.replayed import ReplayedWorld
from recollect.environments.simulated import needed

PACKAGES = ("pyglet", "miniworld")
SHAPE = (3, 60, 80)
ACTION_NAMES = ("turn left", "turn right", "forward", "back", "pick up", "drop", "toggle", "done")
# Task: steps of an episode, actions.
TASKS = {
    "CollectHealth": (1000, 8),
    "FourRooms": (250, 3),
    "MazeS3Fast": (300, 3),
    "PickupObjects": (400, 5),
    "PutNext": (250, 8),
    "Sign": (20, 4),
    "TMaze": (280, 3),
    "YMaze": (280, 3),
}
_numbers = count(2)  # of OpenGL's lists
_drawn = SimpleNamespace(list=1)  # the list of the environment that is drawing


class Options(WorldOptions):
    """Options of MiniWorld; the package calls a task `MiniWorld-<task>-v0`."""

    task: Literal["CollectHealth", "FourRooms", "MazeS3Fast", "PickupObjects", "PutNext", "Sign", "TMaze", "YMaze"] = (
        "TMaze"
    )


def tasks(split: str, **options: Any) -> list[Task]:
    """One task, in both splits: rooms and objects are drawn anew in every episode. Needs no package."""
    chosen = Options.parse(options, "mini_world", split)
    return [Task(0, chosen.task, split)]


def action_names(**options: Any) -> tuple[str, ...]:
    """As many as the task has; the fourth of `Sign` ends the episode."""
    task = Options.parse(options, "mini_world").task
    names = ACTION_NAMES[: TASKS[task][1]]
    return (*names[:3], "end") if task == "Sign" else names


def load() -> Any:
    """The package, drawing without a display and with a list per environment. Raises UserError: it is not installed."""
    pyglet = needed("pyglet", "mini_world", family="miniworld")
    pyglet.options["headless"] = True  # must be said before anything is imported that draws
    pyglet.options["debug_gl"] = False  # would ask for errors at each call; `Player` does once an image
    package = needed("miniworld", "mini_world", family="miniworld")
    inside = package.miniworld
    if not hasattr(inside, "lists_are_our_own"):
        new, call, delete = inside.glNewList, inside.glCallList, inside.glDeleteLists
        inside.glNewList = lambda _, mode: new(_drawn.list, mode)
        inside.glCallList = lambda _: call(_drawn.list)
        inside.glDeleteLists = lambda _, many: delete(_drawn.list, many)
        inside.lists_are_our_own = True
    return package


def inside_of_bounds(inner: Any) -> Callable[..., Any]:
    """The package's `place_entity`, but that a thing stands inside of its bounds, as far from them as its radius.

    So upstream draws places. The package of today draws them from up to a radius outside of the bounds, and only walls keep them
    off: Sign's agent would begin in 1.8 x 2.8 metres instead of 0.2 x 1.2. And it would seldom begin in a passage between two
    rooms, which is a small room (FourRooms, MazeS3Fast). Where bounds are closer than twice a radius, upstream draws between
    the two places anyway.
    """
    place = inner.place_entity

    def placed(thing: Any, room: Any = None, pos: Any = None, dir: Any = None, **bounds: float | None) -> Any:
        draws, free = inner.np_random, thing.radius
        if pos is None and not len(inner.wall_segs):
            inner._gen_static_data()  # walls, and how large each room is
        while pos is None:
            around = room or inner.rooms[draws.choice(len(inner.rooms), p=inner.room_probs)]
            given = {end: bound for end, bound in bounds.items() if bound is not None}
            low_x, high_x, low_z, high_z = (
                given.get(end, getattr(around, end)) for end in ("min_x", "max_x", "min_z", "max_z")
            )
            x, z = (
                draws.uniform(*sorted((low + free, high - free))) for low, high in ((low_x, high_x), (low_z, high_z))
            )
            drawn = np.array([x, 0.0, z])
            if around.point_inside(drawn) and not inner.intersect(thing, drawn, free):
                pos = drawn
        return place(thing, pos=pos, dir=dir)

    return placed


class Player:
    """One environment of the package, which draws only when it is looked at; see `replayed.Player`."""

    def __init__(self, task: str) -> None:
        package = load()
        self.gl = importlib.import_module("pyglet.gl")
        self.list = _drawn.list = next(_numbers)
        with contextlib.redirect_stdout(io.StringIO()):  # it says how smooth its edges are
            # The window for people, which is not shown, would take 30 MB.
            self.inner = getattr(package.envs, task)(window_width=SHAPE[2], window_height=SHAPE[1])
        self.inner.place_entity = inside_of_bounds(self.inner)
        self.draw, self.inner.render_obs = self.inner.render_obs, lambda: None
        self.image = self.inner.obs_fb
        self.image.resolve = self._read
        while self.gl.glGetError():
            pass  # of what a driver lacks, for which the package takes something else
        self.seen: np.ndarray | None = None

    def begin(self, word: int) -> None:
        _drawn.list, self.seen = self.list, None
        self.inner.reset(seed=word)

    def step(self, action: Any) -> tuple[float, bool]:
        _, reward, over, _, _ = self.inner.step(int(action))
        self.seen = None
        return float(reward), bool(over)

    def look(self) -> np.ndarray:
        if self.seen is None:
            _drawn.list = self.list
            self.seen = np.ascontiguousarray(self.draw().transpose(2, 0, 1))
        return self.seen

    def _read(self) -> np.ndarray:
        """What the package drew last, uint8 [H, W, 3]. Raises RuntimeError: OpenGL says that something went wrong."""
        gl, image = self.gl, self.image
        corners = (0, 0, image.width, image.height)
        # A pixel of the one buffer is drawn at several places of it; in the other it is their mean.
        gl.glBindFramebuffer(gl.GL_READ_FRAMEBUFFER, image.multi_fbo)
        gl.glBindFramebuffer(gl.GL_DRAW_FRAMEBUFFER, image.final_fbo)
        gl.glBlitFramebuffer(*corners, *corners, gl.GL_COLOR_BUFFER_BIT, gl.GL_LINEAR)
        gl.glBindFramebuffer(gl.GL_FRAMEBUFFER, image.final_fbo)
        gl.glPixelStorei(gl.GL_PACK_ALIGNMENT, 1)
        upside_down_HWC = np.empty((image.height, image.width, 3), np.uint8)
        pixels = upside_down_HWC.ctypes.data_as(ctypes.POINTER(ctypes.c_ubyte))
        gl.glReadPixels(*corners, gl.GL_RGB, gl.GL_UNSIGNED_BYTE, pixels)
        gl.glBindFramebuffer(gl.GL_FRAMEBUFFER, 0)
        if error := gl.glGetError():
            raise RuntimeError(f"OpenGL could not draw what MiniWorld shows (error {error:#x})")
        return upside_down_HWC[::-1]


class MiniWorld(ReplayedWorld):
    """Observations: uint8 [B, 3, 60, 80]. Actions, of which a task has the first few: 0 turn left, 1 turn right, 2 forward,
    3 back (Sign: end the episode), 4 pick up, 5 drop, 6 toggle, 7 done.
    """

    slow = True
    options: Options
    options_model = Options

    def _setup(self) -> None:
        steps, actions = TASKS[self.options.task]
        self.horizon = steps
        self.knows_success = self.options.task != "CollectHealth"
        self.single_observation_space = Box(0, 255, SHAPE, np.uint8)
        self.single_action_space = Discrete(actions)
        self._play([Player(self.options.task) for _ in self.tasks])


World = MiniWorld
