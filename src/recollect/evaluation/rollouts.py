"""Playing a policy as the evaluation does, and keeping every step, as the columns of `recollect.common.histories`.

Worlds and draws are seeded as in the evaluation, so the same episodes of a task are the same here. Of HELMv2 with the statistics of
its batch they are so where as many are played.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral

import numpy as np

from recollect.artifacts.scoring import Scoring
from recollect.common.contract import Policy, world_as_met
from recollect.common.rollout import score_episodes
from recollect.environments.base import Task
from recollect.evaluation.episodic import episode_seeds, rounds
from recollect.evaluation.in_context import Moment, play_in_context
from recollect.settings.errors import UserError
from recollect.settings.schema import EnvironmentSettings


class _Steps:
    """Steps of many rows at once, which become columns: row after row, each in time order."""

    def __init__(self) -> None:
        self._kept: dict[str, list[np.ndarray]] = {}

    def add(self, going_B: np.ndarray, **arrays: np.ndarray) -> None:
        """Keep a step of the rows that are going on; `row` says which each is."""
        for name, array in arrays.items():
            self._kept.setdefault(name, []).append(np.array(array[going_B]))

    def columns(self) -> dict[str, np.ndarray]:
        joined = {name: np.concatenate(parts) for name, parts in self._kept.items()}
        order = np.argsort(joined.pop("row"), kind="stable")
        return {name: array[order] for name, array in joined.items()}


def check_whole(tasks: object, episodes: object, *, where: object) -> None:
    """Raise a UserError where what says how many tasks (or which) and episodes are played is no whole number, and not None."""
    for each in (*(tasks if isinstance(tasks, list) else [tasks]), episodes):
        if each is not None and (isinstance(each, bool) or not isinstance(each, Integral)):
            do = "name a number of tasks or list their places, and a number of episodes"
            raise UserError(f"tasks={tasks!r}, episodes={episodes!r} are no whole numbers", where=where, do=do)


def in_context(
    policy: Policy, environment: EnvironmentSettings, tasks: Sequence[Task], episodes: int | None, *, seed: int
) -> dict[str, np.ndarray]:
    """The steps of `episodes` episodes in a row of each task (None: as many as the evaluation plays)."""
    steps, row_B = _Steps(), np.arange(len(tasks))
    task_B = np.array([task.index for task in tasks], np.int32)

    def watch(now: Moment) -> None:
        of = {"observation": now.observation_BD, "action": now.action_B, "done": now.done_B}
        told = {"reward": now.reward_B.astype(np.float32), "episode": now.episode_B.astype(np.int32)}
        steps.add(now.playing_B, row=row_B, task=task_B, **of, **told)

    if episodes is not None:
        evaluation = environment.evaluation.model_copy(update={"episodes": episodes})
        environment = environment.model_copy(update={"evaluation": evaluation})
    play_in_context(policy, environment, list(tasks), seed=seed, watch=watch)
    return steps.columns()


def episodic(
    policy: Policy,
    environment: EnvironmentSettings,
    tasks: Sequence[Task],
    episodes: int | None,
    *,
    seed: int,
    listed: int,
) -> dict[str, np.ndarray]:
    """The steps of `episodes` episodes of each task, each from an empty memory.

    Args:
        episodes: None: those that the evaluation plays, at least one of each task.
        listed: how many tasks the split has, which the evaluation plays in turn.
    """
    rows: list[tuple[Task, int]] = []
    for task in tasks:
        count = episodes or max(1, len(range(task.index, environment.evaluation.episodes, listed)))
        rows += [(task, place) for place in range(count)]
    steps = _Steps()
    for side_by_side in rounds(len(rows), getattr(policy, "rows_at_once", None)):
        chosen = rows[side_by_side]
        number = [task.index + place * listed for task, place in chosen]  # the episode's, in the whole split
        worlds_B, actions_B = episode_seeds(environment, tasks[0].split, number, seed)
        world = world_as_met(environment, [task for task, _ in chosen], worlds_B, policy)
        policy.start(actions_B, world.horizon, 1)
        of_row: dict[str, np.ndarray] = {
            "row": np.arange(side_by_side.start, side_by_side.stop),
            "task": np.array([task.index for task, _ in chosen], np.int32),
            "episode": np.array([place for _, place in chosen], np.int32),
        }

        def watch(seen: np.ndarray, did: np.ndarray, got: np.ndarray, done: np.ndarray, live: np.ndarray) -> None:
            steps.add(live, **of_row, observation=seen, action=did, reward=got.astype(np.float32), done=done)  # noqa: B023

        score_episodes(world, policy, Scoring().part(""), watch)
    return steps.columns()
