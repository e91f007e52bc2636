"""What is wrong with a world, as errors that name its file: for whoever writes one, and for whoever steps one."""

from __future__ import annotations

import inspect
import math
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary

from recollect.settings.errors import UserError, shown

if TYPE_CHECKING:
    from recollect.environments.base import World

_DO = "`recollect check --env ENV` tries the whole world"


def file_of(world: Any) -> str:
    """Where a world is written; of a world that plays an environment of gymnasium, where that is."""
    played = getattr(getattr(world, "inner", None), "envs", None)
    of = type(played[0].unwrapped) if played else type(world)
    try:
        return shown(Path(inspect.getfile(of)))
    except (TypeError, OSError):  # typed into Python
        return of.__qualname__


def lacking(world: World, method: str) -> UserError:
    """Of a method that each world must have."""
    what = f"the class `{type(world).__name__}` has no method `{method}`"
    return UserError(what, where=file_of(world), do=f"write `{method}` (docs/adding.md shows a whole world)")


def check_setup(world: World) -> None:
    """Raise a UserError where `_setup` left out what every world must say, or said what no policy can play."""
    for name in ("horizon", "single_observation_space", "single_action_space"):
        if not hasattr(world, name):
            what = f"`_setup` does not set `self.{name}`"
            raise UserError(what, where=file_of(world), do=f"set it in `_setup` of `{type(world).__name__}`")
    horizon, acts, where = world.horizon, world.single_action_space, f"{file_of(world)}: _setup"
    if isinstance(horizon, bool) or not isinstance(horizon, Integral) or horizon < 1:
        raise UserError(
            f"`self.horizon` is {horizon!r}", where=where, do="set it to a whole number of steps, at least 1"
        )
    if not isinstance(acts, Discrete | Box | MultiBinary) or (isinstance(acts, Discrete) and acts.start != 0):
        do = "use `Discrete(n)`, whose actions are 0 to n - 1, a `Box` with bounds, or `MultiBinary`"
        raise UserError(f"`self.single_action_space` is {acts!r}", where=where, do=do)
    if not isinstance(world.single_observation_space, Box):
        what = f"`self.single_observation_space` is {world.single_observation_space!r:.80}"
        raise UserError(what, where=where, do="use a `Box` of one flat vector, or of an image")


def checked_actions(world: World, actions: np.ndarray) -> np.ndarray:
    """Actions within the space: contiguous int64 [B] where it is discrete, float32 [B, A] in a box, int8 [B, A] of bits.

    Raises:
        UserError: they have another shape or kind, or one of them is outside the space.
    """
    space = world.single_action_space
    actions_B = np.asarray(actions)
    shape = (world.num_envs, *(space.shape or ()))
    shaped = actions_B.shape == shape
    kind = actions_B.dtype.kind
    if isinstance(space, Discrete):
        if shaped and kind in "iu":
            actions_B = np.ascontiguousarray(actions_B, dtype=np.int64)
            # Seen as unsigned, a negative number is huge: one comparison checks both bounds.
            if int(actions_B.view(np.uint64).max()) < space.n:
                return actions_B
        wanted = f"integers in 0..{space.n - 1}"
    elif isinstance(space, Box):
        if shaped and kind == "f":
            actions_BA = actions_B.astype(np.float32)
            if ((actions_BA >= space.low) & (actions_BA <= space.high)).all():  # NaN is not
                return actions_BA
        wanted = f"numbers in [{space.low.min():g}, {space.high.max():g}]"
    else:
        assert isinstance(space, MultiBinary)
        if shaped and kind in "iub" and np.isin(actions_B, (0, 1)).all():
            return actions_B.astype(np.int8)
        wanted = "bits, 0 or 1,"
    given = f"{actions_B.dtype} {actions_B.shape}"
    if actions_B.size and kind in "iuf":
        given += f", from {actions_B.min()} to {actions_B.max()}"
    raise UserError(
        f"actions must be {wanted} of shape {shape}",
        where=f"{file_of(world)}: step",
        do=f"correct the policy's actions (given: {given})",
    )


def check_outcome(world: World, outcome: Any) -> tuple[Any, Any]:
    """What `_advance` gave, as its two parts. Raises UserError: it gave no two parts, or of other shapes."""
    where, wanted = f"{file_of(world)}: _advance", f"rewards float32 [{world.num_envs}], and ends bool or None"
    if not isinstance(outcome, tuple) or len(outcome) != 2:
        what = f"`_advance` must return two things, and it returned {_said(outcome)}"
        raise UserError(what, where=where, do=f"return {wanted}")
    for part, array, may_lack in zip(("rewards", "ends"), outcome, (False, True), strict=True):
        if array is None and may_lack:
            continue
        kinds = "b" if may_lack else "biuf"  # of numpy: truth, whole numbers, floating point
        if not isinstance(array, np.ndarray) or array.shape != (world.num_envs,) or array.dtype.kind not in kinds:
            what = f"the {part} of {world.num_envs} instances are {_said(array)}"
            raise UserError(what, where=where, do=f"return {wanted}")
    return outcome


def check_observation(world: World, observation: Any) -> None:
    """Raise a UserError where what `_observe` gave is no array of the declared shape and type, or is not finite."""
    space = world.single_observation_space
    wanted = (world.num_envs, *(space.shape or ()))
    if not isinstance(observation, np.ndarray) or observation.shape != wanted:
        what = f"the observations of {world.num_envs} instances are {_said(observation)}, not of shape {wanted}"
        raise UserError(what, where=f"{file_of(world)}: _observe", do="return the shape of `single_observation_space`")
    if observation.dtype != space.dtype:  # else what keeps them would round them, or wrap them around
        what = f"the observations are {observation.dtype}, and `single_observation_space` is {space.dtype}"
        raise UserError(what, where=f"{file_of(world)}: _observe", do="let both have one type")
    if observation.dtype.kind == "f" and not math.isfinite(np.vdot(observation, observation)):
        _blame(world, "observation", observation)


def check_step(world: Any, observation: np.ndarray, reward_B: np.ndarray) -> None:
    """Raise a UserError that names world, task and step where a reward or an observation is NaN or infinite.

    It takes half a microsecond to one, a third of a step of the quickest world alone. So it is called where a policy acts or
    a step is recorded, which takes a hundred times as long, and not by `World.step`.

    Args:
        world: a world, or something that holds it as `world`; it has just made this step.
        observation: [B, D]; whole numbers are not looked at.
        reward_B: float [B].
    """
    if not math.isfinite(np.vdot(reward_B, reward_B)):  # squares never cancel, and one number is quick to look at
        _blame(world, "reward", reward_B)
    if observation.dtype.kind == "f" and not math.isfinite(np.vdot(observation, observation)):
        _blame(world, "observation", observation)


def check_episode(world: Any, observation_TD: np.ndarray, reward_T: np.ndarray) -> None:
    """`check_step` of a whole episode of a world of one instance."""
    if not math.isfinite(np.vdot(reward_T, reward_T)):
        _blame(world, "reward", reward_T, over_time=1)
    if observation_TD.dtype.kind == "f" and not math.isfinite(np.vdot(observation_TD, observation_TD)):
        _blame(world, "observation", observation_TD, over_time=0)


def _blame(world: Any, what: str, values: np.ndarray, over_time: int | None = None) -> None:
    """Raise the error of a number that is not finite, if there is one: squares of large numbers may overflow.

    Args:
        values: a row per instance; or with `over_time` per step of the one instance, of which the first is this one.
    """
    wrong = np.flatnonzero(~np.isfinite(values.reshape(len(values), -1)).all(1))
    if not wrong.size:
        return
    row = int(wrong[0])
    number = next(each for each in values[row].ravel().tolist() if not math.isfinite(each))
    inner, row_b = _owner(world, 0 if over_time is not None else row)
    step = row + over_time if over_time is not None else int(inner.timesteps[row_b])
    task = inner.tasks[row_b]
    raise UserError(
        f"the world gave the {what} {number} at step {step} of task '{task.name}' ({task.split}, {task.index})",
        where=inner.written_in(),
        do=f"mend the world: the {what} must be finite there. {_DO}",
    )


def _owner(world: Any, row: int) -> tuple[Any, int]:
    """The world that a row is of, and its place there."""
    world = getattr(world, "world", world)
    for member in getattr(world, "worlds", ()):
        if row < member.num_envs:
            return _owner(member, row)
        row -= member.num_envs
    return world, row


def _said(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array {value.dtype} {value.shape}"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return f"a `{type(value).__name__}`"
