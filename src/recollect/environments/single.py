"""Our worlds as gymnasium knows them: ``gymnasium.make`` gives one instance, ``gymnasium.make_vec`` a batch.

import gymnasium, recollect.environments
env = gymnasium.make("recollect/DarkRoom-v0", width=20, height=20, split="eval", task=3, render_mode="rgb_array")
envs = gymnasium.make_vec("recollect/DarkRoom-v0", num_envs=80, vectorization_mode="vector_entry_point")
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from recollect.environments import counter_rng, registry
from recollect.environments.base import World
from recollect.environments.drawing import drawn
from recollect.settings.errors import UserError

FPS = 8  # steps of a world in a second of a video


class SingleWorld(gymnasium.Env[np.ndarray, np.int64]):
    """One instance of a world: task number `task` of a split."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": FPS}  # noqa: RUF012 (gymnasium's own type)

    def __init__(
        self, world: str, split: str = "train", task: int = 0, render_mode: str | None = None, **options: Any
    ) -> None:
        self.render_mode = render_mode
        listed = registry.tasks(world, options, split)
        if not 0 <= task < len(listed):
            raise UserError(f"no task {task} in '{split}'", where=world, do=f"choose one of 0..{len(listed) - 1}")
        self.task = listed[task]
        self.world = registry.make_world(world, options, [self.task], np.zeros(1, dtype=np.uint64))
        self.observation_space = self.world.single_observation_space
        self.action_space = self.world.single_action_space
        self._seeded = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode. A seed starts the random stream anew; without one it goes on (at first: from anywhere)."""
        super().reset(seed=seed)
        fresh = seed is not None or not self._seeded
        self._seeded = True
        observation_1D, info = self.world.reset(seed=int(self.np_random.integers(2**63)) if fresh else None)
        return observation_1D[0], info

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Play one action; see :meth:`recollect.environments.base.World.step`."""
        self.world._success_B = None  # that of a step before
        observation_1D, reward_1, terminated_1, truncated_1, info = self.world.step(np.asarray(action)[None])
        told = {name: value_1[0] for name, value_1 in info.items()}
        if self.world._success_B is not None:  # told at every step: who plays on may cut the episode here
            told["success"] = self.world._success_B[0]
        return observation_1D[0], float(reward_1[0]), bool(terminated_1[0]), bool(truncated_1[0]), told

    def render(self) -> np.ndarray | None:  # type: ignore[override]
        """A picture for people, uint8 [H, W, 3], where `render_mode` is `rgb_array`. Raises UserError: it cannot be drawn."""
        return None if self.render_mode is None else drawn(self.world, 0)


def vector_world(
    world: str,
    num_envs: int = 1,
    split: str = "train",
    seed: int = 0,
    autoreset_mode: AutoresetMode = AutoresetMode.SAME_STEP,
    render_mode: str | None = None,
    **options: Any,
) -> World:
    """A batch for ``gymnasium.make_vec``: instance i plays task i of the split, beginning again after the last one."""
    listed = registry.tasks(world, options, split)
    chosen = [listed[i % len(listed)] for i in range(num_envs)]
    made = registry.make_world(world, options, chosen, counter_rng.instance_seeds(seed, num_envs), autoreset_mode)
    made.metadata |= {"render_modes": ["rgb_array"], "render_fps": FPS}
    made.render_mode = render_mode
    return made
