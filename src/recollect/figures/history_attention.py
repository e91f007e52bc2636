"""Which past steps a transformer reads when it decides: self-attention over its own episode (Memory-RL's attention maps).

One column per environment and layer. Map: the step at which it acts against the step that is read, the mean over episodes and
seeds (bins where episodes are long). Below: what it reads at the last steps, where the decision falls, with the bootstrap
interval over seeds and episodes. Attention is that of the token of the present step, the mean over heads. Dotted: a
policy that reads all steps alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from pydantic import Field

from recollect.common.traces import Trace
from recollect.figures import captions, statistics, style, trace_reading
from recollect.figures.spec import LINE, TABLE_COLUMNS, Drawn, ExtraRow, FigureSpec, options_of, with_extra_rows
from recollect.figures.trace_reading import UNIFORM, TaskOptions, chosen_tasks, grids_of, only_method, within
from recollect.settings.errors import UserError
from recollect.settings.seeding import generator

READS = "traces"
DECISION = "decision"


class Options(TaskOptions):
    decision: dict[str, tuple[int, int]] = Field(
        {},
        description="Environment -> first and last step of the decision. Steps count from 1, or from the last, which is -1. "
        "Not named: the last step.",
    )
    marks: dict[str, dict[str, int]] = Field({}, description="Environment -> what happens -> its step, counted so too.")
    titles: dict[str, str] = Field({}, description="Environment -> title, where it has another here.")
    bins: int = Field(60, ge=2, description="Most rows of a map; steps of longer episodes are put together.")
    resamples: int = Field(statistics.RESAMPLES, ge=100, description="Bootstrap resamples.")
    panel: float = Field(1.3, gt=0.3, description="Height of a map, inches.")


class Read(NamedTuple):
    """One environment: maps [L, Q, W] (bins of steps at which it acts, and that it reads) and decision [L, horizon]."""

    maps: np.ndarray
    decision: statistics.Interval
    horizon: int
    episodes: int


def by_step(trace: Trace) -> tuple[np.ndarray, np.ndarray]:
    """Attention [M, L, horizon] of each mapped step on the steps of its episode, and which step that is, [M]."""
    if "history_attention" not in trace.maps:
        what = f"{trace.about['method']} does not attend to its history, so there is no attention to draw"
        do = "name a method with a transformer, such as dqn_gpt"
        raise UserError(what, where=f"trace of {trace.about['env']}, seed {trace.about['seed']}", do=do)
    weights_MLC = trace.maps["history_attention"].astype(np.float64)
    step_M, horizon = trace.played.timestep[trace.map_row], int(trace.about["horizon"])
    context = weights_MLC.shape[2]
    place_MT = np.arange(horizon) - step_M[:, None] + context - 1
    there_MT = (place_MT >= 0) & (place_MT < context)
    weights_MLT = np.take_along_axis(weights_MLC, np.clip(place_MT, 0, context - 1)[:, None], 2)
    return weights_MLT * there_MT[:, None], step_M


def counted(step: int, horizon: int) -> int:
    """A step from 1, of one that may be counted from the last."""
    return step if step > 0 else horizon + 1 + step


def read(traces: Sequence[Trace], tasks: Sequence[int], options: Options, figure: FigureSpec) -> Read:
    """The attention of one environment over its seeds and episodes."""
    horizon = int(traces[0].about["horizon"])
    env = str(traces[0].about["env"])
    decision_steps = _decision_steps(env, horizon, options)
    size = -(-horizon // options.bins)
    bins = -(-horizon // size)
    total_QLW: np.ndarray | float = 0.0
    count_Q11 = np.zeros((bins, 1, 1))
    decisions = []
    for trace in traces:
        attention_MLT, step_M = by_step(trace)
        decisions.append(_decisions(trace, tasks, attention_MLT, step_M, decision_steps))

        # The attention on a bin of steps is that on all of them; the last bin may be short.
        padded = np.pad(attention_MLT, ((0, 0), (0, 0), (0, bins * size - horizon)))
        binned_MLW = padded.reshape(*attention_MLT.shape[:2], bins, size).sum(3)

        # Sums over the steps of a bin at which it acts.
        shown_M = np.isin(trace.played.task[trace.map_row], list(tasks))
        bin_M = step_M[shown_M] // size
        of_trace_QLW = np.zeros((bins, *binned_MLW.shape[1:]))
        np.add.at(of_trace_QLW, bin_M, binned_MLW[shown_M])
        total_QLW = total_QLW + of_trace_QLW
        np.add.at(count_Q11, bin_M, 1)
    maps_QLW = trace_reading.mean_where_counted(np.asarray(total_QLW), count_Q11)
    rng = generator("bootstrap", figure.name, env)
    decision = statistics.stratified_bootstrap(np.array(decisions), rng, resamples=options.resamples)
    return Read(maps_QLW.swapaxes(0, 1), decision, horizon, len(decisions[0]))


def _decision_steps(env: str, horizon: int, options: Options) -> tuple[int, int]:
    """First and last step of the decision, counted from 1."""
    first, last = options.decision.get(env, (-1, -1))
    return counted(first, horizon), counted(last, horizon)


def _decisions(
    trace: Trace, tasks: Sequence[int], attention_MLT: np.ndarray, step_M: np.ndarray, steps: tuple[int, int]
) -> list[np.ndarray]:
    """Mean attention [L, horizon] at the decision of each episode."""
    table = trace.played
    first, last = steps
    decides_M = (step_M + 1 >= first) & (step_M < last)
    of_episodes = []
    for task in tasks:
        for episode in np.unique(table.episode[table.task == task]):
            mine_M = (table.task[trace.map_row] == task) & (table.episode[trace.map_row] == episode) & decides_M
            if not mine_M.any():
                raise UserError(
                    f"episode {episode} of task {task} has no map of steps {first} to {last}",
                    where=f"trace of {trace.about['method']} on {trace.about['env']}, seed {trace.about['seed']}",
                    do="correct the option 'decision'",
                )
            of_episodes.append(attention_MLT[mine_M].mean(0))
    return of_episodes


def draw(traces: Sequence[Trace], figure: FigureSpec) -> Drawn:
    options = options_of(figure, Options)
    method = only_method(figure)
    by_env: dict[str, Read] = {}
    parts = []
    for env, grid in grids_of(traces, figure).items():
        tasks = chosen_tasks(grid[method], options.tasks, figure)
        by_env[env] = read(grid[method], tasks, options, figure)
        maps, decision, horizon, episodes = by_env[env]
        size = -(-horizon // maps.shape[1])
        first_W = np.arange(maps.shape[2]) * size + 1.0
        # Panels of the table: ``<env>, layer 1, steps 1–5`` of the maps, and ``<env>, layer 1, decision``.
        rows = []
        for layer, map_QW in enumerate(maps):
            panel = f"{env}, layer {layer + 1}"
            rows += trace_reading.rows_of_map(panel, first_W, map_QW, size, horizon)
            rows.append(trace_reading.rows_of_mean(f"{panel}, {DECISION}", decision, layer))
        parts.append(pd.concat(rows).assign(tasks=episodes))
    table = pd.concat(parts, ignore_index=True)
    table = table.assign(method=method, seeds=len(figure.seeds))[TABLE_COLUMNS]
    with style.paper_style():
        return _plot(table, by_env, figure, options)


def _plot(table: pd.DataFrame, by_env: dict[str, Read], figure: FigureSpec, options: Options) -> Drawn:
    titles = {env: options.titles.get(env) or figure.panel_title(env) for env in by_env}
    columns = [(env, layer) for env, one in by_env.items() for layer in range(len(one.maps))]
    width = style.SINGLE_COLUMN if len(columns) <= 2 else style.DOUBLE_COLUMN
    canvas = style.blank_figure(width, 2 * options.panel + 0.6)
    axes_RC = canvas.subplots(2, len(columns), squeeze=False, sharex="col")
    top = max(float(np.nanmax(one.maps)) for one in by_env.values())
    norm = PowerNorm(0.5, 0, top)
    extra_rows: list[ExtraRow] = []
    for column, (env, layer) in enumerate(columns):
        one = by_env[env]
        upper, lower = axes_RC[:, column]
        bins = len(one.maps[layer])
        edges = trace_reading.edges(bins, -(-one.horizon // bins), one.horizon)
        is_future = np.triu(np.ones((bins, bins), bool), 1)
        trace_reading.draw_map(upper, edges, edges, np.where(is_future, np.nan, one.maps[layer]), norm)
        layer_title = f", layer {layer + 1}" if len(one.maps) > 1 else ""
        upper.set_title(f"{titles[env]}{layer_title}", loc="left")
        extra_rows += _draw_decision(lower, f"{env}, layer {layer + 1}, {DECISION}", table, one.horizon, figure)
        if column == 0:
            upper.set_ylabel("acts at step")
            lower.set_ylabel("attention at the decision")
        ticks = [1, *(round(one.horizon * quarter / 4) for quarter in (1, 2, 3, 4))]
        for axis in (lower.xaxis, upper.yaxis):
            axis.set_ticks(ticks if one.horizon > 8 else list(range(1, one.horizon + 1)))
        _mark(lower, options.marks.get(env, {}), one.horizon)
    trace_reading.colour_bar(canvas, axes_RC[0], norm, "attention", within(top), shrink=0.9, aspect=18)

    # What is resampled besides seeds are episodes, so these stand in the place of tasks.
    small_print = [line.replace("task", "episode") for line in captions.small_print(figure, table, "mean")]
    handles = style.legend_handles(figure, style.styles_of(figure.methods), [LINE + UNIFORM])
    style.finish(canvas, figure, handles, small_print)
    notes = captions.notes_on_method(figure, table, "mean", options.resamples, "seeds and episodes")
    notes = [note.replace("task", "episode") for note in notes]
    decisions = []
    for env, one in by_env.items():
        first, last = _decision_steps(env, one.horizon, options)
        decisions.append(f"{titles[env]}: steps {first} to {last}")
    notes.append(f"Decision: {', '.join(decisions)}.")
    meaning = {
        "panel": "environment, layer, and the steps at which the policy acts (a row of a map) or its decision",
        "x": "step that is read, from 1; of a map, the first of its bin",
        "y": "self-attention of the present step's token, mean over heads; of a map, the sum over the bin",
        "low, high": trace_reading.BOUNDS,
    }
    return Drawn(canvas, with_extra_rows(table, extra_rows), meaning, tuple(notes))


def _draw_decision(axes: Axes, panel: str, table: pd.DataFrame, horizon: int, figure: FigureSpec) -> list[ExtraRow]:
    """Draw what is read at the decision; gives the rows of what was not measured."""
    rows = table[table["panel"] == panel]
    (look,) = style.styles_of(figure.methods).values()
    style.draw_band(axes, rows, look, markers=4 if len(rows) > 40 else None)
    height = float(rows[["y", "high"]].max().max()) * 1.25
    axes.set_xlim(0.5, horizon + 0.5)
    axes.set_ylim(0, height)
    axes.set_yticks(within(height))
    axes.set_xlabel("reads step")
    ends = (1.0, float(horizon))
    return style.draw_constant(axes, panel, UNIFORM, 1 / horizon, ends)


def _mark(axes: Axes, marks: dict[str, int], horizon: int) -> None:
    """Name the steps at which something happens, by a tick from above."""
    for name, given in marks.items():
        step = counted(given, horizon)
        axes.axvline(step, ymin=0.86, ymax=0.9, color=style.GREY, linewidth=0.8)
        right = step > horizon / 2
        axes.annotate(
            name, (step, 0.99), xycoords=axes.get_xaxis_transform(), fontsize=5.8, color=style.GREY,
            ha="right" if right else "left", va="top",
        )  # fmt: skip
