"""Many runs from Python, as tables: the scores behind a figure and what it draws, and the verdicts on claims (docs/python.md)."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from recollect.api import Run
from recollect.artifacts.lease import usable
from recollect.artifacts.sealed import verify
from recollect.folders import inside
from recollect.given import check_names, several
from recollect.settings.errors import UserError
from recollect.settings.resolve import figure_settings, resolve
from recollect.settings.still import held_still
from recollect.stages import claims as judging
from recollect.stages import first_words, networks, paths
from recollect.stages.check import hand_over
from recollect.stages.inputs import figure_inputs, figure_runs
from recollect.stages.making import make_job
from recollect.stages.of_today import not_of_today
from recollect.stages.plan import plan, remaining
from recollect.stages.selection import chosen_figures, default_selection
from recollect.stages.stage import Job

#: Of a claim, and of each of its contrasts, what the table of claims has.
_OF_CLAIM = {"name": "claim", "paper": "paper", "statement": "statement", "figure": "figure", "verdict": "verdict"}
_OF_CONTRAST = {"says": "contrast", "value": "value", "low": "low", "high": "high", "wanted": "wanted", "margin": "margin",
                "seeds": "seeds", "tasks": "tasks", "verdict": "contrast_verdict", "why": "why"}  # fmt: skip
_MOST_NAMED = 5  # of missing runs, in a message


def figure(
    scale: str, name: str, *, make: bool = False, device: str = "auto", folder: str | Path | None = None
) -> Figure:
    """A figure by its name, drawn or not.

    Args:
        make: draw it first, after making all that it needs. What is of today is kept. How long the rest takes is said on the
            standard error, where it is over a minute.
        device: of what is made, see `recollect.train`.
        folder: where `data` and `results` lie; None: where the configuration is.

    Raises:
        UserError: the scale or the figure is not known, or there is no configuration; of what is made, see `recollect.train`.
    """
    usable(device)
    check_names(scale=scale, name=name)
    with inside(folder) as (at, config):
        figure_settings(scale, name)
        runs = [Run(scale, *of, at, config, resolve(scale, *of)) for of in figure_runs(scale, name)]
        if make:
            left = remaining(plan(scale, [name])).needs
            networks.check_networks(left)
            if said := first_words.of(left, local=True, cores=1, most_hours=None, selected=default_selection()):
                print(said, file=sys.stderr)
            make_job(Job("figure", scale, name), device)
    return Figure(scale, name, runs, at, config)


@dataclass(frozen=True, repr=False)
class Figure:
    """One figure at a scale.

    Attributes:
        runs: those that it shows: every environment, method and seed.
        folder, config: where its results lie, and the configuration.
    """

    scale: str
    name: str
    runs: list[Run]
    folder: Path
    config: Path

    def __repr__(self) -> str:
        return f"Figure({self.scale!r}, {self.name!r}, {len(self.runs)} runs)"

    @property
    def missing(self) -> list[Run]:
        """Those of its runs that have no scores yet."""
        with inside(self.folder, self.config):
            return [run for run in self.runs if not paths.scores(*run._of).is_file()]

    @property
    def stale(self) -> list[Run]:
        """Those of its runs that have what it draws, but not of today's settings, code and inputs."""
        with inside(self.folder, self.config):
            files = list(figure_inputs(self.scale, self.name).values())
            found = not_of_today(files)
            return [run for run, path in zip(self.runs, files, strict=True) if path in found]

    @property
    def scores(self) -> pd.DataFrame:
        """The score tables of all its runs in one: env, method, seed, step, split, task, episode, metric, value.

        Those of `stale` runs are among them.

        Raises:
            UserError: runs are missing, which it names, or a table is damaged.
        """
        missing = self.missing
        if missing:
            named = ", ".join(f"{run.env} {run.method} seed {run.seed}" for run in missing[:_MOST_NAMED])
            what = f"{len(missing)} of {len(self.runs)} runs have no scores: {named}{', ...' * (len(missing) > _MOST_NAMED)}"
            do = f"make them with `{self._call}` or `snakemake {self._pdf}`; each of `runs` has scores of its own"
            raise UserError(what, where=self, do=do)
        return pd.concat([run.scores for run in self.runs], ignore_index=True)

    @property
    def drawn(self) -> pd.DataFrame:
        """Exactly what it draws, as its CSV has it (docs/formats.md).

        Raises:
            UserError: it is not drawn, or its table is damaged.
        """
        with inside(self.folder, self.config):
            path, how = (
                paths.figure(self.scale, self.name, ".csv"),
                f"make it with `{self._call}` or `snakemake {self._pdf}`",
            )
            if not path.is_file():
                raise UserError("the figure is not drawn", where=path, do=how)
            verify(path, input_from=how)
            return pd.read_csv(path)

    @property
    def _pdf(self) -> Path:
        return paths.figure(self.scale, self.name, ".pdf")

    @property
    def _call(self) -> str:
        return f"recollect.figure({self.scale!r}, {self.name!r}, make=True)"


def claims(scale: str, figures: str | Iterable[str] | None = None, *, folder: str | Path | None = None) -> pd.DataFrame:
    """The claims that figures show, judged by the scores that are there: a row for each contrast.

    Columns: claim, paper, statement, figure, verdict (of the claim); contrast, value, low, high (95 % interval), wanted, margin,
    seeds, tasks, contrast_verdict, why. What was not run has no numbers, and `why` names a run.
    Where runs are not of today's settings, code and inputs, it warns of them and judges them all the same.

    Args:
        figures: names, a set of config/config.yaml, a paper, or `all`; None: the default ones.
        folder: where `results` lies; None: where the configuration is.

    Raises:
        UserError: a name is not known, or scores are damaged or not those that a claim names.
    """
    wanted: list[Any] = [] if figures is None else list(figures) if several(figures) else [figures]
    check_names(scale=scale)
    for one in wanted:
        check_names(figures=one)
    with inside(folder), held_still():
        hand_over()
        chosen = chosen_figures(scale, wanted)
        found, stale = judging.verdicts(scale, chosen), judging.stale(scale, chosen)
    if stale:
        warnings.warn(stale, stacklevel=2)
    rows = [
        {column: claim[key] for key, column in _OF_CLAIM.items()}
        | {column: contrast.get(key) for key, column in _OF_CONTRAST.items()}
        for claim in found
        for contrast in claim["contrasts"]
    ]
    return pd.DataFrame(rows, columns=[*_OF_CLAIM.values(), *_OF_CONTRAST.values()])
