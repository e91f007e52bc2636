"""What HELM, HELMv2, SHELM, CNN-PPO and LSTM-PPO declare alike: networks, agents, and how a run is trained and loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from recollect.artifacts.checkpoints import part
from recollect.artifacts.run import Run
from recollect.common.contract import Facts, Inputs, facts_of, need_discrete
from recollect.common.weights import load_policy_arrays
from recollect.helm.on_policy import OnPolicyHyperparameters, OnPolicyTrainer
from recollect.helm.sampled_policy import Agent, History, SampledPolicy
from recollect.helm.small_impala import ActorCritic
from recollect.helm.together import Together
from recollect.settings.errors import UserError
from recollect.settings.schema import Settings
from recollect.settings.seeding import seed_of

PolicyArrays = Mapping[str, np.ndarray] | None
"""The arrays of a policy; None at the beginning of a training."""
MakeAgent = Callable[[Settings, Inputs, PolicyArrays], Agent]
MakeHistory = Callable[[Settings, Inputs, PolicyArrays], History]


class Method(NamedTuple):
    """The four functions that a method's module declares.

    `train` goes on from the run's newest checkpoint if it has one; `load_policy` raises a UserError if arrays do not fit.
    `train_together` trains several seeds, each from its newest checkpoint, and tells at once the place of each that has ended,
    with its policy. It gives what broke, by the place of the run that it broke.
    """

    make_trainer: Callable[[Settings, Inputs], OnPolicyTrainer]
    train: Callable[[Settings, Inputs, Run], SampledPolicy]
    train_together: Callable[
        [Sequence[Settings], Inputs, Sequence[Run], Callable[[int, SampledPolicy], None]], dict[int, Exception]
    ]
    load_policy: Callable[[Settings, Mapping[str, np.ndarray], Inputs], SampledPolicy]


def method_of(make_agent: MakeAgent) -> Method:
    def make_trainer(settings: Settings, inputs: Inputs) -> OnPolicyTrainer:
        return OnPolicyTrainer(settings, make_agent(settings, inputs, None))

    def load_policy(settings: Settings, arrays: Mapping[str, np.ndarray], inputs: Inputs) -> SampledPolicy:
        agent = make_agent(settings, inputs, arrays)
        return SampledPolicy(agent, likeliest=settings.method.hyperparameters.likeliest)

    def train(settings: Settings, inputs: Inputs, run: Run) -> SampledPolicy:
        return load_policy(settings, make_trainer(settings, inputs).train(run), inputs)

    def train_together(
        settings: Sequence[Settings],
        inputs: Inputs,
        runs: Sequence[Run],
        finished: Callable[[int, SampledPolicy], None],
    ) -> dict[int, Exception]:
        def ended(place: int, arrays: Mapping[str, np.ndarray]) -> None:
            finished(place, load_policy(settings[place], arrays, inputs))

        together = Together(make_trainer, settings, inputs, runs, ended)
        together.train()
        return together.failed

    return Method(make_trainer, train, train_together, load_policy)


def method_with_history(make_history: MakeHistory | None) -> Method:
    """The method whose agents remember by a history that is never trained, or (None) remember nothing."""

    def make_agent(settings: Settings, inputs: Inputs, arrays: PolicyArrays) -> Agent:
        facts = facts_of(settings.environment)
        check_world(facts)  # before a history is made, which relies on it
        history = None if make_history is None else make_history(settings, inputs, arrays)
        network = make_network(settings, facts, arrays, history=0 if history is None else history.width)
        return Agent(network, history, inputs.device)

    return method_of(make_agent)


def make_network(
    settings: Settings, facts: Facts, arrays: PolicyArrays, *, history: int = 0, units: int = 0, reads: int = 0
) -> ActorCritic:
    """The network that the settings describe, with a policy's arrays or with weights that follow from the seed.

    Raises UserError: the world is no world of images with discrete actions, or the arrays do not fit.
    """
    check_world(facts)
    hp: OnPolicyHyperparameters = settings.method.hyperparameters
    network = ActorCritic(
        facts.image_shape,
        facts.actions,
        width=hp.width,
        channel_scale=hp.channel_scale,
        history=history,
        units=units,
        reads=reads,
        actor=hp.actor,
        critic=hp.critic,
        generator=torch.Generator().manual_seed(seed_of("actor-critic weights", settings.seed)),
    )
    if arrays is not None:
        load_policy_arrays(network, part(arrays, "network"))
    return network


def check_world(facts: Facts) -> None:
    """Raise a UserError unless actions are discrete and observations images."""
    need_discrete(facts, "PPO on images")
    if not facts.image_shape:
        raise UserError(
            "HELM and its baselines see images, and this world shows none",
            where="environment",
            do="use a world of images (without a section `images:`), or another method",
        )
