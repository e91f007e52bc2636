"""Histories as a Minari dataset, and back: `source: {algorithm: minari, hyperparameters: {dataset: NAME}}`.

Minari (https://minari.farama.org) is a common format of offline reinforcement learning. An episode of a dataset is one episode
here, in the dataset's order. Which task it is of stands in its `infos`, as the whole number `task`; without, all are of task 0.
A dataset keeps one observation more per episode than there are steps. Histories do not hold it, so the last one stands twice.
Continuous actions of a dataset are in its environment's units; as a source they become those of the world, see `generate`.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box, Discrete, Space
from pydantic import Field

from recollect.artifacts.damaged import DAMAGED
from recollect.common.histories import COLUMNS, Histories
from recollect.environments import registry, single
from recollect.environments.base import Task
from recollect.settings.errors import UserError, nearest
from recollect.settings.schema import Frozen
from recollect.sources.columns import Columns
from recollect.sources.published import broken, rows_of
from recollect.sources.published_files import form_of
from recollect.sources.recording import Run, in_order, tracked

ROOT = "MINARI_DATASETS_PATH"  # Minari's own variable: where datasets lie, else ~/.minari/datasets


class Hyperparameters(Frozen):
    """Which dataset is read."""

    dataset: str = Field(description="Its name, e.g. D4RL/door/human-v2; it must lie on this machine.")


def files(world: str, tasks: Sequence[Task], hyperparameters: Hyperparameters) -> list[Path]:
    """The folder of the dataset. Raises UserError: there is none, or Minari is not installed."""
    del world, tasks
    return [folder_of(hyperparameters.dataset)]


def generate(
    world: str,
    options: Mapping[str, Any],
    tasks: Sequence[Task],
    hyperparameters: Hyperparameters,
    *,
    seed: int,
    run: Run | None = None,
) -> dict[str, np.ndarray]:
    """The episodes of every task; see `recollect.sources.ppo.generate` for arguments and result. `seed` is not used.

    Continuous actions are mapped from the bounds that the dataset declares to those of the world (mostly [-1, 1]).

    Raises:
        UserError: the dataset is missing or damaged, has other tasks, or holds rows that cannot be of this world; or its
            continuous actions have no bounds, and the world's have.
    """
    where = f"Minari dataset {hyperparameters.dataset}"
    arrays, acts = _read(hyperparameters.dataset)
    ordered = in_order(tasks)
    made = registry.make_world(world, options, ordered[:1], np.zeros(1, np.uint64))
    form = form_of(made)
    arrays["action"] = in_units_of(made.single_action_space, arrays["action"], acts, where)
    wanted, there = {task.index for task in ordered}, set(arrays["task"].tolist())
    if wanted != there:
        message = f"the environment has the tasks {_some(wanted)}, the dataset {_some(there)}"
        do = "use a dataset of these tasks: the whole number `task` in the `infos` of an episode says of which it is"
        raise broken(message, where, do=do)
    columns = Columns(None if run is None else run.folder)
    with tracked(run, len(ordered), where, "tasks") as progress:
        for done, task in enumerate(ordered):
            chosen = arrays["task"] == task.index
            rows = rows_of(
                {name: arrays[name][chosen] for name in ("observation", "action", "reward", "done")}, form, where
            )
            longest = int(rows.timestep.max()) + 1
            if longest > made.horizon:
                message = f"an episode has {longest} steps, the environment's have at most {made.horizon}"
                raise broken(message, where, do="raise the environment's horizon, or use a dataset of shorter episodes")
            columns.append(task.index, rows, where)
            progress.update(done + 1)
    return columns.arrays()


def in_units_of(played: Space[Any], action_N: np.ndarray, acts: Space[Any], where: object) -> np.ndarray:
    """Actions of a dataset as a world plays them: where both are continuous, bounds become bounds.

    Args:
        played: the world's actions.
        action_N: [N, ...], in the units of the dataset.
        acts: what the dataset declares its actions to be.

    Raises:
        UserError: the bounds differ, and some are infinite.
    """
    if not isinstance(played, Box) or not isinstance(acts, Box) or played.shape != acts.shape:
        return action_N  # what does not fit is refused with the rows
    bounds: list[np.ndarray] = [bound.astype(np.float64) for bound in (acts.low, acts.high, played.low, played.high)]
    low, high, to_low, to_high = bounds
    if np.array_equal(low, to_low) and np.array_equal(high, to_high):
        return action_N
    if not all(np.isfinite(bound).all() for bound in bounds):
        message = f"its actions are {acts}, the world's {played}, so that their units cannot be compared"
        raise broken(message, where, do="use a dataset that declares finite bounds of its actions")
    width = np.where(high > low, high - low, 1.0)
    return np.asarray(to_low + (action_N - low) / width * (to_high - to_low))


def _some(numbers: set[int]) -> str:
    shown = ", ".join(map(str, sorted(numbers)[:8]))
    return shown + (f", ... ({len(numbers)})" if len(numbers) > 8 else "")


# ------------------------------------------------------------------------------------------------------------- reading


def read(dataset: str) -> dict[str, np.ndarray]:
    """The columns of `recollect.common.histories` of a dataset, in memory: tasks ascending, of each the dataset's order.

    Continuous actions are as they stand there, in the units of the dataset.

    Raises:
        UserError: there is no such dataset, it is damaged, or it holds no vectors or images with plain actions.
    """
    return _read(dataset)[0]


def _read(dataset: str) -> tuple[dict[str, np.ndarray], Space[Any]]:
    """The columns, and what the dataset declares its actions to be."""
    where = folder_of(dataset)
    try:
        loaded = _minari().load_dataset(dataset)
        episodes = [_episode(one, loaded.observation_space, loaded.action_space, where) for one in loaded]
    except (*DAMAGED, AssertionError, AttributeError, ImportError) as error:
        message = f"the dataset cannot be read ({type(error).__name__}: {str(error).partition(chr(10))[0]})"
        raise broken(message, where, do=f"get it again: `minari download {dataset}`") from error
    if not episodes:
        raise broken("the dataset has no episodes", where, do="name another dataset")
    episodes.sort(key=_task)  # a stable sort
    counts = Counter[int]()
    for one, following in zip(episodes, [*episodes[1:], None], strict=True):
        task = _task(one)
        one["done"][-1] |= following is not None and _task(following) == task  # what another episode follows is over
        one["episode"] = np.full(len(one["done"]), counts[task], np.int32)
        counts[task] += 1
    return {name: np.concatenate([one[name] for one in episodes]) for name in COLUMNS}, loaded.action_space


def _task(episode: Mapping[str, np.ndarray]) -> int:
    return int(episode["task"][0])


def _episode(episode: Any, seen: Space[Any], acts: Space[Any], where: object) -> dict[str, np.ndarray]:
    steps = len(episode.rewards)
    if not isinstance(seen, Box | Discrete) or not isinstance(acts, Box | Discrete):
        message = f"observations {seen} with actions {acts} cannot be read"
        raise broken(message, where, do="use a dataset of vectors or images with discrete or continuous actions")
    observation, action = np.asarray(episode.observations), np.asarray(episode.actions)
    over = np.asarray(episode.terminations, bool) | np.asarray(episode.truncations, bool)
    if not steps or len(observation) < steps or len(action) != steps or len(over) != steps or over[:-1].any():
        message = f"episode {episode.id} has {steps} rewards, {len(observation)} observations and {len(action)} actions"
        raise broken(f"{message}, or ends before its last step", where, do="use a dataset of whole episodes")
    if isinstance(seen, Discrete):
        observation = observation[:, None]
    if isinstance(acts, Discrete):
        action = action - action.dtype.type(acts.start)
    task = np.unique((episode.infos or {}).get("task", 0))
    if len(task) != 1 or task.dtype.kind not in "iu":
        raise broken(f"the infos of episode {episode.id} name no single task", where, do="give `task` one whole number")
    return {
        "observation": observation[:steps],
        "action": action,
        "reward": np.asarray(episode.rewards, np.float32),
        "done": over.copy(),
        "task": np.full(steps, task[0], np.int32),
    }


def folder_of(dataset: str) -> Path:
    """Where a dataset lies. Raises UserError: it is not there, its name is none, or Minari is not installed."""
    _parse(dataset)
    path: Path = _storage().get_dataset_path(dataset)
    if not (path / "data").is_dir():
        do = f"get it with `minari download {dataset}`, or name the folder of datasets by {ROOT}"
        raise UserError(f"there is no Minari dataset '{dataset}' on this machine", where=path, do=do)
    return path


def _parse(dataset: str) -> str | None:
    """The namespace in a dataset's name."""
    _minari()
    from minari.dataset.minari_dataset import parse_dataset_id

    try:
        namespace: str | None = parse_dataset_id(dataset)[0]
    except (ValueError, TypeError) as error:
        do = "write NAME-v0, or GROUP/NAME-v0, of letters, digits, `_` and `-`"
        raise UserError(f"'{dataset}' cannot be the name of a Minari dataset", where="dataset", do=do) from error
    return namespace


def _minari() -> Any:
    try:
        import h5py  # noqa: F401 (without it, Minari reads no dataset of the usual kind)
        import minari
    except ImportError as error:
        what = f"Minari datasets need the package '{error.name}', which is not installed"
        do = "`.venv/bin/uv pip install --python .venv/bin/python h5py minari` in the clone"
        raise UserError(what, where="minari", do=do) from error
    return minari


def _storage() -> Any:
    _minari()
    from minari.storage import datasets_root_dir

    return datasets_root_dir


# ------------------------------------------------------------------------------------------------------------- writing


#: What may be said about a dataset.
ABOUT = frozenset({"algorithm_name", "author", "author_email", "code_permalink", "description"})


def write(
    dataset: str,
    histories: Histories,
    *,
    world: str,
    options: Mapping[str, Any],
    name: str,
    split: str,
    about: Mapping[str, Any],
) -> Any:
    """Write histories as a dataset, whole or not at all, and load it.

    Args:
        world, options, name, split: the environment that they are of.
        about: author, description and the like, as `minari.create_dataset_from_buffers` takes them.

    Raises:
        UserError: there is a dataset of this name, its name is none, `about` says something else, or Minari is not installed.
    """
    if wrong := sorted(set(about) - ABOUT):
        what = f"a dataset shows nothing called '{wrong[0]}'"
        raise UserError(what, where=f"to_minari({dataset!r})", do=nearest(wrong[0], ABOUT))
    namespace = _parse(dataset)
    minari, target = _minari(), _storage().get_dataset_path(dataset)
    if target.exists():
        do = f"choose another name or version, or delete that one with `minari delete {dataset}`"
        raise UserError(f"there is a Minari dataset '{dataset}' already", where=target, do=do)
    from minari.namespace import create_namespace, list_local_namespaces

    played = single.SingleWorld(world, split, int(histories.task[0]), **options)
    limited = not played.world.horizon_terminates
    seen = played.observation_space
    if seen.shape != histories.observation.shape[1:]:  # images that were encoded
        seen = Box(-np.inf, np.inf, histories.observation.shape[1:], np.float32)
    entry = f"{single.SingleWorld.__module__}:{single.SingleWorld.__name__}"
    spec = EnvSpec(f"recollect/{name}-v0", entry, kwargs={"world": world, "split": split, **options})
    known = {"env": spec, "observation_space": seen, "action_space": played.action_space, **about}
    buffers = _buffers(histories, played.world.horizon if limited else None)
    root, named = _storage().get_dataset_path(), os.environ.get(ROOT)
    with tempfile.TemporaryDirectory(dir=root, prefix=".recollect-") as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about an author and the like that were not named
        os.environ[ROOT] = scratch
        try:
            # Images are stored as they are: as JPEG they would not come back the same.
            minari.create_dataset_from_buffers(dataset, buffers, jpeg_encoding=False, **known)
        finally:
            os.environ.pop(ROOT)
            if named is not None:
                os.environ[ROOT] = named
        if namespace is not None and namespace not in list_local_namespaces():
            create_namespace(namespace)
        os.rename(Path(scratch) / dataset, target)
    return minari.load_dataset(dataset)


def _buffers(histories: Histories, cut_at: int | None) -> Iterator[Any]:
    """One per episode. Those of `cut_at` steps are taken for cut short by the time limit, all others for come to an end."""
    from minari.data_collector import EpisodeBuffer

    starts_N = histories.timestep == 0
    bounds = [*np.flatnonzero(starts_N).tolist(), len(histories)]
    for first, end in pairwise(bounds):
        observation, steps = histories.observation[first:end], end - first
        over = np.asarray(histories.done[first:end])
        cut = over & (steps == cut_at)
        yield EpisodeBuffer(
            observations=np.concatenate([observation, observation[-1:]]),
            actions=np.asarray(histories.action[first:end]),
            rewards=np.asarray(histories.reward[first:end]),
            terminations=over & ~cut,
            truncations=cut,
            infos={"task": np.full(steps + 1, histories.task[first], np.int32)},
        )
