"""Meta-World in k attempts: the same positions again and again, so that the second attempt can know (AMAGO, spec 4.5).

A rollout plays one task of Meta-World (:mod:`recollect.environments.meta_world`) for k episodes of 500 steps, with the same
object and goal in each; the goal is hidden. An entry behind the 39 says 1 at the first observation of each episode. An
episode is a success if the task was ever solved in it; `info["success"]` of a rollout is the share of its k episodes.

- `benchmark` is a task's name (ML1: the same task, other positions), `ml10` or `ml45`. For each rollout a task is drawn,
  then one of its positions: 50 for train, 50 others for eval. The split `each` has a task of its own for every one held out.
- The next episode begins within the step that ends the last, whose last observation is never seen, as upstream.
- Positions are those of fixed words, not those of the package's benchmarks. The package is 3.1 (v3), see `meta_world`.
- The end of a rollout is `terminated`, as upstream.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from gymnasium.spaces import Box
from pydantic import Field, field_validator

from recollect.environments import meta_world
from recollect.environments.base import Outcome, Task, WorldOptions
from recollect.environments.replayed import ReplayedWorld
from recollect.settings.errors import nearest

ML10_TRAIN = (
    "reach", "push", "pick-place", "door-open", "drawer-close", "button-press-topdown", "peg-insert-side", "window-open",
    "sweep", "basketball",
)  # fmt: skip
ML10_EVAL = ("drawer-open", "door-close", "shelf-place", "sweep-into", "lever-pull")
NAMES = (*meta_world.TRAIN, *meta_world.EVAL)
SPLITS = ("train", "eval", "each")
SIZE, ACTION_SIZE = 40, 4


class Options(WorldOptions):
    """Options of Meta-World in k attempts; `positions` are of a task, `benchmark` see the head of the file."""

    benchmark: str = "reach"
    attempts: int = Field(default=2, ge=1)
    attempt_steps: int = Field(default=500, ge=1, le=500)
    positions: int = Field(default=50, ge=1)
    goal_shown: bool = False

    @field_validator("benchmark")
    @classmethod
    def _known(cls, benchmark: str) -> str:
        if benchmark not in (known := ("ml10", "ml45", *NAMES)):
            raise ValueError(f"there is no benchmark '{benchmark}', {nearest(benchmark, known)}")
        return benchmark

    def names(self, split: str) -> tuple[str, ...]:
        train = split == "train"
        if self.benchmark == "ml10":
            return ML10_TRAIN if train else ML10_EVAL
        if self.benchmark == "ml45":
            return tuple(meta_world.TRAIN if train else meta_world.EVAL)
        return (self.benchmark,)


def tasks(split: str, **options: Any) -> list[Task]:
    """One task, which is drawn for every rollout; `each`: one for each that is held out. Needs no package."""
    chosen = Options.parse(options, "meta_world_kshot", split, SPLITS)
    names = chosen.names(split)
    first = 1 if split == "train" else 1 + chosen.positions  # words of the positions
    if split == "each":
        return [Task(i, name, split, {"names": (name,), "first": first}) for i, name in enumerate(names)]
    return [Task(0, chosen.benchmark, split, {"names": names, "first": first})]


class Player:
    """One robot; see `replayed.Player`. `won` counts the episodes of the rollout in which its task was solved."""

    def __init__(self, options: Options, task: Task) -> None:
        self.options, self.task = options, task
        self._simulators: dict[str, meta_world.Simulator] = {}
        self._of(task.data["names"][0])  # a missing package is known at once

    def _of(self, name: str) -> meta_world.Simulator:
        if name not in self._simulators:
            self._simulators[name] = meta_world.Simulator(name)
        return self._simulators[name]

    def begin(self, word: int) -> None:
        names = self.task.data["names"]
        self.now = self._of(names[word % len(names)])
        self.position = self.task.data["first"] + word // len(names) % self.options.positions
        self.won = self.attempt = 0
        self._begin_attempt()

    def _begin_attempt(self) -> None:
        self.now.begin(self.position)
        self.time = 0
        self.solved = False

    def step(self, action: Any) -> tuple[float, bool]:
        reward, solved = self.now.step(np.asarray(action))
        self.time += 1
        self.solved |= solved
        if self.time == self.options.attempt_steps:
            self.won += self.solved
            self.attempt += 1
            self._begin_attempt()
        return reward, self.attempt == self.options.attempts

    def render(self) -> np.ndarray:
        return self.now.render()

    def look(self) -> np.ndarray:
        seen_D = np.append(self.now.look(), float(self.time == 0)).astype(np.float32)
        if not self.options.goal_shown:
            seen_D[list(meta_world.GOAL)] = 0
        return seen_D


class MetaWorldKShot(ReplayedWorld):
    """Observations: float32 [B, 40]. Actions: float32 [B, 4] in [-1, 1]."""

    slow: ClassVar[bool] = True
    horizon_terminates: ClassVar[bool] = True
    knows_success = False  # but of a rollout's share
    options: Options
    options_model = Options

    def _setup(self) -> None:
        chosen = self.options
        self.parts = chosen.attempts  # scored one by one
        self.horizon = chosen.attempts * chosen.attempt_steps
        self.single_observation_space = Box(-np.inf, np.inf, (SIZE,), np.float32)
        self.single_action_space = Box(-1.0, 1.0, (ACTION_SIZE,), np.float32)
        self._play([Player(chosen, task) for task in self.tasks])

    def _advance(self, actions_B: np.ndarray, last_B: np.ndarray | None) -> Outcome:
        rewards_B, over_B = super()._advance(actions_B, last_B)
        won_B = np.array([player.won for player in self.players])
        self._success_B = won_B / self.options.attempts
        return rewards_B, over_B


World = MetaWorldKShot
