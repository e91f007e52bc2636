"""Any environment that `gymnasium.make` knows: its classic ones, and those of packages that register theirs.

AMAGO's first example (specification 4.1); what is flat, how actions are mapped and what ends are called says
:mod:`recollect.environments.packaged`. The environment's own time limit is replaced by `horizon`, which truncates; AMAGO's
older version calls that the end (`done`), the newer one bootstraps past it. LunarLander needs Box2D (`recollect[amago]`).
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from recollect.environments.base import Task, WorldOptions, check_split
from recollect.environments.packaged import GymnasiumPlayer, PackagedWorld, made
from recollect.environments.simulated import needed


class Options(WorldOptions):
    """Options of gymnasium's environments.

    Args:
        id: as `gymnasium.make` takes it.
        package: a module that registers it when it is imported; null: gymnasium itself has it.
        arguments: of `gymnasium.make`.
        horizon: steps of an episode.
    """

    id: str = "CartPole-v1"
    package: str | None = None
    arguments: dict[str, Any] = Field(default_factory=dict)
    horizon: int = Field(default=500, ge=1)


def tasks(split: str, **options: Any) -> list[Task]:
    """One task, in both splits; needs no package."""
    chosen = Options.parse(options, "gym_classic")
    check_split(split, "gym_classic")
    return [Task(0, chosen.id, split)]


class GymClassic(PackagedWorld):
    """Environments of gymnasium in a batch; see :class:`recollect.environments.base.World` and :class:`Options`."""

    options: Options
    options_model = Options

    def _setup(self) -> None:
        chosen = self.options
        if chosen.package is not None:
            needed(chosen.package, "gym_classic", family="amago")
        players = [
            GymnasiumPlayer(made(chosen.id, "gym_classic", **chosen.arguments), "gym_classic") for _ in self.tasks
        ]
        self.horizon = chosen.horizon
        self.single_observation_space = players[0].observation_space
        self.single_action_space = players[0].action_space
        self._play(players)


World = GymClassic
