"""Scores in, a checked frame out: a figure draws whole grids of environments, methods and seeds, or says what is missing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from recollect.artifacts.scores import check_scores
from recollect.artifacts.sealed import read_table, verify
from recollect.figures.spec import FigureSpec
from recollect.settings.errors import UserError, nearest
from recollect.settings.loading import config_path

KEYS = ["env", "method", "seed", "step", "task", "episode"]
SHORTEST = 0.9  # of the longest run, or of a plot: what ends before it was not trained for as long
LAST_EPISODES = 5  # the end of an in-context run, where nothing else is asked for: RA-DT's papers take five


def read_scores(score_files: Sequence[Path | str]) -> pd.DataFrame:
    """All score tables in one frame. A UserError names a file that is missing, corrupted or of other columns."""
    if not score_files:
        raise UserError("there are no score files", where="figure", do="name the scores.parquet of the runs to draw")
    frames = []
    for file in score_files:
        frame = read_table(Path(file))
        frame = check_scores(frame, where=file)
        if frame.empty:
            raise UserError("the score table is empty", where=file, do="delete it and run its evaluation again")
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def read_speeds(files: Sequence[Path | str]) -> pd.DataFrame:
    """All tables of speeds in one frame, and in its `attrs["machines"]` where they were measured."""
    machines = {str(verify(file, kind="speed")["provenance"].get("machine", "?")) for file in files}
    frame = read_scores(files)
    frame.attrs["machines"] = sorted(machines)
    return frame


def measured_on(speeds: pd.DataFrame) -> str:
    """The sentence of a caption that names the machines of `read_speeds`."""
    return f"Measured on {', '.join(speeds.attrs.get('machines', ())) or 'an unnamed machine'}."


def select(scores: pd.DataFrame, figure: FigureSpec, *, metric: str, split: str) -> pd.DataFrame:
    """The rows that a figure draws, sorted by environment, method, seed, step, task and episode.

    A UserError names what has no scores, a value that is not finite, and a cell that stands twice.
    """
    where = f"figure '{figure.name}'"
    scores = check_scores(scores, where=where)
    if scores.empty:
        raise UserError("the score table is empty", where=where, do="run the evaluations that it draws")
    for column, wanted in (("split", split), ("metric", metric)):
        present = set(scores[column].astype(str))
        if wanted not in present:
            do = f"set the option '{column}' ({nearest(wanted, present)})"
            raise UserError(f"no scores with {column} '{wanted}'", where=where, do=do)
    rows = scores[(scores["metric"] == metric) & (scores["split"] == split)]
    for column, names in (("env", figure.environments), ("method", figure.methods), ("seed", figure.seeds)):
        rows = rows[rows[column].isin(names)]
    _check_grid(scores, rows, figure, metric, split)
    bad = rows[~np.isfinite(rows["value"].to_numpy(float))]
    if len(bad):
        first = bad.iloc[0]
        what = f"{len(bad)} of {len(rows)} scores are not finite numbers; first: {_name(first)} has {first['value']}"
        raise UserError(what, where=where, do="find out why that run gives it; a figure does not skip scores")
    twice = rows[rows.duplicated(KEYS)]
    if len(twice):
        what = f"{len(twice)} scores stand twice; first: {_name(twice.iloc[0])}"
        raise UserError(what, where=where, do="give each score file once")
    return rows.sort_values(KEYS, ignore_index=True)


def _check_grid(scores: pd.DataFrame, rows: pd.DataFrame, figure: FigureSpec, metric: str, split: str) -> None:
    where = f"figure '{figure.name}'"
    for column, wanted, noun in (("env", figure.environments, "environment"), ("method", figure.methods, "method")):
        present = set(scores[column].astype(str))
        unknown = [name for name in wanted if name not in present]
        if unknown:
            do = f"run it, or correct the name ({nearest(unknown[0], present)})"
            raise UserError(f"no scores of {noun} {', '.join(unknown)}", where=where, do=do)
    seeds_of = {(str(env), str(method)): set(run["seed"]) for (env, method), run in rows.groupby(["env", "method"])}
    lacking = []
    for environment in figure.environments:
        for method in figure.methods:
            missing = [seed for seed in figure.seeds if seed not in seeds_of.get((environment, method), set())]
            if len(missing) == len(figure.seeds):
                lacking.append(f"{method} on {environment}: any seed")
            elif missing:
                noun = "seeds" if len(missing) > 1 else "seed"
                lacking.append(f"{method} on {environment}: {noun} {', '.join(map(str, missing))}")
    if lacking:
        do = f"train and evaluate these runs, or take them out of {config_path('figures', figure.name)}"
        raise UserError(f"no {split} {metric} of {'; '.join(lacking)}", where=where, do=do)


def _name(row: pd.Series) -> str:
    return (
        f"{row['method']} on {row['env']}, seed {row['seed']}, step {row['step']}, "
        f"task {row['task']}, episode {row['episode']}"
    )


def last_rows(scores: pd.DataFrame, figure: FigureSpec, metric: str, split: str) -> pd.DataFrame:
    """`select`, of each run's last evaluation only.

    Seeds may end a little apart, as those do that are counted in steps of whole episodes. A UserError names a method's seeds
    of which one ends before `SHORTEST` of the longest.
    """
    rows = select(scores, figure, metric=metric, split=split)
    last = rows.groupby(["env", "method", "seed"])["step"].transform("max")
    rows = rows[rows["step"] == last]
    for (env, method), group in rows.groupby(["env", "method"]):
        steps = group.groupby("seed")["step"].max()
        if steps.min() < SHORTEST * steps.max():
            ends = ", ".join(f"seed {seed} at {step}" for seed, step in steps.items())
            what = f"the runs of {method} on {env} end at different steps: {ends}"
            raise UserError(what, where=f"figure '{figure.name}'", do="train and evaluate the shorter ones again")
    return rows


def score_array(rows: pd.DataFrame, figure: FigureSpec) -> tuple[NDArray[np.float64], list[int], list[int]]:
    """The scores of one method in one environment at one step as a full array.

    Args:
        rows: rows of `select` of one environment and method, with one step per seed.

    Returns:
        ``scores_SNE`` (seeds in the figure's order, tasks and episodes ascending), the tasks and the episodes.
    """
    tasks = sorted({int(task) for task in rows["task"]})
    episodes = sorted({int(episode) for episode in rows["episode"]})
    scores = _complete(rows, figure, [(task, episode) for task in tasks for episode in episodes])
    return scores.to_numpy(float).reshape(len(figure.seeds), len(tasks), len(episodes)), tasks, episodes


def task_means(
    rows: pd.DataFrame, figure: FigureSpec, last: int | str = "all"
) -> tuple[NDArray[np.float64], list[int]]:
    """The mean of so many last episodes, or of `all`, of each seed and task, and the tasks. `rows`: as of `score_array`.

    Where the protocol is `episodic`, episodes are numbered over all tasks, and tasks may have different numbers of them.
    """
    pairs = sorted({(int(task), int(episode)) for task, episode in zip(rows["task"], rows["episode"], strict=True)})
    tasks = sorted({task for task, _ in pairs})
    numbered_over_all = len(tasks) > 1 and len({episode for _, episode in pairs}) == len(pairs)
    if last != "all" or not numbered_over_all:
        scores_SNE, tasks, _ = score_array(rows, figure)
        return last_episodes(scores_SNE, last).mean(2), tasks
    scores = _complete(rows, figure, pairs)
    by_task = scores.groupby(level=[0, 1]).mean().unstack(level=1)
    return by_task.reindex(index=list(figure.seeds), columns=tasks).to_numpy(float), tasks


def _complete(rows: pd.DataFrame, figure: FigureSpec, pairs: Sequence[tuple[int, int]]) -> pd.Series:
    """The scores of all seeds at these tasks and episodes. Raises UserError: some are missing."""
    of_each = rows.set_index(["seed", "task", "episode"])["value"]
    wanted = [(seed, task, episode) for seed in figure.seeds for task, episode in pairs]
    scores = of_each.reindex(pd.MultiIndex.from_tuples(wanted))
    missing = scores.index[scores.isna()]
    if len(missing):
        seed, task, episode = missing[0]
        first = rows.iloc[0]
        what = f"{len(missing)} of {len(scores)} scores of {first['method']} on {first['env']} are missing"
        raise UserError(
            f"{what}; first: seed {seed}, task {task}, episode {episode}",
            where=f"figure '{figure.name}'",
            do="evaluate that run again: all its seeds need the same tasks and episodes",
        )
    return scores


def episodes_played(scores: pd.DataFrame, of: Iterable[tuple[str, str]]) -> list[int]:
    """How many episodes the scores of each (environment, split) have."""
    return [
        int(scores.loc[(scores["env"] == env) & (scores["split"] == split), "episode"].max()) + 1 for env, split in of
    ]


def last_episodes(scores_SNE: NDArray[np.float64], last: int | str) -> NDArray[np.float64]:
    """The scores of so many last episodes, or of `all`."""
    return scores_SNE if last == "all" else scores_SNE[:, :, -int(last) :]
