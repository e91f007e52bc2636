"""How an agent of AMAGO is trained: by one process that collects and learns in turn, or by several."""

from __future__ import annotations

from recollect.amago.agent import Agent
from recollect.amago.hyperparameters import AmagoHyperparameters
from recollect.amago.loop import Trainer
from recollect.amago.policy import AmagoPolicy
from recollect.amago.processes import TrainerWithCollectors
from recollect.artifacts.run import Run
from recollect.common.contract import Inputs
from recollect.settings.schema import Settings


def train(agent: type[Agent], settings: Settings, inputs: Inputs, run: Run) -> AmagoPolicy:
    """Train an agent of this class by acting, to the end of its epochs; goes on from the run's newest checkpoint."""
    hp: AmagoHyperparameters = settings.method.hyperparameters
    trainer = TrainerWithCollectors if hp.processes > 1 else Trainer
    return trainer(agent, settings, inputs.device, run).train()
