"""Measured speed against the length of a sequence, on two logarithmic axes: what memory costs (AMAGO's figures 6, right, and 29).

One point per method and environment, the mean over seeds; the caption names the machine. Published values are of another one.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator
from pydantic import Field

from recollect.figures import captions, method_styles, reading, style
from recollect.figures.finishing import finished
from recollect.figures.length_aggregation import lengths_of
from recollect.figures.spec import AGGREGATION, TABLE_COLUMNS, Drawn, FigureSpec, ScoreOptions, options_of, table_row
from recollect.settings.schema import FigureSettings

READS = "speeds"
SPLIT = "speed"
BY_ENVIRONMENT = ("lengths",)


class Options(ScoreOptions):
    metric: str = Field("updates_per_second", description="Of measured speeds.")
    lengths: dict[str, float] = Field(
        {}, description="Environment -> the length of its sequences; otherwise the number its name ends with."
    )
    x_label: str = Field("length of the sequence (steps)", description="Of the x axis.")
    y_label: str = Field("updates per second", description="Of the y axis.")


def check(figure: FigureSettings) -> None:
    lengths_of(figure, options_of(figure, Options).lengths)


def draw(scores: pd.DataFrame, figure: FigureSpec) -> Drawn:
    options = options_of(figure, Options)
    table = _measured(scores, figure, options)
    word = captions.STATISTIC_WORDS[options.statistic]
    meaning = {
        "panel": "there is one",
        "x": options.x_label,
        "y": f"{options.metric}: {word} over seeds",
        "low, high": captions.bounds_meant(options.statistic),
    }
    with style.paper_style():
        canvas = style.blank_figure(style.SINGLE_COLUMN, 2.2)
        axes = canvas.subplots()
        for method, look in method_styles.styles_of(figure.methods).items():
            style.draw_band(axes, table[table["method"] == method], look)
        published = style.draw_references(axes, figure, AGGREGATION)
        _set_axes(axes, table, options)
        drawn = finished(canvas, figure, options, table, published, meaning, over="seeds")
    return dataclasses.replace(drawn, notes=(*drawn.notes, reading.measured_on(scores)))


def _measured(scores: pd.DataFrame, figure: FigureSpec, options: Options) -> pd.DataFrame:
    length_of = lengths_of(figure, options.lengths)
    rows = reading.select(scores, figure, metric=options.metric, split=SPLIT)
    points = []
    for method in figure.methods:
        for env in sorted(figure.environments, key=lambda name: length_of[name]):
            cell = rows[(rows["env"] == env) & (rows["method"] == method)]
            bounds = options.interval(cell["value"].to_numpy(float)[:, None], figure.name, env, method)
            points.append(table_row(AGGREGATION, method, length_of[env], bounds, seeds=len(cell), tasks=1))
    return pd.DataFrame(points, columns=TABLE_COLUMNS)


def _set_axes(axes: Axes, table: pd.DataFrame, options: Options) -> None:
    axes.set_xscale("log")
    ticks = np.unique(table["x"])
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    style.logarithmic_y(axes)
    axes.set_xlabel(options.x_label)
    axes.set_ylabel(options.y_label)
