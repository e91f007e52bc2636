"""Procgen: sixteen games of 64 x 64 pixels whose levels are generated (Cobbe et al. 2020, arXiv 1912.01588).

RA-DT (arXiv 2410.07071) learns twelve of them, on level seeds 0 to 199, and is judged on one level at a time: of the same
games a level that was seen (PG12-Seen) and one that was not (PG12-Unseen), and of the four other games (PG4). These are
the splits `train`, `seen`, `unseen` and `eval`. A task of `train` is a game with all its training levels, of which one is
drawn for each episode; a task of the others is a game with one level.

HELM (ICML 2022) learns six games in their memory mode, larger and seen from near, on levels without end: `difficulty: memory`
and `train_levels: 0`. The splits are then `train` and `eval`, which are the same, as all levels are new; an episode lasts as
long as the game lets it. Upstream leaves Procgen unseeded, ours draws the levels from the instance's seed.

- Published and released differ in the seen level: seed 1 in the paper, one of 0 to 199 for each episode in the configuration. Ours
  is the paper's.
- The games are played by a worker process of Python 3.10 (`worker.py`), which is started by the first reset: `procgen` has
  no package for newer Pythons, and `procgen-mirror`, which has, draws 3.6 % of the frames differently (docs/radt.md).
- Procgen begins the next episode by itself, so the last observation of an episode is never seen: what a step that ends
  one gives is the first observation of the next. Its own time limits (500 to 6000 steps, `LIMITS`) look like any other end.
- Every instance is a game of its own with its own seed; upstream's share one generator of levels.
- A sticky action repeats the last one that was played, as upstream; at an episode's start there is none to repeat
  (upstream: action 0, "left and down").
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from gymnasium.spaces import Box, Discrete
from pydantic import Field, model_validator

from recollect.environments import procgen_worker
from recollect.environments.base import BaseWorld, Outcome, Task, WorldOptions, check_split
from recollect.environments.worker import Worker, find_python
from recollect.settings.errors import UserError, nearest

# Game: (scores that are 0 and 1 when normalised, the best return in the published data). The scores are Rmin and Rmax of
# the `easy` levels in the Procgen paper's appendix; they are called human-normalised, though no human set them.
TRAIN_GAMES = {
    "bigfish": ((1.0, 40.0), 40.0),
    "bossfight": ((0.5, 13.0), 15.0),
    "caveflyer": ((3.5, 12.0), 13.0),
    "chaser": ((0.5, 13.0), 13.3128),
    "coinrun": ((5.0, 10.0), 10.0),
    "dodgeball": ((1.5, 19.0), 20.0),
    "fruitbot": ((-1.5, 32.4), 38.0),
    "heist": ((3.5, 10.0), 10.0),
    "leaper": ((3.0, 10.0), 10.0),
    "maze": ((5.0, 10.0), 10.0),
    "miner": ((1.5, 13.0), 13.0),
    "starpilot": ((2.5, 64.0), 67.0),
}
EVAL_GAMES = {
    "climber": ((2.0, 12.6), 16.0),
    "ninja": ((3.5, 10.0), 10.0),
    "plunder": ((4.5, 30.0), 18.0),
    "jumper": ((3.0, 10.0), 10.0),
}
# Steps after which a game ends an episode by itself, where these are not 1000 (its source; not of the memory mode).
LIMITS = {"bigfish": 6000, "bossfight": 4000, "leaper": 500, "maze": 500, "plunder": 4000}
# Game: (steps, (lowest, highest return)). The returns are those of the hard mode (Cobbe et al. 2020); the memory mode has
# none of its own.
MEMORY_GAMES = {
    "caveflyer": (1000, (2.0, 13.4)),
    "dodgeball": (1000, (1.5, 19.0)),
    "heist": (1000, (2.0, 10.0)),
    "jumper": (2000, (1.0, 10.0)),
    "maze": (500, (4.0, 10.0)),
    "miner": (1000, (1.5, 20.0)),
}
SPLITS = {"train": TRAIN_GAMES, "seen": TRAIN_GAMES, "unseen": TRAIN_GAMES, "eval": EVAL_GAMES}
SHAPE_CHW = (3, 64, 64)
ACTIONS = 15
MOST_LEVELS = 2**31 - 1  # seeds are numbers of 32 bits
MAKE = ("game", "start_level", "num_levels")  # of a task's data, what the worker makes a game of
FORCE, LEAVE = -1, -2  # what the worker understands besides actions
SCRIPT = Path(procgen_worker.__file__)


class Options(WorldOptions):
    """games: only these; null: all. (In RA-DT's paper: all.)
    game: the same for a single one.
    difficulty: of the levels; `memory` is Procgen's memory mode.
    train_levels: level seeds 0, 1, ... that `train` draws from (and `eval` in the memory mode); 0: all there are.
    seen_level, unseen_level: the level of the tasks of `seen`; of `unseen` and `eval`.
    horizon: steps of an episode of `train` at most; null: the longest of the games' own limits (of all games 6000), so
        that none is cut, as in the published data.
    evaluation_horizon: the same for the other splits, but not in the memory mode.
    sticky_actions: with this probability the last action is played again instead of the one that was chosen.
    """

    games: list[str] | None = Field(default=None, min_length=1)
    game: str | None = None
    difficulty: Literal["easy", "hard", "memory"] = "easy"
    train_levels: int = Field(default=200, ge=0, le=MOST_LEVELS)
    seen_level: int = Field(default=1, ge=0, lt=MOST_LEVELS)
    unseen_level: int = Field(default=200, ge=0, lt=MOST_LEVELS)
    horizon: int | None = Field(default=None, ge=1)
    evaluation_horizon: int = Field(default=400, ge=1)
    sticky_actions: float = Field(default=0.0, ge=0, lt=1)

    @model_validator(mode="after")
    def _known(self) -> Options:
        if self.games is not None and self.game is not None:
            raise ValueError(f"`game: {self.game}` and `games` are both set; write `default` for one of them")
        known = MEMORY_GAMES if self.difficulty == "memory" else TRAIN_GAMES | EVAL_GAMES
        for game in self.chosen or ():
            if game not in known:
                mode = " with a memory mode" if self.difficulty == "memory" else ""
                raise ValueError(f"there is no game '{game}'{mode}, {nearest(game, known)}")
        return self

    @property
    def chosen(self) -> list[str] | None:
        """The games that are kept; None: all."""
        return self.games if self.game is None else [self.game]


def tasks(split: str, **options: Any) -> list[Task]:
    """The games of a split: ``data`` has the `game`, its first level, and the number of its levels; needs no package.

    ``data["target_return"]`` is the best return in the published data; ``data["normalisation"]`` says how the metric `hns`
    follows from a return.
    """
    chosen = Options.parse(options, "procgen")
    memory = chosen.difficulty == "memory"
    check_split(split, "procgen", ("train", "eval") if memory else tuple(SPLITS))
    if split == "unseen" and not 0 < chosen.train_levels <= chosen.unseen_level:
        all_ = chosen.train_levels or "all"
        what = f"level {chosen.unseen_level} of split 'unseen' is one of those that are learned from (train_levels: {all_})"
        raise UserError(what, where="options of the world procgen: unseen_level", do="raise it, or lower train_levels")
    if split == "seen" and 0 < chosen.train_levels <= chosen.seen_level:
        what = f"level {chosen.seen_level} of split 'seen' is never learned from (train_levels: {chosen.train_levels})"
        raise UserError(what, where="options of the world procgen: seen_level", do="lower it, or raise train_levels")
    if memory or split == "train":
        levels = {"start_level": 0, "num_levels": chosen.train_levels}
    elif split == "seen":
        levels = {"start_level": chosen.seen_level, "num_levels": 1}
    else:
        levels = {"start_level": chosen.unseen_level, "num_levels": 1}
    known: dict[str, dict[str, Any]] = {}
    if memory:
        for game, (_, returns) in MEMORY_GAMES.items():
            known[game] = {"normalisation": {"hns": returns}}
    else:
        for game, (scores, best) in SPLITS[split].items():
            known[game] = {"target_return": best}
            if chosen.difficulty == "easy":  # what the scores are of
                known[game]["normalisation"] = {"hns": scores}
    kept = [game for game in known if chosen.chosen is None or game in chosen.chosen]
    return [Task(i, game, split, {"game": game, **levels, **known[game]}) for i, game in enumerate(kept)]


def find_package() -> Path:
    return find_python("procgen")


class Procgen(BaseWorld):
    """Observations: uint8 [B, 3, 64, 64], colours first. Actions 0..14, as Procgen has them: 4 does nothing. A reset leaves an
    instance alone that stands at the start of an episode.
    """

    options: Options
    options_model = Options

    def _setup(self) -> None:
        chosen = self.options
        memory = chosen.difficulty == "memory"
        trained = {memory or task.split == "train" for task in self.tasks}
        if len(trained) > 1:
            what = "tasks of `train` and of other splits have episodes of different lengths"
            raise UserError(what, where=type(self).__name__, do="make one world for each")
        if False in trained:
            self.horizon = chosen.evaluation_horizon
        elif chosen.horizon is not None:
            self.horizon = chosen.horizon
        elif memory:
            self.horizon = max(MEMORY_GAMES[task.data["game"]][0] for task in self.tasks)
        else:  # the same for every task of an environment: histories and networks have one horizon
            self.horizon = max(LIMITS.get(game, 1000) for game in chosen.chosen or TRAIN_GAMES)
        self.single_observation_space = Box(0, 255, SHAPE_CHW, np.uint8)
        self.single_action_space = Discrete(ACTIONS)
        self._made_B = self._keep_zeros("made", bool)  # in the worker, of its seed
        self._fresh_B = self._keep_zeros("fresh", bool)  # at the start of an episode already
        self._last_action_B = self._keep("last_action", np.full(self.num_envs, -1, np.int64))
        self._started: Worker | None = None
        self._sent_B: np.ndarray | None = None  # actions of a step that the worker plays already

    @property
    def worker(self) -> Worker:
        """The process that plays, started when first needed. Raises UserError: there is no Python or procgen for it."""
        if self._started is None:
            B = self.num_envs
            fields = {
                "action": ("int32", (B,)),
                "reward": ("float32", (B,)),
                "first": ("bool", (B,)),
                "frame": ("uint8", (B, *SHAPE_CHW)),
            }
            options = {"distribution_mode": self.options.difficulty}
            self._started = Worker("procgen", find_package(), SCRIPT, fields, options)
        return self._started

    def _begin(self, index_N: np.ndarray) -> None:
        self._make(index_N[~self._made_B[index_N]])
        forced_N = index_N[~self._fresh_B[index_N]]
        if forced_N.size:
            action_B = self.worker.arrays["action"]
            action_B[:] = LEAVE
            action_B[forced_N] = FORCE
            self.worker.ask("step")
        self._fresh_B[index_N] = True
        self._last_action_B[index_N] = -1

    def _make(self, index_N: np.ndarray) -> None:
        """Have these games made anew, with their seeds."""
        if index_N.size:
            seed_N = (self._seeds_B[index_N] ^ (self._seeds_B[index_N] >> np.uint64(32))) & np.uint64(0x7FFF_FFFF)
            which = [
                {"place": place, "seed": seed, **{key: self.tasks[place].data[key] for key in MAKE}}
                for place, seed in zip(index_N.tolist(), seed_N.tolist(), strict=True)
            ]
            self.worker.ask("begin", which=which)
            self._made_B[index_N] = self._fresh_B[index_N] = True

    def send(self, actions: np.ndarray) -> None:
        """See :meth:`recollect.environments.base.World.send`."""
        if self._any_ended:
            self._refuse_ended()
        self._send(self._check_actions(actions))

    def _send(self, actions_B: np.ndarray) -> None:
        self._sent_B = actions_B
        if self.options.sticky_actions:
            drawn_B = self._draw_integers(self._row_B, 2**31)
            again_B = (drawn_B < self.options.sticky_actions * 2**31) & (self._last_action_B >= 0)
            actions_B = np.where(again_B, self._last_action_B, actions_B)
        self._last_action_B[:] = actions_B
        self.worker.arrays["action"][:] = actions_B
        self.worker.send("step")

    def _advance(self, actions_B: np.ndarray, last_B: np.ndarray | None) -> Outcome:
        if self._sent_B is None:
            self._send(actions_B)
        elif not np.array_equal(self._sent_B, actions_B):
            raise ValueError(f"{type(self).__name__}.step: other actions were sent")
        self._sent_B = None
        self.worker.answer("step")
        arrays = self.worker.arrays
        self._fresh_B[:] = arrays["first"]
        return arrays["reward"].copy(), arrays["first"].copy()

    def _observe(self) -> np.ndarray:
        return self.worker.arrays["frame"].copy()

    def get_state(self) -> dict[str, np.ndarray]:
        """As :meth:`recollect.environments.base.World.get_state`; `games` are the games' own states, as long as they are."""
        state = super().get_state()
        told, data = self.worker.ask("get_state") if self._made_B.any() else ({"sizes": [0] * self.num_envs}, b"")
        return {**state, "sizes": np.array(told["sizes"], np.int64), "games": np.frombuffer(data, np.uint8).copy()}

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        plain = dict(state)
        sizes_B = np.asarray(plain.pop("sizes", ()))
        games = np.asarray(plain.pop("games", ()))
        if sizes_B.shape != (self.num_envs,) or games.dtype != np.uint8 or sizes_B.sum() != games.size:
            what = "the games' states are missing, or of another number of games"
            raise UserError(what, where=f"state of {type(self).__name__}", do="use a state of the same world")
        super().set_state(plain)
        if not self._made_B.any():
            return
        # Games that are made anew count as fresh, which these need not be.
        fresh_B = self._fresh_B.copy()
        self._make(np.flatnonzero(self._made_B))
        self._fresh_B[:] = fresh_B
        self.worker.ask("set_state", games.tobytes(), sizes=sizes_B.tolist())


World = Procgen
