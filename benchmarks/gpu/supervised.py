"""Lines of AD and RA-DT: training steps on learning histories, and evaluation in context.

Training is the method's own `train`, stopped after some steps by the run that it is given. An evaluation plays the tasks of
all splits as one batch where the policy does, and is timed from its third episode on: in the first there is nothing to be
read, and the second meets each length of a window for the first time. Of a long second episode only a while is played.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from benchmarks.gpu import turns
from benchmarks.gpu.case import BYTES_OF_AN_UPDATE, Case, Part, Subject, wait
from benchmarks.gpu.inputs import inputs_of
from recollect.common.contract import Policy, facts_of
from recollect.common.work import shape_of
from recollect.environments import registry
from recollect.evaluation.in_context import Moment, batches_of, play_in_context
from recollect.evaluation.speed import Clock
from recollect.radt import work
from recollect.radt.embedding import load_embedder
from recollect.settings.resolve import algorithm_module
from recollect.settings.schema import Settings

FEW = 3  # steps on which two devices are compared
COMPARED = ("loss", "gradient_norm")


class Enough(Exception):
    """The clock has seen enough."""


class Watch(Clock):
    """A run that times the steps of a training loop and ends it. Every step asks it whether a checkpoint is due.

    Args:
        seconds: for how long; 0: to the end of the run.
        warm: steps before the clock starts.
    """

    def __init__(self, nowhere: Path, device: str, seconds: float, warm: int) -> None:
        super().__init__(nowhere)
        self.device, self.seconds, self.warm = device, seconds, warm
        self.begun = (0, 0.0)
        self.seen = (0, 0.0)
        self.numbers: list[float] = []
        self.turn = ExitStack()  # open while it is timed

    def due(self, step: int, every: int) -> bool:
        if step == self.warm:
            if self.seconds:
                self.turn.enter_context(turns.alone())
            wait(self.device)
            self.begun = step, time.perf_counter()
        elif step > self.warm:
            self.seen = step, time.perf_counter()
            if self.seconds and self.seen[1] - self.begun[1] > self.seconds:
                wait(self.device)
                self.seen = step, time.perf_counter()
                raise Enough
        return False

    def log(self, step: int, **metrics: float) -> None:
        self.numbers += [float(metrics[name]) for name in COMPARED if name in metrics]

    def rate(self) -> float:
        return (self.seen[0] - self.begun[0]) / (self.seen[1] - self.begun[1])


def learning(case: Case) -> Subject:
    """Compared: losses and gradient norms of three steps without dropout, and the outputs for the first step of four tasks."""
    settings = case.settings
    hp: Any = settings.method.hyperparameters
    steps, every = hp.optimisation.steps, hp.optimisation.evaluate_every

    def watched(few: bool) -> Watch:
        watch = Watch(case.nowhere, case.device, 0.0 if few else case.seconds, case.warm)
        module = algorithm_module(settings.method.algorithm, where=case.method)
        with watch.turn, suppress(Enough):
            module.train(_unjudged(settings, FEW if few else steps), inputs_of(case), watch)
        return watch

    net, played = work.network(settings, hp.context), work.played(settings)
    flop = work.trained(_unjudged(settings, steps)).flop / steps
    parts = (
        Part("update", "updates", lambda: watched(False).rate(), flop, BYTES_OF_AN_UPDATE * net.parameters),
        Part("evaluating", "env steps", lambda: acting_rate(case), played.flop / played.env_steps, often=False),
    )
    judged = steps // every if every else 0
    return Subject(
        parts,
        numbers=lambda: np.concatenate([watched(True).numbers, first_outputs(_policy(case), settings)]),
        jobs={
            "train": {"update": steps, "evaluating": judged * played.env_steps},
            "evaluate": {"evaluating": played.env_steps},
        },
    )


def acting_rate(case: Case) -> float:
    """Environment steps per second of the first batch of an evaluation, from the third episode on, or from so far in the
    second as is timed.
    """
    policy, environment = _policy(case), case.settings.environment
    second, begun, count = 0.0, 0.0, 0
    turn = ExitStack()

    def watch(moment: Moment) -> None:
        nonlocal second, begun, count
        now, episode = time.perf_counter(), moment.episode_B.min()
        if begun:
            count += int(moment.playing_B.sum())
            if now - begun > case.seconds:
                raise Enough
        elif episode >= 1:
            second = second or now
            if episode >= 2 or now - second > case.seconds:
                turn.enter_context(turns.alone())
                begun = time.perf_counter()

    batch = next(iter(batches_of(policy, environment)))
    tasks = [task for tasks in batch.values() for task in tasks]
    with turn:
        with suppress(Enough):
            play_in_context(policy, environment, tasks, seed=0, watch=watch)
        return count / (time.perf_counter() - begun)


def first_outputs(policy: Any, settings: Settings, rows: int = 4) -> np.ndarray:
    """What the network says of the first observations of some tasks."""
    environment = settings.environment
    tasks = registry.tasks(environment.world, environment.options, environment.evaluation.splits[0])[:rows]
    seeds_B = np.arange(len(tasks), dtype=np.uint64)
    world = registry.make_world(environment.world, environment.options, tasks, seeds_B)
    horizon = shape_of(settings.scale, environment.name).horizon
    policy.start(seeds_B, horizon, 1)
    found: list[Tensor] = []
    logits = policy.logits

    def heard() -> Tensor:
        found.append(logits())
        return found[-1]

    policy.logits = heard
    try:
        observation, _ = world.reset()
        nothing_B = np.zeros(len(tasks), np.float32)
        policy.act(observation, nothing_B, nothing_B > 0)
    finally:
        del policy.logits
    return found[0].double().cpu().numpy().ravel()


def _policy(case: Case) -> Policy:
    """A policy as it is before it learns, from the arrays that it would be saved as."""
    settings, inputs = case.settings, inputs_of(case)
    module = algorithm_module(settings.method.algorithm, where=case.method)
    facts = facts_of(settings.environment)
    network = module.build_network(settings, facts)
    arrays = {f"network/{name}": value.cpu().numpy() for name, value in network.state_dict().items()}
    if settings.method.memory is not None:
        embedder = load_embedder(settings, inputs, facts)
        arrays |= {f"embedder/{name}": value for name, value in embedder.arrays().items()}
    policy: Policy = module.load_policy(settings, arrays, inputs)
    return policy


def _unjudged(settings: Settings, steps: int) -> Settings:
    """The run of so many steps without the evaluations on its way."""
    hp: Any = settings.method.hyperparameters
    optimisation = hp.optimisation.model_copy(update={"steps": steps, "evaluate_every": None})
    brief = hp.model_copy(update={"optimisation": optimisation})
    return settings.model_copy(update={"method": settings.method.model_copy(update={"hyperparameters": brief})})
