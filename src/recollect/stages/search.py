"""search: settings that a sampler of optuna proposes, to be swept instead of every combination.

The sampler is seeded, and each proposal waits for the scores of those before it. So a search that was killed proposes the same
settings again, finds them made, and goes on; nothing of it is kept but the runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from recollect.settings.errors import UserError
from recollect.stages.stage import Job
from recollect.stages.swept_runs import Cell, Sweep
from recollect.stages.table import STAGES

RANGE = re.compile(r"(.+)\.\.(.+)")
DIGITS = 3  # of a number between the ends of a range, so that names stay short


def proposed(of: Sweep, trials: int) -> list[Cell]:
    """The settings that were tried, each of them once; the first of their final scores, averaged over seeds, is to be high.

    Raises:
        UserError: optuna is not installed, or a name, key or value is wrong (then nothing was run).
    """
    try:
        import optuna
    except ModuleNotFoundError as error:
        do = (
            "`.venv/bin/uv pip install --python .venv/bin/python optuna` in the clone, "
            "or leave --trials out to run every combination"
        )
        raise UserError("a search needs the package optuna", where="--trials", do=do) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    spaces = {key: _space(optuna.distributions, key, values) for key, values in of.axes.items()}
    of.check(_corners(of.axes))
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
    cells: dict[str, Cell] = {}
    for _ in range(trials):
        trial = study.ask(spaces)
        cell = {key: _said(value, _ends(of.axes[key])) for key, value in trial.params.items()}
        name = of.name(cell)
        jobs = [Job("run", of.scale, of.env, name, str(seed)) for seed in dict.fromkeys(of.seeds)]
        if not all(STAGES["run"].is_made(job) for job in jobs):
            of.make([cell])
        cells[name] = cell
        table = of.table([cell])
        if len(table) == len(jobs):
            study.tell(trial, float(table.iloc[:, len(cell) + 1].mean()))
        else:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
    return list(cells.values())


def _corners(axes: Mapping[str, Sequence[str]]) -> list[Cell]:
    """Settings in which every choice stands, and both ends of every range."""
    listed = {key: _ends(values) or values for key, values in axes.items()}
    most = max(map(len, listed.values()), default=0)
    return [{key: values[min(place, len(values) - 1)] for key, values in listed.items()} for place in range(most)]


def _ends(values: Sequence[str]) -> tuple[str, ...]:
    """Both ends of a range; none: the values are choices."""
    found = RANGE.fullmatch(values[0]) if len(values) == 1 else None
    return found.groups() if found else ()


def _space(distributions: Any, key: str, values: Sequence[str]) -> Any:
    """A choice, or numbers of a range; where one end is above ten times the other they are drawn evenly in their logarithm."""
    ends = _ends(values)
    if not ends:
        return distributions.CategoricalDistribution(values)
    try:
        whole = all(re.fullmatch(r"-?\d+", end) for end in ends)
        low, high = (int(end) if whole else float(end) for end in ends)
        kind = distributions.IntDistribution if whole else distributions.FloatDistribution
        return kind(low, high, log=low > 0 and high > 10 * low)
    except ValueError as error:
        what = f"'{values[0]}' is no range of numbers"
        raise UserError(what, where=f"--set {key}", do="write LOW..HIGH, e.g. learning_rate=1e-5..1e-2") from error


def _said(value: Any, ends: Sequence[str]) -> str:
    """A proposed value as names have it; what the digits would carry out of its range is the end of it."""
    if not isinstance(value, float) or not ends:
        return str(value)
    low, high = map(float, ends)
    return f"{min(max(float(f'{value:.{DIGITS}g}'), low), high):.15g}"
