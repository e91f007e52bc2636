"""One learning curve for several environments: returns on a scale that they share, against steps (HELM's curve of Procgen).

Every run is brought onto one grid, see `learning_curves`, and its returns to 0 at the first number of `scales` and 1 at the second.
The line is the mean (or IQM) over environments and seeds, with the bootstrap interval over both, stratified by environment. It ends
where the runs of the first of them end. A seed that stopped early in one environment counts in none.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from pydantic import Field

from recollect.common.curve_end import POINTS, grid
from recollect.figures import captions, learning_curves, reading, style
from recollect.figures.finishing import finished
from recollect.figures.spec import AGGREGATION, TABLE_COLUMNS, Drawn, FigureSpec, options_of
from recollect.figures.statistics import stratified_bootstrap
from recollect.settings.errors import UserError
from recollect.settings.schema import FigureSettings
from recollect.settings.seeding import generator

BY_ENVIRONMENT = ("scales",)
SPLIT = "learning"  # of its scores, where its options name none


class Options(learning_curves.CurveOptions):
    scales: dict[str, tuple[float, float]] = Field(description="Environment -> the returns that are 0 and 1.")
    points: int = Field(POINTS, ge=2, description="Of a curve.")
    x_label: str = Field("environment steps", description="Of the x axis.")
    y_label: str = Field("normalised return", description="Of the y axis.")


def check(figure: FigureSettings) -> None:
    options = options_of(figure, Options)
    without = [name for name in figure.environments if name not in options.scales]
    if without:
        do = "name the returns that are 0 and 1 under 'scales'"
        raise UserError(f"no scale of {', '.join(without)}", where=f"options of figure '{figure.name}'", do=do)
    for name, (zero, one) in options.scales.items():
        if zero == one:
            what = f"the returns of {name} that are 0 and 1 are the same, {zero:g}"
            raise UserError(what, where=f"options of figure '{figure.name}': scales", do="name two numbers that differ")


def draw(scores: pd.DataFrame, figure: FigureSpec) -> Drawn:
    check(figure)
    options = options_of(figure, Options)
    rows = reading.select(scores, figure, metric=options.metric, split=options.split)
    end = min(learning_curves.common_end(rows[rows["env"] == env]) for env in figure.environments)
    dropped: list[str] = []
    table = pd.concat([_band(rows, method, end, figure, options, dropped) for method in figure.methods])
    meaning = {
        "panel": "there is one",
        "x": options.x_label,
        "y": f"{options.y_label}: {captions.STATISTIC_WORDS[options.statistic]} over seeds and environments, as tasks",
        "low, high": captions.bounds_meant(options.statistic),
    }
    notes = learning_curves.notes(options.window, options.points, dropped, finals=False)
    with style.paper_style():
        canvas = style.blank_figure(style.SINGLE_COLUMN, 2.0)
        axes = canvas.subplots()
        points = options.points
        published = learning_curves.draw_curves(axes, table, figure, AGGREGATION, end, points // 8, points)
        learning_curves.step_ticks(axes, end)
        style.from_zero(axes, table)
        axes.set_xlabel(options.x_label)
        axes.set_ylabel(options.y_label)
        more = learning_curves.dropped_print(dropped)
        return finished(canvas, figure, options, table, published, meaning, more_print=more, notes=notes)


def _band(
    rows: pd.DataFrame, method: str, end: int, figure: FigureSpec, options: Options, dropped: list[str]
) -> pd.DataFrame:
    """The rows of a method's line. Raises UserError: no seed is complete in all environments."""
    by_seed: dict[int, list[np.ndarray]] = {}
    steps = grid(end, options.points)
    for env in figure.environments:
        zero, one = options.scales[env]
        cell = rows[(rows["env"] == env) & (rows["method"] == method)]
        for curve in learning_curves.curves_of(
            cell, figure, end, dropped, window=options.window, points=options.points
        ):
            by_seed.setdefault(curve.seed, []).append((curve.values - zero) / (one - zero))
    whole = [curves for curves in by_seed.values() if len(curves) == len(figure.environments)]
    if not whole:
        what = f"no seed of {method} is complete in all {len(figure.environments)} environments"
        raise UserError(what, where=f"figure '{figure.name}'", do="let the runs finish")
    values_SNP = np.array(whole)
    kept_P = np.isfinite(values_SNP).all((0, 1))  # a run that is complete may end a little earlier
    rng = generator("bootstrap", figure.name, method)
    band = stratified_bootstrap(values_SNP[:, :, kept_P], rng, statistic=options.statistic, resamples=options.resamples)
    about = {"panel": AGGREGATION, "method": method, "seeds": len(whole), "tasks": len(figure.environments)}
    return pd.DataFrame({"x": steps[kept_P].astype(float), **band.columns(), **about})[TABLE_COLUMNS]
