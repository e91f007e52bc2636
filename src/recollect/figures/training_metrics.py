"""What runs logged while they learned, against steps: losses, gradient norms, values of critics (AMAGO's figure 11).

A panel per metric and environment, each with its own y axis; a line is the mean (or IQM) over seeds with its bootstrap interval.
It is drawn from the tables of training, so nothing is evaluated for it. `recollect watch` shows which metrics there are while a run
learns. A run that stops before 0.9 of the longest is named in the caption and not drawn.
"""

from __future__ import annotations

from typing import Self

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pydantic import Field, model_validator

from recollect.figures import captions, learning_curves, reading, spec, style
from recollect.figures.finishing import finished
from recollect.figures.spec import TABLE_COLUMNS, Drawn, ExtraRow, FigureSpec, Panel, ScoreOptions, options_of
from recollect.settings.errors import UserError
from recollect.settings.schema import Names
from recollect.settings.seeding import generator

READS = "training"
SPLIT = "train"
DECADES = 2  # of a logarithmic axis, from which on a number per decade is enough


class Options(ScoreOptions):
    metric: str | Names = Field("loss", description="What was logged; of several, a panel for each.")
    split: str = Field(SPLIT, description="Of the tables of training.")
    metric_labels: dict[str, str] = Field({}, description="Metric -> words.")
    logarithmic: tuple[str, ...] = Field((), description="Those whose y axis is; all their values are above 0.")
    window: int = Field(1, ge=1, description="Rows of the log in the rolling mean.")
    points: int = Field(100, ge=2, description="Of a curve.")
    x_label: str = Field("environment steps", description="Of the x axes.")
    columns: int = Field(3, ge=1, le=4, description="Panels beside each other.")
    panel_height: float = Field(1.5, gt=0.5, description="Inches.")

    @model_validator(mode="after")
    def _of_its_metrics(self) -> Self:
        unknown = [
            name for name in (*self.logarithmic, *self.metric_labels) if name not in spec.one_or_more(self.metric)
        ]
        if unknown:
            raise ValueError(f"'{unknown[0]}' is none of the figure's metrics")
        return self

    def words(self, metric: str) -> str:
        return self.metric_labels.get(metric, metric.replace("_", " "))


def draw(scores: pd.DataFrame, figure: FigureSpec) -> Drawn:
    options = options_of(figure, Options)
    panels = spec.panels_of(figure.environments, options.split, options.metric)
    dropped: list[str] = []
    parts = [_measured(scores, panel, figure, options, dropped) for panel in panels]
    table = pd.concat(parts, ignore_index=True)[TABLE_COLUMNS]
    dropped = list(dict.fromkeys(dropped))
    meaning = {
        "panel": "environment, and /metric behind all but the first",
        "x": options.x_label,
        "y": f"{' or '.join(spec.one_or_more(options.metric))}: {captions.STATISTIC_WORDS[options.statistic]} over seeds",
        "low, high": learning_curves.bounds_meant(options.statistic),
    }
    notes = learning_curves.notes(options.window, options.points, dropped, of="What was logged", finals=False)
    with style.paper_style():
        canvas, published = _plot(table, panels, figure, options)
        more = learning_curves.dropped_print(dropped)
        return finished(canvas, figure, options, table, published, meaning, over="seeds", more_print=more, notes=notes)


def _measured(
    scores: pd.DataFrame, panel: Panel, figure: FigureSpec, options: Options, dropped: list[str]
) -> pd.DataFrame:
    rows = reading.select(scores, figure, metric=panel.metric, split=panel.split)
    rows = rows[rows["env"] == panel.environment]
    end = learning_curves.common_end(rows)
    parts = []
    for method in figure.methods:
        cell = rows[rows["method"] == method]
        curves = learning_curves.curves_of(cell, figure, end, dropped, window=options.window, points=options.points)
        rng = generator("bootstrap", figure.name, panel.name, method)
        band = learning_curves.band_rows(curves, rng, resamples=options.resamples, statistic=options.statistic)
        parts.append(band.assign(panel=panel.name, method=method, tasks=cell["task"].nunique()))
    return pd.concat(parts)


def _plot(
    table: pd.DataFrame, panels: list[Panel], figure: FigureSpec, options: Options
) -> tuple[Figure, list[ExtraRow]]:
    columns = min(options.columns, len(panels))
    depth = -(-len(panels) // columns)
    width = style.DOUBLE_COLUMN if columns > 1 else style.SINGLE_COLUMN
    canvas = style.blank_figure(width, depth * (options.panel_height + 0.35))
    grid = canvas.subplots(depth, columns, squeeze=False)
    published: list[ExtraRow] = []
    for place, panel in enumerate(panels):
        axes = grid.ravel()[place]
        rows = table[table["panel"] == panel.name]
        end = float(rows["x"].max())
        points = options.points
        published += learning_curves.draw_curves(axes, rows, figure, panel.name, int(end), points // 8, points)
        learning_curves.step_ticks(axes, end, 4 if columns < 3 else 2)
        _set_y_axis(axes, rows, panel, figure, options)
        if len(figure.environments) > 1:
            axes.set_title(figure.panel_title(panel.environment), loc="left")
        if place + columns >= len(panels):
            axes.set_xlabel(options.x_label)
    style.hide_unused(grid, len(panels))
    return canvas, published


def _set_y_axis(axes: Axes, rows: pd.DataFrame, panel: Panel, figure: FigureSpec, options: Options) -> None:
    axes.set_ylabel(options.words(panel.metric))
    if panel.metric not in options.logarithmic:
        style.from_zero(axes, rows)
        return
    if rows[["y", "low"]].min().min() <= 0:
        what = f"{panel.metric} in {panel.environment} is not above 0 throughout, as a logarithmic axis needs it"
        where = f"options of figure '{figure.name}': logarithmic"
        raise UserError(what, where=where, do=f"take {panel.metric} out of 'logarithmic'")
    style.logarithmic_y(axes, DECADES)
