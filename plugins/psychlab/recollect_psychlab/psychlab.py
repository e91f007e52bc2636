"""Psychlab's continuous recognition, in DeepMind Lab itself, as HELM uses it. Optional: the package must be built by hand.

`deepmind_lab` is in no registry; it is built with bazel (github.com/google-deepmind/lab, docs/users/build.md) and the wheel
installed into `.venv`. Where it is missing a run stops before its first job. Without it there is `continuous_recognition`, a
world of ours with the same structure.

- Eleven actions of the fifteen that upstream lists: the size of its action space is that of another table.
- Images are channels first; `channels_last: true` gives them as upstream does, whose networks then treat them otherwise.
- `dataset_path` is where the level finds its 2400 stimuli (a folder with 0001.png, ...); the Lab's own `dummy` makes plain
  colored ones. Upstream edits the level's file instead.
- Episodes follow from the Lab's seed; upstream does not seed.

Source: specification 2.5 of HELM, and the Lab's documentation of its Python interface.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from pydantic import Field

from recollect.environments.base import Task, WorldOptions, check_split
from recollect.environments.replayed import ReplayedWorld
from recollect.settings.errors import UserError

LEVEL, SIDE, SEEN = "contributed/dmlab30/psychlab_continuous_recognition", 80, "RGB_INTERLEAVED"
REPEAT, FPS, SECONDS = 4, 30, 300
# Look right, look down, strafe right, forward, fire, jump, crouch.
ACTIONS = (
    (0, 0, 0, 1, 0, 0, 0),
    (0, 0, 0, -1, 0, 0, 0),
    (0, 0, -1, 0, 0, 0, 0),
    (0, 0, 1, 0, 0, 0, 0),
    (-10, 0, 0, 0, 0, 0, 0),
    (10, 0, 0, 0, 0, 0, 0),
    (-60, 0, 0, 0, 0, 0, 0),
    (60, 0, 0, 0, 0, 0, 0),
    (0, 10, 0, 0, 0, 0, 0),
    (0, -10, 0, 0, 0, 0, 0),
    (-10, 0, 0, 1, 0, 0, 0),
)


class Options(WorldOptions):
    """Options of Psychlab.

    Args:
        dataset_path: of the stimuli; null: where the level's own file says.
        channels_last: images are [80, 80, 3].
        horizon: steps of an episode at most; the level ends by itself after 300 seconds.
    """

    dataset_path: str | None = None
    channels_last: bool = False
    horizon: int = Field(default=SECONDS * FPS // REPEAT, ge=1)


def tasks(split: str, **options: Any) -> list[Task]:
    """One task, in both splits. Needs no package."""
    Options.parse(options, "psychlab")
    check_split(split, "psychlab")
    return [Task(0, "continuous_recognition", split)]


def find_package() -> Any:
    """The package.

    Raises:
        UserError: it is not installed; the message says what to do.
    """
    try:
        return importlib.import_module("deepmind_lab")
    except ModuleNotFoundError as error:
        raise UserError(
            "the world 'psychlab' needs the package 'deepmind_lab', which is not installed",
            where="environment.world: psychlab",
            do="build it (github.com/google-deepmind/lab, docs/users/build.md; no registry has it) and install the wheel "
            "into .venv, or use the environment `continuous_recognition`",
        ) from error


class Player:
    """One Lab; see `replayed.Player`."""

    def __init__(self, options: Options) -> None:
        config = {"fps": FPS, "width": SIDE, "height": SIDE, "maxAltCameraWidth": 1, "maxAltCameraHeight": 1}
        if options.dataset_path is not None:
            config["datasetPath"] = options.dataset_path  # type: ignore[assignment]
        texts = {name: str(value) for name, value in config.items()}
        self.lab = find_package().Lab(LEVEL, [SEEN], config=texts)
        self.last = options.channels_last

    def begin(self, word: int) -> None:
        """See `replayed.Player.begin`."""
        self.lab.reset(seed=word)
        self._see()

    def step(self, action: Any) -> tuple[float, bool]:
        """See `replayed.Player.step`."""
        reward = self.lab.step(np.array(ACTIONS[int(action)], dtype=np.intc), num_steps=REPEAT)
        over = not self.lab.is_running()
        if not over:  # else there is nothing to see any more
            self._see()
        return float(reward), over

    def look(self) -> np.ndarray:
        """See `replayed.Player.look`."""
        return self.seen

    def close(self) -> None:
        """End the Lab."""
        self.lab.close()

    def _see(self) -> None:
        seen_YXC = self.lab.observations()[SEEN]
        self.seen = np.array(seen_YXC if self.last else seen_YXC.transpose(2, 0, 1))


class Psychlab(ReplayedWorld):
    """Psychlab in a batch; see :class:`recollect.environments.replayed.ReplayedWorld` and :class:`Options`.

    Observations: uint8 [B, 3, 80, 80]. Actions: the rows of `ACTIONS`; only looking matters, nobody can walk here.
    """

    knows_success = False  # an episode ends after 60 answers or its time, right or wrong

    options: Options
    options_model = Options

    def _setup(self) -> None:
        chosen = self.options
        self.horizon = chosen.horizon
        self.single_observation_space = Box(
            0, 255, (SIDE, SIDE, 3) if chosen.channels_last else (3, SIDE, SIDE), np.uint8
        )
        self.single_action_space = Discrete(len(ACTIONS))
        self._play([Player(chosen) for _ in self.tasks])

    def close_extras(self, **kwargs: Any) -> None:
        for player in self.players:
            player.close()


World = Psychlab
