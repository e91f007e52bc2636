"""`python -m benchmarks.worlds`: what a step takes of worlds that a package plays -> config/world_steps.csv.

Without names it times all environments of the paper's figures whose world steps one instance after the other; with beginnings of
names (`mini_grid bullet`) those alone. Other rows of these figures stay. Worlds that several processes may play are timed in
two, too. To be run on two cores or more, with nothing else beside it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import numpy as np
from gymnasium.spaces import Discrete

from benchmarks import exit_status
from recollect.artifacts.sealed import write_bytes
from recollect.environments import registry
from recollect.environments.base import World
from recollect.environments.packaged import VectorWorld
from recollect.environments.parallel import ParallelWorld
from recollect.environments.procgen import Procgen
from recollect.environments.replayed import ReplayedWorld
from recollect.settings.errors import UserError
from recollect.settings.resolve import environment_settings
from recollect.stages import world_steps
from recollect.stages.circumstances import commit, processor
from recollect.stages.plan import plan
from recollect.stages.selection import chosen_figures
from recollect.stages.table import STAGES
from recollect.stages.world_steps import WorldStep

SCALE = "paper"
BY_A_PACKAGE = (ReplayedWorld, VectorWorld, Procgen)
INSTANCES = 16  # as HELM's; Memory-RL plays 10, AMAGO 8 to 24
ROUNDS = 3


def environments(beginnings: Sequence[str]) -> list[str]:
    """The environments of the paper's figures whose names begin so.

    Raises:
        UserError: there is none.
    """
    needed = plan(SCALE, chosen_figures(SCALE, ["all"])).needs
    known = sorted({step.env for job in needed for _, step in STAGES[job.stage].steps(job) if step.stage == "train"})
    found = [env for env in known if env.startswith(tuple(beginnings) or ("",))]
    if not found:
        raise UserError("no environment's name begins so", where=" ".join(beginnings), do=f"known: {', '.join(known)}")
    return found


def steps(env: str, seconds: float) -> WorldStep | None:
    """Time an environment; None where its world steps all instances at once.

    The fastest of three rounds counts, as others may use the machine.

    Raises:
        UserError: its package is not installed, or its world cannot be made.
    """
    settings = environment_settings(SCALE, env)
    kind = registry.world_class(settings.world)
    if not issubclass(kind, BY_A_PACKAGE):
        return None
    tasks = registry.tasks(settings.world, settings.options, "train")
    played = [tasks[place * len(tasks) // INSTANCES] for place in range(INSTANCES)]
    seeds = np.arange(INSTANCES, dtype=np.uint64)
    worlds = [registry.make_world(settings.world, settings.options, played, seeds)]
    if kind.slow:
        worlds.append(ParallelWorld(settings.world, settings.options, played, seeds, processes=2))
    best = _best(worlds, seconds)
    return WorldStep(
        env=env,
        world=settings.world,
        microseconds=best[0],
        instances=INSTANCES,
        in_two=best[1] if kind.slow else None,
        processor=processor(),
        date=datetime.now(UTC).date().isoformat(),
        commit=commit() or "unknown",
    )


def _best(worlds: Sequence[World], seconds: float) -> list[float]:
    """Microseconds of a step of each world in its fastest round; they take turns, and are closed."""
    try:
        for world in worlds:
            world.reset()
            _play(world, seconds / ROUNDS)
        rounds = [[_play(world, seconds) for world in worlds] for _ in range(ROUNDS)]
    finally:
        for world in worlds:
            world.close()
    return [float(f"{min(taken) * 1e6:.3g}") for taken in zip(*rounds, strict=True)]


def _play(world: World, seconds: float) -> float:
    """Play for so long at random, and start episodes where they end; gives seconds of a step of one instance."""
    draw, space = np.random.default_rng(0), world.single_action_space
    taken, start = 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < seconds:
        if isinstance(space, Discrete):
            action_B = draw.integers(0, space.n, world.num_envs)
        else:
            action_B = np.stack([space.sample() for _ in range(world.num_envs)])
        _, _, terminated_B, truncated_B, _ = world.step(action_B)
        ended_B = terminated_B | truncated_B
        if ended_B.any():
            world.reset(options={"reset_mask": ended_B})
        taken += world.num_envs
    return spent / taken


def timed(beginnings: Sequence[str], seconds: float) -> Iterator[WorldStep]:
    """The rows of what can be played here; says of each what it takes, or why it is not timed."""
    for env in environments(beginnings):
        try:
            row = steps(env, seconds)
        except UserError as error:
            print(f"{env}: not timed, {str(error).splitlines()[0]}", flush=True)
            continue
        if row is not None:
            two = "" if row.in_two is None else f", {row.in_two:g} in two processes"
            print(f"{env}: {row.microseconds:g} microseconds a step{two}", flush=True)
            yield row


def write(beginnings: Sequence[str], seconds: float) -> str:
    """Write the file anew; gives what was done, as text."""
    found = {row.env: row for row in timed(beginnings, seconds)}
    known = environments([])
    kept = [row for row in world_steps.read() if row.env not in found and row.env in known]
    write_bytes(world_steps.path(), world_steps.text([*kept, *found.values()]).encode())
    return f"{world_steps.path()}: {len(found)} environments timed, {len(kept)} kept"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the file, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.worlds", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="beginnings of names of environments")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each of three rounds")
    asked = parser.parse_args(arguments)
    return exit_status(lambda: print(write(asked.names, asked.seconds)))


if __name__ == "__main__":
    sys.exit(main())
