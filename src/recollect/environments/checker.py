"""Whether a world keeps its promises: it is played for some steps and looked at, as gymnasium's `check_env` does.

`recollect check --env` looks at a world of yours so, and our tests at ours. What is looked at is what `base.World` says.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode

from recollect.environments import registry
from recollect.environments.base import Task, World
from recollect.environments.drawing import drawn
from recollect.environments.faults import check_step, file_of
from recollect.environments.lazy_tasks import LazyTasks
from recollect.environments.packaged import VectorWorld
from recollect.settings.catalogue import last_own, own_packages
from recollect.settings.errors import UserError, shown

STEPS = 60  # that are played for each promise
NUMBERS = (0, 3, 1, 3)  # of the instances: their tasks and seeds; two are the same but for where they stand

Make = Callable[[Sequence[int]], World]
"""Numbers -> a world; instance i plays the task of the i-th number (around the list) with it as seed."""


class Finding(NamedTuple):
    """A promise that is not kept: what is wrong, in which file, and what to do."""

    what: str
    where: str
    do: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}. To do: {self.do}"


class Step(NamedTuple):
    """What a reset and the step after it gave."""

    began: np.ndarray
    observation: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray


def findings(name: str, options: Mapping[str, Any], splits: Sequence[str]) -> list[Finding]:
    """All that is wrong with a world, as far as it can be played; empty where it keeps its promises."""
    file = registry.world_file(name)
    found: list[Finding] = []
    listed: list[Task] = []
    try:
        for split in dict.fromkeys(splits):
            of_split = registry.tasks(name, options, split)
            found += _of_tasks(of_split, split, file)
            listed += of_split
    except Exception as error:
        return [*found, failure(error, file)]
    if found or not listed:
        return found

    def make(numbers: Sequence[int]) -> World:
        tasks = [listed[number % len(listed)] for number in numbers]
        return registry.make_world(name, options, tasks, np.array(numbers, np.uint64))

    for promises in ((as_declared,), (same_again, alone_as_together, resumed)):
        for promise in promises:
            try:
                found += promise(make, NUMBERS)
            except Exception as error:  # a world fails in its own way
                return [*found, failure(error, file)]
        if found:  # what is not as declared cannot be compared
            break
    if not found and any(file.is_relative_to(place) for place in own_packages().values()):
        found += _as_seen(make, file)
    return found


def _as_seen(make: Make, file: Path) -> Iterator[Finding]:
    """What an own world says of how it looks can be drawn."""
    try:
        world = make(NUMBERS[:1])
        world.reset()
        if isinstance(world.picture(0), dict):
            drawn(world, 0)
    except Exception as error:
        yield failure(error, file)


def failure(error: Exception, file: Path) -> Finding:
    """An exception as a finding: at the last line that it passed in this file or another of the user's, or at its last one.

    Only a line of the user's is to be mended.
    """
    if isinstance(error, UserError):
        return Finding(error.what, shown(Path(error.where)), error.do)
    frames = traceback.extract_tb(error.__traceback__)
    at = last_own(frames, file) or frames[-1]
    what = f"`{at.name}` fails with {type(error).__name__}: {error}"
    do = (
        f"mend the line `{at.line}`"
        if last_own([at])
        else "correct what it is given: settings, or what your code returns"
    )
    return Finding(what, f"{shown(Path(at.filename))}:{at.lineno}", do)


def _of_tasks(tasks: Any, split: str, file: Path) -> Iterator[Finding]:
    where = f"{shown(file)}: tasks"
    if not isinstance(tasks, list | LazyTasks) or not tasks or not all(isinstance(task, Task) for task in tasks):
        what = f"`tasks` must return a list of one `Task` or more for the split '{split}', and returned {tasks!r:.60}"
        yield Finding(what, where, "return `[Task(...), ...]` of recollect.environments.base")
    elif [(task.index, task.split) for task in tasks] != [(i, split) for i in range(len(tasks))]:
        what = f"the tasks of the split '{split}' do not say their place in it"
        yield Finding(
            what, where, f"number them from 0 in their order, and give each the split: `Task(i, name, {split!r})`"
        )


# ------------------------------------------------------------------------------------------------------------- promises


def as_declared(make: Make, numbers: Sequence[int]) -> Iterator[Finding]:
    """Observations are of the declared space, rewards finite, ends bool, and no array that was returned changes."""
    world = make(numbers)
    where, shape = file_of(world), (len(numbers),)
    acts = world.single_action_space
    if isinstance(acts, Box) and not acts.is_bounded():
        yield Finding("actions have no bounds", where, "bound `single_action_space`; methods act in [-1, 1]")
        return
    kept: list[tuple[str, np.ndarray, np.ndarray]] = []
    for step in play(world, numbers, STEPS, seed=0):
        check_step(world, step.observation, step.reward)
        for observation in (step.began, step.observation):
            said = _outside(world.single_observation_space, observation)
            if said:
                do = _mend(world, "correct `single_observation_space`, or what `_observe` returns", _SPACE)
                yield Finding(f"observations {said}", where, do)
                return
        for what, array, kind, wanted in (
            ("rewards", step.reward, "f", "float32"),
            ("terminated", step.terminated, "b", "bool"),
            ("truncated", step.truncated, "b", "bool"),
        ):
            if array.shape != shape or array.dtype.kind != kind:
                what = f"{what} of {shape[0]} instances are {array.dtype} {array.shape}"
                yield Finding(what, where, f"return {wanted} {shape}")
                return
        kept += [("observation", array, array.copy()) for array in (step.began, step.observation)]
        kept.append(("reward", step.reward, step.reward.copy()))
    for what in dict.fromkeys(what for what, array, copy in kept if array.tobytes() != copy.tobytes()):
        yield Finding(f"an array of {what}s that was returned is written again", where, "return a copy: `.copy()`")


def same_again(make: Make, numbers: Sequence[int], steps: int = STEPS, seed: int = 0) -> Iterator[Finding]:
    """The same tasks, seeds and actions give the same episodes."""
    world = make(numbers)
    at = _first_unlike(play(world, numbers, steps, seed), play(make(numbers), numbers, steps, seed))
    if at is not None:
        yield Finding(
            f"the same tasks, seeds and actions gave something else at step {at[0]} ({at[1]})",
            file_of(world),
            _mend(world, "draw with `self._draw_integers`, or from a generator of an instance's own seed", _DRAWS),
        )


def alone_as_together(make: Make, numbers: Sequence[int], steps: int = STEPS, seed: int = 0) -> Iterator[Finding]:
    """What an instance gives does not depend on who else stands in the batch."""
    world = make(numbers)
    together = list(play(world, numbers, steps, seed))
    for place, number in enumerate(numbers):
        row = [Step(*(array[place : place + 1] for array in step)) for step in together]
        at = _first_unlike(row, play(make([number]), [number], steps, seed))
        if at is not None:
            what = f"instance {place} of a batch is not what its task gives alone: step {at[0]} ({at[1]})"
            do = _mend(world, "let row b of each array follow from task, seed and actions of instance b alone", _DRAWS)
            yield Finding(what, file_of(world), do)
            return


def resumed(make: Make, numbers: Sequence[int], steps: int = STEPS, seed: int = 0) -> Iterator[Finding]:
    """A world with a set state goes on as the one that the state was taken of, and the state is a copy."""
    first, second = make(numbers), make(numbers)
    first.reset(seed=seed % 2**31)
    second.reset()
    _exhaust(play(first, numbers, steps // 2, seed))
    state = first.get_state()
    kept = {name: array.copy() for name, array in state.items()}
    second.set_state(state)
    at = _first_unlike(play(first, numbers, steps, seed + 1), play(second, numbers, steps, seed + 1))
    own = "register what changes with `self._keep` or `self._keep_zeros`, and write it in place: `array[:] = ...`"
    do = _mend(first, own, _DRAWS)
    if at is not None:
        what = f"a world that goes on from `get_state` gives something else {at[0]} steps later ({at[1]})"
        yield Finding(what, file_of(first), do)
    elif unlike := _unlike(first.get_state(), second.get_state()):
        yield Finding(f"a world that goes on from `get_state` has another state ({unlike})", file_of(first), do)
    if changed := _unlike(state, kept):
        yield Finding(f"a state that was handed out changes while the world is played ({changed})", file_of(first), do)


_SPACE = "correct `observation_space`, or what `reset` and `step` return"
_DRAWS = "draw with `self.np_random` alone, and begin anew in `reset`: an episode follows from its seed and actions"


def _mend(world: World, own: str, played: str) -> str:
    """What to do about a world, or about the environment of gymnasium that it plays."""
    return played if isinstance(world, VectorWorld) else own


# -------------------------------------------------------------------------------------------------------------- playing


def play(world: World, numbers: Sequence[int], steps: int, seed: int) -> Iterator[Step]:
    """Steps with random actions, from where the world stands; now and then an episode is cut short by a reset.

    The actions and resets of an instance follow from its number and the step only.
    """
    done = world.get_state()["ended"]
    for t in range(steps):
        rngs = [np.random.default_rng([seed, number, t]) for number in numbers]
        mask = np.array([rng.random() < 0.1 for rng in rngs])
        if world.autoreset_mode is AutoresetMode.DISABLED or t == 0:
            mask |= done
        began, _ = world.reset(options={"reset_mask": mask})
        stepped = world.step(np.array([_action(world.single_action_space, rng) for rng in rngs]))
        done = stepped[2] | stepped[3]
        yield Step(began, *stepped[:4])


def _action(space: Any, rng: np.random.Generator) -> np.ndarray | int:
    if isinstance(space, Discrete):
        return int(rng.integers(space.n))
    if isinstance(space, Box):
        return rng.uniform(space.low, space.high).astype(np.float32)
    return rng.integers(2, size=space.shape).astype(np.int8)


def _exhaust(steps: Iterator[Step]) -> None:
    for _ in steps:
        pass


def _first_unlike(one: Any, other: Any) -> tuple[int, str] | None:
    """The first step, from 1, at which two plays differ to the bit, and in what."""
    for t, (first, second) in enumerate(zip(one, other, strict=True), start=1):
        unlike = _unlike(first._asdict(), second._asdict())
        if unlike:
            return t, unlike
    return None


def _unlike(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> str:
    """The name of the first array that differs to the bit; empty: none."""
    return next((name for name in one if one[name].tobytes() != other[name].tobytes()), "")


def _outside(space: Any, observation: np.ndarray) -> str:
    """How observations [B, ...] are not of a space; empty: they are."""
    if observation.dtype != space.dtype:
        return f"are {observation.dtype}, and the space is {space.dtype}"
    if isinstance(space, Box):
        for bound, wrong in ((space.low, observation < space.low), (space.high, observation > space.high)):
            if wrong.any():
                place = tuple(np.argwhere(wrong)[0])
                side = "below" if bound is space.low else "above"
                return f"hold {observation[place]}, which is {side} {bound[place[1:]]}, the bound of the space"
    return ""
