"""An environment of anybody's, looked at while it is played: what its `reset` and `step` return is what gymnasium asks for.

Observations have the parts and shapes of its space, and a reward is one number. Bounds are not looked at: `recollect check --env`
does that.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Dict, Tuple

from recollect.environments.faults import file_of
from recollect.settings.errors import UserError

_RETURNED = {
    "reset": ("observation", "info"),
    "step": ("observation", "reward", "terminated", "truncated", "info"),
}


class Checked(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The same environment. Its `reset` and `step` raise a UserError where they return something else; it names file and id."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self._checked("reset", self.env.reset(seed=seed, options=options))

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        return self._checked("step", self.env.step(action))

    def _checked(self, method: str, returned: Any) -> Any:
        names = _RETURNED[method]
        if not isinstance(returned, tuple) or len(returned) != len(names):
            given = f"{len(returned)} things" if isinstance(returned, tuple) else f"one `{type(returned).__name__}`"
            raise self._wrong(method, f"returned {given}", f"return {len(names)}: `{', '.join(names)}`")
        if said := _unlike(self.env.observation_space, returned[0], "observation"):
            do = "correct `observation_space`, or what `reset` and `step` return"
            raise self._wrong(method, f"returned what is not of the `observation_space`: {said}", do)
        if method == "step" and not _number(returned[1]):
            raise self._wrong(
                method, f"returned the reward {returned[1]!r}, which is no number", "return a float there"
            )
        return returned

    def _wrong(self, method: str, what: str, do: str) -> UserError:
        of = self.env.unwrapped
        name = of.spec.id if of.spec is not None else type(of).__name__
        return UserError(f"`{method}` of '{name}' {what}", where=file_of(of), do=do)


def _number(reward: Any) -> bool:
    """Whether it is one number: Python's, numpy's, or an array or tensor without axes."""
    return isinstance(reward, int | float | np.number | np.bool_) or getattr(reward, "shape", None) == ()


def _unlike(space: Any, seen: Any, name: str) -> str:
    """Which part of an observation is missing or has another shape than its space; empty: none."""
    if not isinstance(space, Dict | Tuple):
        shape = np.shape(seen)
        return "" if space.shape in (None, shape) else f"`{name}` is of shape {shape}, not {space.shape}"
    for key, part in space.spaces.items() if isinstance(space, Dict) else enumerate(space.spaces):
        try:
            inner = seen[key]
        except (LookupError, TypeError):
            return f"`{name}` has no {key!r}"
        if said := _unlike(part, inner, f"{name}[{key!r}]"):
            return said
    return ""
