"""Histories from published files instead of source agents of our own: `source: {algorithm: published_files, ...}`.

Reads what RA-DT's authors published for Dark-Room, Dark Key-Door and MazeRunner (one npz per task) and for Procgen (one
folder per game, one file per episode). What differs from the released loader, and why:

- A file's name is not believed: rewards must be paid where the name (and our task list) says, in either order of key
  and door, and the first episode must go in our world as it does in the file (`replay`).
- Every task of the split must have its file; upstream skips what it cannot load. Pickles are refused: upstream's lists
  name `.pkl` files, the hub has `.npz`.
- Kept episodes stay in time order. The share of the earliest episodes works for files on disk too, which upstream's
  does not. An episode that is cut ends at the cut.
- The released source agent adds its value estimate to the reward at a time limit, and stores the sum, where its
  environment reports one (MazeRunner may; MiniHack does not). Such rewards are kept as stored and reported;
  `last_reward: zero` removes them.
- Rewards are otherwise as stored; a method divides them by its own `reward_scale`. Returns-to-go are computed, never
  read.

Source: RA-DT (arXiv 2410.07071), specification 2.2 to 2.4.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
from gymnasium.spaces import Box, Discrete
from pydantic import Field

from recollect.environments import registry
from recollect.environments.base import Task, World
from recollect.settings.errors import UserError
from recollect.settings.schema import Frozen
from recollect.settings.seeding import generator
from recollect.sources.columns import Columns, Rows
from recollect.sources.published import (
    Form,
    Keep,
    Recording,
    cut,
    estimates_at_the_limit,
    kept_episodes,
)
from recollect.sources.published_episodes import EpisodeRecording, States
from recollect.sources.published_labels import Layout, Payments, check_rewards, find_files, payments_of
from recollect.sources.published_npz import NpzRecording
from recollect.sources.published_replay import replay
from recollect.sources.recording import Progress, Run, check_tasks, compact_dtype

log = logging.getLogger(__name__)


class Hyperparameters(Frozen):
    """Where the files are and what is taken from them."""

    folder: str = Field(description="Folder with one file (or one folder of episodes) per task.")
    layout: Layout = Field(
        "npz", description="`npz`: a file per task; `episodes`: a folder per task, a file per episode."
    )
    files: str | None = Field(
        None, description="Name of a task's file without suffix, e.g. `{seed}` or `{name}`; null: as published."
    )
    states: States = Field(
        "states", description="Dataset of episode files that is the observation; `states_encoded`: encoded images."
    )
    last_reward: Literal["stored", "zero"] = Field(
        "stored", description="Of episodes that the time limit ended; `zero` removes value estimates stored there."
    )
    keep: Keep = Field(Keep(), description="Which episodes of each task; all by default.")
    replay: bool = Field(True, description="Play the first episode of each file in our world, which must agree.")


def files(world: str, tasks: Sequence[Task], hyperparameters: Hyperparameters) -> list[Path]:
    """The files or folders that the histories of some tasks are made of.

    Raises:
        UserError: some are missing.
    """
    chosen = hyperparameters
    return list(chain(*find_files(Path(chosen.folder).expanduser(), chosen.layout, world, tasks, chosen.files)))


def generate(
    world: str,
    options: Mapping[str, Any],
    tasks: Sequence[Task],
    hyperparameters: Hyperparameters,
    *,
    seed: int,
    run: Run | None = None,
) -> dict[str, np.ndarray]:
    """Read every task; see `recollect.sources.ppo.generate` for arguments and result, which is mapped from disk here.

    Args:
        seed: of the random share of `keep`.

    Raises:
        UserError: a file is missing, damaged, pickled, mislabelled or of another world; it is named.
    """
    check_tasks(tasks)
    chosen = hyperparameters
    ordered = sorted(tasks, key=lambda task: task.index)
    candidates = find_files(Path(chosen.folder).expanduser(), chosen.layout, world, ordered, chosen.files)
    made = registry.make_world(world, options, ordered[:1], np.zeros(1, np.uint64))
    form = form_of(made, chosen.states)
    if chosen.last_reward == "zero":
        form = dataclasses.replace(form, unpaid_at=made.horizon)
    columns = Columns(getattr(run, "folder", None))
    reader = _Reader(chosen, world, form, made.horizon)
    firsts: list[Rows] = []
    paths: list[Path] = []
    shown: AbstractContextManager[Progress | None] = (
        nullcontext() if run is None else run.progress(len(ordered), "published files", "files")
    )
    with shown as progress:
        for place, (task, of_task) in enumerate(zip(ordered, candidates, strict=True)):
            recording = reader.recording(task, of_task)
            paths.append(recording.where)
            if chosen.replay and len(form.observation_shape or ()) == 1 and form.actions:
                firsts.append(next(iter(recording.read(np.zeros(1, np.int64)))))
            reader.copy(task, recording, columns, seed)
            if progress is not None:
                progress.update(place + 1)
    # What concerns all files alike is said first, then which file is mislabelled.
    again = replay(world, options, ordered, firsts, paths) if firsts else None
    if again is not None:
        again.check_ways()
    reader.check_labels()
    if again is not None:
        again.check_rewards()
    reader.report(len(ordered), columns.length, again.compared if again is not None else 0)
    return columns.arrays()


def form_of(world: World, states: States = "states") -> Form:
    """What the rows of a world look like. Small integers are stored as small integers, as by our own sources.

    Raises:
        UserError: the world's observations or actions are of a kind that no published file has.
    """
    seen, acts = world.single_observation_space, world.single_action_space
    name = type(world).__name__
    if not isinstance(seen, Box) or not (isinstance(acts, Box) or (isinstance(acts, Discrete) and acts.start == 0)):
        raise UserError(
            f"published files cannot be read for observations {seen} and actions {acts}",
            where=name,
            do="use an environment of vectors or images with discrete or continuous actions",
        )
    actions: dict[str, Any] = {"actions": int(acts.n)} if isinstance(acts, Discrete) else {}
    if isinstance(acts, Box):
        actions = {"action_shape": acts.shape, "action_low": acts.low, "action_high": acts.high}
    if states == "states_encoded":
        return Form(observation_shape=None, observation_dtype=np.dtype(np.float32), **actions)
    dtype = np.dtype(np.uint8) if seen.dtype == np.uint8 else compact_dtype(seen)
    return Form(observation_shape=seen.shape, observation_dtype=dtype, low=seen.low, high=seen.high, **actions)


class _Reader:
    """Reads one task after the other and counts what was left out."""

    def __init__(self, chosen: Hyperparameters, world: str, form: Form, horizon: int) -> None:
        self.chosen, self.world, self.form, self.horizon = chosen, world, form, horizon
        self.paid: list[tuple[Task, Payments, Path]] = []
        self.estimates = self.episodes = self.not_kept = self.unfinished = self.unfinished_rows = self.unchecked = 0

    def recording(self, task: Task, paths: Sequence[Path]) -> Recording:
        """The file of a task. Where names leave open which it is, the one whose rewards are the task's."""
        if len(paths) == 1:
            return self._open(paths[0])
        fitting = []
        for path in paths:
            recording, paid = self._open(path), payments_of(self.world, task)
            assert paid is not None  # only rooms have such names
            for rows in recording.read(np.arange(len(recording.length_M))):
                paid.add(rows)
            try:
                fitting += [recording] if check_rewards(task, paid, path) else []
            except UserError as error:
                log.info("%s: not the file of %s (%s)", path, task.name, error.what)
        if len(fitting) != 1:
            names = ", ".join(path.name for path in paths)
            raise UserError(
                f"which of {len(paths)} files is that of the task {task.name} cannot be told "
                f"({len(fitting)} have its rewards): {names}",
                where=paths[0].parent,
                do="leave only the right one in the folder",
            )
        return fitting[0]

    def copy(self, task: Task, recording: Recording, columns: Columns, seed: int) -> None:
        """Add the kept episodes of a task to the columns."""
        keep = self.chosen.keep
        longest = int(recording.length_M.max())
        if longest > self.horizon and (keep.longest is None or keep.longest > self.horizon):
            raise UserError(
                f"an episode has {longest} steps, the environment's have at most {self.horizon}",
                where=recording.where,
                do=f"name the files of this environment, or cut them with `keep: {{longest: {self.horizon}}}`",
            )
        kept_K = kept_episodes(
            recording.length_M,
            recording.return_M,
            keep,
            lambda: generator("published-keep", seed, task.split, task.index),
        )
        if not kept_K.size:
            raise UserError(
                f"no episode of {len(recording.length_M)} is kept",
                where=recording.where,
                do="raise the shares in source.hyperparameters.keep",
            )
        paid = payments_of(self.world, task)
        for rows in recording.read(kept_K):
            if paid is not None:
                paid.add(rows)
            self.estimates += estimates_at_the_limit(rows, self.horizon)
            columns.append(task.index, cut(rows, keep.longest), recording.where)
        if paid is not None:
            self.paid.append((task, paid, recording.where))
        self.episodes += len(kept_K)
        self.not_kept += len(recording.length_M) - len(kept_K)
        self.unfinished += bool(recording.left_out)
        self.unfinished_rows += recording.left_out

    def check_labels(self) -> None:
        """Hold the rewards of every file against its name."""
        for task, paid, path in self.paid:
            if not check_rewards(task, paid, path):
                self.unchecked += 1

    def report(self, tasks: int, rows: int, replayed: int) -> None:
        """One line on what was read."""
        said = [f"{self.chosen.folder}: {self.episodes} episodes ({rows} transitions) of {tasks} tasks"]
        if self.unfinished:
            said.append(f"{self.unfinished} unfinished last episodes ({self.unfinished_rows} transitions) left out")
        if self.not_kept:
            said.append(f"{self.not_kept} episodes not kept")
        if self.unchecked:
            said.append(f"{self.unchecked} files without any reward, whose names could not be checked")
        if self.chosen.replay:
            said.append(f"{replayed} of {tasks} first episodes played again in our world and found the same")
        log.info("; ".join(said))
        if self.estimates:
            log.warning(
                "%s: %d episodes that the time limit ended have a last reward that is no whole number, unlike all "
                "others: probably the source agent's value estimate; `last_reward: zero` removes it",
                self.chosen.folder,
                self.estimates,
            )

    def _open(self, path: Path) -> Recording:
        if self.chosen.layout == "npz":
            return NpzRecording(path, self.form)
        return EpisodeRecording(path, self.form, self.chosen.states)
