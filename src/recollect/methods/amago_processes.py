"""AMAGO with one process that collects and one that learns, over sealed files in the run's folder (specification 2.3).

    collector: newest weights -> a part of an epoch's steps -> a file of trajectories -> ...
    learner:   files of trajectories -> updates -> newest weights -> ...

The collector plays as many epochs as the run has, at its own pace; the learner waits for the first file and then does its
updates at its own. So updates per step are as configured over the whole run, not at every moment, and a run is not a
function of its seed. A file is there once its manifest is, so neither ever reads half of one. The learner alone removes
old files. A run that was stopped goes on from the learner's checkpoint; what actors had in hand is lost.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from recollect.artifacts.run import Run
from recollect.artifacts.sealed import read_arrays, write_arrays
from recollect.methods.amago_loop import Collector, Trainer
from recollect.methods.amago_network import world_shape
from recollect.methods.amago_policy import AmagoPolicy
from recollect.methods.online import make_worlds
from recollect.settings.errors import UserError
from recollect.settings.schema import Settings
from recollect.settings.seeding import seed_of
from recollect.trajectories.trajectory_files import Trajectory, TrajectoryFiles

WEIGHTS = "newest_weights.safetensors"
NAME = "amago collector"
UNLIMITED = 2**62  # trajectories: the collector removes none
CHUNK = 20  # steps between looks at whether to stop
PATIENCE = 60.0  # seconds that the collector gets to end


def running() -> list[BaseProcess]:
    """Collectors of this process that still run."""
    return [process for process in multiprocessing.active_children() if process.name == NAME]


def collect(
    agent: Any, settings: Settings, folder: Path, stop: Any, actor_steps: Any, parent: int, threads: int
) -> None:
    """What the collector does until it is told to stop, has played all epochs, or its parent is gone.

    Args:
        agent: its class.
        settings: of the run.
        folder: of buffer and weights.
        stop: an event.
        actor_steps: a shared number: steps that every actor has played.
        parent: process id of the learner.
        threads: of torch.
    """
    torch.set_num_threads(threads)
    hp: Any = settings.method.hyperparameters
    seed = seed_of("collector", settings.seed, actor_steps.value)  # after a restart, other numbers
    world, _ = make_worlds(settings.environment, seed, hp.actors, 1)
    learner = agent(hp, world_shape(settings.environment), seed=settings.seed, device="cpu")
    collector = Collector(hp, learner.policy(), world, seed=seed)
    collector.actor_steps = actor_steps.value
    store = TrajectoryFiles(folder / "buffer", UNLIMITED)
    while collector.actor_steps < hp.epochs * hp.steps_per_epoch:
        with suppress(UserError):  # just being written: the ones before will do
            learner.network.load_policy_arrays(read_arrays(folder / WEIGHTS, kind="policy"))
        finished: list[Trajectory] = []
        for done in range(0, hp.steps_per_epoch, CHUNK):
            if stop.is_set() or os.getppid() != parent:
                return
            finished += collector.collect(min(CHUNK, hp.steps_per_epoch - done))
        store.add(finished)
        actor_steps.value = collector.actor_steps


class Learner(Trainer):
    """A trainer whose data come from another process."""

    def __init__(self, agent: Any, settings: Settings, device: torch.device | str, run: Run) -> None:
        super().__init__(agent, settings, device, run)
        self.settings, self.agent_class = settings, agent
        self.folder = run.checkpoint_folder
        context = multiprocessing.get_context("spawn")
        self.stop, self.actor_steps = context.Event(), context.Value("q", 0)
        self.process: Any = None
        self.context_of_processes = context

    def begin(self) -> None:
        """Write the first weights and start the collector."""
        self.publish()
        self.actor_steps.value = self.at.env_steps // self.hp.actors
        self.process = self.context_of_processes.Process(
            target=collect,
            args=(self.agent_class, self.settings, self.folder, self.stop, self.actor_steps, os.getpid(),
                  torch.get_num_threads()),
            name=NAME,
            daemon=True,
        )  # fmt: skip
        self.process.start()

    def end(self) -> None:
        """Stop the collector: it finishes the steps that it is at."""
        self.stop.set()
        if self.process is not None:
            self.process.join(PATIENCE)
            if self.process.is_alive():
                self.process.kill()
                self.process.join()

    def publish(self) -> None:
        """The weights for the collector."""
        write_arrays(self.folder / WEIGHTS, self.agent.network.policy_arrays(), kind="policy")

    def epoch(self) -> None:
        """Evaluate, look for new trajectories (wait for the first), learn, publish."""
        at, hp = self.at, self.hp
        if at.epoch % hp.evaluate_every == 0:
            self.evaluate()
        wanted = hp.steps_per_epoch * min(hp.start_learning_at_epoch + 1, hp.epochs)
        while True:
            self.store.refresh()
            over = self.process.exitcode
            if over not in (None, 0):
                raise UserError(
                    f"the collector of this run ended with exit code {over}",
                    where="hyperparameters: processes",
                    do="run the same command again: it goes on from the last checkpoint",
                )
            if (len(self.store) and self.actor_steps.value >= wanted) or over == 0:
                break
            time.sleep(0.02)
        at.env_steps = int(self.actor_steps.value) * hp.actors
        self.learn({})
        self.publish()
        self.store.saved()  # files beyond the capacity go
        at.epoch += 1

    def train(self) -> AmagoPolicy:
        """See `Trainer.train`."""
        checkpoint = self.run.resume()
        if checkpoint is None:
            self.store.clear()
        else:
            self.load(checkpoint.arrays, {**checkpoint.state, "buffer": None})
        try:
            self.begin()
            self.epochs()
        finally:
            self.end()
        return self.finished()


def train(agent: Any, settings: Settings, device: torch.device | str, run: Run) -> AmagoPolicy:
    """Train an agent of this class with two processes."""
    return Learner(agent, settings, device, run).train()
