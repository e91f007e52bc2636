"""Worlds whose steps take long, played by several processes at once; every instance plays what it would in one process.

What an instance does depends on its task, its random stream and its actions alone. So the instances of a world are dealt out to
processes (`parallel_worker.py`), each of which has a world of its share. One request goes to all of them before the first answer is
read. The processes are shared by all worlds of this process, as a job that trains many seeds has many. Who steps these in turn
sends to all of them first (`World.send`), and then even worlds of one instance are played side by side.

They are as many as the job has threads, or as RECOLLECT_WORLD_PROCESSES says. A world says with `slow` that it pays: a step of an
instance takes a tenth of a millisecond or more, where a request takes 0.1 to 0.2.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from recollect.artifacts import threads
from recollect.environments import counter_rng, registry
from recollect.environments.base import Task, World
from recollect.environments.world_processes import VARIABLE, pool
from recollect.settings.errors import UserError

_in_turn = ContextVar("_in_turn", default=False)


def make_world(name: str, options: Mapping[str, Any], tasks: Sequence[Task], seeds: np.ndarray) -> World:
    """As `registry.make_world`; a slow world of several instances is played by several processes, where the job has threads.

    One of a single instance is played by another process where others are (`stepped_in_turn`). One that keeps numbers of all its
    instances at once (`metrics` of packaged worlds) is played in this process.
    """
    processes = how_many()
    pays = processes > 1 and (len(tasks) > 1 or _in_turn.get())
    if not pays or not (kind := registry.world_class(name)).slow or hasattr(kind, "metrics"):
        return registry.make_world(name, options, tasks, seeds)
    return ParallelWorld(name, options, tasks, seeds, processes)


@contextmanager
def stepped_in_turn() -> Iterator[None]:
    """Worlds that are made in the block are stepped in turn, by someone who sends to all of them first."""
    before = _in_turn.set(True)
    try:
        yield
    finally:
        _in_turn.reset(before)


def how_many() -> int:
    """How many processes play a slow world here.

    Raises:
        UserError: the variable is no number.
    """
    said = os.environ.get(VARIABLE, "")
    if said and not said.isdigit():
        raise UserError(f"'{said}' is not a number of processes", where=VARIABLE, do=f"set {VARIABLE}=4, or unset it")
    return int(said) if said else threads.used()


class ParallelWorld(World):
    """A world whose instances are dealt out to processes; see the head of the file and `base.World`."""

    def __init__(
        self,
        name: str,
        options: Mapping[str, Any],
        tasks: Sequence[Task],
        seeds: np.ndarray,
        processes: int,
    ) -> None:
        self.name = name
        self.tasks = tuple(tasks)
        self.num_envs = len(self.tasks)
        self.autoreset_mode = AutoresetMode.DISABLED
        self.metadata = {"autoreset_mode": self.autoreset_mode, "render_modes": []}
        self._parts = np.array_split(np.arange(self.num_envs), min(processes, self.num_envs))
        self._pool = pool()
        self._number = self._pool.new(len(self._parts), processes)
        self._facts: dict[str, Any] = {}
        self._begun: tuple[str, np.ndarray] | None = None  # a step or a reset that was sent, with its actions or mask
        self._closing = weakref.finalize(self, self._pool.forget, self._number)
        made = ((name, dict(options), [self.tasks[b] for b in part], np.asarray(seeds)[part]) for part in self._parts)
        about = self._ask("make", list(made))[0]
        self.options, self.horizon = about["options"], about["horizon"]
        self.single_observation_space = about["single_observation_space"]
        self.single_action_space = about["single_action_space"]
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        vars(self)["horizon_terminates"] = about["horizon_terminates"]  # of the class that is played
        self._written_in: str = about["written_in"]

    def _ask(self, what: str, shares: Sequence[tuple[Any, ...]]) -> list[Any]:
        self._begun = None
        return self._pool.ask(what, self._number, shares)

    def _ask_all(self, what: str) -> list[Any]:
        return self._ask(what, [()] * len(self._parts))

    def __getattr__(self, name: str) -> Any:
        """What else the world says of itself (`goal_part`, `observation_parts`, ...), the same in all processes."""
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in self._facts:
            self._facts[name] = self._ask("say", [(name,)] * len(self._parts))[0]
        has, value = self._facts[name]
        if not has:
            raise AttributeError(f"the world '{self.name}' has no attribute '{name}'")
        return value

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        mask_B = self._reset_mask(options)
        mask_B = np.ones(self.num_envs, bool) if mask_B is None else mask_B
        if seed is None:
            return np.concatenate(self._answered("reset", mask_B)), {}
        seeds_B = counter_rng.instance_seeds(seed, self.num_envs)
        return np.concatenate(self._ask("reset", [(mask_B[part], seeds_B[part]) for part in self._parts])), {}

    def send(self, actions: np.ndarray) -> None:
        """See :meth:`recollect.environments.base.World.send`."""
        self._request("step", self._check_actions(actions))

    def send_reset(self, mask_B: np.ndarray) -> None:
        """See :meth:`recollect.environments.base.World.send_reset`."""
        self._request("reset", mask_B)

    def _request(self, what: str, of_B: np.ndarray) -> None:
        """Send a request of which each part of the world gets its share of an array."""
        if self._begun is not None:
            raise ValueError(
                f"{type(self).__name__}.send: the {self._begun[0]} that was sent before has not been asked for"
            )
        self._pool.send(what, self._number, [(of_B[part],) for part in self._parts])
        self._begun = what, of_B

    def _answered(self, what: str, of_B: np.ndarray) -> list[Any]:
        """What is answered to it; it is sent now where it was not before."""
        if self._begun is None:
            self._request(what, of_B)
        elif self._begun[0] != what or not np.array_equal(self._begun[1], of_B):
            raise ValueError(f"{type(self).__name__}.{what}: another {self._begun[0]} was sent")
        self._begun = None
        return self._pool.receive(self._number)

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        stepped = self._answered("step", self._check_actions(actions))
        observations_BD, rewards_B, terminated_B, truncated_B = (
            np.concatenate([answer[place] for answer in stepped]) for place in range(4)
        )
        return observations_BD, rewards_B, terminated_B, truncated_B, self._said([answer[4] for answer in stepped])

    def _said(self, infos: Sequence[dict[str, np.ndarray]]) -> dict[str, Any]:
        """What all say; zeros where a process says nothing of a name, as none of its instances has ended."""
        joined = {}
        for name in dict.fromkeys(name for info in infos for name in info):
            like = next(info[name] for info in infos if name in info)
            said = (
                info.get(name, np.zeros((len(part), *like.shape[1:]), like.dtype))
                for info, part in zip(infos, self._parts, strict=True)
            )
            joined[name] = np.concatenate(list(said))
        return joined

    def get_state(self) -> dict[str, np.ndarray]:
        states = self._ask_all("get_state")
        return {name: np.concatenate([state[name] for state in states]) for name in states[0]}

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        for name, array in state.items():
            if np.shape(array)[:1] != (self.num_envs,):
                what = f"'{name}' is of {np.shape(array)[:1]} instances, expected {self.num_envs}"
                do = "use a state of a world with the same number of instances"
                raise UserError(what, where=f"state of the world {self.name}", do=do)
        shares = [({name: np.asarray(array)[part] for name, array in state.items()},) for part in self._parts]
        self._ask("set_state", shares)

    def goals(self) -> np.ndarray:
        """What its instances are told to reach, of a world that tells goals: [B, K, ...]."""
        return np.concatenate(self._ask_all("goals"))

    def optimal_return(self) -> np.ndarray:
        return np.concatenate(self._ask_all("optimal_return"))

    @property
    def timesteps(self) -> np.ndarray:
        return np.concatenate(self._ask_all("timesteps"))

    def written_in(self) -> str:
        return self._written_in

    def picture(self, b: int) -> Any:
        shares = [(int(b - part[0]) if b in part else None,) for part in self._parts]
        pictures = self._ask("picture", shares)
        return next(answer for part, answer in zip(self._parts, pictures, strict=True) if b in part)

    def close_extras(self, **kwargs: Any) -> None:
        self._closing()
