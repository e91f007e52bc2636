"""Lines of Memory-RL: updates, collecting with the published single actor, and an evaluation, on T-Mazes.

The replay holds made-up episodes. Updates and episodes are those of the trainer that `recollect train` runs. An ensemble is
one process that trains several seeds, where the code has it: rates then count the updates of all its members.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.gpu.case import BYTES_OF_AN_UPDATE, Case, Part, Subject
from recollect.common.work import FLOAT, LEARNING
from recollect.evaluation.speed import Clock
from recollect.memory_rl import work
from recollect.memory_rl.off_policy import OnlineTrainer
from recollect.settings.resolve import algorithm_module

FEW = 3  # updates on which two devices are compared
EPISODES = 100  # in the replay, at least
COMPARED = ("critic_loss", "gradient_norm")


def learning(case: Case) -> Subject:
    settings = case.settings
    hp: Any = settings.method.hyperparameters
    trainer = _trainer(case)
    T = trainer.horizon
    window = hp.window(T)
    net = work.network(settings, window)
    clock = Clock(case.nowhere)

    def update() -> None:
        trainer.at.updates_due = 1
        trainer.advance(clock)

    def evaluate() -> None:
        trainer.at.logged_updates = max(trainer.at.logged_updates, 1)
        trainer._evaluate(clock)

    per_update = hp.batch_size * (window + 1) * net.flop * (LEARNING + 1)
    played, judged = hp.actors * T, hp.evaluation_episodes * T
    episodes = hp.warmup_episodes + hp.train_episodes
    parts = (
        Part("update", "updates", lambda: case.rate(update, 1), per_update, BYTES_OF_AN_UPDATE * net.parameters),
        Part(
            "collecting",
            "env steps",
            lambda: case.rate(lambda: trainer.play_round(False, hp.actors), played),
            net.flop,
            FLOAT * net.parameters / hp.actors,
        ),
        Part(
            "evaluating",
            "env steps",
            lambda: case.rate(evaluate, judged),
            net.flop,
            FLOAT * net.parameters / hp.evaluation_episodes,
        ),
    )
    whole = {
        "update": trainer.planned_updates,
        "collecting": episodes * T,
        "evaluating": hp.train_episodes // hp.evaluate_every * judged,
    }
    return Subject(parts, numbers=lambda: _numbers(case), jobs={"train": whole})


def _trainer(case: Case) -> OnlineTrainer:
    """A run whose replay holds made-up episodes, behind its warm-up."""
    settings = case.settings
    module = algorithm_module(settings.method.algorithm, where=case.method)
    trainer: OnlineTrainer = module.make_trainer(settings, case.device)
    hp, T = trainer.hp, trainer.horizon
    draws, space = np.random.default_rng(0), trainer.world.single_observation_space
    size = max(EPISODES, hp.batch_size)
    seen = draws.integers(-1, 2, (size, T + 1, int(np.prod(space.shape or (1,))))).astype(space.dtype)
    end = np.broadcast_to(np.arange(T) == T - 1, (size, T)).astype(np.uint8)
    action = draws.integers(0, trainer.learner.network.encoder.embedder.actions, (size, T))
    trainer.replay.add(seen, action, draws.random((size, T), np.float32), end, np.full(size, T))
    trainer.at.episodes = hp.warmup_episodes
    trainer.at.env_steps = hp.warmup_episodes * T
    return trainer


def _numbers(case: Case) -> np.ndarray:
    trainer = _trainer(case)
    found = []
    for _ in range(FEW):
        trainer.at.updates_due, trainer.sums = 1, {}
        trainer.advance(Clock(case.nowhere))
        found += [float(trainer.sums[name]) for name in COMPARED if name in trainer.sums]
    return np.array(found)
