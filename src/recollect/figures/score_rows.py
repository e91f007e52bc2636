"""Final scores of many environments or tasks, one row each: a marker per method, beside each other in panels.

A row is an environment (`ENV`), another of its splits (`ENV/SPLIT`), or one task of a split (`ENV/SPLIT/TASK`, counted
from 0). Its number is the mean (or IQM) over seeds and tasks of the mean over episodes, with the stratified bootstrap
interval over both. Published values are open markers, only where they are of the figure's own scale (AMAGO, Grigsby et
al. 2024: its bars per POPGym task and its table of Crafter's achievements).
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from pydantic import Field

from recollect.figures import captions, reading, statistics, style
from recollect.figures.spec import PUBLISHED, TABLE_COLUMNS, Drawn, FigureSpec, options_of, with_extra_rows
from recollect.settings.errors import UserError, nearest
from recollect.settings.schema import Frozen
from recollect.settings.seeding import generator

OVER = "seeds and tasks"
BETWEEN = 0.052  # inches from method to method within a row
ROW = 0.06  # inches that a row has besides


class Options(Frozen):
    """Options of kind `score_rows`."""

    metric: str = Field("return", description="Metric of the scores that is drawn.")
    split: str = Field("eval", description="Task split of rows that name none.")
    panels: dict[str, dict[str, str]] = Field(
        default_factory=dict, description="Panel -> row -> label; {}: one panel of all environments."
    )
    statistic: statistics.Statistic = Field("mean", description="Aggregate over seeds and tasks. The paper's: mean.")
    resamples: int = Field(statistics.RESAMPLES, ge=100, description="Bootstrap resamples.")
    x_label: str = Field("", description="Empty: the metric.")
    limits: tuple[float, float] | None = Field(None, description="Of all x axes; null: as the values need.")


def draw(scores: pd.DataFrame, figure: FigureSpec) -> Drawn:
    """Draw the figure.

    Args:
        scores: score table; see `recollect.figures.reading`.
        figure: its `options` are `Options`.

    Raises:
        UserError: a wrong option, or scores that the figure needs are missing.
    """
    options = options_of(figure, Options)
    panels = options.panels or {"": {name: figure.environment_label(name) for name in figure.environments}}
    table = _measured(scores, panels, figure, options)
    with style.paper_style():
        drawn = _plot(table, panels, figure, options)
    notes = captions.notes_on_method(figure, drawn.table, options.statistic, options.resamples, OVER)
    notes = [
        note.replace("bands are", "lines are").replace("Dashed with open markers", "Open markers") for note in notes
    ]
    return Drawn(drawn.figure, drawn.table, drawn.axes, (*notes, "Mean over all episodes of the final evaluation."))


def _measured(
    scores: pd.DataFrame, panels: dict[str, dict[str, str]], figure: FigureSpec, options: Options
) -> pd.DataFrame:
    read: dict[str, pd.DataFrame] = {}
    parts = []
    for panel, labels in panels.items():
        for place, row in enumerate(labels, start=1):
            environment, split, task = _taken_apart(row, figure, options)
            if split not in read:
                read[split] = reading.last_step(
                    reading.select(scores, figure, metric=options.metric, split=split), figure
                )
            here = read[split][read[split]["env"] == environment]
            for method in figure.methods:
                cell = here[(here["method"] == method) & (True if task is None else here["task"] == task)]
                if cell.empty:
                    what = f"no {options.metric} of {method} in row '{row}'"
                    raise UserError(what, where=f"figure '{figure.name}'", do="correct the option 'panels'")
                tasks = sorted(set(cell["task"]))
                # Tasks may have been played different numbers of times, so episodes are averaged first.
                means = cell.groupby(["seed", "task"])["value"].mean().unstack("task")
                bounds = statistics.stratified_bootstrap(
                    means.loc[list(figure.seeds), tasks].to_numpy(float),
                    generator("bootstrap", figure.name, panel, row, method),
                    statistic=options.statistic,
                    resamples=options.resamples,
                )
                numbers = {"y": float(bounds.value), "low": float(bounds.low), "high": float(bounds.high)}
                about = {"panel": panel, "method": method, "x": float(place)}
                parts.append({**about, **numbers, "seeds": len(figure.seeds), "tasks": len(tasks)})
    return pd.DataFrame(parts)[list(TABLE_COLUMNS)]


def _taken_apart(row: str, figure: FigureSpec, options: Options) -> tuple[str, str, int | None]:
    """Environment, split and task (None: all) of a row."""
    environment, *more = row.split("/")
    where = f"options of figure '{figure.name}': panels"
    if environment not in figure.environments:
        raise UserError(f"the row '{row}' is of none of the figure's environments", where=where,
                        do=nearest(environment, figure.environments))  # fmt: skip
    if len(more) > 2 or (len(more) == 2 and not more[1].isdigit()):
        raise UserError(f"'{row}' is no row", where=where, do="write ENV, ENV/SPLIT or ENV/SPLIT/TASK, TASK a number")
    return environment, more[0] if more else options.split, int(more[1]) if len(more) == 2 else None


def _plot(table: pd.DataFrame, panels: dict[str, dict[str, str]], figure: FigureSpec, options: Options) -> Drawn:
    looks = style.styles_of(figure.methods)
    most = max(len(labels) for labels in panels.values())
    row = ROW + BETWEEN * (1 + len(looks))
    width = style.SINGLE_COLUMN if len(panels) == 1 else style.DOUBLE_COLUMN
    canvas = style.blank_figure(width, most * row + 0.42)
    heights = sorted({len(labels) for labels in panels.values()})
    grid = canvas.add_gridspec(len(heights), len(panels), height_ratios=np.diff([0, *heights]))
    extra_rows: list[tuple[str, str, float, float]] = []
    first = list(next(iter(panels.values())).values())
    for k, (panel, labels) in enumerate(panels.items()):
        axes = canvas.add_subplot(grid[: heights.index(len(labels)) + 1, k])  # as high as its rows
        extra_rows += _draw_panel(axes, panel, table[table["panel"] == panel], list(labels.values()), figure)
        axes.set_ylim(len(labels) + 0.5, 0.5)
        axes.set_title(panel, loc="left")
        axes.set_xlabel(options.x_label or options.metric.replace("_", " "))
        if options.limits is not None:
            axes.set_xlim(*options.limits)
        elif table["low"].min() >= 0:
            axes.set_xlim(left=0)
        if k and list(labels.values()) == first:
            axes.tick_params(labelleft=False)
    handles = style.legend_handles(figure, looks, [])
    for handle in handles:
        handle.set_linestyle("none")
    if extra_rows:
        handles.append(_published_handle(figure))
    style.finish(canvas, figure, handles, captions.small_print(figure, table, options.statistic))
    word = captions.STATISTIC_WORDS[options.statistic]
    meaning = {
        "panel": "panel of the figure",
        "x": "row of the panel, from 1 at the top",
        "y": f"{options.metric}, mean over all episodes: {word} over seeds and tasks",
        "low, high": f"bounds of the 95 % stratified bootstrap interval of the {word}; empty where there is none",
    }
    return Drawn(canvas, with_extra_rows(table, extra_rows), meaning)


def _draw_panel(
    axes: Axes, panel: str, table: pd.DataFrame, labels: list[str], figure: FigureSpec
) -> list[tuple[str, str, float, float]]:
    looks = style.styles_of(figure.methods)
    step = BETWEEN / (ROW + BETWEEN * (1 + len(looks)))  # between methods, of a row's height
    extra_rows: list[tuple[str, str, float, float]] = []
    for k, (method, look) in enumerate(looks.items()):
        rows = table[table["method"] == method]
        y = rows["x"].to_numpy(float) + (k - (len(looks) - 1) / 2) * step
        axes.hlines(y, rows["low"], rows["high"], color=look.color, linewidth=0.9, alpha=0.7, zorder=2)
        size = 3.4 * style.MARKER_SIZES.get(look.marker, 1.0)
        axes.plot(rows["y"], y, look.marker, color=look.color, markersize=size, markeredgecolor="white", zorder=3)
        for item in figure.references_of(panel):
            if item.method == method:
                at = np.array(item.x) + (k - (len(looks) - 1) / 2) * step
                axes.plot(item.y, at, look.marker, markersize=size, markerfacecolor="none", markeredgecolor=look.color,
                          markeredgewidth=0.7, zorder=4)  # fmt: skip
                extra_rows += [(panel, PUBLISHED + method, x, y) for x, y in zip(item.x, item.y, strict=True)]
    axes.set_yticks(range(1, len(labels) + 1), labels)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")
    for edge in range(1, len(labels)):
        axes.axhline(edge + 0.5, color="#DDDDDD", linewidth=0.4, zorder=1)
    axes.spines["left"].set_visible(False)
    return extra_rows


def _published_handle(figure: FigureSpec) -> Line2D:
    return Line2D([], [], color=style.GREY, linestyle="none", marker="o", markersize=3.4, markerfacecolor="none",
                  markeredgewidth=0.7, markeredgecolor=style.GREY, label=style.published_label(figure))  # fmt: skip
