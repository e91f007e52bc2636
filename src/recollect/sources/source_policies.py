"""Sources of histories that do not learn: a uniformly random agent, and an expert whose noise is annealed away.

- `random`: data without improvement, the control for every claim about learning histories.
- `noise_annealed`: a scripted expert that acts at random with probability ε, where ε falls over the history. It looks
  like a learning history, costs no training, and ends at the optimum (AD^ε: Zisman et al., "Emergence of In-Context
  Reinforcement Learning from Noise Distillation", ICML 2024; not used in the RA-DT paper).

A world has an expert if it is listed in `EXPERTS`; the others can be played at random only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from pydantic import Field

from recollect.environments import registry
from recollect.environments.base import Task, World
from recollect.settings.errors import UserError
from recollect.settings.schema import Frozen
from recollect.sources.recording import HistoryRecorder, Run, task_generators, tracked

# What a figure says of histories that are not of agents that learned, by `policy` (recollect.stages.stand_ins).
STAND_INS = {
    "random": "a random policy, which never gets better",
    "noise_annealed": "a scripted expert with less and less noise",
}
BLOCK = 1000  # steps whose random numbers are drawn at once


class Hyperparameters(Frozen):
    """A source that does not learn."""

    policy: Literal["random", "noise_annealed"] = Field(
        "random", description="Uniform, or an expert with less and less noise."
    )
    transitions: int = Field(100_000, gt=0, description="Environment steps per task = length of its history.")
    first_noise: float = Field(
        1.0, ge=0, le=1, description="Probability of a random action at the start of the history."
    )
    last_noise: float = Field(0.0, ge=0, le=1, description="The same at its end; the last episodes are this good.")
    power: float = Field(1.0, gt=0, description="1: noise falls linearly; above 1 it falls late, below 1 early.")
    checkpoint_every: int = Field(0, ge=0, description="Most steps between checkpoints; 0: by time alone.")


def generate(
    world: str,
    options: Mapping[str, Any],
    tasks: Sequence[Task],
    hyperparameters: Hyperparameters,
    *,
    seed: int,
    run: Run | None = None,
) -> dict[str, np.ndarray]:
    """Play every task; see `recollect.sources.ppo.generate` for arguments, result and errors."""
    settings = hyperparameters
    if settings.policy == "noise_annealed" and world not in EXPERTS:
        raise UserError(
            f"The world '{world}' has no scripted expert.",
            where="source.hyperparameters.policy",
            do=f"use `random`, or a world that has one: {', '.join(sorted(EXPERTS))}.",
        )
    recorder = HistoryRecorder(
        lambda t, s: registry.make_world(world, options, t, s), tasks, settings.transitions, seed, continuous=True
    )
    numbers = sum(recorder.action_shape)  # of a continuous action
    checkpoint = run.resume() if run is not None else None
    if checkpoint is not None:
        recorder.load(checkpoint.arrays)
    expert = EXPERTS[world](recorder.world) if settings.policy == "noise_annealed" else None
    with tracked(run, settings.transitions, f"{len(tasks)} {settings.policy} agents") as progress:
        while recorder.length < settings.transitions:
            start = recorder.length
            steps = min(BLOCK, settings.transitions - start)
            draws = task_generators("source-policy", seed, tasks, start // BLOCK)
            uniform_ETK = np.stack([draw.random((BLOCK, 3 + numbers)) for draw in draws])
            action_TE = (uniform_ETK[:, :, 0].T * recorder.actions).astype(np.int64)
            if numbers:
                action_TE = (2 * np.swapaxes(uniform_ETK[:, :, 3:], 0, 1) - 1).astype(np.float32)
            for t in range(steps):
                action_E = action_TE[t]
                if expert is not None:
                    done = (start + t) / max(1, settings.transitions - 1)
                    noise = settings.first_noise + (settings.last_noise - settings.first_noise) * done**settings.power
                    wise_E = expert(recorder.observation, uniform_ETK[:, t, 2])
                    at_random_E = (uniform_ETK[:, t, 1] < noise).reshape(-1, *[1] * (action_E.ndim - 1))
                    action_E = np.where(at_random_E, action_E, wise_E)
                recorder.step(action_E)
            progress.update(recorder.length, episode_return=recorder.last_return())
            finished = recorder.length >= settings.transitions
            if run is not None and not finished and run.due(recorder.length, settings.checkpoint_every):
                run.save(recorder.length, recorder.arrays(), {"algorithm": "source_policies", "seed": seed})
    return recorder.histories()


def walk(observation_E2: np.ndarray, target_E2: np.ndarray, uniform_E: np.ndarray) -> np.ndarray:
    """Actions of a shortest way in an empty room (0 north, 1 east, 2 south, 3 west, 4 stay); `uniform_E` breaks ties.

    Args:
        observation_E2, target_E2: (row, column).
        uniform_E: which of two useful directions is taken, in proportion to the distance left in each.
    """
    gap_E2 = target_E2.astype(np.int64) - observation_E2
    distance_E2 = np.abs(gap_E2)
    down_E = uniform_E * distance_E2.sum(1) < distance_E2[:, 0]
    vertical_E = np.where(gap_E2[:, 0] < 0, 0, 2)
    horizontal_E = np.where(gap_E2[:, 1] < 0, 3, 1)
    return np.where(distance_E2.sum(1) == 0, 4, np.where(down_E, vertical_E, horizontal_E))


def _cells(world: World, name: str) -> np.ndarray:
    """The tasks' cells as (row, column); tasks give (x, y)."""
    return np.array([task.data[name][::-1] for task in world.tasks])


Expert = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""(observations of all instances, uniform_E) -> actions."""


def _dark_room(world: World) -> Expert:
    goal_E2 = _cells(world, "goal")
    return lambda observation_E2, uniform_E: walk(observation_E2, goal_E2, uniform_E)


def _key_door(world: World) -> Expert:
    door_E2, key_E2 = _cells(world, "door"), _cells(world, "key")

    def expert(observation_E2: np.ndarray, uniform_E: np.ndarray) -> np.ndarray:
        held_E1 = world.get_state()["has_key"][:, None]
        return walk(observation_E2, np.where(held_E1, door_E2, key_E2), uniform_E)

    return expert


def _maze_runner(world: World) -> Expert:
    shortest_EGCA = world.shortest_ways()  # type: ignore[attr-defined]
    rows_E = np.arange(world.num_envs)

    def expert(observation_E6: np.ndarray, uniform_E: np.ndarray) -> np.ndarray:
        del observation_E6  # which does not tell how many goals were reached
        state = world.get_state()
        useful_EA = shortest_EGCA[rows_E, state["reached"], state["cell"]]
        chosen_E1 = (uniform_E * useful_EA.sum(1)).astype(np.int64)[:, None]
        return (useful_EA.cumsum(1) > chosen_E1).argmax(1)

    return expert


def _meta_world(world: World) -> Expert:
    """The policies that the package brings. They see the goal, and are not always right."""
    return lambda observation_ED, uniform_E: world.scripted_actions()  # type: ignore[attr-defined]


EXPERTS: dict[str, Callable[[World], Expert]] = {
    "dark_room": _dark_room,
    "key_door": _key_door,
    "maze_runner": _maze_runner,
    "meta_world": _meta_world,
}
