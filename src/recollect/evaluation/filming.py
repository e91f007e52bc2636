"""Pictures of a few episodes of one task, with the seeds of its evaluation.

The policy plays first, and its actions are written down; then the world plays the same episodes again and is drawn. So what
is drawn can change nothing that the policy sees. The task is played alone: what a network makes of a row can differ in
the last bit with the rows beside it, so an action that hangs on that bit may differ from the scored episode's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from recollect.artifacts.scoring import Scoring
from recollect.common.contract import Policy, world_as_met
from recollect.environments import registry
from recollect.environments.base import Task, World
from recollect.environments.drawing import drawn
from recollect.evaluation.episodic import episode_seeds, play_round
from recollect.evaluation.in_context import Moment, play_in_context, row_seeds
from recollect.settings.errors import UserError
from recollect.settings.schema import EnvironmentSettings


class Step(NamedTuple):
    """One step that was played, of an episode that counts from 0."""

    episode: int
    action: np.ndarray
    reward: float
    done: bool


def play(
    policy: Policy,
    environment: EnvironmentSettings,
    split: str,
    task: int,
    *,
    episodes: int,
    seed: int,
    progress: Callable[[int], None] | None = None,
) -> list[Step]:
    """Play the first episodes of a task's evaluation: in a row (in context), or each from an empty memory.

    Args:
        task: its place in the split.
        seed: of the run.
        progress: called with the number of episodes that are over.
    """
    steps: list[Step] = []

    def note(action_B: np.ndarray, reward_B: np.ndarray, done_B: np.ndarray, episode: int) -> None:
        steps.append(Step(episode, np.array(action_B[0]), float(reward_B[0]), bool(done_B[0])))

    if environment.evaluation.protocol == "in_context":
        listed = registry.tasks(environment.world, environment.options, split)
        fewer = environment.evaluation.model_copy(update={"episodes": episodes})
        shorter = environment.model_copy(update={"evaluation": fewer})

        def watch(moment: Moment) -> None:
            note(moment.action_B, moment.reward_B, moment.done_B, int(moment.episode_B[0]))

        play_in_context(policy, shorter, [listed[task]], seed=seed, progress=progress, watch=watch)
        return steps
    for episode in range(episodes):
        tasks, worlds_1, actions_1 = _begun(environment, split, task, episode, seed)
        world = world_as_met(environment, tasks, worlds_1, policy)

        def told(seen: Any, action_B: Any, reward_B: Any, done_B: Any, live: Any, *, episode: int = episode) -> None:
            note(action_B, reward_B, done_B, episode)

        play_round(world, policy, seeds_B=actions_1, kept=Scoring().part(""), watch=told)
        if progress is not None:
            progress(episode + 1)
    return steps


def pictures(
    environment: EnvironmentSettings, split: str, task: int, steps: list[Step], *, seed: int
) -> Iterator[tuple[np.ndarray, str]]:
    """Play the steps again: before each a picture, uint8 [H, W, 3], and what to write under it; one more at an episode's end.

    Raises:
        UserError: the world cannot be drawn, or does not pay what it paid before.
    """
    in_context = environment.evaluation.protocol == "in_context"
    world = world_of(environment, split, task, seed=seed)
    at, total, begins = 0, 0.0, True

    def shown() -> tuple[np.ndarray, str]:
        words = f"{world.tasks[0].name} · episode {step.episode + 1} · step {at} · return {total:.4g}"
        return drawn(world, 0), words

    for step in steps:
        if begins:
            at, total = 0, 0.0
            if step.episode and not in_context:
                world.close()
                world = world_of(environment, split, task, step.episode, seed=seed)
            world.reset(options={"reset_mask": np.ones(1, bool)})
        yield shown()
        _, reward_1, *_ = world.step(step.action[None])
        if float(reward_1[0]) != step.reward:
            what = f"in episode {step.episode}, step {at} paid {step.reward:g}, and {reward_1[0]:g} when it was played again"
            do = "choose a world whose episodes follow from their seeds"
            raise UserError(what, where=f"world {environment.world}", do=do)
        at, total, begins = at + 1, total + step.reward, step.done
        if begins:
            yield shown()
    world.close()


def world_of(environment: EnvironmentSettings, split: str, task: int, episode: int = 0, *, seed: int) -> World:
    """The world in which an episode begins, not yet reset."""
    tasks, worlds_1, _ = _begun(environment, split, task, episode, seed)
    return registry.make_world(environment.world, environment.options, tasks, worlds_1)


def _begun(
    environment: EnvironmentSettings, split: str, task: int, episode: int, seed: int
) -> tuple[list[Task], np.ndarray, np.ndarray]:
    """The task as a list, and the seeds of what its evaluation plays: of the world, and of what the policy draws, [1] each."""
    listed = registry.tasks(environment.world, environment.options, split)
    tasks = [listed[task]]
    if environment.evaluation.protocol == "in_context":
        of_task = environment, tasks, seed
        return tasks, row_seeds("evaluation world", *of_task), row_seeds("evaluation actions", *of_task)
    return tasks, *episode_seeds(environment, split, [task + episode * len(listed)], seed)
