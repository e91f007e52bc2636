"""Learning curves, one panel per environment: how fast the runs of each method got how far.

The curves are those of Memory-RL's published plots (Ni et al. 2023), see `learning_curves`. A dotted line in a panel is a
constant of its environment: what others reached there, or what an agent without the ability can reach.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from pydantic import Field

from recollect.figures import captions, learning_curves, reading, statistics, style
from recollect.figures.spec import LINE, PUBLISHED, TABLE_COLUMNS, Drawn, FigureSpec, options_of, with_extra_rows
from recollect.settings.errors import UserError
from recollect.settings.schema import Frozen
from recollect.settings.seeding import generator

OVER = "seeds"


class Options(Frozen):
    """Options of kind `curve_panels`."""

    metric: str = Field("return", description="Metric of the scores that is drawn.")
    split: str = Field("learning", description="Split of the scores that is drawn.")
    ends: int | dict[str, int] = Field(
        default_factory=dict,
        description="Last step of the plots, or environment -> its own; otherwise the last that all complete runs reach.",
    )
    lines: float | dict[str, float] | None = Field(
        None, description="Height of a dotted line: one value, or environment -> its own; null draws none."
    )
    line_label: str = Field("", description="Its name in the legend.")
    line_source: str = Field("", description="Where it is from, for the caption.")
    points: int = Field(learning_curves.POINTS, ge=2, description="Of a curve. Published: 300, PyBullet 100.")
    window: int = Field(learning_curves.WINDOW, ge=1, description="Evaluations in the rolling mean. Published: 10.")
    statistic: statistics.Statistic = Field("mean", description="Aggregate over runs. Published: mean.")
    resamples: int = Field(statistics.RESAMPLES, ge=100, description="Bootstrap resamples.")
    x_label: str = "environment steps"
    y_label: str = "return"
    same_y: bool = Field(False, description="All panels have one y axis.")
    titles: dict[str, str] = Field(
        default_factory=dict, description="Environment -> title of its panel, if not its own."
    )
    columns: int = Field(4, ge=1, le=6, description="Panels beside each other.")
    panel_height: float = Field(1.3, gt=0.5, description="Inches.")


def draw(scores: pd.DataFrame, figure: FigureSpec) -> Drawn:
    """Draw the figure.

    Args:
        scores: score table; see `recollect.figures.reading`. Several tasks or episodes at one step are averaged first.
        figure: its `options` are `Options`.

    Raises:
        UserError: a wrong option, scores that the figure needs are missing, or every run of a cell stopped too early.
    """
    options = options_of(figure, Options)
    for name in (*_by_environment(options.ends), *_by_environment(options.lines)):
        if name not in figure.environments:
            what = f"the figure has no environment '{name}'"
            raise UserError(what, where=f"options of figure '{figure.name}'", do="correct 'ends' or 'lines'")
    rows = reading.select(scores, figure, metric=options.metric, split=options.split)
    dropped: list[str] = []
    parts, ends = [], {}
    for environment in figure.environments:
        there = rows[rows["env"] == environment]
        given = options.ends if isinstance(options.ends, int) else options.ends.get(environment)
        ends[environment] = end = given or learning_curves.common_end(there)
        for method in figure.methods:
            cell = there[there["method"] == method]
            curves = learning_curves.curves_of(cell, figure, end, dropped, window=options.window, points=options.points)
            band, runs = learning_curves.average(
                curves,
                generator("bootstrap", figure.name, environment, method),
                resamples=options.resamples,
                statistic=options.statistic,
            )
            part = pd.DataFrame({"x": curves[0].steps.astype(float), "y": band.value, "low": band.low})
            part = part.assign(high=band.high, seeds=runs, tasks=cell["task"].nunique())
            parts.append(part.assign(panel=environment, method=method)[part["y"].notna()])
    table = pd.concat(parts, ignore_index=True)[list(TABLE_COLUMNS)]
    with style.paper_style():
        return _plot(table, ends, dropped, figure, options)


def _by_environment(value: object) -> dict[str, float]:
    return value if isinstance(value, dict) else {}


def _plot(table: pd.DataFrame, ends: dict[str, int], dropped: list[str], figure: FigureSpec, options: Options) -> Drawn:
    looks = style.styles_of(figure.methods)
    count = len(figure.environments)
    depth = -(-count // options.columns)
    columns = -(-count // depth)
    canvas = style.blank_figure(
        style.DOUBLE_COLUMN if columns > 2 else style.SINGLE_COLUMN, depth * (options.panel_height + 0.35)
    )
    grid = canvas.subplots(depth, columns, squeeze=False, sharey=options.same_y)
    extra_rows: list[tuple[str, str, float, float]] = []
    for place, axes in enumerate(grid.ravel()):
        if place >= count:
            axes.set_visible(False)
            continue
        environment = figure.environments[place]
        extra_rows += _panel(
            axes, table[table["panel"] == environment], environment, ends[environment], figure, options
        )
        if place % columns == 0:
            axes.set_ylabel(options.y_label)
        if place + columns >= count:
            axes.set_xlabel(options.x_label)
    if options.same_y:
        style.from_zero(grid[0, 0], table, None if isinstance(options.lines, dict) else options.lines)
    extras = list(dict.fromkeys(PUBLISHED if row[1].startswith(PUBLISHED) else row[1] for row in extra_rows))
    lines = captions.small_print(figure, table, options.statistic)
    if dropped:
        lines.append(f"Not drawn, stopped early: {captions.count(len(dropped), 'run')} (named in the caption).")
    style.finish(canvas, figure, style.legend_handles(figure, looks, extras), lines)
    whole = with_extra_rows(table, extra_rows)
    notes = [
        *captions.notes_on_method(figure, whole, options.statistic, options.resamples, OVER),
        *learning_curves.notes(options.window, options.points, dropped),
    ]
    if options.line_source and any(row[1].startswith(LINE) for row in extra_rows):
        notes.append(f"Dotted: {options.line_source}.")
    word = captions.STATISTIC_WORDS[options.statistic]
    meaning = {
        "panel": "environment",
        "x": "environment steps",
        "y": f"{options.metric}: {word} over seeds",
        "low, high": f"bounds of the 95 % bootstrap interval of the {word} over seeds; empty where there is none",
    }
    return Drawn(canvas, whole, meaning, tuple(notes))


def _panel(
    axes: Axes, table: pd.DataFrame, environment: str, end: int, figure: FigureSpec, options: Options
) -> list[tuple[str, str, float, float]]:
    """Draw one environment; gives the rows of what was not measured."""
    looks = style.styles_of(figure.methods)
    for k, (method, look) in enumerate(looks.items()):
        first = (options.points // 8) + k * options.points // (3 * len(looks))
        style.draw_band(axes, table[table["method"] == method], look, markers=3, first=first)
    extra_rows = []
    for item in figure.references_of(environment):
        if item.method in looks:
            style.draw_published(axes, item.x, item.y, looks[item.method], end)
            extra_rows += [(environment, PUBLISHED + item.method, x, y) for x, y in zip(item.x, item.y, strict=True)]
    height = options.lines.get(environment) if isinstance(options.lines, dict) else options.lines
    if height is not None:
        style.draw_line(axes, height)
        extra_rows += [(environment, LINE + options.line_label, x, height) for x in (0.0, float(end))]
    axes.set_title(options.titles.get(environment) or figure.environment_label(environment), loc="left")
    axes.set_xlim(0, end)
    ticks = (0, end / 2, end)
    axes.set_xticks(ticks, [style.short_steps(tick) for tick in ticks])
    first_label, _, last_label = axes.get_xticklabels()  # inside the panel, clear of its neighbours
    first_label.set_horizontalalignment("left")
    last_label.set_horizontalalignment("right")
    style.from_zero(axes, table, height)
    return extra_rows
