"""AMAGO with processes that collect and one that learns, over sealed files in the run's folder (specification 2.3).

    collector: newest weights -> its actors' steps of an epoch -> a file of trajectories -> ...
    learner:   files of all collectors -> an epoch's updates -> newest weights -> ...

The updates of an epoch begin when all its steps are played, its steps when the learner has begun the epoch before it. So
updates per step are as configured at every moment, and what differs from one process is a lag of an epoch: steps of epoch e
may be played with weights that know no update of epoch e - 1. Updates of epoch e may see steps of e + 1. A run is
not a function of its seed.

Several collectors share the actors of a run as evenly as can be. Each has random streams of its own, and plays the tasks that
its actors would play in one process. Each writes files of its own, one at a time, as their names are numbers in order.

A trajectory file is there once its manifest is, so no process ever reads half of one; the learner alone removes old files.
All else goes through a pipe for each collector, whose end both notice when the other process dies; one that waits for its turn
to write looks at it, too, so that a killed process blocks nothing. The lock on the run's folder is held by all. Collectors of a
killed learner end at once and write no more, and no other job can begin the run before they have. Where one collector dies,
the run ends. A run that was stopped goes on from the learner's checkpoint; what actors had in hand is lost, and steps that the
learner had not counted yet are played again.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch

from recollect.amago.agent import Agent
from recollect.amago.children import end_with_parent, reported
from recollect.amago.hyperparameters import AmagoHyperparameters
from recollect.amago.loop import Collector, Trainer
from recollect.amago.network import world_shape
from recollect.amago.policy import AmagoPolicy
from recollect.amago.trajectory_files import UNLIMITED, Trajectory, TrajectoryFiles
from recollect.artifacts import stopping
from recollect.artifacts.lock import SharedLock
from recollect.artifacts.run import Run
from recollect.artifacts.sealed import read_arrays, write_arrays
from recollect.artifacts.threads import use_threads
from recollect.environments.base import World
from recollect.environments.parallel import make_world
from recollect.environments.registry import tasks
from recollect.environments.worker import stops_blocked
from recollect.settings.errors import UserError
from recollect.settings.schema import EnvironmentSettings, Settings
from recollect.settings.seeding import seed_of

WEIGHTS = "newest_weights.safetensors"
NAME = "amago collector"
CHUNK = 20  # steps between looks at whether to stop
PATIENCE = 60.0  # seconds that collectors get to end
AHEAD = 1  # epochs that a collector may be ahead of the learner
LOOK = 1.0  # seconds of waiting for steps, between looks at whether to save and end
TURN = 1.0  # seconds of waiting for a turn to write, between looks at whether to stop


def running() -> list[BaseProcess]:
    return [process for process in multiprocessing.active_children() if process.name == NAME]


@dataclass(frozen=True)
class Part:
    """What one collector does of a run.

    Attributes:
        number: of the collector, from 0.
        actors: which of the run's it plays.
        turn: held while a file is written; None: there is one collector.
    """

    number: int
    actors: range
    turn: Any = None


def parts(actors: int, collectors: int, turn: Any = None) -> list[Part]:
    """Who plays which actors."""
    cuts = [actors * place // collectors for place in range(collectors + 1)]
    return [Part(n, range(cuts[n], cuts[n + 1]), turn if collectors > 1 else None) for n in range(collectors)]


class Stop(Exception):
    """The learner wants no more, or is gone."""


class LearnersEpoch:
    """What the collector knows of the learner: the epoch that it is at.

    Args:
        pipe: gives the number of each epoch that the learner begins; it ends when the learner stops or dies.
    """

    def __init__(self, pipe: Connection) -> None:
        self.pipe, self.epoch = pipe, -1

    def look(self) -> None:
        """Read what came. Raises Stop if the learner is gone."""
        try:
            while self.pipe.poll():
                self.epoch = self.pipe.recv()
        except (EOFError, OSError):
            raise Stop from None

    def wait_for(self, epoch: int) -> None:
        self.look()
        while self.epoch < epoch:
            self.pipe.poll(None)  # until there is a message, or an end
            self.look()


def collect_alone(lock: Any, *arguments: Any) -> None:
    """`collect` as a process, which the kernel ends when its learner ends. The lock is held by having been given."""
    end_with_parent()
    with reported():
        collect(*arguments)


def collect(
    agent: type[Agent],
    settings: Settings,
    folder: Path,
    pipe: Connection,
    actor_steps: int,
    threads: int,
    part: Part | None = None,
) -> None:
    """What a collector does until it has played all epochs, or its learner is gone.

    Args:
        pipe: see `LearnersEpoch`; gets (steps that every actor has played, `Collector.ended`) after each epoch.
        actor_steps: how many of these steps are played already.
        part: None: all of it.
    """
    learner = LearnersEpoch(pipe)
    (whole,) = parts(settings.method.hyperparameters.actors, 1)
    with suppress(Stop):
        learner.look()  # it may have ended while this process began
        play(agent, settings, folder, learner, actor_steps, threads, part or whole)


def world_of_part(environment: EnvironmentSettings, seed: int, actors: range) -> World:
    """The instances of the training world that these actors play in, with the tasks that they would have in one process."""
    listed = tasks(environment.world, environment.options, "train")
    seeds_B = np.array([seed_of("training world", seed, b) for b in range(len(actors))], np.uint64)
    return make_world(environment.world, environment.options, [listed[b % len(listed)] for b in actors], seeds_B)


def play(
    agent: type[Agent],
    settings: Settings,
    folder: Path,
    learner: LearnersEpoch,
    actor_steps: int,
    threads: int,
    part: Part,
) -> None:
    """All epochs, see `collect`. Raises Stop if the learner is gone."""
    use_threads(threads)
    hp: AmagoHyperparameters = settings.method.hyperparameters
    which = (part.number,) if part.number else ()
    store = TrajectoryFiles(folder / "buffer", UNLIMITED)  # the learner alone removes files
    # After a restart, other numbers: what was written since the learner's checkpoint stays.
    seed = seed_of("collector", settings.seed, actor_steps, store.end, *which)
    world = world_of_part(settings.environment, seed, part.actors)
    player = agent(hp, world_shape(settings.environment), seed=settings.seed, device="cpu")
    collector = Collector(hp, player.policy(), world, seed=seed)
    collector.actor_steps = actor_steps
    first = hp.start_collecting_at_epoch
    for epoch in range(first + actor_steps // hp.steps_per_epoch, hp.epochs):
        learner.wait_for(max(first, epoch - AHEAD))
        read_weights(player, folder, learner, has_some=collector.actor_steps > actor_steps)
        finished: list[Trajectory] = []
        for done in range(0, hp.steps_per_epoch, CHUNK):
            learner.look()
            finished += collector.collect(min(CHUNK, hp.steps_per_epoch - done))
        write(store, finished, learner, part.turn)
        ended, collector.ended = collector.ended, []
        with suppress(OSError):  # gone: the next look says so
            learner.pipe.send((collector.actor_steps, ended))


def read_weights(player: Agent, folder: Path, learner: LearnersEpoch, *, has_some: bool) -> None:
    """The newest weights. While they are being written, those before will do; who has none waits for them.

    Raises:
        Stop: the learner is gone.
        UserError: there are none to be had.
    """
    latest = time.monotonic() + PATIENCE
    while True:
        try:
            player.network.load_policy_arrays(read_arrays(folder / WEIGHTS, kind="policy"))
            return
        except UserError:
            if has_some:
                return
            if time.monotonic() > latest:
                raise
        learner.look()
        time.sleep(0.1)


def write(store: TrajectoryFiles, finished: list[Trajectory], learner: LearnersEpoch, turn: Any) -> None:
    """Add a file; where others do so too, behind the last of theirs. Raises Stop if the learner is gone."""
    if turn is None:
        learner.look()
        store.add(finished)
        return
    while not turn.acquire(timeout=TURN):
        learner.look()  # the learner ends where who has the turn is dead
    try:
        learner.look()
        store.refresh()
        store.add(finished)
    finally:
        turn.release()


@dataclass
class _Helper:
    """A collector as the learner knows it. `steps`: that each of its actors has played."""

    part: Part
    process: Any
    pipe: Connection
    steps: int


class TrainerWithCollectors(Trainer):
    """A trainer whose data come from other processes."""

    def __init__(self, agent: type[Agent], settings: Settings, device: torch.device | str, run: Run) -> None:
        super().__init__(agent, settings, device, run)
        self.settings, self.agent_class = settings, agent
        self.folder = run.checkpoint_folder
        self.helpers: list[_Helper] = []

    def begin(self) -> None:
        self.publish()
        context, hp = multiprocessing.get_context("spawn"), self.hp
        collectors = hp.processes - 1
        threads = max(1, torch.get_num_threads() // collectors)
        steps = self.at.env_steps // hp.actors
        resource_tracker.ensure_running()  # its start would unblock what stops a job
        for part in parts(hp.actors, collectors, context.Lock()):
            pipe, other = context.Pipe()
            what = (self.agent_class, self.settings, self.folder, other, steps, threads, part)
            arguments = (SharedLock(self.folder), *what)
            # Not a daemon: a world may have processes of its own.
            process = context.Process(target=collect_alone, args=arguments, name=NAME)
            with stops_blocked():
                process.start()
            other.close()  # the collector alone holds it, so that the pipe ends with it
            self.helpers.append(_Helper(part, process, pipe, steps))

    def end(self) -> None:
        for helper in self.helpers:
            helper.pipe.close()
        latest = time.monotonic() + PATIENCE
        for helper in self.helpers:
            helper.process.join(max(0.0, latest - time.monotonic()))
            if helper.process.is_alive():
                helper.process.kill()
                helper.process.join()

    def publish(self) -> None:
        write_arrays(self.folder / WEIGHTS, self.agent.network.policy_arrays(), kind="policy")

    def epoch(self) -> None:
        at, hp = self.at, self.hp
        for helper in self.helpers:
            with suppress(OSError):  # it is gone: known when something is wanted of it
                helper.pipe.send(at.epoch)
        if at.epoch % hp.evaluate_every == 0 and at.of_epoch == 0 and at.evaluated_at != at.epoch:
            self.evaluate()
        self.hear(hp.steps_per_epoch * max(0, at.epoch + 1 - hp.start_collecting_at_epoch))
        self.store.refresh()
        self.learn(self.results)
        self.publish()
        self.store.trim()
        at.epoch += 1

    def hear(self, steps: int) -> None:
        """Wait until all collectors have played so many steps of each actor; count them, and keep means over their rollouts."""
        ended: dict[int, list[list[float]]] = {}
        behind = {helper.pipe: helper for helper in self.helpers if helper.steps < steps}
        if not behind:
            return
        while behind:
            # One that is ahead is looked at, too: it may have died with the turn to write, for which the others then wait.
            # The sentinel of one that died since the last look stays in the list: it ends the wait at once.
            watched = [helper.process.sentinel for helper in self.helpers if helper.process.exitcode != 0]
            heard = connection.wait([*behind, *watched], timeout=LOOK)
            if not heard and stopping.asked() and self.run.due(self.step, 0):
                self.save()  # what is waited for is played again
            for pipe in heard:
                if not isinstance(pipe, Connection):
                    continue
                helper = behind[pipe]
                try:
                    helper.steps, rows = pipe.recv()
                except (EOFError, OSError):
                    raise self.lost(helper) from None
                ended.setdefault(helper.part.number, []).extend(rows)
                if helper.steps >= steps:
                    del behind[pipe]
            for helper in self.helpers:
                if helper.process.exitcode:
                    raise self.lost(helper)
        self.at.env_steps = sum(helper.steps * len(helper.part.actors) for helper in self.helpers)
        self.results = self.collector.means([row for number in sorted(ended) for row in ended[number]])

    def lost(self, helper: _Helper) -> UserError:
        helper.process.join(PATIENCE)
        which = "the collector" if len(self.helpers) == 1 else f"collector {helper.part.number} of {len(self.helpers)}"
        return UserError(
            f"{which} of this run ended with exit code {helper.process.exitcode}",
            where="hyperparameters: processes",
            do="see what it printed above, and run the same command again: it goes on from the last checkpoint",
        )

    def load_buffer(self, state: Mapping[str, int]) -> int:
        """The buffer stays as it is: what was collected since the checkpoint is as good."""
        return self.store.check()

    def train(self) -> AmagoPolicy:
        self.resume()
        try:
            self.begin()
            with self.on_all_devices():
                self.epochs()
        finally:
            self.end()
        return self.finished()
