"""How a number of the training changes over a run: HELM's schedules; specification 5.4."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from recollect.settings.schema import Frozen


class Schedule(Frozen):
    """How a number changes while the agent learns; p goes from 0 to 1 over the run. Published: it does not, mostly."""

    kind: Literal["none", "linear", "linear_burn_in", "exp"] = Field(
        "none",
        description="Constant; linear to `minimum` at `end`; the same beginning at `start`; a power of `factor` from `start` on.",
    )
    minimum: float = Field(0.0, ge=0, description="Where it ends (linear ones).")
    start: float = Field(0.0, ge=0, lt=1, description="p before which nothing changes (linear_burn_in, exp).")
    end: float = Field(1.0, gt=0, le=1, description="p from which it stays at `minimum` (linear ones).")
    factor: float = Field(0.99, gt=0, description="Of each rollout (exp).")

    @model_validator(mode="after")
    def _starts_before_it_ends(self) -> Schedule:
        if self.kind == "linear_burn_in" and self.start >= self.end:
            raise ValueError(f"start {self.start} is not before end {self.end}")
        return self

    def at(self, value: float, progress: float, updates: int) -> float:
        """A number that begins at `value`, after so many rollouts' updates."""
        start = 0.0 if self.kind == "linear" else self.start
        if self.kind == "none" or progress < start:
            return value
        if self.kind == "exp":
            return value * self.factor**updates
        if progress >= self.end:
            return self.minimum
        return value + (progress - start) * (self.minimum - value) / (self.end - start)
