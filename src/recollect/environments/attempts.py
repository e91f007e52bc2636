"""Several episodes of one task as one rollout, of any environment of gymnasium's: k attempts, with soft resets between them.

- Where an episode ends, or has had its steps, the next begins within the same step, whose reward stays. What is seen then is
  the first observation of the next episode, so the last one of an episode is seen at the rollout's end only.
- A number behind the observation is 1 where an episode begins, else 0.
- The rollout ends as its last episode does, terminated or truncated. Numbers that `info` holds where episodes end (success)
  are then means over all of them.
- Every attempt begins from the rollout's seed, so it is the same task from the same start. With `soft_reset`, environments
  that can keep their task are reset with these options and no seed instead, and draw on.

Source: AMAGO (arXiv 2310.09971), specification 1.13, soft resets of the seed code. Newer released code shows the last
observation of each episode, and the step after it resets, whatever its action.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Tuple

from recollect.environments.packaged import SUCCESS

NUMBER = bool | int | float | np.number | np.bool_


class Attempts(gymnasium.Wrapper[Any, Any, Any, Any]):
    """See the head of this file. What is seen is a tuple: the observation, and [1] or [0].

    Args:
        environment: without a time limit.
        attempts: episodes of a rollout.
        steps: of an episode at most, which is then truncated.
        soft_reset: options of `reset` between episodes; None: the seed of the rollout once more.
    """

    def __init__(
        self, environment: Any, attempts: int, steps: int, soft_reset: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(environment)
        self.attempts, self.steps, self.soft_reset = attempts, steps, soft_reset
        self.observation_space = Tuple((environment.observation_space, Box(0.0, 1.0, (1,), np.float32)))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.seed, self.time = seed, 0
        self.told: list[dict[str, Any]] = []  # `info` where episodes ended
        seen, info = self.env.reset(seed=seed, options=options)
        return (seen, np.ones(1, np.float32)), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        seen, reward, terminated, truncated, info = self.env.step(action)
        self.time += 1
        truncated = bool(truncated or self.time == self.steps)
        ended = bool(terminated or truncated)
        if ended:
            self.told.append(info)
        begins = ended and len(self.told) < self.attempts
        if begins:
            self.time, terminated, truncated, info = 0, False, False, {}
            if self.soft_reset is None:
                seen, _ = self.env.reset(seed=self.seed)
            else:
                seen, _ = self.env.reset(options=dict(self.soft_reset))
        elif ended:
            names = {name for told in self.told for name, value in told.items() if _is_number(value)}
            info = info | {name: self._mean(name) for name in sorted(names)}
        return (seen, np.full(1, begins, np.float32)), float(reward), bool(terminated), truncated, info

    def _mean(self, name: str) -> float:
        values = [np.asarray(told[name], float).item() for told in self.told if _is_number(told.get(name))]
        # An attempt whose environment says nothing of success has none; of other numbers nothing is known.
        return float(np.sum(values) / (len(self.told) if name in SUCCESS else len(values)))


def _is_number(value: Any) -> bool:
    return isinstance(value, NUMBER) or (
        isinstance(value, np.ndarray) and value.size == 1 and value.dtype.kind in "biuf"
    )
