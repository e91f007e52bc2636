"""Pictures of a few episodes of one task, with the seeds of its evaluation.

The policy plays first, and its actions are written down; then the world plays the same episodes again and is drawn. So what
is drawn can change nothing that the policy sees. An episode of an episodic evaluation is played beside the first one of its
split, from which a world may draw for all (Visual Match's `per_world`), and nothing else. What a network makes of a row can
differ in the last bit with the rows beside it. So an action that hangs on that bit may differ from the scored episode's.
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
        steps.append(Step(episode, np.array(action_B[-1]), float(reward_B[-1]), bool(done_B[-1])))

    if environment.evaluation.protocol == "in_context":
        listed = registry.tasks(environment.world, environment.options, split)
        fewer = environment.evaluation.model_copy(update={"episodes": episodes})
        shorter = environment.model_copy(update={"evaluation": fewer})

        def watch(moment: Moment) -> None:
            note(moment.action_B, moment.reward_B, moment.done_B, int(moment.episode_B[-1]))

        play_in_context(policy, shorter, [listed[task]], seed=seed, progress=progress, watch=watch)
        return steps
    for episode in range(episodes):
        tasks, worlds_B, actions_B = _begun(environment, split, task, episode, seed)
        world = world_as_met(environment, tasks, worlds_B, policy)

        def told(seen: Any, action_B: Any, reward_B: Any, done_B: Any, live_B: Any, *, episode: int = episode) -> None:
            if live_B[-1]:
                note(action_B, reward_B, done_B, episode)

        play_round(world, policy, seeds_B=actions_B, kept=Scoring().part(""), watch=told)
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
        words = f"{world.tasks[-1].name} · episode {step.episode + 1} · step {at} · return {total:.4g}"
        return drawn(world, world.num_envs - 1), words

    try:
        for step in steps:
            if begins:
                at, total = 0, 0.0
                if step.episode and not in_context:
                    world.close()
                    world = world_of(environment, split, task, step.episode, seed=seed)
                world.reset(options={"reset_mask": np.ones(world.num_envs, bool)})
            yield shown()
            _, reward_B, terminated_B, truncated_B, _ = world.step(np.stack([step.action] * world.num_envs))
            if float(reward_B[-1]) != step.reward:
                what = f"in episode {step.episode}, step {at} paid {step.reward:g}, and {reward_B[-1]:g} when it was played again"
                do = "choose a world whose episodes follow from their seeds"
                raise UserError(what, where=f"world {environment.world}", do=do)
            at, total, begins = at + 1, total + step.reward, step.done
            over_B = terminated_B | truncated_B
            if begins:
                yield shown()
            elif over_B[:-1].any():  # the episode beside it
                world.reset(options={"reset_mask": over_B})
    finally:
        world.close()


def world_of(environment: EnvironmentSettings, split: str, task: int, episode: int = 0, *, seed: int) -> World:
    """The world whose last instance begins an episode, not yet reset."""
    tasks, worlds_B, _ = _begun(environment, split, task, episode, seed)
    return registry.make_world(environment.world, environment.options, tasks, worlds_B)


def _begun(
    environment: EnvironmentSettings, split: str, task: int, episode: int, seed: int
) -> tuple[list[Task], np.ndarray, np.ndarray]:
    """What is played side by side, the episode itself last: tasks, and the seeds of worlds and of the policy's draws, [B] each."""
    listed = registry.tasks(environment.world, environment.options, split)
    if environment.evaluation.protocol == "in_context":
        tasks = [listed[task]]
        of_task = environment, tasks, seed
        return tasks, row_seeds("evaluation world", *of_task), row_seeds("evaluation actions", *of_task)
    numbers = sorted({0, task + episode * len(listed)})
    return [listed[number % len(listed)] for number in numbers], *episode_seeds(environment, split, numbers, seed)
