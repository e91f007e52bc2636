"""Episodic evaluation: a policy plays n whole episodes, each from an empty memory.

All are played side by side, or as many at once as the policy says (`BatchedPolicy.rows_at_once`, see `rounds`).

Used for the final scores of the online methods (Memory-RL, AMAGO, HELM). Policies act with dropout off. Memory-RL's take
their likeliest or mean action. AMAGO's (unless `sample_actions: false`) and HELM's (unless `likeliest`) draw theirs, each
row by its own seed.

An episode of a world with `parts` is several attempts at one task in a row (AMAGO's rollouts). The return of each of
its so many equal parts is scored too, as metric `part_return`: does the policy get better within the episode?
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd

from recollect.artifacts.scores import concat_scores, scores_frame
from recollect.artifacts.scoring import Part, Scoring
from recollect.common.contract import Policy, world_as_met
from recollect.common.rollout import VectorWorld, Watch, score_episodes
from recollect.environments import registry
from recollect.environments.base import Task
from recollect.evaluation.normalised_scores import normalised
from recollect.settings.schema import EnvironmentSettings
from recollect.settings.seeding import seed_of


class EpisodeScores(NamedTuple):
    """One row per episode.

    `success_E` is NaN where the world has no notion of it, and `part_return_EP` is [E, 0] without parts. `metric_EM` is what the
    world measures of an episode under the names of its option `metrics` ([E, 0]: nothing).
    """

    return_E: np.ndarray
    length_E: np.ndarray
    success_E: np.ndarray
    part_return_EP: np.ndarray
    metric_EM: np.ndarray


def episode_seeds(
    environment: EnvironmentSettings, split: str, episodes: Iterable[int], seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """What episodes of an evaluation are drawn by: the seeds of their worlds, and of what the policy draws, uint64 [E] each.

    Whoever plays an episode again (as steps, as a film) takes them from here, and so plays the same one.

    Args:
        episodes: their numbers in the whole split, which plays task after task in turn.
        seed: of the run.
    """
    evaluation = environment.evaluation
    keys = ("episodic evaluation world", environment.name, evaluation.seed, seed, split)
    numbers, run = list(episodes), seed_of("of run", evaluation.seed, seed)
    worlds = [seed_of(*keys, number) for number in numbers]
    actions = [seed_of("episodic evaluation actions", run, number) for number in numbers]
    return np.array(worlds, np.uint64), np.array(actions, np.uint64)


def play_round(
    world: VectorWorld, policy: Policy, *, seeds_B: np.ndarray, kept: Part, watch: Watch | None = None
) -> EpisodeScores:
    """Play one episode per instance.

    Args:
        seeds_B: uint64, of what the policy draws in each row; see `episode_seeds`.
        kept: the part of a scoring that this is; it goes on where it was saved.
        watch: told of every step.
    """
    policy.start(seeds_B, world.horizon, 1)
    played = score_episodes(world, policy, kept, watch)
    of_parts = part_returns(played.reward_BT, int(getattr(world, "parts", 0)))
    metric_BM = np.zeros((world.num_envs, 0))
    if getattr(world, "metrics", ()):
        metric_BM = np.array(world.first_BM)  # type: ignore[attr-defined]
    return EpisodeScores(played.return_B, played.length_B, played.success_B, of_parts, metric_BM)


def part_returns(reward_BT: np.ndarray, parts: int) -> np.ndarray:
    """Return of each of so many equal parts of T steps, float64 [B, P]."""
    steps = reward_BT.shape[1] // max(1, parts)
    return reward_BT[:, : parts * steps].reshape(len(reward_BT), parts, steps).sum(2, dtype=np.float64)


def rounds(count: int, at_once: int | None) -> list[slice]:
    """The rows that are played side by side, round after round: `at_once` (None: all), and what is left in the last.

    No row is left alone if there are others: HELMv2 standardises each row with those beside it. So a last round of one row takes
    a second from the round before. Where that has only two, both become one round of three, one more than `at_once`.
    """
    at_once = at_once or count
    starts = list(range(0, count, at_once))
    if at_once > 1 and len(starts) > 1 and count - starts[-1] == 1:
        starts[-1:] = [starts[-1] - 1] if at_once > 2 else []
    return [slice(*ends) for ends in pairwise([*starts, count])]


def play_split(
    policy: Policy,
    environment: EnvironmentSettings,
    split: str,
    *,
    seed: int,
    progress: Callable[[int], None] | None = None,
    watch: Callable[[int], Watch] | None = None,
    scoring: Scoring | None = None,
) -> tuple[list[Task], EpisodeScores]:
    """Play the `evaluation.episodes` episodes of a split, task after task in turn: tasks and scores.

    Args:
        watch: given the first episode of those that are played side by side: what is told of their steps.
        scoring: what it goes on from, see `Scoring`.
    """
    listed = registry.tasks(environment.world, environment.options, split)
    tasks = [listed[i % len(listed)] for i in range(environment.evaluation.episodes)]
    worlds_E, actions_E = episode_seeds(environment, split, range(len(tasks)), seed)
    scoring = scoring or Scoring()
    chunks = []
    for rows in rounds(len(tasks), getattr(policy, "rows_at_once", None)):
        first = rows.start
        kept = scoring.part(f"{split} {first}")
        if kept.result is None:
            world = world_as_met(environment, tasks[rows], worlds_E[rows], policy)
            told = None if watch is None else watch(first)
            kept.end(play_round(world, policy, seeds_B=actions_E[rows], kept=kept, watch=told)._asdict())
        assert kept.result is not None
        chunks.append(EpisodeScores(**kept.result))
        if progress is not None:
            progress(rows.stop)
    columns = zip(*chunks, strict=True)
    return tasks, EpisodeScores(*(np.concatenate(of_chunks) for of_chunks in columns))


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
    """Score rows of the episodes of each split, see `play_split`. `scoring`: what it goes on from, see `Scoring`.

    Returns:
        metric `return`, `success` where the world has it, and normalised returns where tasks list them (see
        `normalised_scores`); `episode` counts from 0 within the split. Of `part_return`, `task` is that count and `episode`
        the part: an episode with parts is a task of its own, in which each part comes after the others.
    """
    frames = []
    for split in environment.evaluation.splits:
        tasks, scores = play_split(policy, environment, split, seed=seed, progress=progress, scoring=scoring)
        number_E = np.arange(len(tasks))
        task_E = np.array([task.index for task in tasks])
        metrics = {"return": scores.return_E, "success": scores.success_E}
        for name, value_E in zip(environment.options.get("metrics", ()), scores.metric_EM.T, strict=False):
            metrics[name] = value_E  # a world whose images are encoded keeps none
        for name, value_E1 in normalised(scores.return_E[:, None], tasks).items():
            metrics[name] = value_E1[:, 0]

        known = {"env": environment.name, "method": method, "seed": seed, "step": step, "split": split}
        for metric, value_E in metrics.items():
            if not np.isnan(value_E).any():
                frames.append(scores_frame(**known, task=task_E, episode=number_E, metric=metric, value=value_E))
        of_parts = scores.part_return_EP
        if of_parts.size:
            place = {"task": number_E[:, None], "episode": np.arange(of_parts.shape[1])}
            frames.append(scores_frame(**known, **place, metric="part_return", value=of_parts))
    return concat_scores(frames)
