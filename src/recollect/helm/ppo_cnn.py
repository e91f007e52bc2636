"""CNN-PPO: HELM's baseline without memory. An agent that sees one image at a time; specification 4.4 and 5."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from recollect.artifacts.run import Run
from recollect.common.contract import Inputs
from recollect.helm.on_policy import OnPolicyHyperparameters, OnPolicyTrainer, make_agent, policy_of
from recollect.helm.sampled_policy import SampledPolicy
from recollect.settings.schema import Settings


class Hyperparameters(OnPolicyHyperparameters):
    """Of CNN-PPO: see `OnPolicyHyperparameters`."""


def make_trainer(settings: Settings, inputs: Inputs) -> OnPolicyTrainer:
    """A run at its beginning."""
    return OnPolicyTrainer(settings, make_agent(settings, inputs, None))


def train(settings: Settings, inputs: Inputs, run: Run) -> SampledPolicy:
    """Train by acting.

    Args:
        settings: of the run; `method.hyperparameters` is a `Hyperparameters`.
        inputs: only the device is read.
        run: logs, scores of the learning curve, checkpoints.
    """
    return load_policy(settings, make_trainer(settings, inputs).train(run), inputs)


def load_policy(settings: Settings, arrays: Mapping[str, np.ndarray], inputs: Inputs) -> SampledPolicy:
    """The policy that `train` gave, from its arrays.

    Raises:
        UserError: the arrays do not fit the settings.
    """
    return policy_of(settings, make_agent(settings, inputs, None, arrays))
