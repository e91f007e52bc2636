"""T-Mazes as tensors on the device that plays in them: a step asks the host for nothing, so that it can be part of a CUDA graph.

The mazes themselves begin each episode and draw its sign, and are told where it ended. Between, all instances of several of them
are one batch, in lockstep: every episode of a T-Maze lasts to its horizon. What is seen and paid is the same to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


class TMazeOnDevice:
    """Some mazes (`tmaze.TMaze`) with the same options, one behind the other: B instances in all.

    Args:
        moves_2A: how far each action moves along x and along y.
    """

    def __init__(self, mazes: Sequence[Any], moves_2A: np.ndarray, device: torch.device) -> None:
        self.mazes = mazes
        self.options, self.horizon = mazes[0].options, mazes[0].horizon
        self.junction = self.options.back + self.options.length
        self.rows = sum(maze.num_envs for maze in mazes)
        self.size: int = mazes[0].single_observation_space.shape[0]
        self.observation_dtype = torch.float32
        self.stands_5B = torch.zeros(5, self.rows, dtype=torch.int64, device=device)  # see `TMaze.stands`
        self.time = torch.zeros(1, dtype=torch.int64, device=device)
        self._move_x_A, self._move_y_A = torch.as_tensor(moves_2A.astype(np.int64)).to(device)

    @property
    def state(self) -> tuple[Tensor, ...]:
        """What a step changes."""
        return self.stands_5B, self.time

    def begin(self) -> np.ndarray:
        """Begin an episode in all instances: observations float32 [B, D], on the host."""
        observations = [maze.reset()[0] for maze in self.mazes]
        self.stands_5B.copy_(torch.from_numpy(np.concatenate([maze.stands() for maze in self.mazes], 1)))
        self.time.zero_()
        return np.concatenate(observations)

    def kind(self, t: int) -> None:
        """All steps are of one kind."""

    def step(self, action_B: Tensor, kind: None = None) -> tuple[Tensor, Tensor]:
        """Observations float32 [B, D] and rewards float32 [B] of actions int64 [B], as `TMaze.step` gives them."""
        maze, junction = self.options, self.junction
        x_B, y_B, goal_B, seen_B, _ = self.stands_5B.unbind()
        self.time += 1
        step_x_B = self._move_x_A[action_B] * (y_B == 0)
        if maze.carried:
            step_x_B = torch.where(x_B < junction, 1, step_x_B)
        step_y_B = self._move_y_A[action_B] * (x_B == junction)
        x_B = (x_B + step_x_B).clamp(0, junction)
        y_B = (y_B + step_y_B).clamp(-1, 1)
        at_sign_B = x_B == 0
        showing_B = at_sign_B.long() * (1 - seen_B)
        seen_B = torch.maximum(seen_B, at_sign_B.long())

        late_B = x_B < self.time - maze.back if maze.late == "behind" else (action_B != 0) & (self.time > maze.back)
        reward_B = torch.where(late_B, np.float32(maze.penalty).item(), 0.0)
        if maze.distract_reward:
            reward_B = reward_B + at_sign_B * np.float32(maze.distract_reward).item()
        paid_B = (y_B == goal_B) * np.float32(maze.goal_reward).item()
        reward_B = torch.where(self.time >= self.horizon, paid_B, reward_B).float()

        parts = [x_B == junction, y_B + goal_B * showing_B]
        if maze.expose_goal:
            parts.append(goal_B * seen_B)
        if maze.expose_position:
            parts += [x_B.double() / junction, y_B]
        if maze.expose_timestep:
            parts.append((self.time.double() / self.horizon).expand(self.rows))
        self.stands_5B.copy_(torch.stack([x_B, y_B, goal_B, seen_B, showing_B]))
        return torch.stack([part.float() for part in parts], 1), reward_B

    def end(self) -> None:
        """Tell the mazes where their episodes ended. Of success they say nothing."""
        stands_5B, first = self.stands_5B.cpu().numpy(), 0
        for maze in self.mazes:
            maze.has_ended(stands_5B[:, first : first + maze.num_envs])
            first += maze.num_envs
