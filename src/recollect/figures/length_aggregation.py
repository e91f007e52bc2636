"""Final return against memory length, and beside it the learning curve at each length.

Left: one point per method and length, the mean over runs of their final values; the dotted line is what an agent
without the ability can reach (`chance`). Right: small multiples, one learning curve per length. The numbers come from
the published pipeline of Memory-RL (Ni et al. 2023), see `learning_curves`; the caption names the runs that it drops.
Not published: the caption sums each method up in one number, the interquartile mean over lengths and runs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure
from matplotlib.ticker import NullLocator
from pydantic import Field

from recollect.figures import captions, learning_curves, reading, statistics, style
from recollect.figures.spec import (
    AGGREGATION,
    LINE,
    PUBLISHED,
    TABLE_COLUMNS,
    Drawn,
    FigureSpec,
    options_of,
    with_extra_rows,
)
from recollect.settings.errors import UserError
from recollect.settings.schema import Frozen
from recollect.settings.seeding import generator

OVER = "seeds"


class Options(Frozen):
    """Options of kind `length_aggregation`."""

    lengths: dict[str, float] = Field(
        default_factory=dict,
        description="Environment -> its memory (or credit-assignment) length, in steps; otherwise the number its name ends with.",
    )
    ends: dict[str, int] = Field(
        default_factory=dict,
        description="Environment -> last step of its plot; otherwise the last step that all complete runs reach.",
    )
    metric: str = Field("return", description="Metric of the scores that is drawn.")
    split: str = Field("learning", description="Split of the scores that is drawn.")
    chance: float | None = Field(None, description="Return of the best agent without the ability: a dotted line.")
    chance_label: str = Field("optimal without memory", description="Its name in the legend.")
    x_scale: Literal["categorical", "log", "linear"] = Field("categorical", description="Spacing of the lengths.")
    x_label: str = "memory length (steps)"
    y_label: str = "final return"
    curve_y_label: str = "return"
    curves: bool = Field(True, description="Draw the learning curves beside the aggregation.")
    same_y: bool = Field(True, description="All learning curves have one y axis.")
    window: int = Field(learning_curves.WINDOW, ge=1, description="Evaluations in the rolling mean. Published: 10.")
    statistic: statistics.Statistic = Field("mean", description="Aggregate over runs. Published: mean.")
    resamples: int = Field(statistics.RESAMPLES, ge=100, description="Bootstrap resamples.")
    summary: bool = Field(True, description="Interquartile mean over lengths and seeds in the caption; not published.")


@dataclass(frozen=True)
class _Measured:
    """The table, the sentences about dropped runs, where each environment's plot ends, and one number per method."""

    table: pd.DataFrame
    dropped: list[str]
    ends: dict[str, int]
    summary: dict[str, statistics.Interval]


def draw(scores: pd.DataFrame, figure: FigureSpec) -> Drawn:
    """Draw the figure.

    Args:
        scores: score table; see `recollect.figures.reading`. Several tasks or episodes at one step are averaged first.
        figure: its `options` are `Options`.

    Raises:
        UserError: a wrong option, scores that the figure needs are missing, or every run of a cell stopped too early.
    """
    options = options_of(figure, Options)
    named = {name: float(found.group()) for name in figure.environments if (found := re.search(r"\d+$", name))}
    options = options.model_copy(update={"lengths": named | options.lengths})
    where = f"options of figure '{figure.name}'"
    without = [name for name in figure.environments if name not in options.lengths]
    if without:
        raise UserError(f"no length for {', '.join(without)}", where=where, do="add it under 'lengths'")
    lengths = [options.lengths[name] for name in figure.environments]
    if len(set(lengths)) < len(lengths):
        raise UserError("two environments have the same length", where=where, do="correct 'lengths'")
    rows = reading.select(scores, figure, metric=options.metric, split=options.split)
    measured = _measure(rows, figure, options)
    with style.paper_style():
        return _plot(measured, figure, options)


def _measure(rows: pd.DataFrame, figure: FigureSpec, options: Options) -> _Measured:
    parts: list[pd.DataFrame] = []
    dropped: list[str] = []
    ends: dict[str, int] = {}
    by_method: dict[str, list[list[learning_curves.Curve]]] = {method: [] for method in figure.methods}
    for environment in figure.environments:
        there = rows[rows["env"] == environment]
        end = ends[environment] = options.ends.get(environment) or learning_curves.common_end(there)
        for method in figure.methods:
            cell = there[there["method"] == method]
            tasks = cell["task"].nunique()
            curves = learning_curves.curves_of(cell, figure, end, dropped, window=options.window)
            by_method[method].append(curves)
            rng = generator("bootstrap", figure.name, environment, method)
            how: dict[str, Any] = {"resamples": options.resamples, "statistic": options.statistic}
            final = learning_curves.average_final(curves, rng, **how)
            point = {"panel": AGGREGATION, "method": method, "x": options.lengths[environment], "seeds": len(curves)}
            bounds = {"y": float(final.value), "low": float(final.low), "high": float(final.high)}
            parts.append(pd.DataFrame([{**point, **bounds, "tasks": tasks}]))
            if options.curves:
                band, runs = learning_curves.average(curves, rng, **how)
                line = pd.DataFrame({"x": curves[0].steps.astype(float), "y": band.value, "low": band.low})
                line = line.assign(high=band.high, seeds=runs, panel=environment, method=method, tasks=tasks)
                parts.append(line[line["y"].notna()])
    table = pd.concat(parts, ignore_index=True)
    order = [AGGREGATION, *figure.environments]
    table = table.sort_values(
        ["panel", "method", "x"],
        key=lambda column: (
            column.map((order if column.name == "panel" else list(figure.methods)).index)
            if column.name != "x"
            else column
        ),
        ignore_index=True,
    )
    summary = {}
    for method, curves_by_environment in by_method.items() if options.summary else ():
        rng = generator("bootstrap of the summary", figure.name, method)
        found = learning_curves.iqm_of_finals(curves_by_environment, rng, resamples=options.resamples)
        if found is not None:
            summary[method] = found
    return _Measured(table[list(TABLE_COLUMNS)], dropped, ends, summary)


def _plot(measured: _Measured, figure: FigureSpec, options: Options) -> Drawn:
    table = measured.table
    looks = style.styles_of(figure.methods)
    environments = sorted(figure.environments, key=lambda name: options.lengths[name])
    if options.curves:
        depth = 1 if len(environments) <= 3 else 2
        canvas = style.blank_figure(style.DOUBLE_COLUMN, 1.75 if depth == 1 else 2.3)
        left, right = canvas.subfigures(1, 2, squeeze=False, width_ratios=(0.4, 0.6), wspace=0.01)[0]
        extra_rows = _draw_aggregation(left.subplots(), table, figure, options)
        extra_rows += _draw_curves(right, depth, environments, measured, figure, options)
    else:
        canvas = style.blank_figure(style.SINGLE_COLUMN, 2.0)
        extra_rows = _draw_aggregation(canvas.subplots(), table, figure, options)
    extras = list(dict.fromkeys(PUBLISHED if row[1].startswith(PUBLISHED) else row[1] for row in extra_rows))
    lines = captions.small_print(figure, table, options.statistic)
    if measured.dropped:
        lines.append(
            f"Not drawn, stopped early: {captions.count(len(measured.dropped), 'run')} (named in the caption)."
        )
    style.finish(canvas, figure, style.legend_handles(figure, looks, extras), lines)
    whole = with_extra_rows(table, extra_rows)
    notes = [
        *captions.notes_on_method(figure, whole, options.statistic, options.resamples, OVER),
        *learning_curves.notes(options.window, learning_curves.POINTS, measured.dropped),
    ]
    if measured.summary:
        said = [
            f"{figure.label(method)} {found.value:.2f} ({found.low:.2f} to {found.high:.2f})"
            for method, found in measured.summary.items()
        ]
        notes.append(
            "Interquartile mean of the final values over all lengths and seeds, with its 95 % bootstrap interval: "
            f"{', '.join(said)}."
        )
    word = captions.STATISTIC_WORDS[options.statistic]
    meaning = {
        "panel": f"'{AGGREGATION}': final value against length; an environment: its learning curve",
        "x": f"in '{AGGREGATION}': {options.x_label}; in a learning curve: environment steps",
        "y": f"{options.metric}: {word} over seeds (in '{AGGREGATION}' of each run's final value)",
        "low, high": f"bounds of the 95 % bootstrap interval of the {word} over seeds; empty where there is none",
    }
    return Drawn(canvas, whole, meaning, tuple(notes))


def _draw_aggregation(
    axes: Axes, table: pd.DataFrame, figure: FigureSpec, options: Options
) -> list[tuple[str, str, float, float]]:
    lengths = sorted(options.lengths[name] for name in figure.environments)
    place = {length: float(i) if options.x_scale == "categorical" else length for i, length in enumerate(lengths)}
    looks = style.styles_of(figure.methods)
    extra_rows = []
    for k, (method, look) in enumerate(looks.items()):
        rows = table[(table["panel"] == AGGREGATION) & (table["method"] == method)]
        # Methods often meet at the best value; smaller markers on larger ones keep each of them in sight.
        style.draw_band(axes, rows.assign(x=rows["x"].map(place)), look, size=6.4 - 2.4 * k / max(1, len(looks) - 1))
    for item in figure.references_of(AGGREGATION):
        known = [(x, y) for x, y in zip(item.x, item.y, strict=True) if x in place]
        if item.method in looks and known:
            style.draw_published(axes, [place[x] for x, _ in known], [y for _, y in known], looks[item.method])
            extra_rows += [(AGGREGATION, PUBLISHED + item.method, x, y) for x, y in known]
    if options.chance is not None:
        style.draw_line(axes, options.chance)
        ends = (lengths[0], lengths[-1])
        extra_rows += [(AGGREGATION, LINE + options.chance_label, x, options.chance) for x in ends]
    if options.x_scale == "log":
        axes.set_xscale("log", base=2)
    axes.set_xticks([place[length] for length in lengths], [f"{length:g}" for length in lengths])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(options.x_label)
    axes.set_ylabel(options.y_label)
    style.from_zero(axes, table, options.chance)
    axes.set_title("final performance" if options.curves else figure.title, loc="left")
    return extra_rows


def _draw_curves(
    part: SubFigure, depth: int, environments: list[str], measured: _Measured, figure: FigureSpec, options: Options
) -> list[tuple[str, str, float, float]]:
    looks = style.styles_of(figure.methods)
    columns = -(-len(environments) // depth)
    extra_rows: list[tuple[str, str, float, float]] = []
    grid = part.subplots(depth, columns, squeeze=False, sharey=options.same_y)
    for unused in grid.ravel()[len(environments) :]:
        unused.set_visible(False)
    for i, environment in enumerate(environments):
        axes: Axes = grid.ravel()[i]
        for k, (method, look) in enumerate(looks.items()):
            rows = measured.table[(measured.table["panel"] == environment) & (measured.table["method"] == method)]
            style.draw_band(axes, rows, look, markers=3, first=40 + (k * 100) // len(looks))
        end = measured.ends[environment]
        for item in figure.references_of(environment):
            if item.method in looks:
                style.draw_published(axes, item.x, item.y, looks[item.method], end)
                extra_rows += [
                    (environment, PUBLISHED + item.method, x, y) for x, y in zip(item.x, item.y, strict=True)
                ]
        if options.chance is not None:
            style.draw_line(axes, options.chance)
            extra_rows += [(environment, LINE + options.chance_label, x, options.chance) for x in (0.0, float(end))]
        axes.set_title(f"length {options.lengths[environment]:g}", loc="left", fontsize=6.8)
        axes.set_xlim(0, end)
        axes.set_xticks([0, end], ["0", style.short_steps(end)])
        first, last = axes.get_xticklabels()  # inside the panel, clear of its neighbours
        first.set_horizontalalignment("left")
        last.set_horizontalalignment("right")
        if not options.same_y:
            style.from_zero(axes, measured.table[measured.table["panel"] == environment], options.chance)
    if options.same_y:
        style.from_zero(grid[0, 0], measured.table, options.chance)
    part.supxlabel("environment steps", fontsize=7)
    part.supylabel(options.curve_y_label, fontsize=7)
    return extra_rows
