"""Any environment that `gymnasium.make` knows: its own ones, and those of packages that register theirs, yours too.

Its name needs no file: `gym.CartPole-v1` is CartPole-v1, `gym.mygym.Bandit-v0` is `mygym/Bandit-v0` of the package mygym, and
`gym.ale_py.ALE.Pong-v5` is `ale_py:ALE/Pong-v5`. What an observation becomes, how actions are mapped and what ends are called
says :mod:`recollect.environments.packaged`.

AMAGO's first example (specification 4.1) is played here. The time limit is `truncated`; whether values look beyond it is for
the method to say (AMAGO: `truncation`). LunarLander needs Box2D (the extra `amago`).
"""

from __future__ import annotations

import importlib.util
from functools import partial
from typing import Any

import gymnasium
from pydantic import Field, model_validator

from recollect.environments.attempts import Attempts
from recollect.environments.base import Task, WorldOptions
from recollect.environments.checked import Checked
from recollect.environments.packaged import Plain, Shown, VectorWorld, made
from recollect.settings.catalogue import imported, reach_mine
from recollect.settings.errors import UserError, nearest

NO_LIMIT = 1000  # steps of an episode where neither the options nor the environment says how many


class Options(WorldOptions):
    """id: as `gymnasium.make` takes it.
    package: a module that registers it when it is imported; null: the id's namespace, if a package is called so.
    arguments: of `gymnasium.make`.
    horizon: steps of an episode; null: the environment's own time limit, or 1000.
    attempts: episodes of one task that make a rollout, see :mod:`recollect.environments.attempts`.
    soft_reset: options of `reset` between attempts; null: each begins from the same seed.
    observation: where an image stands in a dictionary beside numbers: `whole` (both), `image` or `numbers`.
    processes: each environment is played by a process of its own, which pays where steps are slow.
    metrics: numbers that the environment puts into `info` when it ends an episode; each is a metric of the scores of an episodic
        evaluation, and of AMAGO while it learns. Where one episode has none (NaN), none of that evaluation is scored. `success` and
        `is_success` need not be named: they are the metric `success`.
    """

    id: str = "CartPole-v1"
    package: str | None = None
    arguments: dict[str, Any] = Field(default_factory=dict)
    horizon: int | None = Field(default=None, ge=1)
    attempts: int = Field(default=1, ge=1)
    soft_reset: dict[str, Any] | None = None
    observation: Shown = "whole"
    processes: bool = False
    metrics: list[str] = Field(default_factory=list)

    @model_validator(mode="after")
    def _attempts_to_reset_between(self) -> Options:
        if self.soft_reset is not None and self.attempts == 1:
            raise ValueError(
                "soft_reset is about what happens between attempts: set attempts to 2 or more, or leave it out"
            )
        return self


def tasks(split: str, **options: Any) -> list[Task]:
    """One task, in both splits; needs no package."""
    chosen = Options.parse(options, "gymnasium", split)
    return [Task(0, chosen.id, split)]


def registered(options: Options) -> str:
    """The id that gymnasium has after the package was imported. Raises UserError: there is no such package or id."""
    module, colon, name = options.id.rpartition(":")
    namespace = name.rpartition("/")[0]
    reach_mine()
    if options.package or colon:
        package = options.package or module
        imported(package, "the world 'gymnasium'", where=f"options: {{package: {package}}}")
    elif namespace and name not in gymnasium.registry:
        package = namespace if _imported(namespace) else ""
    else:
        package = ""
    if name in gymnasium.registry:
        return name
    # A package may register its environments without a namespace; one of gymnasium's own is then not the one that is meant.
    bare = name.rpartition("/")[2]
    if bare in gymnasium.registry and not str(gymnasium.registry[bare].entry_point).startswith("gymnasium."):
        return bare
    after = f" after `import {package}`" if package else ""
    if namespace and not package:
        after = f", and there is no package '{namespace}' to import"
    hint = nearest(name, gymnasium.registry)
    hint += " Or" if hint.endswith("?") else "; or"
    raise UserError(
        f"'{name}' cannot be made: gymnasium knows no such id{after}",
        where="environment.world: gymnasium",
        do=f"{hint} name the package that registers it: `options: {{package: ...}}`",
    )


def _imported(package: str) -> bool:
    """Import a package that may be there, and say whether it is."""
    if importlib.util.find_spec(package.partition(".")[0]) is None:
        return False
    imported(package, "the world 'gymnasium'", where=f"options: {{package: {package}}}")
    return True


def steps_of(options: Options) -> int:
    """The longest episode."""
    if options.horizon:
        return options.horizon
    name = registered(options)
    spec = gymnasium.spec(name)
    if spec.entry_point == "recollect.environments.single:SingleWorld":  # ours know how long their episodes are
        horizon: int = made(name, "gymnasium", **options.arguments).unwrapped.world.horizon
        return horizon
    return spec.max_episode_steps or NO_LIMIT


def plain(options: Options, place: int) -> Plain:
    inner: Any = Checked(made(registered(options), "gymnasium", **options.arguments))
    if options.attempts > 1:
        inner = Attempts(inner, options.attempts, steps_of(options), options.soft_reset)
    return Plain(inner, "gymnasium", place=place, shown=options.observation)


class Gymnasium(VectorWorld):
    options: Options
    options_model = Options

    def _setup(self) -> None:
        self.horizon = self.options.attempts * steps_of(self.options)
        makers = [partial(plain, self.options, place) for place in range(self.num_envs)]
        self._play(makers, processes=self.options.processes, metrics=self.options.metrics)


World = Gymnasium
