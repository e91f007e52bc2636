"""POPGym: games and control tasks that ask for memory (Morad et al. 2023); 39 of them are AMAGO's (specification 4.2).

A task is called as in the package, e.g. `AutoencodeMedium`. AMAGO's paper calls four of them otherwise: its
(Noisy)StatelessCartPole and (Noisy)StatelessPendulum are (Noisy)PositionOnlyCartPole and (Noisy)PositionOnlyPendulum.

- Choices are seen as one-hot, several of them one behind the other (upstream pads each to the largest of them).
- Some tasks draw from numpy's global generator, so that a seed does not fix them. Here each instance has
  one of its own while it plays; the global one stays as it is.
- The package's own limits, which an agent may not see, are `terminated` (as in newer upstream). `timer` appends
  step / 1000, as newer upstream does.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from pydantic import Field, field_validator

from recollect.environments.base import Task, WorldOptions
from recollect.environments.packaged import Plain, VectorWorld, made
from recollect.environments.simulated import needed
from recollect.settings.errors import nearest

# Name in the package: (name in AMAGO's paper, longest episodes: easy, medium, hard).
PACKAGES = ("popgym",)
GAMES = {
    "Autoencode": ("Autoencode", (103, 207, 311)),
    "Battleship": ("Battleship", (64, 100, 144)),
    "Concentration": ("Concentration", (104, 208, 104)),
    "CountRecall": ("CountRecall", (51, 103, 207)),
    "HigherLower": ("HigherLower", (51, 103, 155)),
    "MineSweeper": ("MineSweeper", (14, 30, 54)),
    "MultiarmedBandit": ("MultiarmedBandit", (200, 400, 600)),
    "NoisyPositionOnlyCartPole": ("NoisyStatelessCartPole", (200, 200, 200)),
    "NoisyPositionOnlyPendulum": ("NoisyStatelessPendulum", (200, 200, 200)),
    "PositionOnlyCartPole": ("StatelessCartPole", (200, 400, 600)),
    "PositionOnlyPendulum": ("StatelessPendulum", (200, 150, 100)),
    "RepeatFirst": ("RepeatFirst", (51, 415, 831)),
    "RepeatPrevious": ("RepeatPrevious", (51, 103, 155)),
}
# Mean return of uniformly random actions in 200 episodes per task, measured here with popgym 1.0.7 (standard error at most 0.022):
# easy, medium, hard. Rewards are such that 1 is the highest return of any game, and -1 the lowest.
RANDOM_RETURNS = {
    "Autoencode": (-0.493, -0.501, -0.501),
    "Battleship": (-0.467, -0.427, -0.409),
    "Concentration": (-0.190, -0.184, -0.831),
    "CountRecall": (-0.923, -0.920, -0.878),
    "HigherLower": (0.001, 0.004, -0.001),
    "MineSweeper": (-0.232, -0.401, -0.436),
    "MultiarmedBandit": (0.002, 0.000, 0.001),
    "NoisyPositionOnlyCartPole": (0.109, 0.109, 0.109),
    "NoisyPositionOnlyPendulum": (0.249, 0.249, 0.249),
    "PositionOnlyCartPole": (0.109, 0.054, 0.036),
    "PositionOnlyPendulum": (0.249, 0.249, 0.250),
    "RepeatFirst": (-0.512, -0.495, -0.495),
    "RepeatPrevious": (-0.511, -0.502, -0.510),
}
HIGHEST = 1.0
LEVELS = ("Easy", "Medium", "Hard")
TASKS = {game + level: steps[i] for game, (_, steps) in GAMES.items() for i, level in enumerate(LEVELS)}
AT_RANDOM = {game + level: returns[i] for game, returns in RANDOM_RETURNS.items() for i, level in enumerate(LEVELS)}


class Options(WorldOptions):
    """Options of POPGym; `horizon` null: as many steps as the task's longest episode."""

    task: str = "AutoencodeEasy"
    horizon: int | None = Field(default=None, ge=1)
    timer: bool = False

    @field_validator("task")
    @classmethod
    def _known(cls, task: str) -> str:
        if task not in TASKS:
            raise ValueError(f"there is no task '{task}', {nearest(task, TASKS)}")
        return task


def tasks(split: str, **options: Any) -> list[Task]:
    """One task, in both splits; needs no package. Normalised, 0 is an agent that acts at random and 1 the highest return."""
    chosen = Options.parse(options, "popgym", split)
    return [Task(0, chosen.task, split, {"normalisation": {"from_random": (AT_RANDOM[chosen.task], HIGHEST)}})]


class PopGym(VectorWorld):
    truncates = False
    options: Options
    options_model = Options

    def _setup(self) -> None:
        chosen = self.options
        needed("popgym", "popgym", family="amago")
        timer = 1000 if chosen.timer else None
        self.horizon = chosen.horizon or TASKS[chosen.task]

        def plain(place: int) -> Plain:
            inner = made(f"popgym-{chosen.task}-v0", "popgym")
            return Plain(inner, "popgym", place=place, own_draws=True, timer=timer)

        self._play([partial(plain, place) for place in range(self.num_envs)])


World = PopGym
