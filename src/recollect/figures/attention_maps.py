"""Which steps of the retrieved window RA-DT reads: cross-attention early and late in a task (RA-DT, figures 16 and 17).

One column per layer that reads. Maps: step of the episode (bins of steps) against step of the retrieved window, once for the
first episodes that have something to read and once for the last. Below: the mean over the steps of an episode, with its
bootstrap interval over seeds and tasks. Attention is that of the token that predicts the action, the mean over heads, summed
over the tokens of a step. A retrieved window ends at the right; where it is short its left is padding, which nobody reads.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.colors import Normalize
from pydantic import Field

from recollect.common.traces import Trace
from recollect.figures import captions, statistics, style, trace_reading
from recollect.figures.method_styles import BLUE, DASH_DOT, ORANGE, MethodStyle
from recollect.figures.spec import LINE, TABLE_COLUMNS, Drawn, ExtraRow, FigureSpec, options_of, with_extra_rows
from recollect.figures.trace_reading import (
    UNIFORM,
    TaskOptions,
    chosen_tasks,
    grid_of,
    only_environment,
    only_method,
    within,
)
from recollect.settings.errors import UserError
from recollect.settings.schema import FigureSettings
from recollect.settings.seeding import generator

READS = "traces"
LEAST_EPISODES = 3  # in context; environments with fewer are refused before anything runs
EARLY, LATE = MethodStyle(ORANGE, "s", DASH_DOT), MethodStyle(BLUE, "o")


class Options(TaskOptions):
    episodes: int = Field(5, ge=1, description="How many episodes are early, and how many late.")
    step_bin: int = Field(5, ge=1, description="Steps of an episode that are averaged into one row of a map.")
    resamples: int = Field(statistics.RESAMPLES, ge=100, description="Bootstrap resamples.")
    panel: float = Field(1.05, gt=0.3, description="Height of a map, inches.")


def attention_of(trace: Trace, task: int, episodes: range, step_bin: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean attention of some episodes of a task: by bin of steps [L, bins, W] (NaN: no map), of all steps [L, W]."""
    table = trace.played
    row_M = trace.map_row
    chosen_M = (table.task[row_M] == task) & np.isin(table.episode[row_M], list(episodes))
    chosen_M &= (trace.facts["retrieved_episode"][row_M] >= 0).any(1)
    if not chosen_M.any():
        raise UserError(
            f"nothing was read in episodes {episodes.start + 1} to {episodes.stop} of task {task}",
            where=f"trace of {trace.about['method']} on {trace.about['env']}, seed {trace.about['seed']}",
            do="set the option 'episodes', or trace it again",
        )
    attention_MLW = trace.maps["attention"][chosen_M].astype(np.float64).sum(-1)
    bin_M = table.timestep[row_M[chosen_M]] // step_bin
    bins = -(-int(trace.about["horizon"]) // step_bin)
    total = np.zeros((bins, *attention_MLW.shape[1:]))
    np.add.at(total, bin_M, attention_MLW)
    count = np.bincount(bin_M, minlength=bins)[:, None, None]
    by_bin = trace_reading.mean_where_counted(total, count)
    return by_bin.swapaxes(0, 1), attention_MLW.mean(0)


def groups(episodes: int, each: int) -> dict[str, range]:
    """The early episodes (from the second, the first that can read) and the late ones, by name; it takes three."""
    if episodes < LEAST_EPISODES:
        what = f"early and late take at least {LEAST_EPISODES} episodes, and there are {episodes}"
        raise UserError(what, where="kind attention_maps", do="evaluate more episodes")
    each = min(each, (episodes - 1) // 2)
    by_name = {}
    for group in (range(1, 1 + each), range(episodes - each, episodes)):
        name = f"episode {group.start + 1}" if each == 1 else f"episodes {group.start + 1}–{group.stop}"
        by_name[name] = group
    return by_name


def check(figure: FigureSettings) -> None:
    only_environment(figure)
    only_method(figure)


def draw(traces: Sequence[Trace], figure: FigureSpec) -> Drawn:
    options = options_of(figure, Options)
    grid = grid_of(traces, figure)
    of_seeds = grid[only_method(figure)]
    for trace in of_seeds:
        if "attention" not in trace.maps or "retrieved_episode" not in trace.facts:
            what = f"{trace.about['method']} reads no memory, so there is no attention to draw"
            raise UserError(what, where=f"figure '{figure.name}'", do="name a method that retrieves, such as radt")
    tasks = chosen_tasks(of_seeds, options.tasks, figure)
    horizon = int(of_seeds[0].about["horizon"])
    maps: dict[str, np.ndarray] = {}  # name of the group -> [L, bins, W]
    parts = []
    for name, episodes in groups(of_seeds[0].returns_KE.shape[1], options.episodes).items():
        by_bin, profile = [], []
        for trace in of_seeds:
            of_tasks = [attention_of(trace, task, episodes, options.step_bin) for task in tasks]
            by_bin.append([bins_LQW for bins_LQW, _ in of_tasks])
            profile.append([mean_LW for _, mean_LW in of_tasks])
        # Over the seeds and tasks that have a map there.
        known_SNLQW = np.ma.masked_invalid(by_bin)
        total_LQW = known_SNLQW.filled(0).sum((0, 1))
        maps[name] = trace_reading.mean_where_counted(total_LQW, known_SNLQW.count((0, 1)))
        rng = generator("bootstrap", figure.name, name)
        interval = statistics.stratified_bootstrap(np.array(profile), rng, resamples=options.resamples)

        # Panels of the table: ``layer 1, episodes 2–6, steps 1–5`` of the maps, and ``layer 1, episodes 2–6``.
        x_W = np.arange(1.0, interval.value.shape[1] + 1)
        for layer, map_QW in enumerate(maps[name]):
            panel = f"layer {layer + 1}, {name}"
            parts += trace_reading.rows_of_map(panel, x_W, map_QW, options.step_bin, horizon)
            parts.append(trace_reading.rows_of_mean(panel, interval, layer))
    table = pd.concat(parts, ignore_index=True)
    table = table.assign(method=figure.methods[0], seeds=len(figure.seeds), tasks=len(tasks))[TABLE_COLUMNS]
    with style.paper_style():
        return _plot(table, maps, of_seeds[0], figure, options)


def _plot(
    table: pd.DataFrame, maps: dict[str, np.ndarray], first: Trace, figure: FigureSpec, options: Options
) -> Drawn:
    layers, bins, window = next(iter(maps.values())).shape
    horizon = int(first.about["horizon"])
    width = style.SINGLE_COLUMN if layers <= 2 else style.DOUBLE_COLUMN
    canvas = style.blank_figure(width, 2 * (options.panel + 0.12) + options.panel + 0.35)
    axes_RL = canvas.subplots(3, layers, squeeze=False, sharex=True)
    looks = dict(zip(maps, (EARLY, LATE), strict=True))
    norm = Normalize(0, float(max(np.nanmax(values) for values in maps.values())))
    edges_W = trace_reading.edges(window)
    edges_Q = trace_reading.edges(bins, options.step_bin, horizon)
    extra_rows: list[ExtraRow] = []
    top = 0.0
    for layer in range(layers):
        # Above, a map of each group of episodes.
        for i, (name, map_LQW) in enumerate(maps.items()):
            axes = axes_RL[i, layer]
            trace_reading.draw_map(axes, edges_W, edges_Q, map_LQW[layer], norm)
            axes.set_yticks(style.count_ticks(horizon))
            axes.set_title(f"layer {layer + 1}" if i == 0 else "", fontsize=7)
            axes.set_ylabel(f"{name}\nstep" if layer == 0 else "")
            axes.tick_params(labelleft=layer == 0)
            # Below, the means of both.
            rows = table[table["panel"] == f"layer {layer + 1}, {name}"]
            style.draw_band(axes_RL[2, layer], rows, looks[name], markers=5, first=2 * i)
            top = max(top, float(rows[["y", "high"]].max().max()))
        ends = (1.0, float(window))
        extra_rows += style.draw_constant(axes_RL[2, layer], f"layer {layer + 1}", UNIFORM, 1 / window, ends)
    for layer, axes in enumerate(axes_RL[2]):
        axes.set(xlim=(0.5, window + 0.5), ylim=(0, top * 1.08), xlabel="retrieved step")
        axes.set(xticks=style.count_ticks(window), yticks=within(top * 1.08))
        axes.set_ylabel("attention" if layer == 0 else "")
        axes.tick_params(labelleft=layer == 0)
    ticks = within(float(norm.vmax or 0.0))
    trace_reading.colour_bar(canvas, axes_RL[:2], norm, "attention", ticks, shrink=0.85, aspect=24)

    handles = style.legend_handles(figure, looks, [LINE + UNIFORM])
    facts, *warnings = captions.small_print(figure, table, "mean")
    style.finish(canvas, figure, handles, [f"{figure.label(figure.methods[0])} · {facts}", *warnings])
    names = " and ".join(maps)
    notes = [
        *captions.notes_on_method(figure, table, "mean", options.resamples, "seeds and tasks"),
        f"Maps: {names}, means of {options.step_bin} steps; split '{first.about['split']}'.",
    ]
    meaning = {
        "panel": "layer and episodes; with steps: one row of a map, without: the mean over all steps of an episode",
        "x": "step of the retrieved window, from 1; it ends at the last, and a short one is padded on the left",
        "y": "cross-attention of the token that predicts the action: mean over heads, sum over the tokens of a step",
        "low, high": trace_reading.BOUNDS,
    }
    return Drawn(canvas, with_extra_rows(table, extra_rows), meaning, tuple(notes))
