"""Final scores of many environments or tasks, one row each: a marker per method, beside each other in panels.

A row is an environment (`ENV`), another of its splits (`ENV/SPLIT`), or one task of a split (`ENV/SPLIT/TASK`, counted
from 0). Its number is the mean (or IQM) over seeds and tasks of the mean over episodes, with the stratified bootstrap
interval over both. Published values are open markers, only where they are of the figure's own scale (AMAGO, Grigsby et
al. 2024: its bars per POPGym task and its table of Crafter's achievements).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from pydantic import Field

from recollect.figures import captions, finishing, method_styles, reading, style
from recollect.figures.spec import TABLE_COLUMNS, Drawn, ExtraRow, FigureSpec, ScoreOptions, options_of, table_row
from recollect.settings.errors import UserError, nearest
from recollect.settings.schema import FigureSettings

SPLIT = "eval"  # of its scores, where its options name none
ROWS = "panels"  # its option that maps panels to rows, each an environment, a split of one or a task of that
WORDS = ("lines", "Open markers")
BETWEEN = 0.052  # inches from method to method within a row
ROW = 0.06  # inches that a row has besides
OPEN: dict[str, Any] = {"markerfacecolor": "none", "markeredgewidth": 0.7}  # a published value


class Options(ScoreOptions):
    metric: str = Field("return", description="Metric of the scores that is drawn.")
    split: str = Field("eval", description="Task split of rows that name none.")
    panels: dict[str, dict[str, str]] = Field({}, description="Panel -> row -> label; {}: one of all environments.")
    x_label: str = Field("", description="Empty: the metric.")
    limits: tuple[float, float] | None = Field(None, description="Of all x axes; null: as the values need.")


def check(figure: FigureSettings) -> None:
    options = options_of(figure, Options)
    for labels in (options.panels or {}).values():
        for row in labels:
            _taken_apart(row, figure, options)


def draw(scores: pd.DataFrame, figure: FigureSpec) -> Drawn:
    options = options_of(figure, Options)
    panels = options.panels or {"": {name: figure.panel_title(name) for name in figure.environments}}
    table = _measured(scores, panels, figure, options)
    word = captions.STATISTIC_WORDS[options.statistic]
    meaning = {
        "panel": "panel of the figure",
        "x": "row of the panel, from 1 at the top",
        "y": f"{options.metric}, mean over all episodes: {word} over seeds and tasks",
        "low, high": captions.bounds_meant(options.statistic),
    }
    notes = ["Mean over all episodes of the final evaluation."]
    with style.paper_style():
        canvas, extra_rows = _plot(table, panels, figure, options)
        # Of the legend: markers without lines.
        handles = style.legend_handles(figure, method_styles.styles_of(figure.methods), [])
        for handle in handles:
            handle.set_linestyle("none")
        if extra_rows:
            label = figure.published_label()
            handles.append(Line2D([], [], color=method_styles.GREY, marker="o", markersize=3.4, label=label, **OPEN))
            handles[-1].set(linestyle="none", markeredgecolor=method_styles.GREY)
        return finishing.finished(
            canvas, figure, options, table, extra_rows, meaning, handles=handles, notes=notes, words=WORDS
        )


def _measured(
    scores: pd.DataFrame, panels: dict[str, dict[str, str]], figure: FigureSpec, options: Options
) -> pd.DataFrame:
    rows_of: dict[str, pd.DataFrame] = {}  # split -> rows of the last evaluations
    parts = []
    for panel, labels in panels.items():
        for place, row in enumerate(labels, start=1):
            environment, split, task = _taken_apart(row, figure, options)
            if split not in rows_of:
                rows_of[split] = reading.last_rows(scores, figure, options.metric, split)
            of_row = rows_of[split][rows_of[split]["env"] == environment]
            if task is not None:
                of_row = of_row[of_row["task"] == task]
            for method in figure.methods:
                cell = of_row[of_row["method"] == method]
                if cell.empty:
                    what = f"no {options.metric} of {method} in row '{row}'"
                    raise UserError(what, where=f"figure '{figure.name}'", do="correct the option 'panels'")
                tasks = sorted(set(cell["task"]))
                # Tasks may have been played different numbers of times, so episodes are averaged first.
                mean_by_task = cell.groupby(["seed", "task"])["value"].mean().unstack("task")
                score_SN = mean_by_task.reindex(index=list(figure.seeds), columns=tasks).to_numpy(float)
                if np.isnan(score_SN).any():
                    s, n = np.argwhere(np.isnan(score_SN))[0]
                    raise UserError(
                        f"seeds were scored on different tasks: {method} has no {options.metric} of task {tasks[n]} "
                        f"with seed {figure.seeds[s]} in row '{row}'",
                        where=f"figure '{figure.name}'",
                        do="evaluate all seeds anew",
                    )
                bounds = options.interval(score_SN, figure.name, panel, row, method)
                parts.append(table_row(panel, method, place, bounds, seeds=len(figure.seeds), tasks=len(tasks)))
    return pd.DataFrame(parts, columns=TABLE_COLUMNS)


def _taken_apart(row: str, figure: FigureSettings, options: Options) -> tuple[str, str, int | None]:
    """Environment, split and task (None: all) of a row."""
    environment, *more = row.split("/")
    where = f"options of figure '{figure.name}': panels"
    if environment not in figure.environments:
        raise UserError(f"the row '{row}' is of none of the figure's environments", where=where,
                        do=nearest(environment, figure.environments))  # fmt: skip
    if len(more) > 2 or (len(more) == 2 and not more[1].isdigit()):
        raise UserError(f"'{row}' is no row", where=where, do="write ENV, ENV/SPLIT or ENV/SPLIT/TASK, TASK a number")
    return environment, more[0] if more else options.split, int(more[1]) if len(more) == 2 else None


def _plot(
    table: pd.DataFrame, panels: dict[str, dict[str, str]], figure: FigureSpec, options: Options
) -> tuple[Figure, list[ExtraRow]]:
    most_rows = max(len(labels) for labels in panels.values())
    row_height = ROW + BETWEEN * (1 + len(figure.methods))
    width = style.SINGLE_COLUMN if len(panels) == 1 else style.DOUBLE_COLUMN
    canvas = style.blank_figure(width, most_rows * row_height + 0.42)

    # A row is equally high in all panels: the grid has a line wherever some panel ends.
    ends = sorted({len(labels) for labels in panels.values()})
    grid = canvas.add_gridspec(len(ends), len(panels), height_ratios=np.diff([0, *ends]))
    extra_rows: list[ExtraRow] = []
    first_labels = list(next(iter(panels.values())).values())
    for k, (panel, label_of) in enumerate(panels.items()):
        labels = list(label_of.values())
        axes = canvas.add_subplot(grid[: ends.index(len(labels)) + 1, k])
        extra_rows += _draw_panel(axes, panel, table[table["panel"] == panel], labels, figure)
        axes.set_ylim(len(labels) + 0.5, 0.5)
        axes.set_title(panel, loc="left")
        axes.set_xlabel(options.x_label or options.metric.replace("_", " "))
        axes.xaxis.set_in_layout(len(labels) == most_rows)  # what stands below a shorter panel makes no row higher
        if options.limits is not None:
            axes.set_xlim(*options.limits)
        elif table["low"].min() >= 0:
            axes.set_xlim(left=0)
        if k and labels == first_labels:  # the first panel names the rows
            axes.tick_params(labelleft=False)
    return canvas, extra_rows


def _draw_panel(axes: Axes, panel: str, table: pd.DataFrame, labels: list[str], figure: FigureSpec) -> list[ExtraRow]:
    looks = method_styles.styles_of(figure.methods)
    step = BETWEEN / (ROW + BETWEEN * (1 + len(looks)))  # between methods, of a row's height
    extra_rows: list[ExtraRow] = []
    for k, (method, look) in enumerate(looks.items()):
        rows = table[table["method"] == method]
        shift = (k - (len(looks) - 1) / 2) * step  # the methods of a row lie around its middle
        y = rows["x"].to_numpy(float) + shift
        axes.hlines(y, rows["low"], rows["high"], color=look.color, linewidth=0.9, alpha=0.7, zorder=2)
        size = look.marker_size(3.4)
        axes.plot(rows["y"], y, look.marker, color=look.color, markersize=size, markeredgecolor="white", zorder=3)
        for item in figure.references_of(panel):
            if item.method == method:
                at = np.array(item.x) + shift
                axes.plot(item.y, at, look.marker, markersize=size, markeredgecolor=look.color, zorder=4, **OPEN)
                extra_rows += item.rows()
    style.name_rows(axes, range(1, len(labels) + 1), labels)
    for edge in range(1, len(labels)):
        axes.axhline(edge + 0.5, color="#DDDDDD", linewidth=0.4, zorder=1)
    return extra_rows
