"""Return against in-context episode: does a policy with frozen weights get better the longer it stays in a task?

One panel per environment (and task split), one line per method: the mean (or IQM) over seeds and tasks at each ICL
episode, counted from 1, with the stratified bootstrap interval over both, or with the range of the seeds (`band`); of one
seed the interval is over the tasks, and the figure says so. With `x: step` the mean over all episodes of each evaluation
that was made while training, against the training step. The optimum is a dotted line; published values are dashed, and
only where they are of the figure's own scale (RA-DT, Schmied et al. 2024, figures 3, 4, 14, 15 and 21).
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pydantic import Field

from recollect.figures import captions, method_styles, reading, spec, style
from recollect.figures.finishing import finished
from recollect.figures.spec import TABLE_COLUMNS, Drawn, ExtraRow, FigureSpec, Panel, ScoreOptions, options_of
from recollect.figures.statistics import Band, seed_range
from recollect.settings.errors import UserError
from recollect.settings.schema import Names

SPLIT = "eval"  # of its scores, where its options name none
MARKERS = 8  # per line, where there are many episodes
SQUEEZE = 2.0  # an optimum at more than so many times the curves' height is named, not drawn: it would flatten them


class Options(ScoreOptions):
    metric: str = Field("return", description="Metric of the scores that is drawn.")
    split: str | Names = Field("eval", description="Task split that is drawn; of several, a panel for each.")
    x: Literal["episode", "step"] = Field(
        "episode", description="In-context episode, of each run's last evaluation, or training step."
    )
    band: Band = Field(
        "bootstrap", description="Around a line: an interval, or from the lowest to the highest of the `seeds`."
    )
    average: int = Field(1, ge=1, description="So many successive episodes make one point (x: episode). Published: 1.")
    optimum: float | dict[str, float] | None = Field(None, description="Mean optimal return, or one per panel.")
    x_label: str = Field("", description="Empty: what `x` says.")
    y_label: str = Field("return", description="Of the y axes.")
    columns: int = Field(3, ge=1, le=4, description="Panels beside each other.")
    panel_height: float = Field(1.75, gt=0.5, description="Inches.")


def draw(scores: pd.DataFrame, figure: FigureSpec) -> Drawn:
    options = options_of(figure, Options)
    panels = spec.panels_of(figure.environments, options.split)
    splits = spec.one_or_more(options.split)
    read = reading.last_rows if options.x == "episode" else reading.select
    rows = pd.concat([read(scores, figure, metric=options.metric, split=split) for split in splits])
    table = _measured(rows, panels, figure, options)
    with style.paper_style():
        canvas, extra_rows, not_drawn = _plot(table, panels, figure, options)
        notes = [_what_is_drawn(rows, options), *not_drawn]
        return finished(canvas, figure, options, table, extra_rows, _meaning(options), notes=notes, band=options.band)


def _meaning(options: Options) -> dict[str, str]:
    word = captions.STATISTIC_WORDS[options.statistic]
    meaning = {
        "panel": "environment" if isinstance(options.split, str) else "environment, and /split behind the first one",
        "x": f"{_x_label(options)}, counted from 1; the weights are frozen and the memory stays",
        "y": f"{options.metric}: {word} over seeds and tasks",
        "low, high": captions.bounds_meant(options.statistic, options.band),
    }
    if options.x == "step":
        meaning["x"] = _x_label(options)
        meaning["y"] = f"{options.metric}, mean over in-context episodes: {word} over seeds and tasks"
    return meaning


def _x_label(options: Options) -> str:
    of = f" (means of {options.average})" if options.average > 1 else ""
    return options.x_label or {"episode": f"in-context episode{of}", "step": "training step"}[options.x]


def _what_is_drawn(rows: pd.DataFrame, options: Options) -> str:
    """The sentence of the caption that says which evaluations are drawn."""
    noun = "split" if isinstance(options.split, str) else "splits"
    splits = f"{noun} " + " and ".join(f"'{split}'" for split in spec.one_or_more(options.split))
    if options.x == "step":
        episodes = rows["episode"].nunique()
        return f"Each point: the mean over the {episodes} in-context episodes of one evaluation; {splits}."
    steps = ", ".join(f"{step:,}" for step in sorted(set(rows["step"])))
    sentence = f"Policies of runs that trained for {steps} steps; {splits}."
    if options.average > 1:
        sentence += f" Each point is the mean of {options.average} successive episodes, and stands at the middle one."
    return sentence


def _measured(rows: pd.DataFrame, panels: list[Panel], figure: FigureSpec, options: Options) -> pd.DataFrame:
    parts = []
    for panel in panels:
        of_panel = rows[(rows["env"] == panel.environment) & (rows["split"] == panel.split)]
        tasks_of: dict[str, list[int]] = {}
        for method in figure.methods:
            cell = of_panel[of_panel["method"] == method]
            scores_SNX, x, tasks_of[method] = _points(cell, figure, options)
            # Of one seed the tasks are resampled, in the place of seeds.
            resampled = scores_SNX.swapaxes(0, 1) if len(scores_SNX) == 1 else scores_SNX
            bounds = (
                seed_range(scores_SNX, statistic=options.statistic)
                if options.band == "seeds"
                else options.interval(resampled, figure.name, panel.name, method)
            )
            about = {"panel": panel.name, "method": method, "seeds": len(figure.seeds), "tasks": scores_SNX.shape[1]}
            parts.append(pd.DataFrame({"x": x, **bounds.columns(), **about}))
        _check_same_tasks(tasks_of, panel.environment, figure)
    return pd.concat(parts, ignore_index=True)[TABLE_COLUMNS]


def _points(cell: pd.DataFrame, figure: FigureSpec, options: Options) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """The scores [S, N, X] of one method in one panel, where they stand [X], and the tasks."""
    if options.x == "episode":
        scores_SNE, tasks, episodes = reading.score_array(cell, figure)
        scores_SNX, places = _averaged(scores_SNE, episodes, figure, options.average)
        return scores_SNX, places, tasks
    steps = sorted(set(cell["step"]))
    means_XSN = []
    for step in steps:
        scores_SNE, tasks, _ = reading.score_array(cell[cell["step"] == step], figure)
        means_XSN.append(scores_SNE.mean(2))
    return np.stack(means_XSN, axis=2), np.array(steps, float), tasks


def _averaged(
    scores_SNE: np.ndarray, episodes: list[int], figure: FigureSpec, size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Means of so many successive episodes [S, N, X], and where they stand, episodes counted from 1."""
    if len(episodes) % size:
        what = f"{len(episodes)} episodes cannot be averaged by {size}"
        do = "choose an option 'average' that divides the number of episodes"
        raise UserError(what, where=f"figure '{figure.name}'", do=do)
    middle = np.array(episodes, float).reshape(-1, size).mean(1) + 1
    return scores_SNE.reshape(*scores_SNE.shape[:2], -1, size).mean(3), middle


def _check_same_tasks(tasks_of: dict[str, list[int]], environment: str, figure: FigureSpec) -> None:
    first, its_tasks = next(iter(tasks_of.items()))
    for method, tasks in tasks_of.items():
        if tasks != its_tasks:
            counts = f"{first} was evaluated on {len(its_tasks)} tasks and {method} on {len(tasks)} (not the same ones)"
            what = f"on {environment}, {counts}; their curves cannot be compared"
            raise UserError(what, where=f"figure '{figure.name}'", do="evaluate them again with the same tasks")


def _plot(
    table: pd.DataFrame, panels: list[Panel], figure: FigureSpec, options: Options
) -> tuple[Figure, list[ExtraRow], list[str]]:
    """The figure, what it shows besides the measured, and notes on what is not drawn."""
    columns = min(options.columns, len(panels))
    depth = -(-len(panels) // columns)
    width = style.SINGLE_COLUMN if columns == 1 else style.DOUBLE_COLUMN
    canvas = style.blank_figure(width, depth * (options.panel_height + 0.2) + 0.15)
    grid = canvas.subplots(depth, columns, squeeze=False)
    looks = method_styles.styles_of(figure.methods)
    extra_rows: list[ExtraRow] = []
    notes: list[str] = []
    for i, panel in enumerate(panels):
        axes: Axes = grid[i // columns, i % columns]
        rows = table[table["panel"] == panel.name]
        for k, (method, look) in enumerate(looks.items()):
            line = rows[rows["method"] == method]
            stagger = (k * len(line)) // (MARKERS * len(looks))  # so that markers do not lie on each other
            markers = MARKERS if len(line) > 2 * MARKERS else None
            style.draw_band(axes, line, look, markers=markers, first=stagger)
        first, last = float(rows["x"].min()), float(rows["x"].max())
        end = last + (options.average - 1) / 2 if options.x == "episode" else last
        published = style.draw_references(axes, figure, panel.name, until=end)
        title = figure.panel_label(panel, options.split)
        axes.set_title(title, loc="left")
        extra_rows += published

        top = max([float(rows[["y", "high"]].max().max()), *(y for _, _, _, y in published)])
        height = top - min(0.0, float(rows[["y", "low"]].min().min()))
        optimum = options.optimum
        if isinstance(optimum, dict):
            optimum = optimum.get(panel.name)
        if optimum is not None and optimum - top <= (SQUEEZE - 1) * height:
            extra_rows += style.draw_constant(axes, panel.name, "optimum", optimum, (first, last))
        elif optimum is not None:
            axes.set_title(f"optimum {optimum:g} ↑", loc="right", fontsize=5.6, color="#595959")
            notes.append(f"The optimum on {title}, {optimum:g}, lies above the axis.")

        if options.x == "episode":
            style.episode_axis(axes, end)
        else:
            style.step_axis(axes, end)
        style.from_zero(axes, rows)
        axes.set_ylabel(options.y_label if i % columns == 0 else "")
        axes.set_xlabel(_x_label(options) if i + columns >= len(panels) else "")
    style.hide_unused(grid, len(panels))
    return canvas, extra_rows, notes
