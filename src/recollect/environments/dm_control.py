"""DMControl: bodies that balance, swing, reach and walk, 11 tasks to learn from and 5 held out, as RA-DT uses it.

Every observation is 204 numbers: what the suite's tasks call by the same name ("position", "velocity", ...) stands in the
same slot, and slots that a task does not have are zero. Actions are padded to 6. Episodes last 1000 steps, rewards are at
most 1 a step.

- `goal: hidden` zeroes the slots whose name contains "target", as the released wrapper does where it is switched on.
- `initial_states: fixed` begins every episode of a task alike (not in the paper).
- The package here is 1.0.28 (MuJoCo 3.3); the paper's is of 2021 (mujoco 2.0). The models are the same; single
  trajectories are not.
- There is no scripted expert: learning histories are those of SAC agents (source `sac`) or come from published data. Those
  of a random policy never get better.

Source: RA-DT (arXiv 2410.07071), specification 1.7 and 5; numbers from its released code.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import Field

from recollect.environments.base import Task
from recollect.environments.simulated import SimulatedOptions, SimulatedWorld, needed

# Slot: first entry. A slot ends where the next begins.
PACKAGES = ("dm_control",)
SLOTS = {
    "orientations": 0, "velocity": 14, "position": 41, "touch": 49, "target_position": 54, "dist_to_target": 56,
    "joint_angles": 57, "upright": 78, "target": 79, "head_height": 82, "extremities": 83, "torso_vertical": 95,
    "com_velocity": 98, "arm_pos": 101, "arm_vel": 117, "hand_pos": 125, "object_pos": 129, "object_vel": 133,
    "target_pos": 136, "orientation": 140, "to_target": 142, "joints": 144, "body_velocities": 158, "height": 203,
}  # fmt: skip
OBSERVATION_SIZE, ACTION_SIZE = 204, 6
ENDS = dict(zip(SLOTS, [*list(SLOTS.values())[1:], OBSERVATION_SIZE], strict=True))
GOAL = [entry for name, first in SLOTS.items() if "target" in name for entry in range(first, ENDS[name])]
# Task: actions, return of a random policy, mean return of the published data, highest return in it.
TRAIN = {
    "finger-turn_easy": (2, 57.8, 800.645, 1000.0),
    "fish-upright": (5, 229.406, 547.962, 999.433),
    "hopper-stand": (4, 1.296, 266.783, 975.575),
    "point_mass-easy": (2, 1.341, 779.273, 998.373),
    "walker-stand": (6, 134.701, 816.322, 999.82),
    "walker-run": (6, 23.427, 344.794, 513.464),
    "ball_in_cup-catch": (2, 0.0, 926.719, 1000.0),
    "cartpole-swingup": (1, 27.414, 766.15, 857.492),
    "cheetah-run": (6, 3.207, 324.045, 451.274),
    "finger-spin": (2, 0.2, 834.629, 987.0),
    "reacher-easy": (2, 33.0, 849.241, 1000.0),
}
EVAL = {
    "cartpole-balance": (1, 350.391, 938.506, 993.194),
    "finger-turn_hard": (2, 40.6, 676.144, 1000.0),
    "pendulum-swingup": (1, 0.0, 614.491, 1000.0),
    "reacher-hard": (2, 8.0, 779.947, 1000.0),
    "walker-walk": (6, 30.193, 773.174, 982.159),
}


class Options(SimulatedOptions):
    horizon: int = Field(default=1000, ge=1, le=1000)


def tasks(split: str, **options: Any) -> list[Task]:
    """The tasks of a split, by name; needs no package. `data` has the number of the task's own actions."""
    return Options.parse(options, "dm_control").tasks(split, "dm_control", TRAIN, EVAL)


def in_slots(parts: Mapping[str, Any]) -> np.ndarray:
    """The parts of an observation in their slots, float32 [204]."""
    seen_D = np.zeros(OBSERVATION_SIZE, np.float32)
    for name, part in parts.items():
        values = np.ravel(part)
        seen_D[SLOTS[name] : SLOTS[name] + len(values)] = values
    return seen_D


class Simulator:
    """One task of the suite; see `simulated.SimulatedWorld`."""

    def __init__(self, name: str, actions: int) -> None:
        os.environ.setdefault("MUJOCO_GL", "disabled")  # nothing is rendered, and many machines could not
        suite = needed("dm_control.suite", "dm_control")
        self.inner = suite.load(*name.split("-"))
        self.actions = actions

    def begin(self, word: int) -> None:
        self.inner.task._random = np.random.RandomState(word)
        parts = self.inner.reset().observation
        self.seen_D = in_slots(parts)
        self.entries = np.concatenate([SLOTS[name] + np.arange(np.size(part)) for name, part in parts.items()])

    def step(self, action_A: np.ndarray) -> tuple[float, bool]:
        """Reward; the suite does not say when a task is solved."""
        now = self.inner.step(action_A[: self.actions].astype(np.float64))
        self.seen_D = in_slots(now.observation)
        return float(now.reward), False

    def render(self) -> np.ndarray:
        image: np.ndarray = self.inner.physics.render(height=288, width=384, camera_id=0)
        return image

    def look(self) -> np.ndarray:
        return self.seen_D


class DMControl(SimulatedWorld):
    options: Options
    options_model = Options

    def _setup(self) -> None:
        chosen = self.options
        self.horizon = chosen.horizon
        self._simulate(
            [Simulator(task.name, task.data["actions"]) for task in self.tasks],
            observation_size=OBSERVATION_SIZE,
            action_size=ACTION_SIZE,
            goal_entries=GOAL,
        )

    def own_entries(self) -> list[np.ndarray]:
        """Of each task the numbers of an observation that are not always zero, as a source agent of its own sees it."""
        return [simulator.entries for simulator in self.players]


World = DMControl
