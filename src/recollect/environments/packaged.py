"""Environments with the interface of `gymnasium.Env`, stepped by gymnasium's own vector environments, as worlds.

- Observations: an image (bytes with three axes) stays as it is. Anything else becomes flat and float32, a choice one-hot.
- Of a dictionary or tuple with one image or more, the first image stands first in the flat observation and everything else
  behind it; `observation_parts` names the two. A world that shows the image alone, or the numbers alone, is an option.
- Actions: a choice, or several at once as one number; bits; or numbers in [-1, 1] that are mapped to the bounds.
- What an environment says of an episode when it ends, in `info`: `success` or `is_success` is the success of our tables, and
  further numbers are rows of their own where the world is asked for them.
- The horizon of a world stands in the place of the environment's time limit, and truncates as that does.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Literal

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple, flatten, flatten_space
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from recollect.environments.async_vector import AsyncVector
from recollect.environments.base import BaseWorld, Outcome
from recollect.settings.errors import UserError, nearest

SUCCESS = ("success", "is_success")
Shown = Literal["whole", "image", "numbers"]
Keys = tuple[Any, ...]  # that lead to a place in dictionaries and tuples
Parts = dict[str, tuple[slice, tuple[int, ...]]]
# Functions of `numpy.random` that draw from the global generator, or set it.
SHARED = [name for name in dir(np.random.RandomState) if name[0] != "_" and hasattr(np.random, name)]


class Plain(gymnasium.Wrapper[Any, Any, Any, Any]):
    """One environment with flat observations (or an image) and our kinds of actions.

    Args:
        environment: as `gymnasium.make` gives it.
        world: for messages.
        place: which instance of the batch it is.
        shown: of an image with numbers beside it: both, the image, or the numbers.
        own_draws: it also draws from numpy's global generator, and therefore has one of its own.
        timer: `step / timer` is appended to what is seen; None: nothing is.

    Attributes:
        parts: of a flat observation that holds an image and numbers: where each stands, and its shape.

    Raises:
        UserError: its actions or observations are of a kind that is not known here.
    """

    def __init__(
        self,
        environment: Any,
        world: str,
        *,
        place: int = 0,
        shown: Shown = "whole",
        own_draws: bool = False,
        timer: int | None = None,
    ) -> None:
        super().__init__(environment)
        self.place = place
        self.shown = shown
        self.timer = timer
        self.time = 0
        self._draws = np.random.RandomState(0) if own_draws else None
        self._own = {name: getattr(self._draws, name) for name in SHARED} if own_draws else {}
        _check_kinds(environment, world)

        # The first image, and everything else as one tuple.
        seen = environment.observation_space
        leaves = dict(_leaves(seen))
        self._image = next((keys for keys, leaf in leaves.items() if _is_image(leaf)), None)
        self._image_shape = () if self._image is None else leaves.pop(self._image).shape or ()
        if self._image is None and shown == "image":
            raise UserError(f"there is no image in {seen}", where=world, do="leave out `observation: image`")
        if not leaves and shown == "numbers":
            raise UserError(f"there is only an image in {seen}", where=world, do="leave out `observation: numbers`")
        self._others = list(leaves)
        self._other_space = Tuple(list(leaves.values()))
        self.action_space = self._what_is_done()
        self.observation_space, self.parts = self._what_is_seen()

    def _what_is_seen(self) -> tuple[Box, Parts]:
        """The space of observations, and where the parts of a flat one stand."""
        if self._image is not None and (self.shown == "image" or not self._others):
            return Box(0, 255, self._image_shape, np.uint8), {}
        flat: Any = flatten_space(self._other_space)
        bounds = [(flat.low, flat.high)]
        if self.timer is not None:
            bounds.append((np.zeros(1), np.full(1, np.inf)))
        parts: Parts = {}
        if self._image is not None and self.shown == "whole":
            pixels, numbers = int(np.prod(self._image_shape)), sum(len(low) for low, _ in bounds)
            bounds.insert(0, (np.zeros(pixels), np.full(pixels, 255)))
            parts["image"] = (slice(0, pixels), self._image_shape)
            parts["numbers"] = (slice(pixels, pixels + numbers), (numbers,))
        low_D, high_D = (np.concatenate(bound).astype(np.float32) for bound in zip(*bounds, strict=True))
        return Box(low_D, high_D, dtype=np.float32), parts

    def _what_is_done(self) -> Discrete | MultiBinary | Box:
        acts: Any = self.env.action_space
        if isinstance(acts, MultiBinary):
            return MultiBinary(int(np.prod(acts.shape)))
        if isinstance(acts, Box):
            return Box(-1.0, 1.0, (int(np.prod(acts.shape)),), np.float32)
        return Discrete(int(np.prod(acts.nvec)) if isinstance(acts, MultiDiscrete) else int(acts.n))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode whose random draws follow from the seed."""
        self.time = 0
        if self._draws is not None:
            self._draws.seed(seed)
        with self._drawing():
            seen, info = self.env.reset(seed=seed)
        return self._flat(seen), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        with self._drawing():
            seen, reward, terminated, truncated, info = self.env.step(self._meant(action))
        return self._flat(seen), float(reward), bool(terminated), bool(truncated), info

    def render(self) -> Any:
        if not os.environ.keys() & {"DISPLAY", "WAYLAND_DISPLAY"}:
            os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # else pygame complains that it finds no screen
        if self.env.unwrapped.render_mode is None:
            self.env.unwrapped.render_mode = "rgb_array"  # most environments read it only when they draw
        return self.env.render()

    def replay(self, word_B: np.ndarray, action_BT: np.ndarray, timestep_B: np.ndarray) -> np.ndarray:
        """Play again what its instance of the batch played; what is seen in the end."""
        seen, _ = self.reset(seed=int(word_B[self.place]))
        for action in action_BT[self.place, : timestep_B[self.place]]:
            seen, *_ = self.step(action)
        return np.asarray(seen)

    def _flat(self, seen: Any) -> np.ndarray:
        if self.observation_space.dtype == np.uint8:
            return np.asarray(_at(seen, self._image or ()))
        others: Any = flatten(self._other_space, tuple(_at(seen, keys) for keys in self._others))
        numbers = [others]
        if self.parts:
            numbers.insert(0, np.ravel(_at(seen, self._image or ())))
        if self.timer is not None:
            numbers.append(np.array([self.time / self.timer]))
        return np.concatenate([part.astype(np.float32) for part in numbers])

    def _meant(self, action: Any) -> Any:
        acts: Any = self.env.action_space
        if isinstance(acts, MultiBinary):
            return np.asarray(action, acts.dtype).reshape(acts.shape)
        if isinstance(acts, Box):
            # Not in the type of the space, which the distance between its bounds may not fit into.
            wide: Any = np.longdouble if acts.dtype.kind in "iu" else np.float64
            low, high = acts.low.astype(wide), acts.high.astype(wide)
            share = (np.asarray(action, np.float64).reshape(acts.shape) + 1) / 2
            meant = np.clip(low + share * (high - low), low, high)
            return (np.rint(meant) if acts.dtype.kind in "iu" else meant).astype(acts.dtype)
        if isinstance(acts, MultiDiscrete):
            parts = np.unravel_index(int(action), np.ravel(acts.nvec))
            return np.array(parts, acts.dtype).reshape(acts.shape) + acts.start
        return int(action) + int(acts.start)

    @contextlib.contextmanager
    def _drawing(self) -> Iterator[None]:
        """What is drawn from numpy's global generator is drawn from the environment's own; the global one stays as it is.

        Its functions are exchanged, not its state: writing 624 words twice takes longer than a step of most environments.
        """
        shared = vars(np.random)
        before = {name: shared[name] for name in self._own}
        shared.update(self._own)
        try:
            yield
        finally:
            shared.update(before)


class VectorWorld(BaseWorld):
    """Environments in one of gymnasium's vector environments. A world's `_setup` sets `horizon` and ends with `_play`.

    An episode is a function of its random word and the actions, which are the state: `set_state` plays them again.
    """

    # False: an end that the environment calls truncation is `terminated`, as the published results have it.
    truncates: ClassVar[bool] = True
    # Numbers of `info` that are kept where an episode ends, float64 [B, M], NaN where there is none: of each instance's latest
    # episode, and of its first one since all began anew. One that nobody has told when an environment first ends an episode is
    # taken for misspelled.
    metrics: tuple[str, ...] = ()
    latest_BM: np.ndarray
    first_BM: np.ndarray

    def _play(
        self, makers: Sequence[Callable[[], Plain]], *, processes: bool = False, metrics: Sequence[str] = ()
    ) -> None:
        """Make the environments, one per task, here or each in a process of its own. `metrics`: what is kept of `info`."""
        self.inner: Any
        if processes:
            self.inner = AsyncVector(makers)
        else:
            self.inner = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.DISABLED)
        self.single_observation_space = self.inner.single_observation_space
        self.single_action_space = self.inner.single_action_space
        parts: Parts = self.inner.get_attr("parts")[0]
        if parts:
            self.observation_parts = parts
        acts = self.single_action_space
        self._word_B = self._keep_zeros("word", np.int64)
        self._action_BT = self._keep_zeros("actions", acts.dtype, self.horizon, *(acts.shape or ()))
        self.metrics = tuple(metrics)
        self._untold = set(metrics)
        nothing_BM = np.full((self.num_envs, len(self.metrics)), np.nan)
        if self.metrics:
            self.latest_BM = self._keep("latest metrics", nothing_BM)
            self.first_BM = self._keep("first metrics", nothing_BM.copy())
            self._first_over_B = self._keep_zeros("first episode over", bool)
        self._seen_B = self._reset_inner(np.ones(self.num_envs, bool))

    def set_state(self, state: Any) -> None:
        """Continue where `get_state` was called: the present episodes are played again."""
        super().set_state(state)
        self._reset_inner(np.ones(self.num_envs, bool))
        self._seen_B = np.stack(self.inner.call("replay", self._word_B, self._action_BT, self._timestep_B))

    def _begin(self, index_N: np.ndarray) -> None:
        self._word_B[index_N] = self._draw_integers(index_N, 2**31)
        starts_B = np.zeros(self.num_envs, bool)
        starts_B[index_N] = True
        if self.metrics and starts_B.all():
            self.first_BM[:] = np.nan
            self._first_over_B[:] = False
        self._seen_B[index_N] = self._reset_inner(starts_B)[index_N]

    def _reset_inner(self, mask_B: np.ndarray) -> np.ndarray:
        observations, _ = self.inner.reset(seed=self._word_B.tolist(), options={"reset_mask": mask_B})
        return np.array(observations)

    def _advance(self, actions_B: np.ndarray, last_B: np.ndarray | None) -> Outcome:
        self._action_BT[self._row_B, self._timestep_B - 1] = actions_B
        self._seen_B, rewards_B, terminated_B, truncated_B, said = self.inner.step(actions_B)
        over_B = terminated_B | truncated_B
        ends_B = over_B if last_B is None else over_B | last_B
        self._success_B = None
        if ends_B.any():
            self._note(said, ends_B)
        if self._untold and over_B.any():
            self._check_told(said)
        if not self.truncates:
            return rewards_B.astype(np.float32), over_B
        self._cut_B = truncated_B
        return rewards_B.astype(np.float32), terminated_B

    def _note(self, said: dict[str, Any], ends_B: np.ndarray) -> None:
        """Keep what the environments say where episodes end."""
        success_B = np.full(self.num_envs, np.nan)
        for name in SUCCESS:
            with contextlib.suppress(UserError):  # what is no number says nothing of success
                success_B = np.where(np.isnan(success_B), _numbers(said, name, self.num_envs), success_B)
        if any(name in said for name in SUCCESS):
            self._success_B = success_B
        if not self.metrics:
            return
        first_B = ends_B & ~self._first_over_B
        for m, name in enumerate(self.metrics):
            value_B = _numbers(said, name, self.num_envs)
            self.latest_BM[ends_B, m] = value_B[ends_B]
            self.first_BM[first_B, m] = value_B[first_B]
        self._first_over_B |= ends_B

    def _check_told(self, said: dict[str, Any]) -> None:
        """Raise a UserError for a metric that no environment has told yet."""
        self._untold -= said.keys()
        for name in sorted(self._untold):
            told = [other for other in said if not other.startswith("_")]
            do = f"{nearest(name, told)} Or leave it out. Where one episode has none (NaN), none is scored"
            what = f"an episode has ended, and its info has no '{name}'"
            raise UserError(what, where="options of the world: metrics", do=do)

    def _observe(self) -> np.ndarray:
        return np.array(self._seen_B)

    def picture(self, b: int) -> Any:
        """That of its package."""
        alone = getattr(self.inner, "envs", None)
        return self.inner.call("render")[b] if alone is None else alone[b].render()

    def close_extras(self, **kwargs: Any) -> None:
        self.inner.close()


def made(name: str, world: str, **arguments: Any) -> Any:
    """The environment of this id, without its time limit. Raises UserError: it, or a package for it, is missing."""
    try:
        return gymnasium.make(name, max_episode_steps=-1, disable_env_checker=True, **arguments)
    except (gymnasium.error.Error, ModuleNotFoundError, TypeError) as error:
        do = "correct the id and its arguments, or install what it needs (for AMAGO's: `make setup FAMILY=amago`)"
        raise UserError(f"'{name}' cannot be made: {error}", where=f"environment.world: {world}", do=do) from error


def _numbers(said: dict[str, Any], name: str, count: int) -> np.ndarray:
    """What each of `count` instances says under a name, float64 [B], NaN where it says nothing.

    Raises:
        UserError: what one says is no number.
    """
    told_B = said.get(f"_{name}", np.zeros(count, bool))
    number_B = np.full(count, np.nan)
    try:
        values = np.asarray(said.get(name, number_B), object)[told_B]
        number_B[told_B] = [np.asarray(value, np.float64).item() for value in values]
    except (TypeError, ValueError) as error:
        what = f"info['{name}'] is not one number"
        raise UserError(what, where="options of the world: metrics", do="leave it out") from error
    return number_B


def _check_kinds(environment: Any, world: str) -> None:
    """Raise a UserError where what an environment shows, or what can be done in it, is of a kind that is not known here."""
    seen, acts = environment.observation_space, environment.action_space
    if not _is_image(seen) and not seen.is_np_flattenable:
        raise UserError(f"observations {seen} are not made of numbers", where=world, do="wrap the environment first")
    choices = isinstance(acts, Discrete | MultiDiscrete | MultiBinary)
    if not choices and not (isinstance(acts, Box) and acts.is_bounded()):
        what = f"actions {acts} are neither choices nor bits nor numbers with bounds"
        raise UserError(what, where=world, do="wrap the environment first")


def _is_image(space: Any) -> bool:
    return isinstance(space, Box) and space.dtype == np.uint8 and len(space.shape) == 3


def _leaves(space: Any, keys: Keys = ()) -> Iterator[tuple[Keys, Space[Any]]]:
    """What stands in dictionaries and tuples, however deep, each with the keys that lead there."""
    if isinstance(space, Dict):
        for key, inner in space.spaces.items():
            yield from _leaves(inner, (*keys, key))
    elif isinstance(space, Tuple):
        for place, inner in enumerate(space.spaces):
            yield from _leaves(inner, (*keys, place))
    else:
        yield keys, space


def _at(seen: Any, keys: Keys) -> Any:
    for key in keys:
        seen = seen[key]
    return seen
