"""Games of old consoles in emulators (stable-retro); AMAGO plays ten starts of Super Mario Bros. (specification 4.8).

A game must be known to stable-retro, and its ROM imported: most ROMs must be the user's own. Airstriker-Genesis, whose
authors gave it away, comes with the package. A task is the game with all its starts, of which one is drawn for each
episode; the tasks of `starts` are each start alone.

- Frames are shrunk by area to [3, 84, 96], with a border of the console's color, and every eighth is seen; rewards of the
  frames between are summed. All as upstream, but for rounding.
- Actions are the console's own choices of buttons; with `buttons`, any of 12 at once, of which the console has the first so
  many.
- There can be one emulator in a process, so each instance is played by a worker process (`worker.py`) of our own Python.
  All are told their actions before any is waited for, so that they play side by side.
- `terminated`: what the package calls done.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary, Space
from pydantic import Field

from recollect.environments import retro_worker
from recollect.environments.base import Outcome, Task, WorldOptions
from recollect.environments.replayed import ReplayedWorld
from recollect.environments.simulated import needed
from recollect.environments.worker import Worker
from recollect.settings.errors import UserError, nearest

PACKAGES = ("stable_retro",)
SHAPE_CHW = (3, 84, 96)
BUTTONS = 12  # of the console that has most
SCRIPT = Path(retro_worker.__file__)
SPLITS = ("train", "eval", "starts")
CURE = "look at what it says; `make setup FAMILY=amago` installs the package anew"


class Options(WorldOptions):
    """game: as stable-retro calls it, e.g. SuperMarioBros-Nes.
    starts: names of its starting states; null: the game's own.
    frame_skip: frames of an action.
    buttons: an action is 12 bits, one per button, and not one of the console's choices (AMAGO: `--multibinary`).
    border: two pixels of the console's color around the picture.
    horizon: steps of an episode.
    """

    game: str = "Airstriker-Genesis-v0"
    starts: list[str] | None = Field(default=None, min_length=1)
    frame_skip: int = Field(default=8, ge=1)
    buttons: bool = False
    border: bool = True
    horizon: int = Field(default=27_000, ge=1)


def tasks(split: str, **options: Any) -> list[Task]:
    """One task with every start, or (`starts`) one for each; needs no package."""
    chosen = Options.parse(options, "retro", split, SPLITS)
    starts: list[str | None] = [None] if chosen.starts is None else [*chosen.starts]
    if split != "starts":
        return [Task(0, chosen.game, split, {"starts": starts})]
    return [Task(i, start or chosen.game, split, {"starts": [start]}) for i, start in enumerate(starts)]


def check_game(game: str, starts: Sequence[str] = ()) -> None:
    """Raise a UserError where the package is not installed, does not know the game or a start, or has no ROM of it.

    As the worker, it looks where the package looks if nothing is said.
    """
    data, where = needed("stable_retro", "retro", family="amago").data, "options of the world retro: game"
    known = data.list_games()
    if game not in known:
        raise UserError(f"there is no game '{game}'", where=where, do=nearest(game, known))
    try:
        data.get_romfile_path(game)
    except FileNotFoundError:
        do = "take in a ROM of your own: `python -m stable_retro.import FOLDER`"
        raise UserError(f"there is no ROM of the game '{game}'", where=where, do=do) from None
    there = data.list_states(game)
    for start in starts:
        if start not in there:
            what = f"the game '{game}' has no start '{start}'"
            raise UserError(what, where="options of the world retro: starts", do=nearest(start, there))


class Player:
    """One game in a process of its own; see `replayed.Player`."""

    def __init__(self, chosen: Options, starts: Sequence[str | None]) -> None:
        fields = {
            "action": ("int64", (BUTTONS if chosen.buttons else 1,)),
            "actions": ("int64", (1,)),  # how many there are
            "reward": ("float32", (1,)),
            "first": ("bool", (1,)),
            "frame": ("uint8", (1, *SHAPE_CHW)),
        }
        options = {name: getattr(chosen, name) for name in ("game", "frame_skip", "border", "buttons")}
        self.starts = list(starts)
        self.playing = False  # an action was sent whose answer was not taken
        self.worker = Worker("retro", Path(sys.executable), SCRIPT, fields, options, do=CURE)

    def begin(self, word: int) -> None:
        self.worker.ask("begin", which=[{"start": self.starts[word % len(self.starts)]}])

    def send(self, action: Any) -> None:
        """Begin a step, which `step` with the same action ends."""
        self.worker.arrays["action"][:] = action
        self.worker.send("step")
        self.playing = True

    def step(self, action: Any) -> tuple[float, bool]:
        if not self.playing:
            self.send(action)
        self.playing = False
        self.worker.answer("step")
        arrays = self.worker.arrays
        return float(arrays["reward"][0]), bool(arrays["first"][0])

    def look(self) -> np.ndarray:
        return self.worker.arrays["frame"][0].copy()


class Retro(ReplayedWorld):
    """Observations: uint8 [B, 3, 84, 96]. Actions: as many as the console has combinations of buttons, or 12 bits [B, 12]."""

    knows_success = False
    options: Options
    options_model = Options

    def _setup(self) -> None:
        chosen = self.options
        check_game(chosen.game, chosen.starts or ())
        players = [Player(chosen, task.data["starts"]) for task in self.tasks]
        acts: Space[Any] = Discrete(int(players[0].worker.arrays["actions"][0]))
        self.horizon = chosen.horizon
        self.single_observation_space = Box(0, 255, SHAPE_CHW, np.uint8)
        self.single_action_space = MultiBinary(BUTTONS) if chosen.buttons else acts
        self._play(players)

    def _advance(self, actions_B: np.ndarray, last_B: np.ndarray | None) -> Outcome:
        for player, action in zip(self.players, actions_B, strict=True):
            player.send(action)
        return super()._advance(actions_B, last_B)


World = Retro
