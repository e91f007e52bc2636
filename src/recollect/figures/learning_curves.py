"""Learning curves of single runs, brought onto one grid the way Memory-RL's published plots do it.

The pipeline (Ni et al. 2023, plotting code of the release): a run that stops before 0.9 of the plotted steps is
dropped; the evaluations are smoothed by a trailing mean over 10 (fewer at the start); the result is interpolated
linearly onto 300 equally spaced whole steps in ``[0, end]``, with nothing beyond the run's last evaluation; the final
value of a run is the mean over its last 15 points, 5 % of the plot. (PyBullet: 100 points, of which 5; and there the release
holds the last value to the end, where ours stops.) As in the release,
grid points before the first evaluation take its value, and runs are summed up by their mean.

Ours differs in one thing: a dropped run is named in the figure's caption instead of in a line on the terminal. The
interquartile mean over runs can be chosen in place of the mean.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from numpy.typing import NDArray
from pydantic import Field

from recollect.artifacts.scores import LEARNING
from recollect.common.curve_end import POINTS, WINDOW, grid, mean_of_points, on_grid
from recollect.figures import captions, method_styles, style
from recollect.figures.reading import SHORTEST
from recollect.figures.spec import ExtraRow, FigureSpec, ScoreOptions
from recollect.figures.statistics import Floats, Interval, Statistic, stratified_bootstrap
from recollect.settings.errors import UserError

FINAL = 20  # a final value is the mean of one in so many points


class CurveOptions(ScoreOptions):
    """What kinds of learning curves can be told, besides their own options."""

    metric: str = Field("return", description="Metric of the scores that is drawn.")
    split: str = Field(LEARNING, description="Split of the scores that is drawn.")
    window: int = Field(WINDOW, ge=1, description="Evaluations in the rolling mean. Published: 10.")


@dataclass(frozen=True)
class Curve:
    """One run on the common grid: ``values[i]`` is NaN where the grid lies beyond the run's last evaluation."""

    seed: int
    steps: NDArray[np.int64]
    values: Floats

    @property
    def final(self) -> float:
        """Mean over the last twentieth of the points (15 of 300), counted from the last one that the run has."""
        points = len(self.values)
        return mean_of_points(self.values, points - max(1, points // FINAL), points)


def is_complete(steps: NDArray[np.int64], end: int) -> bool:
    """Whether a run came far enough to be drawn: its last evaluation is at 0.9 of ``end`` or later."""
    return bool(len(steps)) and int(steps[-1]) >= SHORTEST * end


def curve(
    seed: int, steps: NDArray[np.int64], values: Floats, end: int, *, window: int = WINDOW, points: int = POINTS
) -> Curve:
    """Put one run onto the grid, which ends at step `end`; `steps` are ascending environment steps."""
    if np.any(np.diff(steps) <= 0):
        raise ValueError("the steps of a run must ascend")
    places = grid(end, points)
    return Curve(seed, places, on_grid(places, steps, values, window))


def sooner(environment: str) -> str:
    """The cure of `curves_of` for kinds with the option `ends`."""
    return f"let the runs finish, or set the option 'ends' to steps that they reach: `ends: {{{environment}: STEPS}}`"


def common_end(rows: pd.DataFrame) -> int:
    """The last step that all runs reach which come within 0.9 of the longest."""
    last = rows.groupby(["method", "seed"])["step"].max()
    return int(last[last >= SHORTEST * last.max()].min())


def curves_of(
    cell: pd.DataFrame,
    figure: FigureSpec,
    end: int,
    dropped: list[str],
    *,
    window: int = WINDOW,
    points: int = POINTS,
    cure: str = "let the runs finish",
) -> list[Curve]:
    """The curves of the complete runs of one method in one environment; the others are named in ``dropped``.

    Raises UserError: no run is complete. `cure` is what to do then: a kind with an option for the end says so.
    """
    method, environment = str(cell["method"].iloc[0]), str(cell["env"].iloc[0])
    curves = []
    for seed in figure.seeds:
        run = cell[cell["seed"] == seed].groupby("step")["value"].mean()
        steps = run.index.to_numpy(np.int64)
        if is_complete(steps, end):
            curves.append(curve(seed, steps, run.to_numpy(float), end, window=window, points=points))
        else:
            dropped.append(
                f"{figure.label(method)}, {figure.environment_label(environment)}, seed {seed} "
                f"(stopped at {steps[-1]:,} of {end:,} steps)"
            )
    if not curves:
        what = f"every run of {method} on {environment} stopped before 0.9 of the {end:,} plotted steps"
        raise UserError(what, where=f"figure '{figure.name}'", do=cure)
    return curves


def average(
    curves: list[Curve], rng: np.random.Generator, *, resamples: int, statistic: Statistic = "mean"
) -> tuple[Interval, NDArray[np.int64]]:
    """Mean (or IQM) over runs with its bootstrap interval, and the number of runs, at each point of the grid.

    Towards the end, where some runs have stopped, the mean is over those that go on, as in the published plots. Where
    none goes on the mean is NaN.
    """
    values_SP = np.stack([item.values for item in curves])
    there_SP = np.isfinite(values_SP)
    numbers_3P = np.full((3, values_SP.shape[1]), np.nan)
    # One bootstrap for all points at which the same runs go on.
    for pattern_S in np.unique(there_SP, axis=1).T:
        if pattern_S.any():
            at_P = (there_SP == pattern_S[:, None]).all(axis=0)
            values_S1P = values_SP[pattern_S][:, None, at_P]
            numbers_3P[:, at_P] = stratified_bootstrap(values_S1P, rng, statistic=statistic, resamples=resamples)
    return Interval(*numbers_3P), there_SP.sum(axis=0)


def band_rows(curves: list[Curve], rng: np.random.Generator, *, resamples: int, statistic: Statistic) -> pd.DataFrame:
    """`average` as rows of a figure's table, without panel, method and tasks; only where some run goes on."""
    band, runs = average(curves, rng, resamples=resamples, statistic=statistic)
    rows = pd.DataFrame({"x": curves[0].steps.astype(float), **band.columns(), "seeds": runs})
    return rows[rows["y"].notna()]


def draw_curves(
    axes: Axes, rows: pd.DataFrame, figure: FigureSpec, environment: str, end: int, first: int, points: int = POINTS
) -> list[ExtraRow]:
    """Draw our curves of an environment, markers from point `first` on, and published ones; gives the latter's rows."""
    looks = method_styles.styles_of(figure.methods)
    for k, (method, look) in enumerate(looks.items()):
        stagger = k * points // (3 * len(looks))  # so that markers do not lie on each other
        style.draw_band(axes, rows[rows["method"] == method], look, markers=3, first=first + stagger)
    return style.draw_references(axes, figure, environment, until=end)


def step_ticks(axes: Axes, end: float, most: int = 4) -> None:
    """Round ticks of an axis that ends at the last step; their numbers stay inside the panel, clear of its neighbours."""
    axes.set_xlim(0, end)
    ticks = style.round_ticks(0, end, most, whole=True)
    axes.set_xticks(ticks, [style.short_steps(tick) for tick in ticks])
    labels = axes.get_xticklabels()
    labels[0].set_horizontalalignment("left")
    if ticks[-1] > 0.93 * end:
        labels[-1].set_horizontalalignment("right")


def bounds_meant(statistic: Statistic) -> str:
    """What `low` and `high` are in the table of a figure over seeds."""
    word = captions.STATISTIC_WORDS[statistic]
    return f"bounds of the 95 % bootstrap interval of the {word} over seeds; empty where there is none"


def dropped_print(dropped: list[str]) -> list[str]:
    """The line of the small print about runs that stopped early, if there are any."""
    return (
        [f"Not drawn, stopped early: {captions.count(len(dropped), 'run')} (named in the caption)."] if dropped else []
    )


def notes(window: int, points: int, dropped: list[str], *, of: str = "Evaluations", finals: bool = True) -> list[str]:
    """Sentences for the caption: how runs became curves (and, with `finals`, their final values), and which were dropped."""
    smoothed = f"smoothed by a rolling mean over {window} and " if window > 1 else ""
    verb = "are" if of.endswith("s") else "is"
    sentence = f"{of} {verb} {smoothed}interpolated onto {points} points"
    if finals:
        sentence += f"; the final value of a run is the mean of its last {max(1, points // FINAL)}"
    sentences = [f"{sentence}."]
    if dropped:
        sentences.append(f"Dropped, because they stopped before 0.9 of the plot: {'; '.join(dropped)}.")
    return sentences


def iqm_of_finals(
    curves_by_environment: list[list[Curve]], rng: np.random.Generator, *, resamples: int
) -> Interval | None:
    """Interquartile mean of the final values over environments and runs, with its bootstrap interval (Agarwal et al. 2021).

    It takes the seeds that are complete in all environments; None where these are fewer than two.
    """
    final_by_seed = [{curve.seed: curve.final for curve in curves} for curves in curves_by_environment]
    seeds = [seed for seed in final_by_seed[0] if all(seed in finals for finals in final_by_seed)]
    if len(seeds) < 2:
        return None
    finals_SN = np.array([[finals[seed] for finals in final_by_seed] for seed in seeds])
    return stratified_bootstrap(finals_SN, rng, statistic="iqm", resamples=resamples)


def average_final(
    curves: list[Curve], rng: np.random.Generator, *, resamples: int, statistic: Statistic = "mean"
) -> Interval:
    """Mean (or IQM) over runs of their final values, with its bootstrap interval."""
    finals_S1 = np.array([[item.final] for item in curves])
    return stratified_bootstrap(finals_S1, rng, statistic=statistic, resamples=resamples)
