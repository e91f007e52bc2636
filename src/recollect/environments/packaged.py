"""Environments with the interface of `gymnasium.Env`, one per instance, as worlds: flat observations, our kinds of action.

- Observations: images (bytes with three axes) as they are; anything else flat and float32, a choice as one-hot.
- Actions: a choice, or several at once as one number; bits; or numbers in [-1, 1] that are mapped to the bounds.
- Whatever end an environment itself has, its time limits too, is `terminated`; the world's horizon is `truncated`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space, flatten, flatten_space

from recollect.environments.replayed import ReplayedWorld
from recollect.settings.errors import UserError


class GymnasiumPlayer:
    """One environment; see `replayed.Player`.

    Args:
        environment: as `gymnasium.make` gives it.
        name: of the world, for messages.
        own_draws: it also draws from numpy's global generator, which therefore is the player's own while it plays.
        timer: `step / timer` is appended to what is seen; None: nothing is.

    Raises:
        UserError: its actions or observations are of a kind that is not known here.
    """

    def __init__(self, environment: Any, name: str, *, own_draws: bool = False, timer: int | None = None) -> None:
        self.inner, self.timer, self.time = environment, timer, 0
        self._draws = np.random.RandomState(0).get_state() if own_draws else None
        seen, acts = environment.observation_space, environment.action_space
        self.is_image = getattr(seen, "dtype", None) == np.uint8 and len(seen.shape or ()) == 3
        if not self.is_image and not seen.is_np_flattenable:
            raise UserError(f"observations {seen} are not made of numbers", where=name, do="wrap the environment first")
        choices = isinstance(acts, Discrete | MultiDiscrete | MultiBinary)
        if not choices and not (isinstance(acts, Box) and acts.is_bounded()):
            what = f"actions {acts} are neither choices nor bits nor numbers with bounds"
            raise UserError(what, where=name, do="wrap the environment first")

    @property
    def observation_space(self) -> Space[Any]:
        """Of what `look` gives."""
        seen = self.inner.observation_space
        if self.is_image:
            return Box(0, 255, seen.shape, np.uint8)
        flat: Any = flatten_space(seen)
        low_D, high_D = np.ravel(flat.low), np.ravel(flat.high)
        if self.timer is not None:
            low_D, high_D = np.append(low_D, 0), np.append(high_D, np.inf)
        return Box(low_D.astype(np.float32), high_D.astype(np.float32), dtype=np.float32)

    @property
    def action_space(self) -> Discrete | MultiBinary | Box:
        """Of what `step` takes."""
        acts = self.inner.action_space
        if isinstance(acts, MultiBinary):
            return MultiBinary(int(np.prod(acts.shape)))
        if isinstance(acts, Box):
            return Box(-1.0, 1.0, (int(np.prod(acts.shape)),), np.float32)
        return Discrete(int(np.prod(acts.nvec)) if isinstance(acts, MultiDiscrete) else int(acts.n))

    def begin(self, word: int) -> None:
        """See `replayed.Player.begin`."""
        self.time = 0
        if self._draws is not None:
            self._draws = np.random.RandomState(word).get_state()
        with self._drawing():
            self.seen = self.inner.reset(seed=word)[0]

    def step(self, action: Any) -> tuple[float, bool]:
        """See `replayed.Player.step`."""
        self.time += 1
        with self._drawing():
            self.seen, reward, terminated, truncated, self.info = self.inner.step(self._meant(action))
        return float(reward), bool(terminated or truncated)

    def look(self) -> np.ndarray:
        """See `replayed.Player.look`."""
        if self.is_image:
            return np.asarray(self.seen)
        flat: Any = flatten(self.inner.observation_space, self.seen)
        flat_D = np.ravel(flat).astype(np.float32)
        return flat_D if self.timer is None else np.append(flat_D, np.float32(self.time / self.timer))

    def _meant(self, action: Any) -> Any:
        """The environment's own action."""
        acts = self.inner.action_space
        if isinstance(acts, MultiBinary):
            return np.asarray(action, acts.dtype).reshape(acts.shape)
        if isinstance(acts, Box):
            share = (np.asarray(action, np.float64).reshape(acts.shape) + 1) / 2
            return (acts.low + share * (acts.high - acts.low)).astype(acts.dtype)
        if isinstance(acts, MultiDiscrete):
            parts = np.unravel_index(int(action), np.ravel(acts.nvec))
            return np.array(parts, acts.dtype).reshape(acts.shape) + acts.start
        return int(action) + int(acts.start)

    @contextlib.contextmanager
    def _drawing(self) -> Iterator[None]:
        """Numpy's global generator stands where the player left it, and afterwards where it stood before."""
        if self._draws is None:
            yield
            return
        before = np.random.get_state()
        np.random.set_state(self._draws)
        try:
            yield
        finally:
            self._draws = np.random.get_state()
            np.random.set_state(before)


class PackagedWorld(ReplayedWorld):
    """A world of players that do not know what success is."""

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """As :meth:`recollect.environments.base.World.step`."""
        observations, rewards_B, terminated_B, truncated_B, info = super().step(actions)
        info.pop("success", None)
        return observations, rewards_B, terminated_B, truncated_B, info


def made(name: str, world: str, **arguments: Any) -> Any:
    """The environment of this id, without its time limit.

    Raises:
        UserError: there is none, or a package that it needs is not installed.
    """
    try:
        return gymnasium.make(name, max_episode_steps=-1, disable_env_checker=True, **arguments)
    except (gymnasium.error.Error, ModuleNotFoundError, TypeError) as error:
        do = "correct the id and its arguments, or install what it needs (`pip install 'recollect[amago]'`)"
        raise UserError(f"'{name}' cannot be made: {error}", where=f"environment.world: {world}", do=do) from error
