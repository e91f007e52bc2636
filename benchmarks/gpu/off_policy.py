"""Lines of Memory-RL: updates, collecting with the published single actor, and evaluations, on T-Mazes and a pendulum.

The replay holds made-up episodes. Updates and episodes are those of the trainer that `recollect train` runs. With `members`
(extra) so many seeds are an ensemble in one process; rates then count what all of them do together.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from benchmarks.gpu.case import BYTES_OF_AN_UPDATE, Case, NoSuchSetting, Part, Subject
from recollect.common.cuda_graphs import WARM_UP
from recollect.common.work import FLOAT
from recollect.evaluation.speed import Clock
from recollect.memory_rl import work
from recollect.memory_rl.off_policy import OffPolicyTrainer
from recollect.memory_rl.stacked import FEW_LSTMS
from recollect.settings.resolve import algorithm_module

FEW = WARM_UP + 3  # updates on which two devices are compared; a graph is replayed in the last
EPISODES = 100  # in the replay, at least
COMPARED = ("critic_loss", "gradient_norm")
ENSEMBLE = "recollect.memory_rl.ensemble"


class Together:
    """Some seeds that are updated together, or one alone."""

    def __init__(self, case: Case) -> None:
        count = int(str(case.extra.get("members", 0)))
        if count and importlib.util.find_spec(ENSEMBLE) is None:
            raise NoSuchSetting("ensembles of seeds")
        self.clock = Clock(case.nowhere)
        self.trainers = [trainer_of(case, seed) for seed in range(max(count, 1))]
        self.ensemble: Any = None
        if count:
            self.ensemble = importlib.import_module(ENSEMBLE).Ensemble(self.trainers)

    def update(self) -> None:
        for trainer in self.trainers:
            trainer.at.updates_due = 1
        if self.ensemble is None:
            self.trainers[0].advance(self.clock)
        else:
            self.ensemble.update()

    @cached_property
    def together(self) -> bool:
        """Whether seeds play as an ensemble does, one alone too: as such a run does, where its network can."""
        return self.ensemble is not None and self.ensemble.play() is not None

    @property
    def playing(self) -> int:
        """How many seeds play at once: all of them, or one after the other."""
        return len(self.trainers) if self.together else 1

    def collect(self) -> None:
        """A round of episodes of each seed that plays at once."""
        trainer = self.trainers[0]
        if self.together:
            self._play(False)
        else:
            trainer.play_round(False, trainer.hp.actors)

    def evaluate(self) -> None:
        trainer = self.trainers[0]
        if self.together:
            self._play(True)
        else:
            trainer.at.logged_updates = max(trainer.at.logged_updates, 1)
            trainer._evaluate(self.clock)

    def _play(self, judged: bool) -> None:
        for trainer in self.trainers:
            trainer.at.evaluation_due = judged
        self.ensemble.play()


def learning(case: Case) -> Subject:
    together = Together(case)
    trainer = together.trainers[0]
    hp: Any = trainer.hp
    T, window = trainer.horizon, hp.window(trainer.horizon)
    net = work.network(case.settings, window)
    collected, judged = hp.evaluate_every * T, hp.evaluation_episodes * T  # from one evaluation to the next

    def update_rate() -> float:
        return case.rate(together.update, len(together.trainers))

    def acting_rate() -> float:
        seconds = collected / case.rate(together.collect, together.playing * hp.actors * T)
        seconds += judged / case.rate(together.evaluate, together.playing * judged)
        return (collected + judged) / seconds

    per_update = hp.batch_size * (window + 1) * work.learned(case.settings, window)
    parts = (
        Part("update", "updates", update_rate, per_update, BYTES_OF_AN_UPDATE * net.parameters),
        Part("acting", "env steps", acting_rate, net.flop, FLOAT * net.parameters / hp.actors, often=False),
    )
    acted = (hp.warmup_episodes + hp.train_episodes) * T + hp.train_episodes // hp.evaluate_every * judged
    whole = {"update": trainer.planned_updates, "acting": acted}
    return Subject(parts, numbers=lambda: numbers(case), jobs={"train": whole})


def trainer_of(case: Case, seed: int) -> OffPolicyTrainer:
    """A run whose replay holds made-up episodes, behind its warm-up."""
    settings = case.settings.model_copy(update={"seed": seed})
    module = algorithm_module(settings.method.algorithm, where=case.method)
    trainer: OffPolicyTrainer = module.make_trainer(settings, case.device)
    hp, T = trainer.hp, trainer.horizon
    draws, space = np.random.default_rng(seed), trainer.world.single_observation_space
    size = max(EPISODES, hp.batch_size)
    seen = draws.integers(-1, 2, (size, T + 1, int(np.prod(space.shape or (1,))))).astype(space.dtype)
    end = np.broadcast_to(np.arange(T) == T - 1, (size, T)).astype(np.uint8)
    embedder = trainer.learner.network.encoder.embedder
    if embedder.action_size:
        action = draws.uniform(-1, 1, (size, T, embedder.action_size)).astype(np.float32)
    else:
        action = draws.integers(0, embedder.actions, (size, T))
    trainer.replay.add(seen, action, draws.random((size, T), np.float32), end, np.full(size, T))
    trainer.at.episodes = hp.warmup_episodes
    trainer.at.env_steps = hp.warmup_episodes * T
    return trainer


def numbers(case: Case) -> np.ndarray:
    """Losses and gradient norms of the first seed; sums over the updates, as an ensemble keeps them."""
    hp: Any = case.settings.method.hyperparameters
    enough = FEW_LSTMS + 1 if hp.sequence.kind == "lstm" else 2  # so that they take the way of many
    members = min(int(str(case.extra.get("members", 0))), enough)
    together, found = Together(replace(case, extra={"members": members})), []
    for _ in range(FEW):
        together.update()
        sums = together.trainers[0].sums
        found += [float(sums[name]) for name in COMPARED if name in sums]
    return np.array(found)
