"""Final return against memory length, and beside it the learning curve at each length.

Left: one point per method and length, the mean over runs of their final values; the dotted line is what an agent
without the ability can reach (`chance`). Right: small multiples, one learning curve per length. The numbers come from
the published pipeline of Memory-RL (Ni et al. 2023), see `learning_curves`; the caption names the runs that it drops.
`beside`: environments whose final values have a panel of their own below, where no published value is drawn.
Not published: the caption sums each method up in one number, the interquartile mean over lengths and runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from pydantic import Field, PositiveInt

from recollect.common.curve_end import POINTS, end_of
from recollect.figures import captions, learning_curves, method_styles, overlaps, reading, style
from recollect.figures.finishing import finished
from recollect.figures.spec import AGGREGATION, TABLE_COLUMNS, Drawn, ExtraRow, FigureSpec, options_of, table_row
from recollect.settings.errors import UserError
from recollect.settings.schema import FigureSettings
from recollect.settings.seeding import generator

BY_ENVIRONMENT = ("lengths", "ends", "beside")
SPLIT = "learning"  # of its scores, where its options name none


class Options(learning_curves.CurveOptions):
    lengths: dict[str, float] = Field(
        {},
        description="Environment -> its memory (or credit-assignment) length, in steps; otherwise the number its name ends with.",
    )
    ends: dict[str, PositiveInt] = Field({}, description="Environment -> last step; else that all complete runs reach.")
    beside: dict[str, tuple[str, ...]] = Field(
        {}, description="Title -> environments whose final values have a panel of their own, without published values."
    )
    chance: float | None = Field(None, description="Return of the best agent without the ability: a dotted line.")
    chance_label: str = Field("optimal without memory", description="Its name in the legend.")
    x_label: str = Field("memory length (steps)", description="Of the aggregation's x axis.")
    y_label: str = Field("final return", description="Of the aggregation's y axis.")
    curve_y_label: str = Field("return", description="Of the learning curves' y axes.")
    same_y: bool = Field(True, description="All learning curves have one y axis.")
    summary: bool = Field(True, description="Interquartile mean over lengths and seeds in the caption; not published.")


@dataclass(frozen=True)
class _Measured:
    """The table, the sentences about dropped runs, where each environment's plot ends, and all curves of each method."""

    table: pd.DataFrame
    dropped: list[str]
    ends: dict[str, int]
    curves: dict[str, list[list[learning_curves.Curve]]]


def check(figure: FigureSettings) -> None:
    _lengths(figure, options_of(figure, Options))


def draw(scores: pd.DataFrame, figure: FigureSpec) -> Drawn:
    options = options_of(figure, Options)
    options = options.model_copy(update={"lengths": _lengths(figure, options)})
    rows = reading.select(scores, figure, metric=options.metric, split=options.split)
    measured = _measure(rows, figure, options)
    notes = learning_curves.notes(options.window, POINTS, measured.dropped)
    if options.summary:
        notes += _summary(measured, figure, options)
    word = captions.STATISTIC_WORDS[options.statistic]
    meaning = {
        "panel": f"'{AGGREGATION}', or a name that begins so: final value against length; an environment: its learning curve",
        "x": f"in '{AGGREGATION}': {options.x_label}; in a learning curve: environment steps",
        "y": f"{options.metric}: {word} over seeds (in '{AGGREGATION}' of each run's final value)",
        "low, high": learning_curves.bounds_meant(options.statistic),
    }
    with style.paper_style():
        canvas, extra_rows = _plot(measured, figure, options)
        lines = learning_curves.dropped_print(measured.dropped)
        return finished(
            canvas,
            figure,
            options,
            measured.table,
            extra_rows,
            meaning,
            over="seeds",
            more_print=lines,
            notes=notes,
            words=("bars and bands", captions.CURVES[1]),
        )


def lengths_of(figure: FigureSettings, chosen: Mapping[str, float]) -> dict[str, float]:
    """The length of each environment, the one chosen or the number that its name ends with. Raises UserError: there is none."""
    lengths = dict(chosen)
    for name in figure.environments:
        number = re.search(r"\d+$", name)
        if number:
            lengths.setdefault(name, float(number.group()))
    without = [name for name in figure.environments if name not in lengths]
    if without:
        where = f"options of figure '{figure.name}'"
        raise UserError(f"no length for {', '.join(without)}", where=where, do="add it under 'lengths'")
    return lengths


def _lengths(figure: FigureSettings, options: Options) -> dict[str, float]:
    lengths = lengths_of(figure, options.lengths)
    for listed in panels_of(figure, options).values():
        if len({lengths[name] for name in listed}) < len(listed):
            where = f"options of figure '{figure.name}'"
            raise UserError("two environments have the same length", where=where, do="correct 'lengths'")
    return lengths


def panels_of(figure: FigureSettings, options: Options) -> dict[str, list[str]]:
    """The panels of final values by their names in the table: of each, its environments. None is without any."""
    others = {name for listed in options.beside.values() for name in listed}
    panels = {AGGREGATION: [name for name in figure.environments if name not in others]}
    for title, listed in options.beside.items():
        panels[f"{AGGREGATION}, {title}"] = [name for name in figure.environments if name in listed]
    return {panel: listed for panel, listed in panels.items() if listed}


def _measure(rows: pd.DataFrame, figure: FigureSpec, options: Options) -> _Measured:
    points: list[dict[str, Any]] = []
    bands: list[pd.DataFrame] = []
    dropped: list[str] = []
    ends: dict[str, int] = {}
    curves_of: dict[str, list[list[learning_curves.Curve]]] = {method: [] for method in figure.methods}
    how: dict[str, Any] = {"resamples": options.resamples, "statistic": options.statistic}
    panels = panels_of(figure, options)
    panel_of = {name: panel for panel, listed in panels.items() for name in listed}
    for environment in figure.environments:
        of_environment = rows[rows["env"] == environment]
        ends[environment] = end_of(options.ends, environment) or learning_curves.common_end(of_environment)
        for method in figure.methods:
            cell = of_environment[of_environment["method"] == method]
            cure = learning_curves.sooner(environment)
            curves = learning_curves.curves_of(
                cell, figure, ends[environment], dropped, window=options.window, cure=cure
            )
            curves_of[method].append(curves)
            tasks = cell["task"].nunique()
            rng = generator("bootstrap", figure.name, environment, method)
            final = learning_curves.average_final(curves, rng, **how)
            x = options.lengths[environment]
            points.append(table_row(panel_of[environment], method, x, final, seeds=len(curves), tasks=tasks))
            band = learning_curves.band_rows(curves, rng, **how)
            bands.append(band.assign(panel=environment, method=method, tasks=tasks))

    # In the order of the legend: the points by length, then the curves.
    order = list(panels)
    points.sort(key=lambda row: (order.index(row["panel"]), figure.methods.index(row["method"]), row["x"]))
    table = pd.concat([pd.DataFrame(points), *bands], ignore_index=True)[TABLE_COLUMNS]
    return _Measured(table, dropped, ends, curves_of)


def _summary(measured: _Measured, figure: FigureSpec, options: Options) -> list[str]:
    """The sentence of the caption that sums each method up in one number, where there are runs enough for it."""
    told = []
    panels = panels_of(figure, options)
    if AGGREGATION not in panels:
        return []
    for method, all_curves in measured.curves.items():
        curves_by_environment = [all_curves[figure.environments.index(name)] for name in panels[AGGREGATION]]
        rng = generator("bootstrap of the summary", figure.name, method)
        final = learning_curves.iqm_of_finals(curves_by_environment, rng, resamples=options.resamples)
        if final is not None:
            told.append(f"{figure.label(method)} {final.value:.2f} ({final.low:.2f} to {final.high:.2f})")
    if not told:
        return []
    return [
        f"Interquartile mean of the final values over all lengths and seeds{' of the first panel' if len(panels) > 1 else ''}, "
        "with its 95 % bootstrap interval: "
        f"{', '.join(told)}."
    ]


def _plot(measured: _Measured, figure: FigureSpec, options: Options) -> tuple[Figure, list[ExtraRow]]:
    panels = panels_of(figure, options)
    environments = []
    depth = 0
    for listed in panels.values():
        environments += sorted(listed, key=lambda name: options.lengths[name])
        depth += 1 if len(listed) <= 3 else 2
    canvas = style.blank_figure(style.DOUBLE_COLUMN, 1.75 if depth == 1 else 2.3 * max(1, depth / 2))
    alone = all(len(listed) == 1 for listed in panels.values())
    ratios = (0.27, 0.73) if alone else (0.4, 0.6)  # one length is one column of marks
    left, right = canvas.subfigures(1, 2, squeeze=False, width_ratios=ratios, wspace=0.01)[0]
    extra_rows = _draw_finals(left, measured.table, figure, options)
    extra_rows += _draw_curves(right, depth, environments, measured, figure, options)
    if options.same_y:  # of the final values too: they are of the same quantity
        limits = [axes.get_ylim() for axes in canvas.get_axes()]
        for axes in canvas.get_axes():
            axes.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
    return canvas, extra_rows


def _draw_finals(part: SubFigure, table: pd.DataFrame, figure: FigureSpec, options: Options) -> list[ExtraRow]:
    """Draw the panels of final values, one below the other; gives the rows of what was not measured."""
    panels = panels_of(figure, options)
    extra_rows: list[ExtraRow] = []
    for (panel, listed), axes in zip(panels.items(), part.subplots(len(panels), 1, squeeze=False).ravel(), strict=True):
        lengths = sorted(options.lengths[name] for name in listed)
        extra_rows += _draw_aggregation(axes, panel, lengths, table, figure, options)
        title = "final performance" if panel == AGGREGATION else panel.removeprefix(f"{AGGREGATION}, ")
        axes.set_title(title, loc="left")
    return extra_rows


def _draw_aggregation(
    axes: Axes, panel: str, lengths: list[float], table: pd.DataFrame, figure: FigureSpec, options: Options
) -> list[ExtraRow]:
    """Draw final values against the length; gives the rows of what was not measured."""
    places = {length: float(i) for i, length in enumerate(lengths)}
    looks = method_styles.styles_of(figure.methods)
    rows = table[table["panel"] == panel]
    overlaps.draw_points(axes, rows.assign(x=rows["x"].map(places)), looks)

    extra_rows: list[ExtraRow] = []
    for item in figure.references_of(panel):
        rows_of_item = [row for row in item.rows() if row[2] in places]
        if item.method in looks and rows_of_item:
            x = [places[length] for _, _, length, _ in rows_of_item]
            y = [value for *_, value in rows_of_item]
            style.draw_published(axes, x, y, looks[item.method])
            extra_rows += rows_of_item
    if options.chance is not None:
        ends = (lengths[0], lengths[-1])
        extra_rows += style.draw_constant(axes, panel, options.chance_label, options.chance, ends)

    axes.set_xlim(-0.5, len(lengths) - 0.5)
    axes.set_xticks(list(places.values()), [f"{length:g}" for length in lengths])
    axes.set_xlabel(options.x_label)
    axes.set_ylabel(options.y_label)
    style.from_zero(axes, table, options.chance)
    return extra_rows


def _draw_curves(
    part: SubFigure, depth: int, environments: list[str], measured: _Measured, figure: FigureSpec, options: Options
) -> list[ExtraRow]:
    """Draw a learning curve per environment; gives the rows of what was not measured."""
    columns = -(-len(environments) // depth)
    grid = part.subplots(depth, columns, squeeze=False, sharey=options.same_y)
    style.hide_unused(grid, len(environments))
    extra_rows: list[ExtraRow] = []
    for environment, axes in zip(environments, grid.ravel(), strict=False):
        rows = measured.table[measured.table["panel"] == environment]
        end = measured.ends[environment]
        extra_rows += learning_curves.draw_curves(axes, rows, figure, environment, end, 40)
        if options.chance is not None:
            ends = (0.0, float(end))
            extra_rows += style.draw_constant(axes, environment, options.chance_label, options.chance, ends)
        is_beside = any(environment in listed for listed in options.beside.values())
        title = figure.panel_title(environment) if is_beside else f"length {options.lengths[environment]:g}"
        axes.set_title(title, loc="left", fontsize=7.5 if depth == 1 else 6.8)
        learning_curves.step_ticks(axes, end, 5 if columns == 1 else 3)
        if not options.same_y:
            style.from_zero(axes, rows, options.chance)
    if options.same_y:
        style.from_zero(grid[0, 0], measured.table, options.chance)
    if depth == 1:  # of each panel, so that they end where that of the final values does
        for axes in grid.ravel()[: len(environments)]:
            axes.set_xlabel("environment steps")
    else:
        part.supxlabel("environment steps", fontsize=7)
    part.supylabel(options.curve_y_label, fontsize=7)
    return extra_rows
