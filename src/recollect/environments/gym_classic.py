"""Any environment that `gymnasium.make` knows: its classic ones, and those of packages that register theirs.

AMAGO's first example (specification 4.1); what is flat, how actions are mapped and what ends are called says
:mod:`recollect.environments.packaged`. The environment's own time limit is replaced by `horizon`, which truncates; AMAGO's
older version calls that the end (`done`), the newer one bootstraps past it. LunarLander needs Box2D (`recollect[amago]`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
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

    def __init__(
        self,
        tasks: Sequence[Task],
        *,
        seeds: np.ndarray,
        autoreset_mode: AutoresetMode = AutoresetMode.DISABLED,
        **options: Any,
    ) -> None:
        chosen = Options.parse(options, "gym_classic")
        if chosen.package is not None:
            needed(chosen.package, "gym_classic", family="amago")
        players = [GymnasiumPlayer(made(chosen.id, "gym_classic", **chosen.arguments), "gym_classic") for _ in tasks]
        super().__init__(
            tasks,
            players,
            seeds=seeds,
            autoreset_mode=autoreset_mode,
            horizon=chosen.horizon,
            observation_space=players[0].observation_space,
            action_space=players[0].action_space,
        )


World = GymClassic
