"""Learning curves, one panel per environment: how fast the runs of each method got how far.

The curves are those of Memory-RL's published plots (Ni et al. 2023), see `learning_curves`. A dotted line in a panel is a
constant of its environment: what others reached there, or what an agent without the ability can reach.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from pydantic import Field, PositiveInt

from recollect.common.curve_end import POINTS, end_of
from recollect.figures import captions, learning_curves, reading, style
from recollect.figures.finishing import finished
from recollect.figures.spec import LINE, TABLE_COLUMNS, Drawn, ExtraRow, FigureSpec, options_of
from recollect.settings.seeding import generator

BY_ENVIRONMENT = ("ends", "lines", "titles")
SPLIT = "learning"  # of its scores, where its options name none


class Options(learning_curves.CurveOptions):
    ends: PositiveInt | dict[str, PositiveInt] = Field(
        {}, description="Last step, or environment -> it; else of all complete runs."
    )
    lines: float | dict[str, float] | None = Field(None, description="Height of a dotted line, or one per environment.")
    line_label: str = Field("", description="Its name in the legend.")
    line_source: str = Field("", description="Where it is from, for the caption.")
    points: int = Field(POINTS, ge=2, description="Of a curve. Published: 300, PyBullet 100.")
    x_label: str = Field("environment steps", description="Of the x axes.")
    y_label: str = Field("return", description="Of the y axes.")
    same_y: bool = Field(False, description="All panels have one y axis.")
    titles: dict[str, str] = Field({}, description="Environment -> title of its panel, if not its own.")
    columns: int = Field(4, ge=1, le=6, description="Panels beside each other.")
    panel_height: float = Field(1.3, gt=0.5, description="Inches.")


def draw(scores: pd.DataFrame, figure: FigureSpec) -> Drawn:
    options = options_of(figure, Options)
    rows = reading.select(scores, figure, metric=options.metric, split=options.split)
    dropped: list[str] = []
    ends: dict[str, int] = {}
    parts = []
    for environment in figure.environments:
        of_environment = rows[rows["env"] == environment]
        ends[environment] = end_of(options.ends, environment) or learning_curves.common_end(of_environment)
        for method in figure.methods:
            cell = of_environment[of_environment["method"] == method]
            curves = learning_curves.curves_of(
                cell,
                figure,
                ends[environment],
                dropped,
                window=options.window,
                points=options.points,
                cure=learning_curves.sooner(environment),
            )
            rng = generator("bootstrap", figure.name, environment, method)
            band = learning_curves.band_rows(curves, rng, resamples=options.resamples, statistic=options.statistic)
            parts.append(band.assign(panel=environment, method=method, tasks=cell["task"].nunique()))
    table = pd.concat(parts, ignore_index=True)[TABLE_COLUMNS]

    notes = learning_curves.notes(options.window, options.points, dropped, finals=False)
    meaning = {
        "panel": "environment",
        "x": "environment steps",
        "y": f"{options.metric}: {captions.STATISTIC_WORDS[options.statistic]} over seeds",
        "low, high": learning_curves.bounds_meant(options.statistic),
    }
    with style.paper_style():
        canvas, extra_rows = _plot(table, ends, figure, options)
        if options.line_source and any(method.startswith(LINE) for _, method, _, _ in extra_rows):
            notes.append(f"Dotted: {options.line_source}.")
        lines = learning_curves.dropped_print(dropped)
        return finished(
            canvas, figure, options, table, extra_rows, meaning, over="seeds", more_print=lines, notes=notes
        )


def _plot(
    table: pd.DataFrame, ends: dict[str, int], figure: FigureSpec, options: Options
) -> tuple[Figure, list[ExtraRow]]:
    count = len(figure.environments)
    depth = -(-count // options.columns)
    columns = -(-count // depth)
    width = style.DOUBLE_COLUMN if columns > 2 else style.SINGLE_COLUMN
    canvas = style.blank_figure(width, depth * (options.panel_height + 0.35))
    grid = canvas.subplots(depth, columns, squeeze=False, sharey=options.same_y)
    extra_rows: list[ExtraRow] = []
    for place, environment in enumerate(figure.environments):
        axes = grid.ravel()[place]
        rows = table[table["panel"] == environment]
        end = ends[environment]
        points = options.points
        extra_rows += learning_curves.draw_curves(axes, rows, figure, environment, end, points // 8, points)
        height = options.lines
        if isinstance(height, dict):
            height = height.get(environment)
        if height is not None:
            extra_rows += style.draw_constant(axes, environment, options.line_label, height, (0.0, float(end)))
        axes.set_title(options.titles.get(environment) or figure.panel_title(environment), loc="left")
        learning_curves.step_ticks(axes, end, 4 if columns < 3 else 2)
        style.from_zero(axes, rows, height)
        if place % columns == 0:
            axes.set_ylabel(options.y_label)
        if place + columns >= count:
            axes.set_xlabel(options.x_label)
    style.hide_unused(grid, count)
    if options.same_y:
        style.from_zero(grid[0, 0], table, None if isinstance(options.lines, dict) else options.lines)
    return canvas, extra_rows
