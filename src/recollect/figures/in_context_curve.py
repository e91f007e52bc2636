"""Return against in-context episode: does a policy with frozen weights get better the longer it stays in a task?

One panel per environment, one line per method: the mean (or IQM) over seeds and tasks at each ICL episode, counted from
1, with the stratified bootstrap interval over both. The optimum is a dotted line; published values are dashed, and only
where they are of the figure's own scale (RA-DT, Schmied et al. 2024, figures 3, 4, 14 and 21).
"""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from pydantic import Field

from recollect.figures import captions, reading, statistics, style
from recollect.figures.spec import (
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

OVER = "seeds and tasks"
MARKERS = 8  # per line, where there are many episodes
SQUEEZE = 2.0  # an optimum further above the curves than this is named, not drawn: it would flatten them


class Options(Frozen):
    """Options of kind `in_context_curve`."""

    metric: str = Field("return", description="Metric of the scores that is drawn.")
    split: str = Field("eval", description="Task split that is drawn.")
    step: int | None = Field(None, description="Training step whose evaluation is drawn; null: the last of each run.")
    statistic: statistics.Statistic = Field("mean", description="Aggregate over seeds and tasks. The paper's: mean.")
    resamples: int = Field(statistics.RESAMPLES, ge=100, description="Bootstrap resamples.")
    optimum: float | dict[str, float] | None = Field(
        None, description="Mean optimal return over the tasks: one value, or one per environment."
    )
    x_label: str = "in-context episode"
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
    rows = reading.select(scores, figure, metric=options.metric, split=options.split)
    rows = rows[rows["step"] == options.step] if options.step is not None else reading.last_step(rows, figure)
    if rows.empty:
        raise UserError(
            f"no evaluation at training step {options.step}",
            where=f"figure '{figure.id}'",
            do="correct the option 'step'",
        )
    table, steps = _measured(rows, figure, options)
    lines = {name: value for name in figure.environments if (value := _optimum(options, name)) is not None}
    with style.paper_style():
        return _plot(table, lines, steps, figure, options)


def _optimum(options: Options, environment: str) -> float | None:
    return options.optimum.get(environment) if isinstance(options.optimum, dict) else options.optimum


def _measured(rows: pd.DataFrame, figure: FigureSpec, options: Options) -> tuple[pd.DataFrame, list[int]]:
    """The measured rows of the figure's table, and the training steps at which the policies were evaluated."""
    parts = []
    for environment in figure.environments:
        tasks_of: dict[str, list[int]] = {}
        for method in figure.methods:
            cell = rows[(rows["env"] == environment) & (rows["method"] == method)]
            if cell.empty:
                raise UserError(
                    f"no evaluation of {method} on {environment} at training step {options.step}",
                    where=f"figure '{figure.id}'",
                    do="correct the option 'step', or leave it out for the last evaluation",
                )
            scores_SNE, tasks_of[method], episodes = reading.score_array(cell, figure)
            rng = generator("bootstrap", figure.id, environment, method)
            bounds = statistics.stratified_bootstrap(
                scores_SNE, rng, statistic=options.statistic, resamples=options.resamples
            )
            parts.append(
                pd.DataFrame(
                    {
                        "panel": environment,
                        "method": method,
                        "x": [float(episode + 1) for episode in episodes],
                        "y": bounds.value,
                        "low": bounds.low,
                        "high": bounds.high,
                        "seeds": len(figure.seeds),
                        "tasks": scores_SNE.shape[1],
                    }
                )
            )
        _check_same_tasks(tasks_of, environment, figure)
    steps = sorted({int(step) for step in rows["step"]})
    return pd.concat(parts, ignore_index=True)[list(TABLE_COLUMNS)], steps


def _check_same_tasks(tasks_of: dict[str, list[int]], environment: str, figure: FigureSpec) -> None:
    first = next(iter(tasks_of))
    for method, tasks in tasks_of.items():
        if tasks != tasks_of[first]:
            raise UserError(
                f"on {environment}, {first} was evaluated on {len(tasks_of[first])} tasks and {method} on {len(tasks)} "
                "(not the same ones); their curves cannot be compared",
                where=f"figure '{figure.id}'",
                do="evaluate them again with the same tasks",
            )


def _plot(
    table: pd.DataFrame, optima: dict[str, float], steps: list[int], figure: FigureSpec, options: Options
) -> Drawn:
    looks = style.styles_of(figure.methods)
    panels = len(figure.environments)
    columns = min(options.columns, panels)
    depth = -(-panels // columns)
    canvas = style.blank_figure(
        style.SINGLE_COLUMN if panels == 1 else style.DOUBLE_COLUMN, depth * (options.panel_height + 0.2) + 0.15
    )
    grid = canvas.subplots(depth, columns, squeeze=False)
    extras: list[str] = []
    extra_rows: list[tuple[str, str, float, float]] = []
    notes: list[str] = []
    for i, environment in enumerate(figure.environments):
        axes: Axes = grid[i // columns, i % columns]
        panel = table[table["panel"] == environment]
        for k, (method, look) in enumerate(looks.items()):
            rows = panel[panel["method"] == method]
            stagger = (k * len(rows)) // (MARKERS * len(looks))
            style.draw_band(axes, rows, look, markers=MARKERS if len(rows) > 2 * MARKERS else None, first=stagger)
        top, last = float(panel[["y", "high"]].max().max()), float(panel["x"].max())
        for item in figure.references_of(environment):
            if item.method in looks:
                style.draw_published(axes, item.x, item.y, looks[item.method])
                top = max(top, *item.y)
                extras.append(PUBLISHED)
                extra_rows += [
                    (environment, PUBLISHED + item.method, x, y) for x, y in zip(item.x, item.y, strict=True)
                ]
        optimum = optima.get(environment)
        name = figure.environment_label(environment)
        axes.set_title(name, loc="left")
        if optimum is not None and optimum <= SQUEEZE * top:
            style.draw_line(axes, optimum)
            extras.append(LINE + "optimum")
            extra_rows += [(environment, LINE + "optimum", x, optimum) for x in (1.0, last)]
        elif optimum is not None:
            axes.set_title(f"optimum {optimum:g} ↑", loc="right", fontsize=5.6, color="#595959")
            notes.append(f"The optimum on {name}, {optimum:g}, lies above the axis.")
        style.episode_axis(axes, last)
        style.from_zero(axes, panel)
        axes.set_ylabel(options.y_label if i % columns == 0 else "")
        axes.set_xlabel(options.x_label if i + columns >= panels else "")
    for i in range(panels, depth * columns):
        grid[i // columns, i % columns].set_visible(False)
    handles = style.legend_handles(figure, looks, list(dict.fromkeys(extras)))
    style.finish(canvas, figure, handles, captions.small_print(figure, table, options.statistic))
    whole = with_extra_rows(table, extra_rows)
    at = ", ".join(f"{step:,}" for step in steps)
    notes = [
        *captions.notes_on_method(figure, whole, options.statistic, options.resamples, OVER),
        f"Policies after training step {at}; split '{options.split}'.",
        *notes,
    ]
    word = captions.STATISTIC_WORDS[options.statistic]
    meaning = {
        "panel": "environment",
        "x": "in-context episode, counted from 1; the weights are frozen and the memory stays",
        "y": f"{options.metric}: {word} over seeds and tasks",
        "low, high": f"bounds of the 95 % stratified bootstrap interval of the {word}; empty where there is none",
    }
    return Drawn(canvas, whole, meaning, tuple(notes))
