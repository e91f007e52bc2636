"""A reward or observation that is not finite is the world's fault, and said so: world, task and step, by all that steps worlds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from recollect.common.rollout import play_episodes
from recollect.environments import faults
from recollect.environments.base import Task, World
from recollect.memory_rl.playing_together import SideBySide
from recollect.settings.errors import UserError
from recollect.sources.recording import HistoryRecorder


class Broken(World):
    """At step 3 the second instance gives what is not finite."""

    wrong = "reward"

    def _setup(self) -> None:
        self.horizon = 5
        self.single_observation_space = Box(-1, 1, (2,), np.float32)
        self.single_action_space = Discrete(2)

    def _begin(self, index_N: np.ndarray) -> None:
        pass

    def _advance(self, actions_B: np.ndarray, last_B: np.ndarray | None) -> Any:
        return self._broken("reward", np.ones(self.num_envs, np.float32)), None

    def _observe(self) -> np.ndarray:
        return self._broken("observation", np.ones((self.num_envs, 2), np.float32))

    def _broken(self, what: str, array: np.ndarray) -> np.ndarray:
        if what == self.wrong:
            array[1:2][self._timestep_B[1:2] == 3] = np.nan if what == "reward" else -np.inf
        return array


def world(wrong: str, tasks: list[Task] | None = None, seeds: np.ndarray | None = None) -> Broken:
    tasks = tasks or [Task(i, f"task_{i}", "train") for i in range(3)]
    made = Broken(tasks, seeds=np.arange(len(tasks)))
    made.wrong = wrong
    return made


def still(observation: np.ndarray, *rest: Any) -> np.ndarray:
    return np.zeros(len(observation), np.int64)


@pytest.mark.parametrize(("wrong", "number"), [("reward", "nan"), ("observation", "-inf")])
def test_whoever_steps_a_world_names_world_task_and_step(wrong: str, number: str) -> None:
    message = (
        rf"the world gave the {wrong} {number} at step 3 of task 'task_1' \(train, 1\)\n  where: .*test_finite_worlds"
    )
    with pytest.raises(UserError, match=message):
        play_episodes(world(wrong), still)
    fine = world("nothing")
    with pytest.raises(UserError, match=message):
        play_episodes(SideBySide([fine, world(wrong)]), still)
    with pytest.raises(UserError, match=message):
        recorder = HistoryRecorder(lambda tasks, seeds: world(wrong, list(tasks)), list(fine.tasks), 5, 0)
        for _ in range(5):
            recorder.step(np.zeros(3, np.int64))


def test_a_single_episode_is_looked_at_when_it_is_over() -> None:
    rewards, observations = np.array([0, 1, np.inf], np.float32), np.zeros((4, 2), np.float32)
    with pytest.raises(UserError, match="the reward inf at step 3 of task 'task_0'"):
        faults.check_episode(world("nothing"), observations, rewards)
    observations[2] = np.nan
    with pytest.raises(UserError, match="the observation nan at step 2"):
        faults.check_episode(world("nothing"), observations, np.zeros(3, np.float32))


def test_large_finite_numbers_are_no_fault() -> None:
    huge = np.full(3, 3e38, np.float32)
    faults.check_step(world("nothing"), np.tile(huge, (3, 1)), huge)
