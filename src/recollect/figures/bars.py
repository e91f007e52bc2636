"""One number per method as bars: the return at the end of an in-context run, over all its episodes, or any other score.

A panel per environment, task split and metric, or (option `panels`) a panel per question: an ablation shows some
variants of a method and the method itself, each by the value of what is varied. Bars are the mean (or IQM) over seeds and
tasks with the stratified bootstrap interval over both; a variant has a lighter bar than its method. Published values are
open diamonds, only where they are of the figure's own scale (RA-DT, Schmied et al. 2024, figures 5, 6 and 28 to 37).
"""

from __future__ import annotations

from typing import Any, Literal

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from pydantic import Field, PositiveInt

from recollect.artifacts.scores import LEARNING
from recollect.figures import captions, finishing, method_styles, reading, spec, style
from recollect.figures.spec import PUBLISHED, TABLE_COLUMNS, Drawn, ExtraRow, FigureSpec, Panel, ScoreOptions, table_row
from recollect.settings.errors import UserError, nearest
from recollect.settings.schema import FigureSettings, Names

SPLIT = "eval"  # of its scores, where its options name none
WORDS = ("lines", "Open diamonds")
BAR = 0.155  # inches from bar to bar
ROOM = 1.22  # how far the axis goes beyond the longest bar, for the numbers at the edge
ROOM_BELOW = 1.04  # the same where values are negative, so that no interval ends at the edge
DIAMOND: dict[str, Any] = {  # a published value
    "linestyle": "none", "marker": "D", "markersize": 3.4, "markerfacecolor": "white", "markeredgecolor": method_styles.BLACK,
}  # fmt: skip
TINT = 0.55  # how far a variant's bar goes from its method's colour to white


class Options(ScoreOptions):
    metric: str | Names = Field("return", description="Metric that is drawn; of several, a panel for each.")
    split: str | Names = Field("eval", description="Task split that is drawn; of several, a panel for each.")
    last: PositiveInt | Literal["all"] = Field(
        reading.LAST_EPISODES, description="Mean over so many last episodes. Published: 5."
    )
    panels: dict[str, dict[str, str]] | None = Field(
        None, description="Panel -> method -> label of its bar, in one environment; null: all methods in all panels."
    )
    metric_labels: dict[str, str] = Field({}, description="Metric -> words.")
    top: float | None = Field(None, gt=0, description="Highest possible value, e.g. 1 of a rate: axes go so far.")
    decimals: int = Field(0, ge=0, le=3, description="Of the numbers beside the bars.")
    columns: int = Field(3, ge=1, le=4, description="Panels beside each other.")


def check(figure: FigureSettings) -> None:
    options = spec.options_of(figure, Options)
    if options.panels is not None:
        panels = spec.panels_of(figure.environments, options.split, options.metric)
        _check_panels(options.panels, panels, figure)


def draw(scores: pd.DataFrame, figure: FigureSpec) -> Drawn:
    return draw_bars(scores, figure, spec.options_of(figure, Options))


def draw_bars(scores: pd.DataFrame, figure: FigureSpec, options: Options) -> Drawn:
    panels = spec.panels_of(figure.environments, options.split, options.metric)
    bars = {panel.name: {method: figure.label(method) for method in figure.methods} for panel in panels}
    titles = {}
    for panel in panels:
        titles[panel.name] = figure.panel_label(panel, options.split)
        if len(spec.one_or_more(options.metric)) > 1:
            titles[panel.name] += "\n" + options.metric_labels.get(panel.metric, panel.metric.replace("_", " "))
    if options.panels is not None:
        _check_panels(options.panels, panels, figure)
        bars, titles = options.panels, {name: name for name in options.panels}
        panels = [Panel(name, panels[0].environment, panels[0].split, panels[0].metric) for name in bars]
    table = _measured(scores, panels, bars, figure, options)
    played = reading.episodes_played(scores, [(panel.environment, panel.split) for panel in panels])
    meant = captions.episodes_meant(options.last, played)
    if set(spec.one_or_more(options.split)) == {LEARNING}:
        meant = "the last episodes of training"
    of = f", mean of {meant}" if any(played) else ""  # speeds have no episodes
    episodes = f"mean over {meant}"
    word = captions.STATISTIC_WORDS[options.statistic]
    meaning = {
        "panel": "what is compared" if options.panels else "environment, and /split and /metric behind the first ones",
        "x": "place of the bar in its panel, from 1",
        "y": f"{' or '.join(spec.one_or_more(options.metric))}, {episodes}: {word} over seeds and tasks",
        "low, high": captions.bounds_meant(options.statistic),
    }
    notes = [f"{episodes[0].upper()}{episodes[1:]} of a run."]
    place = [figure.panel_title(panels[0].environment)] if options.panels is not None else []  # no title names it
    with style.paper_style():
        canvas, extra_rows = _plot(table, bars, titles, figure, options, of)
        published = Line2D([], [], color=method_styles.BLACK, label=figure.published_label(), **DIAMOND)
        handles = [published] if extra_rows else []
        return finishing.finished(
            canvas,
            figure,
            options,
            table,
            extra_rows,
            meaning,
            handles=handles,
            notes=notes,
            words=WORDS,
            more_print=place,
        )


def _check_panels(named: dict[str, dict[str, str]], made: list[Panel], figure: FigureSettings) -> None:
    where = f"options of figure '{figure.name}': panels"
    if len(made) > 1:
        what = "panels that are named are of one environment, one split and one metric"
        raise UserError(what, where=where, do="leave out 'panels', or name one of each")
    drawn = [method for labels in named.values() for method in labels]
    unknown = [method for method in drawn if method not in figure.methods]
    if unknown:
        what = f"'{unknown[0]}' is none of the figure's methods"
        raise UserError(what, where=where, do=f"{nearest(unknown[0], figure.methods)} (or add it to `methods`)")
    undrawn = [method for method in figure.methods if method not in drawn]
    if undrawn:
        raise UserError(f"'{undrawn[0]}' is in no panel", where=where, do="add it, or take it out of `methods`")


def _measured(
    scores: pd.DataFrame, panels: list[Panel], bars: dict[str, dict[str, str]], figure: FigureSpec, options: Options
) -> pd.DataFrame:
    rows_of: dict[tuple[str, str], pd.DataFrame] = {}  # (metric, split) -> rows of the last evaluations
    parts = []
    for panel in panels:
        of = (panel.metric, panel.split)
        if of not in rows_of:
            rows_of[of] = reading.last_rows(scores, figure, *of)
        rows = rows_of[of]
        for place, method in enumerate(bars[panel.name], start=1):
            cell = rows[(rows["env"] == panel.environment) & (rows["method"] == method)]
            score_SN, tasks = reading.task_means(cell, figure, options.last)
            bounds = options.interval(score_SN, figure.name, panel.name, method)
            parts.append(table_row(panel.name, method, place, bounds, seeds=len(figure.seeds), tasks=len(tasks)))
    return pd.DataFrame(parts, columns=TABLE_COLUMNS)


def _plot(
    table: pd.DataFrame,
    bars: dict[str, dict[str, str]],
    titles: dict[str, str],
    figure: FigureSpec,
    options: Options,
    of: str,
) -> tuple[Figure, list[ExtraRow]]:
    columns = min(options.columns, len(bars))
    names = list(bars)
    rows_of_panels = [names[i : i + columns] for i in range(0, len(names), columns)]
    x_label = ""
    if isinstance(options.metric, str):
        x_label = options.metric_labels.get(options.metric, options.metric) + of

    # A row of panels is as high as its fullest panel.
    most_bars = [max(len(bars[name]) for name in row) for row in rows_of_panels]
    head = 0.50 if any("\n" in title for title in titles.values()) else 0.38
    heights = [BAR * count + head for count in most_bars]
    whole_height = sum(heights) + 0.15 + (0.13 if x_label else 0)
    canvas = style.blank_figure(style.SINGLE_COLUMN if columns == 1 else style.DOUBLE_COLUMN, whole_height)
    grid = canvas.subplots(len(rows_of_panels), columns, squeeze=False, height_ratios=heights)

    extra_rows: list[ExtraRow] = []
    for i, row in enumerate(rows_of_panels):
        for k, name in enumerate(row):
            axes = grid[i, k]
            extra_rows += _draw_panel(axes, name, table[table["panel"] == name], bars[name], figure, options)
            axes.set_ylim(most_bars[i] + 0.5, 0.5)
            axes.set_title(titles[name], loc="left")
            if i == len(rows_of_panels) - 1:
                axes.set_xlabel(x_label)
            if k and bars[name] == bars[row[0]]:  # its neighbour names the bars
                axes.tick_params(labelleft=False)
    _set_x_axes(list(grid.ravel()[: len(names)]), same=options.panels is not None)
    style.hide_unused(grid, len(names))
    return canvas, extra_rows


def _set_x_axes(panels: list[Axes], *, same: bool) -> None:
    """Round ticks, and a line at zero where values are below; with `same` (panels of one environment) one scale for all."""
    lefts, rights = zip(*(axes.get_xlim() for axes in panels), strict=True)
    for axes in panels:
        if same:
            axes.set_xlim(min(lefts), max(rights))
        low, high = axes.get_xlim()
        if low < 0:
            axes.axvline(0, color=method_styles.BLACK, linewidth=0.6, zorder=3)
        ticks = style.round_ticks(low, high)
        axes.set_xticks(ticks, [style.short_steps(tick) if high >= 1000 else f"{tick:g}" for tick in ticks])


def _draw_panel(
    axes: Axes, name: str, rows: pd.DataFrame, labels: dict[str, str], figure: FigureSpec, options: Options
) -> list[ExtraRow]:
    """Draw the bars of one panel; gives the rows of what was not measured."""
    base_of = {method: method.partition(".")[0] for method in figure.methods}
    looks = method_styles.styles_of(list(dict.fromkeys(base_of.values())))
    at_edge = axes.get_yaxis_transform()
    for method, place, y in zip(rows["method"], rows["x"], rows["y"], strict=True):
        color: Any = looks[base_of[method]].color
        if method != base_of[method]:
            color = method_styles.tinted(color, TINT)
        axes.barh(place, y, height=0.68, color=color, zorder=2)
        number = f"{round(y, options.decimals) + 0.0:,.{options.decimals}f}".replace("-", "\N{MINUS SIGN}")
        axes.text(1.0, place, number, transform=at_edge, ha="right", va="center", fontsize=6, color="#404040")

    place_of = dict(zip(rows["method"], rows["x"], strict=True))
    extra_rows: list[ExtraRow] = []
    for item in figure.references_of(name):
        if item.method not in place_of:
            continue
        place = float(place_of[item.method])
        value = item.y[-1] if options.last == "all" or item.last_five is None else item.last_five
        axes.plot(value, place, zorder=4, clip_on=False, **DIAMOND)
        extra_rows.append((name, PUBLISHED + item.method, place, value))

    axes.hlines(rows["x"], rows["low"], rows["high"], color=method_styles.BLACK, linewidth=0.8, zorder=3)
    style.name_rows(axes, rows["x"], labels.values())
    drawn = [*rows["y"], *rows["low"].dropna(), *rows["high"].dropna(), *(value for *_, value in extra_rows)]
    left, right = ROOM_BELOW * min(*drawn, 0.0), max(*drawn, options.top or 0.0)
    axes.set_xlim(left, left + ROOM * (right - left) if right > left else None)
    return extra_rows
