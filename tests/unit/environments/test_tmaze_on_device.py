"""T-Mazes as tensors: what is seen, paid and left behind is that of the mazes themselves, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from recollect.environments import registry
from recollect.environments.tmaze import TMaze

OPTIONS: list[dict[str, Any]] = [
    {"length": 3},
    {"variant": "active", "length": 4},
    {"length": 7, "carried": True, "expose_goal": True},
    {"variant": "active", "length": 7, "oracle_length": 2, "expose_position": True, "expose_timestep": True},
    {"length": 3, "late": "not_right", "late_penalty": -0.3, "goal_reward": 2.5, "horizon": 6},
    {"variant": "active", "length": 3, "distract_reward": 0.1, "expose_goal": True},
    {"variant": "active", "length": 5, "oracle_length": 2, "late": "not_right"},  # free until it is back
]


def mazes_of(options: dict[str, Any]) -> list[TMaze]:
    tasks = registry.tasks("tmaze", options, "train")
    return [
        registry.make_world("tmaze", options, [tasks[0]] * rows, np.arange(rows, dtype=np.uint64) + seed)
        for seed, rows in enumerate((1, 3, 1))
    ]


@pytest.mark.parametrize("options", OPTIONS)
def test_episodes_are_those_of_the_mazes_themselves(options: dict[str, Any]) -> None:
    wanted, mazes = mazes_of(options), mazes_of(options)
    played, draws = mazes[0].on_device(mazes, torch.device("cpu")), np.random.default_rng(0)
    for _ in range(6):
        seen = [maze.reset()[0] for maze in wanted]
        assert np.array_equal(played.begin(), np.concatenate(seen))
        for t in range(played.horizon):
            action_B = draws.choice(4, played.rows, p=(0.6, 0.15, 0.1, 0.15))
            observation_BD, reward_B = played.step(torch.from_numpy(action_B))
            steps = [maze.step(own) for maze, own in zip(wanted, np.split(action_B, [1, 4]), strict=True)]
            assert np.array_equal(observation_BD.numpy(), np.concatenate([step[0] for step in steps]))
            assert reward_B.numpy().tobytes() == np.concatenate([step[1] for step in steps]).tobytes()
            assert observation_BD.dtype == reward_B.dtype == torch.float32
            assert all(step[2].all() == (t == played.horizon - 1) for step in steps)
        played.end()
        for maze, other in zip(mazes, wanted, strict=True):
            state, there = maze.get_state(), other.get_state()
            assert all(np.array_equal(state[name], there[name]) for name in there)
