"""Histories from published files instead of source agents of our own: `source: {algorithm: published_files, ...}`.

docs/formats.md, "Published data", says which files and how. Unlike the released loader, no file's name is believed and no
file skipped, and the share of the earliest episodes works for files on disk, too. An episode that is cut ends at the cut.

Source: RA-DT (arXiv 2410.07071), specification 2.2 to 2.4.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
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
from recollect.sources.published import Form, Keep, broken, cut, estimates_at_the_limit, kept_episodes
from recollect.sources.published_labels import Layout, Payments, check_rewards, find_files, payments_of, replay
from recollect.sources.published_recordings import EpisodeRecording, NpzRecording, States
from recollect.sources.recording import Run, compact_dtype, in_order, tracked

log = logging.getLogger(__name__)


class Hyperparameters(Frozen):
    """Where the files are and what is taken from them."""

    folder: str = Field(description="Folder with one file (or one folder of episodes) per task.")
    layout: Layout = Field("npz", description="`npz`: a file per task; `episodes`: a folder per task, a file for each.")
    files: str | None = Field(None, description="A file's name without suffix, e.g. `{seed}`; null: as published.")
    states: States = Field("states", description="What is observed in episode files; `states_encoded`: encoded images.")
    last_reward: Literal["stored", "zero"] = Field(
        "stored", description="Of episodes that the time limit ended; `zero` removes value estimates stored there."
    )
    keep: Keep = Field(Keep(), description="Which episodes of each task; all by default.")
    replay: bool = Field(True, description="Play the first episode of each file in our world, which must agree.")


def files(world: str, tasks: Sequence[Task], hyperparameters: Hyperparameters) -> list[Path]:
    """The files or folders that the histories of some tasks are made of; a UserError if some are missing."""
    return list(chain(*_candidates(world, tasks, hyperparameters)))


def _candidates(world: str, tasks: Sequence[Task], hyperparameters: Hyperparameters) -> list[tuple[Path, ...]]:
    folder = Path(hyperparameters.folder).expanduser()
    return find_files(folder, hyperparameters.layout, world, tasks, hyperparameters.files)


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

    `seed` is of the random share of `keep`. Each file that is missing, damaged or of another world is a UserError.
    """
    settings = hyperparameters
    ordered = in_order(tasks)
    candidates = _candidates(world, ordered, settings)
    made = registry.make_world(world, options, ordered[:1], np.zeros(1, np.uint64))
    form = form_of(made, settings.states)
    if settings.last_reward == "zero":
        form = replace(form, unpaid_at=made.horizon)
    can_replay = settings.replay and len(form.observation_shape or ()) == 1 and form.actions > 0
    columns = Columns(None if run is None else run.folder)
    counts = Counter[str]()
    firsts: list[Rows] = []
    paths: list[Path] = []
    payments: list[Payments | None] = []
    with tracked(run, len(ordered), "published files", "files") as progress:
        for task, of_task in zip(ordered, candidates, strict=True):
            recording = _recording(world, task, of_task, form, settings)
            paths.append(recording.where)
            if can_replay:
                firsts.append(next(iter(recording.read(np.zeros(1, np.int64)))))
            paid = payments_of(world, task)
            payments.append(paid)
            for rows in recording.read(_kept(recording, task, settings.keep, made.horizon, seed, counts)):
                if paid is not None:
                    paid.add(rows)
                counts["estimates"] += estimates_at_the_limit(rows, made.horizon)
                columns.append(task.index, cut(rows, settings.keep.longest), recording.where)
            progress.update(len(paths))
    # What concerns all files alike is said first, then which file is mislabelled.
    played = replay(world, options, ordered, firsts, paths)
    played.check(played.ways)
    for task, paid, path in zip(ordered, payments, paths, strict=True):
        counts["unchecked"] += paid is not None and not check_rewards(task, paid, path)
    played.check(played.rewards)
    counts.update(tasks=len(ordered), transitions=columns.length, replayed=played.compared)
    _report(settings, counts)
    return columns.arrays()


def form_of(world: World, states: States = "states") -> Form:
    """What the rows of a world look like. Small integers are stored as small integers, as by our own sources."""
    seen = world.single_observation_space
    acts = world.single_action_space
    if not isinstance(seen, Box) or not isinstance(acts, Box | Discrete) or getattr(acts, "start", 0) != 0:
        message = f"published files cannot be read for observations {seen} and actions {acts}"
        do = "use an environment of vectors or images with discrete or continuous actions"
        raise UserError(message, where=type(world).__name__, do=do)
    if states == "states_encoded":
        form = Form(observation_shape=None, observation_dtype=np.dtype(np.float32))
    else:
        dtype = np.dtype(np.uint8) if seen.dtype == np.uint8 else compact_dtype(seen)
        form = Form(seen.shape, dtype, low=seen.low, high=seen.high)
    if isinstance(acts, Box):
        return replace(form, action_shape=acts.shape, action_low=acts.low, action_high=acts.high)
    return replace(form, actions=int(acts.n))


def _recording(
    world: str, task: Task, paths: Sequence[Path], form: Form, settings: Hyperparameters
) -> NpzRecording | EpisodeRecording:
    """The file of a task. Where names leave open which it is, the one whose rewards are the task's."""
    fitting = []
    for path in paths:
        recording = (
            NpzRecording(path, form) if settings.layout == "npz" else EpisodeRecording(path, form, settings.states)
        )
        paid = payments_of(world, task)
        if len(paths) == 1 or paid is None:
            return recording
        for rows in recording.read(np.arange(len(recording.length_M))):
            paid.add(rows)
        try:
            if check_rewards(task, paid, path):
                fitting.append(recording)
        except UserError as error:
            log.info("%s: not the file of %s (%s)", path, task.name, error.what)
    if len(fitting) != 1:
        message = f"which of {len(paths)} files is that of the task {task.name} cannot be told ({paths[0].name}, ...)"
        raise broken(message, paths[0].parent, do="leave only the right one in the folder")
    return fitting[0]


def _kept(
    recording: NpzRecording | EpisodeRecording, task: Task, keep: Keep, horizon: int, seed: int, counts: Counter[str]
) -> np.ndarray:
    """The episodes of a task that are kept, which are counted."""
    longest, episodes = int(recording.length_M.max()), len(recording.length_M)
    if longest > horizon and (keep.longest is None or keep.longest > horizon):
        message = f"an episode has {longest} steps, the environment's have at most {horizon}"
        do = f"name the files of this environment, or cut them with `keep: {{longest: {horizon}}}`"
        raise broken(message, recording.where, do=do)
    draw = partial(generator, "published-keep", seed, task.split, task.index)
    kept_K = kept_episodes(recording.length_M, recording.return_M, keep, draw)
    if not kept_K.size:
        message = f"no episode of {episodes} is kept"
        raise broken(message, recording.where, do="raise the shares in source.hyperparameters.keep")
    counts["episodes"] += len(kept_K)
    counts["not_kept"] += episodes - len(kept_K)
    counts["unfinished"] += recording.left_out > 0
    counts["left_out"] += recording.left_out
    return kept_K


def _report(settings: Hyperparameters, counts: Counter[str]) -> None:
    said = "{folder}: {episodes} episodes ({transitions} transitions) of {tasks} tasks"
    if counts["unfinished"]:
        said += "; {unfinished} unfinished last episodes ({left_out} transitions) left out"
    if counts["not_kept"]:
        said += "; {not_kept} episodes not kept"
    if counts["unchecked"]:
        said += "; {unchecked} files without any reward, whose names could not be checked"
    if settings.replay:
        said += "; {replayed} of {tasks} first episodes played again in our world and found the same"
    log.info(said.format(folder=settings.folder, **counts))
    if counts["estimates"]:
        said = (
            "%s: %d episodes that the time limit ended have a last reward that is no whole number, unlike all "
            "others: probably the source agent's value estimate; `last_reward: zero` removes it"
        )
        log.warning(said, settings.folder, counts["estimates"])
