"""Recollect from Python: runs, their training, and learning histories, in a notebook and from any folder (docs/python.md).

Figures and claims, which are about many runs, stand in recollect.tables.
The configuration is found as `recollect` finds it, or in a folder above, or in the clone that the package is installed from.
What is read and made lies where the commands put it, under that folder or under one that is named. For as long as a call
lasts, that folder is the working directory of the process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload

import numpy as np
import pandas as pd

from recollect.artifacts.lease import usable
from recollect.common import histories as columns
from recollect.environments import registry
from recollect.folders import inside
from recollect.given import changed, check_names, no_seed, seed_of, several
from recollect.settings.errors import UserError
from recollect.settings.overrides import method_with
from recollect.settings.resolve import algorithm_module, environment_settings, method_path, played_method, resolve
from recollect.settings.schema import EnvironmentSettings, Settings
from recollect.stages import inputs, paths
from recollect.stages.generate import check_histories
from recollect.stages.making import make_job
from recollect.stages.pairs import check_pair
from recollect.stages.seeds import together
from recollect.stages.stage import Job
from recollect.stages.table import STAGES

#: Of a transition that has so many numbers or fewer, each is a column of the table.
MOST_COLUMNS = 64


# ---------------------------------------------------------------------------------------------------------------- runs


def run(
    scale: str,
    env: str,
    method: str,
    seed: int = 0,
    *,
    changes: Mapping[str, object] | None = None,
    folder: str | Path | None = None,
) -> Run:
    """A run by its names, trained or not.

    Args:
        scale, env, method: names of files in the configuration; the method may be a variant, `radt.every_25`.
        changes: settings that differ, `{"optimisation.learning_rate": 3e-4}`; results then lie under another name.
        folder: where `data` and `results` lie; None: where the configuration is.

    Raises:
        UserError: a name or a setting is not known, it is no seed, or there is no such folder or no configuration.
    """
    check_names(scale=scale, env=env, method=method)
    seed, method = seed_of(seed), method_with(method, changed(changes))
    with inside(folder) as (at, config):
        return Run(scale, env, method, seed, at, config, resolve(scale, env, method, seed))


@overload
def train(
    scale: str,
    env: str,
    method: str,
    seed: int = 0,
    *,
    changes: Mapping[str, object] | None = None,
    folder: str | Path | None = None,
    device: str = "auto",
    trust_checkpoint: bool = False,
) -> Run: ...


@overload
def train(
    scale: str,
    env: str,
    method: str,
    seed: Iterable[int],
    *,
    changes: Mapping[str, object] | None = None,
    folder: str | Path | None = None,
    device: str = "auto",
    trust_checkpoint: bool = False,
) -> list[Run]: ...


def train(
    scale: str,
    env: str,
    method: str,
    seed: int | Iterable[int] = 0,
    *,
    changes: Mapping[str, object] | None = None,
    folder: str | Path | None = None,
    device: str = "auto",
    trust_checkpoint: bool = False,
) -> Run | list[Run]:
    """Train a run and score its policy, after making what it learns from. What is there and of today is kept.

    The stages, files, locks and records are those of the workflow. Killed or interrupted, the same call goes on from the
    newest checkpoint. A notebook shows a bar.

    Args:
        seed: of several, `[0, 1, 2]`, the runs are trained one after the other, and given as a list. One that fails stops no other.
        device: cpu, cuda (insist), or auto (a GPU where there is one, for stages that use it).
        trust_checkpoint: go on with a checkpoint that other settings or code made.

    Raises:
        UserError: see `run`; there is no such device; another process is at work on the same files; or runs failed.
    """
    usable(device)
    seeds: list[Any] = list(seed) if several(seed) else [seed]  # type: ignore[arg-type]
    if not seeds:
        raise no_seed(seed)
    made = {one.seed: one for one in (run(scale, env, method, each, changes=changes, folder=folder) for each in seeds)}
    with (first := made[int(seeds[0])]).inside():
        check_pair(scale, env, first.method)

    def work(each: int) -> None:
        with made[each].inside():
            trusted = trust_checkpoint and made[each]._job.stage == "run"
            make_job(made[each]._job, device, {"trust_checkpoint": True} if trusted else {})

    together(list(made), work)
    return list(made.values()) if several(seed) else first


@dataclass(frozen=True)
class Run:
    """One run: a method in an environment, at a scale, with a seed.

    Attributes:
        folder, config: where its `data`, `results` and `logs` lie, and the configuration.
        settings: every setting, defaults included.
    """

    scale: str
    env: str
    method: str
    seed: int
    folder: Path
    config: Path
    settings: Settings = field(hash=False)  # its names say which they are

    def __repr__(self) -> str:
        return f"Run({self.scale!r}, {self.env!r}, {self.method!r}, {self.seed})"

    def inside(self) -> contextlib.AbstractContextManager[tuple[Path, Path]]:
        """For as long as a block lasts, be in its folder, with its configuration."""
        return inside(self.folder, self.config)

    @property
    def _of(self) -> tuple[str, str, str, int]:
        return self.scale, self.env, self.method, self.seed

    @property
    def _job(self) -> Job:
        """The job that trains and scores it, or only scores it; to be asked for inside."""
        stage = "run" if inputs.is_trained(*self._of[:3]) else "evaluate"
        return Job(stage, self.scale, self.env, self.method, str(self.seed))

    def _how_to_make(self, path: Path, state: str) -> str:
        """How a file of the run is made, which must be there; to be asked for inside."""
        how = f"make it with `recollect.train({', '.join(map(repr, self._of))})` or `snakemake {path}`"
        if not path.is_file():
            raise UserError(f"the run is not {state}", where=path, do=how)
        return how

    @property
    def is_made(self) -> bool:
        """Whether it is trained and scored, with the settings, code and inputs of today."""
        with self.inside():
            return STAGES[self._job.stage].is_made(self._job)

    @property
    def scores(self) -> pd.DataFrame:
        """Its score table, a row per number: env, method, seed, step, split, task, episode, metric, value (docs/formats.md)."""
        from recollect.artifacts.sealed import read_table

        with self.inside():
            path = paths.scores(*self._of)
            return read_table(path, kind="scores", input_from=self._how_to_make(path, "scored"))

    @property
    def curve(self) -> pd.DataFrame:
        """What was logged while it learned: a row per step, a column per number.

        Columns of evaluations are called by their split, `eval return`, and hold the mean over tasks and episodes. NaN: the
        number was not logged at that step.
        """
        from recollect.artifacts.run import TRAIN_SPLIT
        from recollect.artifacts.scores import NOT_ONE
        from recollect.artifacts.sealed import read_table

        with self.inside():
            path = inputs.evaluate_inputs(*self._of)["train"]
            table = read_table(path, kind="train", input_from=self._how_to_make(path, "trained"))
        logged = (table["split"] == TRAIN_SPLIT) & (table["task"] == NOT_ONE)
        names = table["metric"].where(logged, table["split"].astype(str) + " " + table["metric"].astype(str))
        return (
            table.assign(metric=names)
            .pivot_table(index="step", columns="metric", values="value")
            .rename_axis(columns=None)
        )

    def policy(self, *, checkpoint: str | int | None = None, device: str = "cpu") -> Any:
        """Its trained policy: `start(seeds, horizon, episodes)`, then `act(observation, reward, done)` on a batch of rows.

        Args:
            checkpoint: one that the run kept: `best`, `latest`, or an epoch, 50; None: the run's own.

        Raises:
            UserError: the run is not trained, a file is damaged, or there is no such device.
        """
        from recollect.artifacts.inputs import Inputs
        from recollect.artifacts.sealed import read_arrays, verify
        from recollect.artifacts.threads import settle_cudnn
        from recollect.stages.evaluate import kept_policy

        with self.inside():
            files = {name: path.absolute() for name, path in inputs.evaluate_inputs(*self._of).items()}
            if checkpoint is not None:
                played = played_method(self.scale, self.env, self.method)
                files["policy"] = kept_policy(self.scale, self.env, played, self.seed, checkpoint)
            else:
                path = inputs.evaluate_inputs(*self._of)["policy"]
                verify(path, kind="policy", input_from=self._how_to_make(path, "trained"))
            read = Inputs(device="cuda" if usable(device) else "cpu", **files)
            settle_cudnn()
            module = algorithm_module(self.settings.method.algorithm, where=method_path(self.method))
            return module.load_policy(self.settings, read_arrays(files["policy"], kind="policy"), read)

    def rollout(
        self,
        tasks: int | Sequence[int] | None = None,
        episodes: int | None = None,
        *,
        split: str | None = None,
        device: str = "cpu",
    ) -> Histories:
        """Play its policy, and keep every step. With the same tasks, the returns are those of its scores.

        Args:
            tasks: how many tasks, or which by their index; None: those that the evaluation plays.
            episodes: per task, one after the other; None: as many as the evaluation plays.
            split: `train` or `eval`; None: the evaluation's first.

        Raises:
            UserError: the run is not trained, or there is no such task.
        """
        from recollect.evaluation import rollouts

        listing: list[int] | None = list(tasks) if several(tasks) else None  # type: ignore[arg-type]
        rollouts.check_whole(tasks if listing is None else listing, episodes, where=self)
        environment = self.settings.environment
        split = split or environment.evaluation.splits[0]
        with self.inside():
            listed = registry.tasks(environment.world, environment.options, split)
            in_context = environment.evaluation.protocol == "in_context"
            played = len(listed) if in_context else min(len(listed), environment.evaluation.episodes)
            first = int(tasks) if isinstance(tasks, int | np.integer) else None  # so many, in place of a list
            wanted: Sequence[int] = listing if listing is not None else range(played if first is None else first)
            most = wanted[-1:] if first is not None else wanted  # of so many, the last one says it
            wrong = [place for place in most if not 0 <= place < len(listed)]
            if wrong or not len(wanted) or (episodes is not None and episodes < 1):
                lacking = f"are not {first} tasks" if first is not None else f"is no task {min(wrong, default=0)}"
                what = f"there {lacking} in the split '{split}'" if wrong else "there is nothing to play"
                do = f"ask for at most {len(listed)}, or list some from 0 to {len(listed) - 1}; at least one episode"
                raise UserError(what, where=self, do=do)
            chosen = [listed[place] for place in sorted(set(wanted))]
            policy = self.policy(device=device)
            if in_context:
                arrays = rollouts.in_context(policy, environment, chosen, episodes, seed=self.seed)
            else:
                arrays = rollouts.episodic(policy, environment, chosen, episodes, seed=self.seed, listed=len(listed))
        return Histories(arrays, where=f"rollout of {self}", environment=environment, split=split)


# ----------------------------------------------------------------------------------------------------------- histories


def histories(scale: str, env: str, *, make: bool = False, folder: str | Path | None = None) -> Histories:
    """The learning histories of an environment, read by memory map.

    Args:
        make: make them first, where they are not there or not of today.
        folder: where `data` lies; None: where the configuration is.

    Raises:
        UserError: the environment is not known or has no source of histories; or they are not made, or damaged.
    """
    check_names(scale=scale, env=env)
    with inside(folder):
        environment = environment_settings(scale, env)
        if make:
            make_job(Job("generate", scale, env), "auto")
        path = paths.histories(scale, env)
        check_histories(scale, env)
        found = columns.Histories.open(path)
        options = {**environment.options, **environment.training_options}
        environment = environment.model_copy(update={"options": options})
        split = "train" if environment.source is None else environment.source.split
        return Histories(found.arrays(), where=path, environment=environment, split=split)


def from_minari(dataset: str) -> Histories:
    """A Minari dataset of this machine as histories. To train on one, name it as a source (docs/python.md).

    Raises:
        UserError: there is no such dataset, it cannot be read, or Minari is not installed.
    """
    from recollect.sources import minari

    return Histories(minari.read(dataset), where=f"Minari dataset {dataset}")


class Histories(columns.Histories):
    """Transitions of many tasks, in time order: the columns `observation`, `action`, `reward`, `done`, `task`, `episode`.

    `arrays()` has them all, `episodes` is the table of complete episodes, `return_to_go` and `timestep` are derived.

    Args:
        environment, split: where they were lived through; None: it is not known.
    """

    def __init__(
        self,
        arrays: Mapping[str, np.ndarray],
        *,
        where: object = "histories",
        environment: EnvironmentSettings | None = None,
        split: str = "train",
    ) -> None:
        super().__init__(arrays, where=where)
        self.environment, self.split = environment, split

    def __repr__(self) -> str:
        return f"Histories({len(self)} steps, {len(self.episodes)} episodes, {len(np.unique(self.task))} tasks; {self.where})"

    def to_pandas(self) -> pd.DataFrame:
        """A row per step: task, episode, step, the numbers of observation and action, reward, done.

        A vector is a column per number, `observation_0` and so on. Images, and what has more than 64 numbers, are left out.
        """
        table: dict[str, np.ndarray] = {"task": self.task, "episode": self.episode, "step": self.timestep}
        for name, column in {"observation": self.observation, "action": self.action}.items():
            if column.ndim == 1:
                table[name] = column
            elif column.ndim == 2 and column.shape[1] <= MOST_COLUMNS:
                table |= {f"{name}_{place}": column[:, place] for place in range(column.shape[1])}
        return pd.DataFrame({**table, "reward": self.reward, "done": self.done})

    @property
    def returns(self) -> pd.DataFrame:
        """A row per complete episode: task, episode, length in steps, return (undiscounted)."""
        of = self.episodes
        return pd.DataFrame({"task": of.task, "episode": of.index, "length": of.length, "return": of.total_return})

    def to_minari(self, dataset: str, **about: Any) -> Any:
        """Write a Minari dataset of this name (`recollect/dark-room-v0`), and return it as Minari loads it.

        `recollect.from_minari` gives the same arrays again. The `infos` of each episode name its task.

        Args:
            about: author, author_email, code_permalink, algorithm_name and description, which the dataset shows.

        Raises:
            UserError: the environment is not known, there is a dataset of this name, or Minari is not installed.
        """
        from recollect.sources import minari

        if self.environment is None:
            do = "write histories of an environment or of a rollout: `recollect.histories(...)`, `run.rollout(...)`"
            raise UserError(
                "these histories name no environment, whose spaces a dataset needs", where=self.where, do=do
            )
        of = self.environment
        return minari.write(
            dataset, self, world=of.world, options=of.options, name=of.name, split=self.split, about=about
        )
