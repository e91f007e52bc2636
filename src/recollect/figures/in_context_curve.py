"""Return against in-context episode: does a policy with frozen weights get better the longer it stays in a task?

One panel per environment (and task split), one line per method: the mean (or IQM) over seeds and tasks at each ICL
episode, counted from 1, with the stratified bootstrap interval over both; of one seed it is over the tasks, and the figure
says so. With `x: step` the mean over all episodes of each evaluation that was made while training, against the training
step. The optimum is a dotted line; published values are dashed, and only where they are of the figure's own scale (RA-DT,
Schmied et al. 2024, figures 3, 4, 14, 15 and 21).
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pydantic import Field

from recollect.figures import captions, reading, statistics, style
from recollect.figures.spec import (
    LINE,
    PUBLISHED,
    TABLE_COLUMNS,
    Drawn,
    FigureSpec,
    Panel,
    one_or_more,
    options_of,
    panels_of,
    with_extra_rows,
)
from recollect.settings.errors import UserError
from recollect.settings.schema import Frozen
from recollect.settings.seeding import generator

OVER = "seeds and tasks"
MARKERS = 8  # per line, where there are many episodes
SQUEEZE = 2.0  # an optimum further above the curves than this is named, not drawn: it would flatten them


class Options(Frozen):
    """Options of kind `in_context_curve`."""

    metric: str = Field("return", description="Metric of the scores that is drawn.")
    split: str | tuple[str, ...] = Field("eval", description="Task split that is drawn; of several, a panel for each.")
    x: Literal["episode", "step"] = Field("episode", description="In-context episode, or training step.")
    step: int | None = Field(
        None, description="Training step whose evaluation is drawn (x: episode); null: the last of each run."
    )
    average: int = Field(
        1, ge=1, description="So many successive episodes make one point, their mean (x: episode). The paper's: 1."
    )
    statistic: statistics.Statistic = Field("mean", description="Aggregate over seeds and tasks. The paper's: mean.")
    resamples: int = Field(statistics.RESAMPLES, ge=100, description="Bootstrap resamples.")
    optimum: float | dict[str, float] | None = Field(
        None, description="Mean optimal return over the tasks: one value, or one per panel."
    )
    x_label: str = Field("", description="Empty: what `x` says.")
    y_label: str = "return"
    columns: int = Field(3, ge=1, le=4, description="Panels beside each other.")
    panel_height: float = Field(1.75, gt=0.5, description="Inches.")


def draw(scores: pd.DataFrame, figure: FigureSpec) -> Drawn:
    """Draw the figure.

    Args:
        scores: score table; see `recollect.figures.reading`.
        figure: its `options` are `Options`.

    Raises:
        UserError: a wrong option, or scores that the figure needs are missing.
    """
    options = options_of(figure, Options)
    panels = panels_of(figure.environments, options.split)
    read = [reading.select(scores, figure, metric=options.metric, split=split) for split in one_or_more(options.split)]
    rows = pd.concat(read, ignore_index=True)
    if options.x == "episode":
        rows = rows[rows["step"] == options.step] if options.step is not None else reading.last_step(rows, figure)
    if rows.empty:
        raise UserError(
            f"no evaluation at training step {options.step}",
            where=f"figure '{figure.name}'",
            do="correct the option 'step'",
        )
    table = _measured(rows, panels, figure, options)
    optima = {panel.name: value for panel in panels if (value := _optimum(options, panel.name)) is not None}
    with style.paper_style():
        canvas, whole, notes = _plot(table, panels, optima, figure, options)
    word = captions.STATISTIC_WORDS[options.statistic]
    splits = " and ".join(f"'{split}'" for split in one_or_more(options.split))
    said = f"split{'' if isinstance(options.split, str) else 's'} {splits}"
    meaning = {
        "panel": "environment" if isinstance(options.split, str) else "environment, and /split behind the first one",
        "x": "in-context episode, counted from 1; the weights are frozen and the memory stays",
        "y": f"{options.metric}: {word} over seeds and tasks",
        "low, high": f"bounds of the 95 % stratified bootstrap interval of the {word}; empty where there is none",
    }
    if options.x == "step":
        meaning |= {
            "x": "training step",
            "y": f"{options.metric}, mean over in-context episodes: {word} over seeds and tasks",
        }
        drawn = (
            f"Each point: the mean over the {rows['episode'].nunique()} in-context episodes of one evaluation; {said}."
        )
    else:
        at = ", ".join(f"{step:,}" for step in sorted(set(rows["step"])))
        drawn = f"Policies after training step {at}; {said}."
        if options.average > 1:
            drawn += f" Each point is the mean of {options.average} successive episodes, and stands at the middle one."
    told = captions.notes_on_method(figure, whole, options.statistic, options.resamples, OVER)
    return Drawn(canvas, whole, meaning, (*told, drawn, *notes))


def _optimum(options: Options, panel: str) -> float | None:
    return options.optimum.get(panel) if isinstance(options.optimum, dict) else options.optimum


def _measured(rows: pd.DataFrame, panels: list[Panel], figure: FigureSpec, options: Options) -> pd.DataFrame:
    """The measured rows of the figure's table."""
    parts = []
    for panel in panels:
        tasks_of: dict[str, list[int]] = {}
        for method in figure.methods:
            here = (rows["env"] == panel.environment) & (rows["split"] == panel.split)
            cell = rows[here & (rows["method"] == method)]
            if cell.empty:
                raise UserError(
                    f"no evaluation of {method} on {panel.environment} at training step {options.step}",
                    where=f"figure '{figure.name}'",
                    do="correct the option 'step', or leave it out for the last evaluation",
                )
            if options.x == "step":
                steps = sorted(set(cell["step"]))
                at = [reading.score_array(cell[cell["step"] == step], figure) for step in steps]
                scores_SNX, x = np.stack([scores_SNE.mean(2) for scores_SNE, _, _ in at], axis=2), steps
                tasks_of[method] = at[-1][1]
            else:
                scores_SNX, tasks_of[method], episodes = reading.score_array(cell, figure)
                scores_SNX, x = _averaged(scores_SNX, episodes, figure, options.average)
            rng = generator("bootstrap", figure.name, panel.name, method)
            # Of one seed the tasks are resampled, in the place of seeds.
            resampled = scores_SNX.swapaxes(0, 1) if len(scores_SNX) == 1 else scores_SNX
            bounds = statistics.stratified_bootstrap(
                resampled, rng, statistic=options.statistic, resamples=options.resamples
            )
            columns = {"x": np.array(x, float), "y": bounds.value, "low": bounds.low, "high": bounds.high}
            about = {"panel": panel.name, "method": method, "seeds": len(figure.seeds), "tasks": scores_SNX.shape[1]}
            parts.append(pd.DataFrame(columns).assign(**about))
        _check_same_tasks(tasks_of, panel.environment, figure)
    return pd.concat(parts, ignore_index=True)[list(TABLE_COLUMNS)]


def _averaged(
    scores_SNE: np.ndarray, episodes: list[int], figure: FigureSpec, size: int
) -> tuple[np.ndarray, list[float]]:
    """Means of so many successive episodes [S, N, X], and where they stand, episodes counted from 1."""
    if len(episodes) % size:
        raise UserError(
            f"{len(episodes)} episodes cannot be averaged by {size}",
            where=f"figure '{figure.name}'",
            do="choose an option 'average' that divides the number of episodes",
        )
    middle = np.array(episodes, float).reshape(-1, size).mean(1) + 1
    return scores_SNE.reshape(*scores_SNE.shape[:2], -1, size).mean(3), middle.tolist()


def _check_same_tasks(tasks_of: dict[str, list[int]], environment: str, figure: FigureSpec) -> None:
    first = next(iter(tasks_of))
    for method, tasks in tasks_of.items():
        if tasks != tasks_of[first]:
            raise UserError(
                f"on {environment}, {first} was evaluated on {len(tasks_of[first])} tasks and {method} on {len(tasks)} "
                "(not the same ones); their curves cannot be compared",
                where=f"figure '{figure.name}'",
                do="evaluate them again with the same tasks",
            )


def _plot(
    table: pd.DataFrame, panels: list[Panel], optima: dict[str, float], figure: FigureSpec, options: Options
) -> tuple[Figure, pd.DataFrame, list[str]]:
    """The figure, its whole table, and notes on what is not drawn."""
    looks = style.styles_of(figure.methods)
    columns = min(options.columns, len(panels))
    depth = -(-len(panels) // columns)
    canvas = style.blank_figure(
        style.SINGLE_COLUMN if columns == 1 else style.DOUBLE_COLUMN, depth * (options.panel_height + 0.2) + 0.15
    )
    grid = canvas.subplots(depth, columns, squeeze=False)
    extras: list[str] = []
    extra_rows: list[tuple[str, str, float, float]] = []
    notes: list[str] = []
    for i, panel in enumerate(panels):
        axes: Axes = grid[i // columns, i % columns]
        here = table[table["panel"] == panel.name]
        for k, (method, look) in enumerate(looks.items()):
            rows = here[here["method"] == method]
            stagger = (k * len(rows)) // (MARKERS * len(looks))
            style.draw_band(axes, rows, look, markers=MARKERS if len(rows) > 2 * MARKERS else None, first=stagger)
        top, first, last = float(here[["y", "high"]].max().max()), float(here["x"].min()), float(here["x"].max())
        for item in figure.references_of(panel.name):
            if item.method in looks:
                style.draw_published(axes, item.x, item.y, looks[item.method])
                top = max(top, *item.y)
                extras.append(PUBLISHED)
                extra_rows += [(panel.name, PUBLISHED + item.method, x, y) for x, y in zip(item.x, item.y, strict=True)]
        optimum = optima.get(panel.name)
        name = figure.panel_label(panel, options.split)
        axes.set_title(name, loc="left")
        if optimum is not None and optimum <= SQUEEZE * top:
            style.draw_line(axes, optimum)
            extras.append(LINE + "optimum")
            extra_rows += [(panel.name, LINE + "optimum", x, optimum) for x in (first, last)]
        elif optimum is not None:
            axes.set_title(f"optimum {optimum:g} ↑", loc="right", fontsize=5.6, color="#595959")
            notes.append(f"The optimum on {name}, {optimum:g}, lies above the axis.")
        if options.x == "episode":
            style.episode_axis(axes, last + (options.average - 1) / 2)
        else:
            style.step_axis(axes, last)
        style.from_zero(axes, here)
        axes.set_ylabel(options.y_label if i % columns == 0 else "")
        x_label = options.x_label or {"episode": "in-context episode", "step": "training step"}[options.x]
        axes.set_xlabel(x_label if i + columns >= len(panels) else "")
    for unused in grid.ravel()[len(panels) :]:
        unused.set_visible(False)
    handles = style.legend_handles(figure, looks, list(dict.fromkeys(extras)))
    style.finish(canvas, figure, handles, captions.small_print(figure, table, options.statistic))
    return canvas, with_extra_rows(table, extra_rows), notes
