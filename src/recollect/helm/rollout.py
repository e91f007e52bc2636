"""What T steps of E games were, from the moments before the first action to the advantages that PPO learns from."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from torch import Tensor

from recollect.common.advantages import advantages
from recollect.common.draws import categorical_from_uniform


class Rollout:
    """A rollout while it is played, step by step: `saw`, `drawn` and `ended` of each, then `moments`.

    Args:
        noise_TE: uniform numbers by which actions are drawn.

    Attributes:
        t: how many steps are over.
        value_TE: the critic's values, float32 [T + 1, E]; the last are of what is seen behind the last step.
        done_TE: where episodes ended, bool [T, E].
    """

    def __init__(self, noise_TE: np.ndarray) -> None:
        self.noise_TE = noise_TE
        T, E = noise_TE.shape
        self.t = 0
        self._seen: dict[str, Tensor] = {}
        self._action_TE = np.empty((T, E), np.int64)
        self._log_TE = np.empty((T, E), np.float32)
        self._reward_TE = np.empty((T, E), np.float32)
        self.value_TE = np.empty((T + 1, E), np.float32)
        self.done_TE = np.empty((T, E), bool)

    def saw(self, moment: Mapping[str, Tensor]) -> None:
        """What the update must know of the moment before an action, [E, ...] each."""
        for name, value in moment.items():
            if name not in self._seen:
                self._seen[name] = value.new_empty((len(self.noise_TE), *value.shape))
            self._seen[name][self.t] = value

    def drawn(self, log_EA: np.ndarray, value_E: np.ndarray) -> np.ndarray:
        """Actions [E], drawn by their log-probabilities and kept; `value_E` is the critic's."""
        self.value_TE[self.t] = value_E
        action_E = self._action_TE[self.t] = categorical_from_uniform(log_EA, self.noise_TE[self.t])
        self._log_TE[self.t] = np.take_along_axis(log_EA, action_E[:, None], 1)[:, 0]
        return action_E

    def ended(self, reward_E: np.ndarray, done_E: np.ndarray) -> None:
        """The step is over: rewards as they are learned from, and where episodes ended."""
        self._reward_TE[self.t], self.done_TE[self.t] = reward_E, done_E
        self.t += 1

    def moments(
        self, last_value_E: np.ndarray, gamma: float, gae_lambda: float, put: Callable[[np.ndarray], Tensor]
    ) -> dict[str, Tensor]:
        """All moments [T * E, ...]: as they were seen, ``action``, ``log``, ``value``, ``advantage`` and ``return``.

        Args:
            last_value_E: of what is seen behind the last step.
            put: brings an array to the device.
        """
        self.value_TE[-1] = last_value_E
        advantage_TE = advantages(self._reward_TE, self.done_TE, self.value_TE, gamma, gae_lambda)
        numbers = {
            "action": self._action_TE,
            "log": self._log_TE,
            "advantage": advantage_TE,
            "value": self.value_TE[:-1],
            "return": advantage_TE + self.value_TE[:-1],
        }
        found = dict(self._seen)
        for name, array in numbers.items():
            found[name] = put(np.ascontiguousarray(array))
        return {name: value.flatten(0, 1) for name, value in found.items()}
