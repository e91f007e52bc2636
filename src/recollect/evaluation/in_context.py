"""In-context evaluation: every task in one batch, episode after episode, with the policy's weights frozen.

What a policy remembers lasts over a task's episodes and is empty at the start (RA-DT section 5 of our specification).
Rows never influence each other, so the batch gives, task by task, what a batch of one gives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from recollect.artifacts.checkpoints import joined, part
from recollect.artifacts.scores import concat_scores, scores_frame
from recollect.artifacts.scoring import Part, Scoring
from recollect.common.acting_state import load_play, play_arrays, says_its_state
from recollect.common.contract import Briefed, Policy, world_as_met
from recollect.environments import faults, registry
from recollect.environments.base import Task
from recollect.evaluation.normalised_scores import normalised
from recollect.settings.schema import EnvironmentSettings
from recollect.settings.seeding import seed_of


@dataclass(frozen=True)
class Moment:
    """One step of all rows that has just been played: what was seen, done and got, and whether the episode is over.

    Rows whose ``playing_B`` is False have played all their episodes. The arrays are not to be kept or written.
    """

    observation_BD: np.ndarray
    action_B: np.ndarray
    reward_B: np.ndarray
    done_B: np.ndarray
    episode_B: np.ndarray
    playing_B: np.ndarray


class InContextScores(NamedTuple):
    """Undiscounted returns of the episodes, and which succeeded (NaN where the world has no notion of it): float64 [R, E] each."""

    return_RE: np.ndarray
    success_RE: np.ndarray


def row_seeds(purpose: str, environment: EnvironmentSettings, tasks: list[Task], seed: int) -> np.ndarray:
    """One seed per task, uint64: a function of the purpose, the environment, the task and the seed only."""
    keys = [(task.split, task.index) for task in tasks]
    seeds = [seed_of(purpose, environment.name, environment.evaluation.seed, seed, *key) for key in keys]
    return np.array(seeds, np.uint64)


def play_in_context(
    policy: Policy,
    environment: EnvironmentSettings,
    tasks: list[Task],
    *,
    seed: int,
    progress: Callable[[int], None] | None = None,
    watch: Callable[[Moment], None] | None = None,
    kept: Part | None = None,
) -> InContextScores:
    """Scores of every episode.

    Args:
        policy: acts on one row per task.
        environment: its `evaluation.episodes` says how many episodes in a row.
        tasks: the tasks, one row each.
        seed: of the run.
        progress: called with the number of episodes that the slowest row has finished.
        watch: called after every step, before the policy learns how it ended.
        kept: the part of a scoring that this is; one that was killed goes on where it was saved, with the same result.

    Returns:
        a row per task, a column per episode.
    """
    episodes = environment.evaluation.episodes
    seeds_B = row_seeds("evaluation world", environment, tasks, seed)
    world = world_as_met(environment, tasks, seeds_B, policy)
    policy.start(row_seeds("evaluation actions", environment, tasks, seed), world.horizon, episodes)
    if isinstance(policy, Briefed):
        policy.brief(tasks)
    begun = kept.take() if kept is not None else {}
    if begun:
        load_play(world, policy, begun)
        now = _Standing(**part(begun, "own"))
    else:
        now = _Standing.first(world.reset()[0], episodes)
    begun.clear()

    def state() -> dict[str, Any]:
        if hasattr(policy, "drop"):
            policy.drop(now.done)
        return joined(own=vars(now)) | play_arrays(world, policy)

    finished = 0
    while True:
        if now.slowest > finished:
            finished = now.slowest
            if progress is not None:
                progress(finished)
        if finished >= episodes:
            return InContextScores(now.returns, now.successes)
        if kept is not None and says_its_state(policy):
            kept.offer(state, early=bool(now.done.all()))
        action_B = policy.act(now.observation, now.reward, now.done)
        seen_BD = now.observation
        now.observation, now.reward, terminated_B, truncated_B, info = world.step(action_B)
        faults.check_step(world, now.observation, now.reward)
        now.done = terminated_B | truncated_B
        playing_B = now.episode < episodes
        if watch is not None:
            watch(Moment(seen_BD, action_B, now.reward, now.done, now.episode, playing_B))
        now.count(playing_B, info.get("success"))
        if now.done.any() and now.slowest < episodes:
            # A row that has played all its episodes goes on (its rewards are not counted) until the slowest is done;
            # what it would remember is dropped, so its memory never needs more room.
            now.observation, _ = world.reset(options={"reset_mask": now.done})
            over_B = now.episode >= episodes
            if over_B.any():
                policy.reset(over_B & now.done)


@dataclass
class _Standing:
    """How far all rows are: what a scoring saves besides the world's state and the policy's.

    Attributes:
        returns, successes: float64 [R, E], see `InContextScores`.
        episode: int64 [R], the episode that a row plays.
        observation, reward, done: [R, D], [R] and [R], what the last step gave.
    """

    returns: np.ndarray
    successes: np.ndarray
    episode: np.ndarray
    observation: np.ndarray
    reward: np.ndarray
    done: np.ndarray

    @classmethod
    def first(cls, observation_BD: np.ndarray, episodes: int) -> _Standing:
        """Before the first step."""
        rows = len(observation_BD)
        return cls(
            returns=np.zeros((rows, episodes)),
            successes=np.full((rows, episodes), np.nan),
            episode=np.zeros(rows, np.int64),
            observation=observation_BD,
            reward=np.zeros(rows, np.float32),
            done=np.zeros(rows, bool),
        )

    @property
    def slowest(self) -> int:
        """How many episodes the slowest row has finished."""
        return int(self.episode.min())

    def count(self, playing_B: np.ndarray, success_B: Any) -> None:
        """Count the last step's rewards and the episodes that ended with it. `success_B`: None where the world has none."""
        (rows,) = np.nonzero(playing_B)
        self.returns[rows, self.episode[rows]] += self.reward[rows]
        if success_B is not None:
            (rows,) = np.nonzero(playing_B & self.done)
            self.successes[rows, self.episode[rows]] = np.asarray(success_B, np.float64)[rows]
        self.episode += self.done


def evaluate(
    policy: Policy,
    environment: EnvironmentSettings,
    *,
    method: str,
    seed: int,
    step: int,
    progress: Callable[[int], None] | None = None,
    scoring: Scoring | None = None,
) -> pd.DataFrame:
    """Score rows of all splits of the environment's evaluation: metric `return`, `success` where the world has it, and
    normalised returns where tasks list what they are normalised by; `episode` is the 0-based ICL episode. `scoring`: what it
    goes on from, see `Scoring`.

    A policy whose `joins_splits` is True plays splits of equally long episodes as one batch: fewer steps, for the same rows.
    """
    frames = []
    scoring = scoring or Scoring()
    for tasks_of in batches_of(policy, environment):
        scores = scores_of(policy, environment, tasks_of, seed=seed, progress=progress, scoring=scoring)
        first = 0
        for split, tasks in tasks_of.items():
            of_split = slice(first, first + len(tasks))
            first = of_split.stop
            return_TE, success_TE = scores.return_RE[of_split], scores.success_RE[of_split]
            known = {"env": environment.name, "method": method, "seed": seed, "step": step, "split": split}
            known |= {
                "task": np.array([task.index for task in tasks])[:, None],
                "episode": np.arange(return_TE.shape[1]),
            }
            metrics = {"return": return_TE, "success": success_TE, **normalised(return_TE, tasks)}
            for metric, value_TE in metrics.items():
                if not np.isnan(value_TE).any():
                    frames.append(scores_frame(**known, metric=metric, value=value_TE))
    return concat_scores(frames)


def batches_of(policy: Policy, environment: EnvironmentSettings) -> list[dict[str, list[Task]]]:
    """The batches that an evaluation plays one after another: of each, split -> tasks, split after split."""
    splits = environment.evaluation.splits
    tasks_of = {split: list(registry.tasks(environment.world, environment.options, split)) for split in splits}
    if not getattr(policy, "joins_splits", False) or len(splits) == 1:
        return [{split: tasks} for split, tasks in tasks_of.items()]
    batches: dict[int, dict[str, list[Task]]] = {}
    for split, tasks in tasks_of.items():
        world = registry.make_world(environment.world, environment.options, tasks[:1], np.zeros(1, np.uint64))
        batches.setdefault(world.horizon, {})[split] = tasks
    return list(batches.values())


def scores_of(
    policy: Policy,
    environment: EnvironmentSettings,
    tasks_of: Mapping[str, list[Task]],
    *,
    seed: int,
    progress: Callable[[int], None] | None,
    scoring: Scoring,
) -> InContextScores:
    """Scores of the tasks of one or several splits, played as one batch, split after split."""
    kept = scoring.part("+".join(tasks_of))
    if kept.result is None:
        tasks = [task for tasks in tasks_of.values() for task in tasks]
        played = play_in_context(policy, environment, tasks, seed=seed, progress=progress, kept=kept)
        kept.end(played._asdict())
    assert kept.result is not None
    return InContextScores(**kept.result)
