"""AMAGO's exploration: how much noise an actor adds at each step (specification 1.11 and 4.9).

- `bilevel`: falls linearly within a rollout and over training:
  eps = m (s - (s - e) t / H), s = 1.0 -> 0.05 and e = 0.8 -> 0.01 over the first `anneal` steps of an actor.
- `plain`: falls over training only.
- `window` (T-Maze): as `plain` at the first step and in the last four (`never_anneals`: three), and 0.5 / length in between.

An exploration of your own (`recollect.amago.own_parts`) may override all that `Exploration` does.

m is drawn from [0, 1) for every rollout of every actor (`randomize`). Discrete actions are replaced with probability eps
by any of all; to continuous ones Gaussian noise of that deviation is added; bits are tossed anew with probability eps.

Switches for the seed code, whose schedules differ from the paper's: `end_defect` (e starts at 0.05) and, in the T-Maze,
`never_anneals` (eps outside the window is m itself, and the length is that of the rollout, one more than the corridor).
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from pydantic import Field, NonNegativeFloat

from recollect.amago.own_parts import Replaceable
from recollect.amago.policy_distributions import Kind
from recollect.common.draws import uniform
from recollect.settings.seeding import seed_of

LAST_STEPS = 3  # of the T-Maze's window


class ExplorationSettings(Replaceable):
    """How actors explore. Defaults are the paper's."""

    PART: ClassVar[str] = "exploration"
    OURS: ClassVar[tuple[str, ...]] = ("bilevel", "plain", "window", "none")

    kind: str = Field("bilevel", description="bilevel, plain, window or none, see amago.exploration; or your own.")
    start: tuple[NonNegativeFloat, NonNegativeFloat] = Field(
        (1.0, 0.05), description="At the start of a rollout: at first, and at last."
    )
    end: tuple[NonNegativeFloat, NonNegativeFloat] = Field(
        (0.8, 0.01), description="At its end (bilevel): at first, and at last."
    )
    anneal: int = Field(1_000_000, ge=1, description="Steps of an actor over which both fall (or rise). Paper: 1e6.")
    randomize: bool = Field(True, description="Times a number from [0, 1), drawn per rollout and actor.")
    end_defect: bool = Field(False, description="The seed code's defect: the end level falls from 0.05, not from 0.8.")
    never_anneals: bool = Field(False, description="The seed code's T-Maze: no annealing outside the window.")


def level(settings: ExplorationSettings, actor_steps: int, t_B: np.ndarray, horizon: int) -> np.ndarray:
    """Exploration before the random factor, float64 [B].

    Args:
        actor_steps: steps that each actor has taken, k.
        t_B: step of each rollout.
        horizon: longest rollout, H.
    """
    k, N = actor_steps, settings.anneal
    (first, floor), (end, end_floor) = settings.start, settings.end
    start = _annealed(first, floor, k, N)
    if settings.kind == "none":
        return np.zeros(len(t_B))
    if settings.kind == "window":
        return np.full(len(t_B), first if settings.never_anneals else start)
    if settings.kind == "plain":
        return np.full(len(t_B), start)
    defect = max(floor - k * (first - floor) / N, end_floor)
    last = defect if settings.end_defect else _annealed(end, end_floor, k, N)
    return start - (start - last) * np.asarray(t_B) / horizon


def _annealed(first: float, last: float, k: int, steps: int) -> float:
    """What falls, or rises, from `first` to `last` in so many steps, after k of them."""
    now = first - k * (first - last) / steps
    return max(now, last) if first >= last else min(now, last)


class Exploration:
    """The exploration of B actors; all of its state is the number of rollouts that each has begun."""

    def __init__(self, settings: ExplorationSettings, actors: int, horizon: int, *, seed: int) -> None:
        self.settings, self.horizon = settings, horizon
        self._seeds_B = np.array([seed_of("exploration", seed, b) for b in range(actors)], np.uint64)
        self.rollouts_B = np.zeros(actors, np.int64)

    def begin(self, mask_B: np.ndarray) -> None:
        self.rollouts_B = self.rollouts_B + np.asarray(mask_B, bool)

    def factor(self) -> np.ndarray:
        """m of each actor's present rollout, float64 [B]."""
        if not self.settings.randomize:
            return np.ones(len(self.rollouts_B))
        return uniform(self._seeds_B, self.rollouts_B.astype(np.uint64), 0)

    def epsilon(self, actor_steps: int, t_B: np.ndarray) -> np.ndarray:
        """float64 [B]; arguments as of `level`."""
        eps_B = self.factor() * level(self.settings, actor_steps, t_B, self.horizon)
        if self.settings.kind != "window":
            return eps_B
        length = self.horizon if self.settings.never_anneals else self.horizon - 1
        outside_B = (t_B == 0) | (t_B >= length - LAST_STEPS)
        return np.where(outside_B, eps_B, 0.5 / max(length, 1))

    def explored(
        self,
        action_B: np.ndarray,
        actor_steps: int,
        t_B: np.ndarray,
        kind: Kind,
        actions: int,
        draws: np.random.Generator,
    ) -> np.ndarray:
        """What actors do instead of these actions of the policy; `kind` and `actions` as of `StepShape`, see also `level`."""
        return explored(action_B, self.epsilon(actor_steps, t_B), kind, actions, draws)


def make_exploration(settings: ExplorationSettings, actors: int, horizon: int, *, seed: int) -> Any:
    """The exploration that the settings name: an `Exploration`, or a user's class that can do the same."""
    own = settings.own()
    made = Exploration if own is None else own.Exploration
    return made(settings, actors, horizon, seed=seed)


def explored(
    action_B: np.ndarray, eps_B: np.ndarray, kind: Kind, actions: int, draws: np.random.Generator
) -> np.ndarray:
    """Actions with noise; the draws are as many whatever eps is."""
    B = len(action_B)
    if kind == "discrete":
        anything_B = draws.integers(actions, size=B)
        return np.where(draws.random(B) < eps_B, anything_B, action_B)
    if kind == "binary":
        coins_BA = draws.integers(2, size=action_B.shape)
        return np.where(draws.random(action_B.shape) < eps_B[:, None], coins_BA, action_B)
    noisy_BA = action_B + eps_B[:, None] * draws.standard_normal(action_B.shape)
    return np.clip(noisy_BA, -1.0, 1.0).astype(np.float32)
