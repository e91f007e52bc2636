"""AMAGO with one process that collects and one that learns, over sealed files in the run's folder (specification 2.3).

    collector: newest weights -> an epoch's steps -> a file of trajectories -> ...
    learner:   files of trajectories -> an epoch's updates -> newest weights -> ...

The updates of an epoch begin when its steps are played, its steps when the learner has begun the epoch before it. So
updates per step are as configured at every moment, and what differs from one process is a lag of an epoch: steps of epoch e
may be played with weights that know no update of epoch e - 1, and updates of epoch e may see steps of e + 1. A run is
not a function of its seed.

A trajectory file is there once its manifest is, so neither process ever reads half of one; the learner alone removes old
files. All else goes through one pipe, whose end both notice when the other process dies: there is nothing else between them
that a killed process could block. The lock on the run's folder is held by both. The collector of a killed learner ends at
once and writes no more, and no other job can begin the run before it has. A run that was stopped goes on from the learner's
checkpoint; what actors had in hand is lost, and steps that the learner had not counted yet are played again.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from recollect.amago.agent import Agent
from recollect.amago.hyperparameters import AmagoHyperparameters
from recollect.amago.loop import Collector, Trainer
from recollect.amago.network import world_shape
from recollect.amago.policy import AmagoPolicy
from recollect.amago.trajectory_files import Trajectory, TrajectoryFiles
from recollect.artifacts.lock import SharedLock, dies_with_parent
from recollect.artifacts.run import Run
from recollect.artifacts.sealed import read_arrays, write_arrays
from recollect.common.contract import Inputs
from recollect.common.learning_curve import make_worlds
from recollect.settings.errors import UserError
from recollect.settings.schema import Settings
from recollect.settings.seeding import seed_of

WEIGHTS = "newest_weights.safetensors"
NAME = "amago collector"
UNLIMITED = 2**62  # trajectories: the collector removes none
CHUNK = 20  # steps between looks at whether to stop
PATIENCE = 60.0  # seconds that the collector gets to end
AHEAD = 1  # epochs that the collector may be ahead of the learner


def running() -> list[BaseProcess]:
    return [process for process in multiprocessing.active_children() if process.name == NAME]


class Stop(Exception):
    """The learner wants no more, or is gone."""


class _Learner:
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
    dies_with_parent()
    collect(*arguments)


def collect(
    agent: type[Agent], settings: Settings, folder: Path, pipe: Connection, actor_steps: int, threads: int
) -> None:
    """What the collector does until it has played all epochs, or its learner is gone.

    Args:
        pipe: see `_Learner`; gets (steps that every actor has played, `Collector.results`) after each epoch.
        actor_steps: how many of these steps are played already.
    """
    learner = _Learner(pipe)
    with suppress(Stop):
        learner.look()  # it may have ended while this process began
        play(agent, settings, folder, learner, actor_steps, threads)


def play(
    agent: type[Agent], settings: Settings, folder: Path, learner: _Learner, actor_steps: int, threads: int
) -> None:
    """All epochs, see `collect`. Raises Stop if the learner is gone."""
    torch.set_num_threads(threads)
    hp: AmagoHyperparameters = settings.method.hyperparameters
    seed = seed_of("collector", settings.seed, actor_steps)  # after a restart, other numbers
    world, _ = make_worlds(settings.environment, seed, hp.actors, 1)
    player = agent(hp, world_shape(settings.environment), seed=settings.seed, device="cpu")
    collector = Collector(hp, player.policy(), world, seed=seed)
    collector.actor_steps = actor_steps
    store = TrajectoryFiles(folder / "buffer", UNLIMITED)
    first = hp.start_collecting_at_epoch
    for epoch in range(first + actor_steps // hp.steps_per_epoch, hp.epochs):
        learner.wait_for(max(first, epoch - AHEAD))
        with suppress(UserError):  # just being written: the ones before will do
            player.network.load_policy_arrays(read_arrays(folder / WEIGHTS, kind="policy"))
        finished: list[Trajectory] = []
        for done in range(0, hp.steps_per_epoch, CHUNK):
            learner.look()
            finished += collector.collect(min(CHUNK, hp.steps_per_epoch - done))
        learner.look()
        store.add(finished)
        with suppress(OSError):  # gone: the next look says so
            learner.pipe.send((collector.actor_steps, collector.results()))


class Learner(Trainer):
    """A trainer whose data come from another process."""

    def __init__(self, agent: type[Agent], settings: Settings, device: torch.device | str, run: Run) -> None:
        super().__init__(agent, settings, device, run)
        self.settings, self.agent_class = settings, agent
        self.folder = run.checkpoint_folder
        self.process: Any = None
        self.pipe: Any = None

    def begin(self) -> None:
        self.publish()
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        actor_steps = self.at.env_steps // self.hp.actors
        what = (self.agent_class, self.settings, self.folder, other, actor_steps, torch.get_num_threads())
        arguments = (SharedLock(self.folder), *what)
        self.process = context.Process(target=collect_alone, args=arguments, name=NAME, daemon=True)
        self.process.start()
        other.close()  # the collector alone holds it, so that the pipe ends with it

    def end(self) -> None:
        if self.process is not None:
            self.pipe.close()
            self.process.join(PATIENCE)
            if self.process.is_alive():
                self.process.kill()
                self.process.join()

    def publish(self) -> None:
        write_arrays(self.folder / WEIGHTS, self.agent.network.policy_arrays(), kind="policy")

    def epoch(self) -> None:
        at, hp = self.at, self.hp
        with suppress(OSError):  # it is gone: known when something is wanted of it
            self.pipe.send(at.epoch)
        if at.epoch % hp.evaluate_every == 0 and at.of_epoch == 0:
            self.evaluate()
        began = time.perf_counter()
        wanted = hp.actors * hp.steps_per_epoch * max(0, at.epoch + 1 - hp.start_collecting_at_epoch)
        while at.env_steps < wanted:
            self.results = self.hear()
        self.store.refresh()
        self.seconds["collection"] += time.perf_counter() - began
        self.learn(self.results)
        self.publish()
        self.store.saved()  # files beyond the capacity go
        at.epoch += 1

    def hear(self) -> dict[str, float]:
        """Wait for the collector's next epoch and count its steps. Returns means over its rollouts."""
        try:
            steps, results = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(PATIENCE)
            raise UserError(
                f"the collector of this run ended with exit code {self.process.exitcode}",
                where="hyperparameters: processes",
                do="see what it printed above, and run the same command again: it goes on from the last checkpoint",
            ) from None
        self.at.env_steps = steps * self.hp.actors
        return dict(results)

    def load_buffer(self, state: Mapping[str, int]) -> int:
        """The buffer stays as it is: what was collected since the checkpoint is as good."""
        return self.store.check()

    def train(self) -> AmagoPolicy:
        self.resume()
        try:
            self.begin()
            self.epochs()
        finally:
            self.end()
        return self.finished()


def train(agent: type[Agent], settings: Settings, inputs: Inputs, run: Run) -> AmagoPolicy:
    """Train an agent of this class by acting, with one process or with two."""
    hp: AmagoHyperparameters = settings.method.hyperparameters
    trainer = Learner if hp.processes == 2 else Trainer
    return trainer(agent, settings, inputs.device, run).train()
