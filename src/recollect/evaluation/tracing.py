"""Tracing: an evaluation played once more, with all that a few of its tasks saw, did and read written down.

All tasks of the split are played, in one batch and with the seeds of `evaluate`, so that a trace shows the very episodes
that were scored. Of an episodic evaluation it shows each task's first few episodes. Watching changes nothing: a policy is
only asked, between two steps, about the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np

from recollect.common.contract import Policy, Traced, Worded, facts_of
from recollect.common.histories import Histories
from recollect.common.rollout import Watch
from recollect.common.traces import Trace
from recollect.environments import registry
from recollect.environments.base import Task
from recollect.environments.scene import Scene
from recollect.evaluation.episodic import play_split
from recollect.evaluation.filming import world_of
from recollect.evaluation.in_context import Moment, play_in_context
from recollect.settings.errors import UserError
from recollect.settings.schema import EnvironmentSettings

MAPS_PER_EPISODE = 100  # evenly spaced, at most, and one of the last step; every step of a short episode
TASKS = 3  # traced where none is named
EPISODES = 10  # of a task, of an episodic evaluation


def map_spacing(steps: np.ndarray) -> np.ndarray:
    """How many steps lie between the maps of episodes of so many: a power of two, so that maps of a shorter one serve a longer."""
    return 2 ** np.ceil(np.log2(np.maximum(steps / MAPS_PER_EPISODE, 1))).astype(np.int64)


def needed(played: Histories, row_M: np.ndarray) -> np.ndarray:
    """Which maps stay, bool [M]: how far they are apart is known when their episode has ended."""
    begins = np.flatnonzero(played.timestep == 0)
    lengths = np.diff(begins, append=len(played))
    length_N = np.repeat(lengths, lengths)
    step_M, length_M = played.timestep[row_M], length_N[row_M]
    return (step_M % map_spacing(length_M) == 0) | (step_M == length_M - 1)


class Recorder:
    """Watches some rows of an evaluation.

    Args:
        policy: who acts; what it says of itself is recorded if it is `Traced`.
        rows_N: the rows to watch.
    """

    def __init__(self, policy: Policy, rows_N: np.ndarray) -> None:
        self.policy = policy if isinstance(policy, Traced) else None
        self.rows_N = rows_N
        self.moments: list[dict[str, np.ndarray]] = []
        self.facts: list[dict[str, np.ndarray]] = []
        self.maps: list[dict[str, np.ndarray]] = []
        self.mapped: list[np.ndarray] = []  # (moment, place among the rows) of each map
        self.step_N = np.zeros(len(rows_N), np.int64)

    def __call__(self, moment: Moment, first: int = 0) -> None:
        """Write down one step of the rows from `first` on. Others' steps come at other moments: now they do not play."""
        count = len(moment.done_B)
        rows_N = (self.rows_N - first).clip(0, count - 1)
        is_here_N = rows_N == self.rows_N - first
        playing_N, done_N = moment.playing_B[rows_N] & is_here_N, moment.done_B[rows_N]
        if not playing_N.any():
            self.step_N[:] = 0
            return
        self.moments.append(
            {
                "observation": np.array(moment.observation_BD)[rows_N],
                "action": np.array(moment.action_B)[rows_N],
                "reward": moment.reward_B[rows_N].astype(np.float32),
                "done": done_N,
                "episode": moment.episode_B[rows_N].astype(np.int32),
                "playing": playing_N,
            }
        )
        if self.policy is not None:
            self.facts.append(self.policy.traced(rows_N))
            due = np.flatnonzero(playing_N & ((self.step_N % map_spacing(self.step_N + 1) == 0) | done_N))
            if len(due) and (maps := self.policy.maps(rows_N[due])):
                self.maps.append(maps)
                self.mapped.append(np.stack([np.full(len(due), len(self.moments) - 1), due], 1))
        self.step_N = np.where(done_N | ~is_here_N, 0, self.step_N + 1)

    def trace(self, about: Mapping[str, Any], tasks: Sequence[Task], scenes: Sequence[Scene | None]) -> Trace:
        """What was written down, row after row.

        Args:
            about: see `Trace`.
            tasks: the task of each watched row.
            scenes: of each watched row, what its world looks like from above, or None.
        """
        kept_NT = np.stack([moment["playing"] for moment in self.moments], 1)
        place_R, _ = np.nonzero(kept_NT)  # of each row of the trace, among the watched ones

        def columns(moments: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
            names = moments[0] if moments else {}
            return {name: np.stack([moment[name] for moment in moments], 1)[kept_NT] for name in names}

        played = columns(self.moments)
        del played["playing"]
        played["task"] = np.array([task.index for task in tasks], np.int32)[place_R]

        cell_R2: np.ndarray | None = None
        if None not in scenes:
            cell_R2 = np.zeros((len(place_R), 2), np.int16)
            for place, scene in enumerate(scenes):
                assert scene is not None
                is_mine = place_R == place
                columns_of_row = (played[name][is_mine] for name in ("observation", "action", "episode"))
                cell_R2[is_mine] = scene.cells_along(*columns_of_row)

        # Maps were written down moment by moment; the trace has them row after row.
        mapped_M2 = np.concatenate([np.empty((0, 2), np.int64), *self.mapped])
        row_NT = kept_NT.reshape(-1).cumsum().reshape(kept_NT.shape) - 1
        row_M = row_NT[mapped_M2[:, 1], mapped_M2[:, 0]]
        order = row_M.argsort(kind="stable")
        histories = Histories(played)
        order = order[needed(histories, row_M[order])]
        maps = {}
        for name in self.maps[0] if self.maps else ():
            maps[name] = np.concatenate([maps[name] for maps in self.maps])[order]
        return Trace(dict(about), histories, columns(self.facts), maps, row_M[order], cell_R2)


def chosen_tasks(environment: EnvironmentSettings, split: str, wanted: Sequence[int]) -> list[int]:
    """The tasks to trace, ascending: those wanted, or a few that are spread evenly over the split.

    Raises:
        UserError: one of them is not in the split.
    """
    count = len(registry.tasks(environment.world, environment.options, split))
    if not wanted:
        return [place * count // TASKS for place in range(TASKS)] if count >= TASKS else list(range(count))
    outside = [task for task in wanted if not 0 <= task < count]
    if outside:
        what = f"there is no task {outside[0]} in split '{split}'"
        raise UserError(what, where=f"--task (environment {environment.name})", do=f"name tasks from 0 to {count - 1}")
    return sorted(set(wanted))


def standing(
    environment: EnvironmentSettings, split: str, task: int, episodes: int, seed: int
) -> list[dict[str, list[Any]]] | None:
    """What stands where as each episode of an episodic evaluation begins: `marks`, and `faint` ones, which pay nothing.

    Each mark is its name, row and column. None: the world does not say.
    """
    found = []
    for episode in range(episodes):
        with closing(world_of(environment, split, task, episode, seed=seed)) as world:
            world.reset()
            shown = world.picture(world.num_envs - 1)
        if not isinstance(shown, dict):
            return None
        places = {kind: shown.get(kind, ()) for kind in ("marks", "faint")}
        found.append({kind: [[name, int(row), int(at)] for name, row, at in marks] for kind, marks in places.items()})
    return found


def trace(
    policy: Policy,
    environment: EnvironmentSettings,
    *,
    about: Mapping[str, Any],
    split: str,
    tasks: Sequence[int],
    seed: int,
    progress: Callable[[int], None] | None = None,
) -> Trace:
    """Play the evaluation of one split and trace some of its tasks (indices within the split, ascending)."""
    listed = registry.tasks(environment.world, environment.options, split)
    horizon = facts_of(environment).horizon
    is_in_context = environment.evaluation.protocol == "in_context"
    if not is_in_context and environment.evaluation.episodes < len(listed):
        raise UserError(
            f"an evaluation of {environment.evaluation.episodes} episodes does not play all {len(listed)} tasks",
            where=f"environment '{environment.name}': evaluation.episodes",
            do=f"evaluate at least {len(listed)} episodes",
        )
    # An episodic evaluation plays task after task in turn, an episode in each row.
    episodes = 1 if is_in_context else min(EPISODES, environment.evaluation.episodes // len(listed))
    tasks_of_rows = np.repeat(tasks, episodes)
    rows_N = tasks_of_rows + np.tile(np.arange(episodes), len(tasks)) * len(listed)
    recorder = Recorder(policy, rows_N)
    if is_in_context:
        play_in_context(policy, environment, list(listed), seed=seed, progress=progress, watch=recorder)
    else:
        number_B = np.arange(environment.evaluation.episodes) // len(listed)

        def watch(first: int) -> Watch:
            def told(*step: np.ndarray) -> None:
                seen, action, reward, done, live = step
                recorder(Moment(seen, action, reward, done, number_B[first : first + len(done)], live), first)

            return told

        play_split(policy, environment, split, seed=seed, progress=progress, watch=watch)

    described = []
    scenes: dict[int, Scene | None] = {}
    for task in tasks:
        scenes[task] = scene = registry.scene(environment.world, environment.options, listed[task])
        drawn = None if scene is None else scene.described()
        begins = None if drawn is None or is_in_context else standing(environment, split, task, episodes, seed)
        described.append({"index": task, "name": listed[task].name, "scene": drawn, "begins": begins})
    facts = {**about, "env": environment.name, "seed": seed, "split": split, "horizon": horizon, "tasks": described}
    facts["actions"] = list(registry.action_names(environment.world, environment.options))
    traced = recorder.trace(facts, [listed[task] for task in tasks_of_rows], [scenes[task] for task in tasks_of_rows])
    if "tokens" in traced.facts and isinstance(policy, Worded):
        tokens = np.unique(traced.facts["tokens"]).tolist()
        traced.about["words"] = {str(token): word for token, word in zip(tokens, policy.words(tokens), strict=True)}
    return traced
