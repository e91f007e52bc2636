"""What the settings of every PPO among the sources of histories share."""

from __future__ import annotations

from pydantic import Field

from recollect.settings.schema import Frozen


class PPOHyperparameters(Frozen):
    """Of PPO's update. Where RA-DT says nothing, "Paper" values are Stable-Baselines3's defaults."""

    gamma: float = Field(0.99, ge=0, le=1, description="Discount. Paper: 0.99 (released for Procgen: 0.999).")
    gae_lambda: float = Field(0.95, ge=0, le=1, description="GAE's λ: 0 trusts the critic, 1 the returns. Paper: 0.95.")
    clip: float = Field(
        0.2, gt=0, description="How far a probability ratio may move before its gradient is cut. Paper: 0.2."
    )
    value_coefficient: float = Field(0.5, ge=0, description="Weight of the critic's squared error. Paper: 0.5.")
    gradient_norm: float = Field(0.5, gt=0, description="Largest norm of one agent's gradient. Paper: 0.5.")
    adam_epsilon: float = Field(1e-5, gt=0, description="Adam's ε. Paper: 1e-5.")
