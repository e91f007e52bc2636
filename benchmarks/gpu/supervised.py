"""Lines of DT, AD and RA-DT: training steps on learning histories, and evaluation in context.

Training is the method's own `train`, stopped after some steps by the run that it is given; an evaluation plays three episodes
of all tasks, of which the first is not on the clock.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from benchmarks.gpu.case import BYTES_OF_AN_UPDATE, Case, Part, Subject, wait
from benchmarks.gpu.inputs import inputs_of
from recollect.common.contract import Policy, facts_of
from recollect.common.work import shape_of
from recollect.environments import registry
from recollect.evaluation.speed import Clock, acting_speed
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

    def due(self, step: int, every: int) -> bool:
        if step == self.warm:
            wait(self.device)
            self.begun = step, time.perf_counter()
        elif step > self.warm:
            self.seen = step, time.perf_counter()
            if self.seconds and self.seen[1] - self.begun[1] > self.seconds:
                raise Enough
        return False

    def log(self, step: int, **metrics: float) -> None:
        self.numbers += [float(metrics[name]) for name in COMPARED if name in metrics]

    def rate(self) -> float:
        wait(self.device)
        return (self.seen[0] - self.begun[0]) / (time.perf_counter() - self.begun[1])


def training(case: Case) -> Subject:
    """Training steps. Compared: losses and gradient norms of three steps without dropout."""
    settings = case.settings
    hp: Any = settings.method.hyperparameters
    steps, batch = hp.optimisation.steps, hp.optimisation.batch_size

    def watched(few: bool) -> Watch:
        chosen = {"steps": FEW if few else steps, "evaluate_every": None}
        brief = hp.model_copy(update={"optimisation": hp.optimisation.model_copy(update=chosen)})
        method = settings.method.model_copy(update={"hyperparameters": brief})
        watch = Watch(case.nowhere, case.device, 0.0 if few else case.seconds, case.warm)
        module = algorithm_module(settings.method.algorithm, where=case.method)
        try:
            module.train(settings.model_copy(update={"method": method}), inputs_of(case), watch)
        except Enough:
            pass
        return watch

    own = work.trained(_unjudged(settings))
    flop = own.flop / steps
    if settings.method.memory is not None and hp.queries == "computed":
        flop += batch * work.query(settings)
    parameters = work.network(settings, hp.context).parameters
    part = Part("update", "updates", lambda: watched(False).rate(), flop, BYTES_OF_AN_UPDATE * parameters)
    every = hp.optimisation.evaluate_every
    judged = steps // every if every else 0
    return Subject(
        (part,),
        numbers=lambda: np.array(watched(True).numbers),
        jobs={"train": {"update": steps, "evaluation": judged * work.played(settings).env_steps}},
    )


def evaluation(case: Case) -> Subject:
    """Environment steps of all tasks together. Compared: the outputs of the network for the first step of each task."""
    settings = case.settings
    environment = settings.environment
    split = environment.evaluation.splits[0]
    tasks = registry.tasks(environment.world, environment.options, split)
    policy = _policy(case)
    played = work.played(settings)
    flop = played.flop / played.env_steps
    rate = partial(acting_speed, policy, environment, tasks, settings.seed)
    parameters = work.network(settings, settings.method.hyperparameters.context).parameters
    return Subject(
        (Part("evaluation", "env steps", rate, flop, 4 * parameters / len(tasks)),),
        numbers=lambda: first_outputs(policy, settings),
        jobs={"evaluate": {"evaluation": played.env_steps}},
    )


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


def _unjudged(settings: Settings) -> Settings:
    """The same run without the evaluations on its way."""
    hp: Any = settings.method.hyperparameters
    brief = hp.model_copy(update={"optimisation": hp.optimisation.model_copy(update={"evaluate_every": None})})
    return settings.model_copy(update={"method": settings.method.model_copy(update={"hyperparameters": brief})})
