"""CNN-PPO: HELM's baseline without memory. An agent that sees one image at a time; specification 4.4 and 5."""

from __future__ import annotations

from recollect.helm.method import method_with_history
from recollect.helm.on_policy import OnPolicyHyperparameters

ACTIONS = "discrete"
OBSERVATIONS = "images"


class Hyperparameters(OnPolicyHyperparameters):
    """Of CNN-PPO: see `OnPolicyHyperparameters`."""


make_trainer, train, train_together, load_policy = method_with_history(None)
