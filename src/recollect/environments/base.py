"""What every world is: a gymnasium vector environment over numpy arrays that steps all its instances at once.

A world is told which task each instance plays and with which seed. In the DISABLED mode (the one our loops use) nothing
resets by itself: the caller passes a mask of the instances to reset, so instances may stand at different steps of their
episodes. All state is a handful of arrays; ``get_state`` / ``set_state`` carry a run over a restart bit-exactly.

To write a world, subclass :class:`World` as ``World``, name the model of its options, and write ``_setup``, ``_begin``,
``_advance`` and ``_observe``; the file also has a function ``tasks(split, **options)``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NoReturn, Self

import numpy as np
from gymnasium.spaces import Space
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import DTypeLike
from pydantic import ConfigDict

from recollect.environments import counter_rng, faults
from recollect.settings.errors import UserError, nearest
from recollect.settings.loading import validated
from recollect.settings.schema import Frozen

SPLITS = ("train", "eval")
Outcome = tuple[np.ndarray, np.ndarray | None]  # of `World._advance`


@dataclass(frozen=True)
class Task:
    """One task of a world: plain data, so that it can be listed, named in a table and given to any instance.

    Args:
        index: position within its split, from 0.
        name: short and readable, e.g. ``goal_x2_y0``.
        split: which one it is of: "train", "eval", or another that its world has.
        data: what the world needs, e.g. ``{"goal": (2, 0)}``.
    """

    index: int
    name: str
    split: str
    data: dict[str, Any] = field(default_factory=dict, hash=False)


def check_split(split: str, world: str, known: Sequence[str] = SPLITS) -> None:
    """Raise a UserError for a split that is not known."""
    if split not in known:
        raise UserError(f"unknown split '{split}'", where=f"tasks of the world {world}", do=nearest(split, known))


class WorldOptions(Frozen):
    """The options of a world; unknown ones are refused with the nearest known one named."""

    model_config = ConfigDict(strict=True)

    @classmethod
    def parse(cls, options: Mapping[str, Any], world: str, split: str = "train", known: Sequence[str] = SPLITS) -> Self:
        """Check options as they stand in a config file, and a split. Raises UserError: one is unknown, missing or wrong."""
        check_split(split, world, known)
        return validated(cls, options, where=f"options of the world {world}", noun="option")


class World(VectorEnv[np.ndarray, np.ndarray, np.ndarray]):
    """B instances of one world, stepped together; instance i plays ``tasks[i]`` with random stream ``seeds[i]``.

    Args:
        tasks: one task per instance (repeat a task to play it several times).
        seeds: one per instance, uint64 [B]. An instance's trace depends on its task, seed and actions only.
        autoreset_mode: DISABLED (the caller resets by mask) or SAME_STEP (an ended instance starts anew within the same
            step; its last observation is ``info["final_obs"][i]`` where ``info["_final_obs"][i]``).
        options: what `options_model` says.

    Attributes:
        horizon: number of steps after which every episode ends.

    Arrays that ``reset`` and ``step`` return are the caller's to keep: they are never written again.
    """

    # True: the end at the horizon is `terminated` (there is nothing after it to bootstrap from); False: `truncated`.
    horizon_terminates: ClassVar[bool] = False
    options_model: ClassVar[type[WorldOptions]] = WorldOptions
    # True: a step of an instance takes a tenth of a millisecond or more, so that several processes may play it (`parallel.py`).
    slow: ClassVar[bool] = False

    options: Any
    horizon: int
    single_observation_space: Space[Any]
    single_action_space: Space[Any]

    def __init__(
        self,
        tasks: Sequence[Task],
        *,
        seeds: np.ndarray,
        autoreset_mode: AutoresetMode = AutoresetMode.DISABLED,
        **options: Any,
    ) -> None:
        self.options = self.options_model.parse(options, type(self).__module__.rpartition(".")[2])
        name = type(self).__name__
        if autoreset_mode not in (AutoresetMode.DISABLED, AutoresetMode.SAME_STEP):
            raise UserError(
                f"autoreset mode {autoreset_mode} is not supported",
                where=name,
                do="use AutoresetMode.DISABLED or SAME_STEP",
            )
        if not tasks:
            raise UserError("a world needs at least one task", where=name, do="pass one task per instance")
        seeds_B = np.array(seeds, dtype=np.uint64)  # not by way of floats, which round seeds beyond 2^53
        if seeds_B.shape != (len(tasks),):
            raise UserError(
                f"{len(tasks)} tasks but seeds of shape {seeds_B.shape}", where=name, do="pass one seed per task"
            )
        self.tasks = tuple(tasks)
        self.num_envs = len(tasks)
        self.autoreset_mode = autoreset_mode
        self.metadata = {"autoreset_mode": autoreset_mode, "render_modes": []}
        self._kept: dict[str, np.ndarray] = {}
        self._seeds_B = self._keep("seeds", seeds_B)
        self._draws_B = self._keep_zeros("draws", np.uint64)
        self._timestep_B = self._keep_zeros("timestep", np.int32)
        self._ended_B = self._keep("ended", np.ones(self.num_envs, dtype=bool))  # ended, or never begun
        self._any_ended = True
        self._row_B = np.arange(self.num_envs)
        # What `_advance` says besides: episodes that it cut short; `success` where one ends; `achieved` at every step.
        self._cut_B: np.ndarray | None = None
        self._success_B: np.ndarray | None = None
        self._achieved_BMG: np.ndarray | None = None
        self._setup()
        faults.check_setup(self)
        self._at_first = {name: array.copy() for name, array in self._kept.items()}
        self._unplayed = True
        self._steps_to_end = self.horizon  # steps until the first instance meets the horizon
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    # ---- what a world writes

    def _setup(self) -> None:
        """Set ``horizon``, ``single_observation_space`` and ``single_action_space``, and register arrays with ``_keep``.

        Tasks, options and ``num_envs`` are there already.
        """
        raise faults.lacking(self, "_setup")

    def _begin(self, index_N: np.ndarray) -> None:
        """Put the instances ``index_N`` (int64 [N], without repeats) at the start of an episode."""
        raise faults.lacking(self, "_begin")

    def _advance(self, actions_B: np.ndarray, last_B: np.ndarray | None) -> Outcome:
        """Play one step; ``_timestep_B`` already counts it.

        Args:
            actions_B: checked actions.
            last_B: bool [B], which instances are at their horizon; None where none is (the usual case, kept cheap).

        Returns:
            rewards float32 [B], and bool [B] of episodes that ended before the horizon (None where none can). A world that
            cuts episodes short before the horizon sets ``_cut_B`` (bool [B]) besides. Where episodes end,
            ``info["success"]`` is a copy of ``_success_B``; ``info["achieved"]`` is ``_achieved_BMG``, a new array each step.
        """
        raise faults.lacking(self, "_advance")

    def _observe(self) -> np.ndarray:
        """The observations of all instances, as a new array [B, D]."""
        raise faults.lacking(self, "_observe")

    def optimal_return(self) -> np.ndarray:
        """Best undiscounted return of an episode of each instance, float64 [B]. Raises UserError: there is no closed form."""
        raise UserError(
            "the optimal return is not known", where=type(self).__name__, do="compare with a reference policy instead"
        )

    def picture(self, b: int) -> dict[str, Any] | np.ndarray | None:
        """What instance b looks like to a person: the arguments of :func:`recollect.environments.drawing.grid`, or an image
        [H, W, 3]. It changes nothing. None: not known, so what the agent sees is drawn, where that is an image.
        """
        return None

    @property
    def timesteps(self) -> np.ndarray:
        """How many steps the present episode of each instance has, int32 [B]."""
        return self._timestep_B.copy()

    def written_in(self) -> str:
        """Where this kind of world is written, for messages."""
        return faults.file_of(self)

    def on_device(self, worlds: Sequence[BaseWorld], device: Any) -> Any:
        """Worlds of this kind with the same options, this one among them, as tensors on a device of torch, on which whole
        episodes can be played without the host (`recollect.memory_rl.rounds_on_device` says what that is). None: they cannot.
        """
        return None

    # ---- gymnasium

    def render(self) -> tuple[np.ndarray, ...]:
        """A picture of each instance, uint8 [H, W, 3]. Raises UserError: the world cannot be drawn."""
        from recollect.environments.drawing import drawn

        return tuple(drawn(self, b) for b in range(self.num_envs))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start a new episode in all instances, or in those of ``options["reset_mask"]`` (bool [B]).

        Args:
            seed: where given, the reset instances get new random streams made from it; else they go on with their own.

        Returns:
            Observations [B, D] (instances outside the mask: where they stand), and an empty info.
        """
        mask_B = self._reset_mask(options)
        index_N = self._row_B if mask_B is None else np.flatnonzero(mask_B)
        if seed is not None:
            self.begin_streams(index_N, counter_rng.instance_seeds(seed, self.num_envs))
        self._restart(index_N)
        observations_BD = self._observe()
        faults.check_observation(self, observations_BD)
        return observations_BD, {}

    def begin_streams(self, index_N: np.ndarray, seeds_B: np.ndarray) -> None:
        """Make the instances ``index_N`` as they were when the world was made, but with their seeds among ``seeds_B`` (uint64 [B]).

        What lasts from episode to episode is forgotten too. Their next reset begins their first episode.
        """
        for name, array in self._kept.items():
            array[index_N] = self._at_first[name][index_N]
        self._seeds_B[index_N] = seeds_B[index_N]

    def send(self, actions: np.ndarray) -> None:
        """Begin a step where other processes play it; `step` with the same actions then waits for it. Else nothing.

        Who steps several worlds in turn sends to all of them first.

        Raises:
            UserError: as `step`.
        """

    def send_reset(self, mask_B: np.ndarray) -> None:
        """The same of `reset`, which then waits for it where it is given this mask and no seed."""

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Play one action (an integer, or a row of a box) per instance.

        Returns:
            observations [B, D], rewards float32 [B], terminated bool [B], truncated bool [B], info.

        Raises:
            UserError: an action outside the space, an instance that ended and was not reset, or the first step of a world gives
                other shapes than it must. (Numbers that are not finite: `faults.check_step`.)
        """
        if self._any_ended:
            self._refuse_ended()
        actions_B = self._check_actions(actions)
        self._timestep_B += 1
        self._steps_to_end -= 1
        last_B = self._timestep_B >= self.horizon if self._steps_to_end <= 0 else None
        outcome = self._advance(actions_B, last_B)
        if self._unplayed:
            outcome = faults.check_outcome(self, outcome)
            self._unplayed = False
        rewards_B, terminated_B = outcome
        observations_BD = self._observe()
        never_B = np.zeros(self.num_envs, dtype=bool)
        cut_B = self._cut_B
        info: dict[str, Any] = {} if self._achieved_BMG is None else {"achieved": self._achieved_BMG}
        if last_B is None and not any(ends_B is not None and ends_B.any() for ends_B in (terminated_B, cut_B)):
            return observations_BD, rewards_B, never_B, never_B.copy(), info

        terminated_B = never_B if terminated_B is None else terminated_B
        truncated_B = np.zeros(self.num_envs, dtype=bool) if cut_B is None else cut_B & ~terminated_B
        if last_B is not None and self.horizon_terminates:
            terminated_B = terminated_B | (last_B & ~truncated_B)
        elif last_B is not None:
            truncated_B |= last_B & ~terminated_B
        ended_B = terminated_B | truncated_B
        if self._success_B is not None:
            info["success"] = self._success_B.copy()
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            info |= {"final_obs": observations_BD, "_final_obs": ended_B}
            self._restart(np.flatnonzero(ended_B))
            return self._observe(), rewards_B, terminated_B, truncated_B, info
        self._ended_B |= ended_B
        self._any_ended = True
        return observations_BD, rewards_B, terminated_B, truncated_B, info

    def get_state(self) -> dict[str, np.ndarray]:
        """All that a bit-exact resume needs, as copies, for ``set_state`` of a world made with the same arguments."""
        return {name: array.copy() for name, array in self._kept.items()}

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue where ``get_state`` was called. Raises UserError: a state of another world or batch size."""
        where = f"state of {type(self).__name__}"
        if state.keys() != self._kept.keys():
            missing, extra = sorted(self._kept.keys() - state.keys()), sorted(state.keys() - self._kept.keys())
            raise UserError(f"missing {missing}, unexpected {extra}", where=where, do="use a state of the same world")
        for name, array in self._kept.items():
            given = np.asarray(state[name])
            if given.shape != array.shape or given.dtype != array.dtype:
                what = f"'{name}' is {given.dtype} {given.shape}, expected {array.dtype} {array.shape}"
                raise UserError(what, where=where, do="use a state of a world with the same number of instances")
        for name, array in self._kept.items():
            np.copyto(array, np.asarray(state[name]))
        self._recount()

    # ---- shared by worlds

    def _keep(self, name: str, array: np.ndarray) -> np.ndarray:
        """Register an array [B, ...], as it is before the first episode, as part of the state. It must be written in place."""
        self._kept[name] = array
        return array

    def _keep_zeros(self, name: str, dtype: DTypeLike | None, *shape: int) -> np.ndarray:
        """Register zeros (of bool: False) [B, *shape] as part of the state."""
        return self._keep(name, np.zeros((self.num_envs, *shape), dtype))

    def _draw_integers(self, index_N: np.ndarray, bounds: np.ndarray | int) -> np.ndarray:
        """The next random integer below ``bounds`` of each of the instances ``index_N``, int64 [N]."""
        drawn_N = counter_rng.integers(self._seeds_B[index_N], self._draws_B[index_N], bounds)
        self._draws_B[index_N] += np.uint64(1)
        return drawn_N

    def _shuffle_rows(self, array_BA: np.ndarray, index_N: np.ndarray) -> None:
        """Put the entries of the rows ``index_N`` into random order, in place (Fisher and Yates)."""
        for last in range(array_BA.shape[1] - 1, 0, -1):
            other_N = self._draw_integers(index_N, last + 1)
            one_N, two_N = array_BA[index_N, last].copy(), array_BA[index_N, other_N].copy()
            array_BA[index_N, last], array_BA[index_N, other_N] = two_N, one_N

    def _check_actions(self, actions: np.ndarray) -> np.ndarray:
        """What a policy gave, as `faults.checked_actions` makes it. A world that knows more of actions says more here."""
        return faults.checked_actions(self, actions)

    def _refuse_task(self, task: Task, what: str) -> NoReturn:
        do = "take the tasks from tasks(split, ...) with the same options"
        raise UserError(f"task '{task.name}' {what}", where=type(self).__name__, do=do)

    def _restart(self, index_N: np.ndarray) -> None:
        if index_N.size:
            self._timestep_B[index_N] = 0
            self._ended_B[index_N] = False
            self._begin(index_N)
        self._recount()

    def _recount(self) -> None:
        self._any_ended = bool(self._ended_B.any())
        self._steps_to_end = self.horizon - int(self._timestep_B.max())

    def _reset_mask(self, options: dict[str, Any] | None) -> np.ndarray | None:
        where = f"{type(self).__name__}.reset"
        if not options:
            return None
        for name in options.keys() - {"reset_mask"}:
            raise UserError(f"unknown reset option '{name}'", where=where, do="known: reset_mask")
        mask_B = np.asarray(options["reset_mask"])
        if mask_B.dtype != bool or mask_B.shape != (self.num_envs,):
            what = f"reset_mask is {mask_B.dtype} {mask_B.shape}"
            raise UserError(what, where=where, do=f"pass a bool array of shape ({self.num_envs},)")
        return mask_B

    def _refuse_ended(self) -> None:
        ended = np.flatnonzero(self._ended_B)
        shown = ", ".join(map(str, ended[:8])) + (", ..." if ended.size > 8 else "")
        raise UserError(
            f"{ended.size} of {self.num_envs} instances have ended or were never reset (instances {shown})",
            where=f"{type(self).__name__}.step",
            do='reset them first: reset(options={"reset_mask": terminated | truncated}), '
            "or make the world with AutoresetMode.SAME_STEP",
        )


BaseWorld = World  # what worlds subclass, each of which is called World in its file
