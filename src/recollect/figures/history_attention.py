"""Which past steps a transformer reads when it decides: self-attention over its own episode (Memory-RL's attention maps).

One column per environment and layer. Map: the step at which it acts against the step that is read, the mean over episodes and
seeds (bins where episodes are long). Below: what it reads at the last steps, where the decision falls, with the bootstrap
interval over seeds and episodes. Attention is that of the token of the present step, the mean over heads. Dotted: what a
policy would read at the same steps that reads all that it has of its episode alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from pydantic import AfterValidator, Field, PositiveInt

from recollect.common.traces import Trace
from recollect.figures import captions, method_styles, statistics, style, trace_reading
from recollect.figures.spec import LINE, TABLE_COLUMNS, Drawn, ExtraRow, FigureSpec, options_of, with_extra_rows
from recollect.figures.trace_reading import UNIFORM, TaskOptions, chosen_tasks, grids_of, only_method, within
from recollect.settings.errors import UserError
from recollect.settings.schema import FigureSettings, each_once
from recollect.settings.seeding import generator

READS = "traces"
BY_ENVIRONMENT = ("decision", "marks", "titles")
DECISION = "decision"


Layers = Annotated[tuple[PositiveInt, ...], AfterValidator(each_once)]


class Options(TaskOptions):
    decision: dict[str, tuple[int, int]] = Field(
        {},
        description="Environment -> first and last step of the decision. Steps count from 1, or from the last of an episode, "
        "which is -1. Not named: the last step.",
    )
    layers: Layers | None = Field(None, description="Layers that are drawn, from 1; null: all.")
    marks: dict[str, dict[str, int]] = Field({}, description="Environment -> what happens -> its step, counted so too.")
    titles: dict[str, str] = Field({}, description="Environment -> title, where it has another here.")
    bins: int = Field(60, ge=2, description="Most rows of a map; steps of longer episodes are put together.")
    resamples: int = Field(statistics.RESAMPLES, ge=100, description="Bootstrap resamples.")
    panel: float = Field(1.3, gt=0.3, description="Height of a map, inches.")


class Read(NamedTuple):
    """One environment: maps [L, Q, W] (bins of steps at which it acts, and that it reads) and decision [L, longest]."""

    maps: np.ndarray
    decision: statistics.Interval
    uniform: np.ndarray  # [longest], of a policy that reads all steps alike
    layers: tuple[int, ...]  # from 1
    shortest: int  # episode, steps
    longest: int
    episodes: int


def by_step(trace: Trace, horizon: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Attention of each mapped step on the steps of its episode: [M, L, horizon], and that of who reads all alike, [M, horizon].

    The last is which steps they are, [M].
    """
    if "history_attention" not in trace.maps:
        what = f"{trace.about['method']} does not attend to its history (or not step by step), so there is no attention to draw"
        do = "name a method with a transformer, such as dqn_gpt; of AMAGO, one without `slow_inference`"
        raise UserError(what, where=f"trace of {trace.about['env']}, seed {trace.about['seed']}", do=do)
    weights_MLC = trace.maps["history_attention"].astype(np.float64)
    step_M = trace.played.timestep[trace.map_row]
    context = weights_MLC.shape[2]
    place_MT = np.arange(horizon) - step_M[:, None] + context - 1
    there_MT = (place_MT >= 0) & (place_MT < context)
    weights_MLT = np.take_along_axis(weights_MLC, np.clip(place_MT, 0, context - 1)[:, None], 2)
    return weights_MLT * there_MT[:, None], there_MT / there_MT.sum(1, keepdims=True), step_M


def counted(step: int, length: int) -> int:
    """A step from 1, of one that may be counted from the last of an episode."""
    return step if step > 0 else length + 1 + step


def read(traces: Sequence[Trace], tasks: Sequence[int], options: Options, figure: FigureSpec) -> Read:
    """The attention of one environment over its seeds and episodes."""
    env = str(traces[0].about["env"])
    lengths = [length for trace in traces for length in _lengths(trace, tasks)]
    horizon = max(lengths)
    size = -(-horizon // options.bins)
    bins = -(-horizon // size)
    total_QLW: np.ndarray | float = 0.0
    count_Q11 = np.zeros((bins, 1, 1))
    decisions = []
    layers: tuple[int, ...] = ()
    for trace in traces:
        attention_MLT, alike_MT, step_M = by_step(trace, horizon)
        layers = _chosen_layers(options, attention_MLT.shape[1], figure)
        attention_MLT = attention_MLT[:, [layer - 1 for layer in layers]]
        with_alike = np.concatenate([attention_MLT, alike_MT[:, None]], 1)
        decisions.append(_decisions(trace, tasks, with_alike, step_M, options.decision.get(env, (-1, -1))))

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
    maps_LQW = maps_QLW.swapaxes(0, 1)
    return Read(maps_LQW, decision, decision.value[-1], layers, min(lengths), horizon, len(decisions[0]))


def _lengths(trace: Trace, tasks: Sequence[int]) -> list[int]:
    """Steps of each episode of some tasks."""
    episodes = trace.played.episodes
    return [int(steps) for steps in episodes.length[np.isin(episodes.task, list(tasks))]]


def _chosen_layers(options: Options, there: int, figure: FigureSpec) -> tuple[int, ...]:
    """Layers that are drawn, from 1. Raises UserError: one of them is not there."""
    absent = [layer for layer in options.layers or () if layer > there]
    if absent:
        where = f"options of figure '{figure.name}': layers"
        raise UserError(f"there is no layer {absent[0]}", where=where, do=f"name layers from 1 to {there}")
    return options.layers or tuple(range(1, there + 1))


def _decisions(
    trace: Trace, tasks: Sequence[int], attention_MLT: np.ndarray, step_M: np.ndarray, steps: tuple[int, int]
) -> list[np.ndarray]:
    """Mean attention [L, horizon] at the decision of each episode."""
    table = trace.played
    of_episodes = []
    for task in tasks:
        for episode in np.unique(table.episode[table.task == task]):
            is_of_episode = (table.task == task) & (table.episode == episode)
            first, last = (counted(step, int(is_of_episode.sum())) for step in steps)
            mine_M = is_of_episode[trace.map_row] & (step_M + 1 >= first) & (step_M < last)
            if not mine_M.any():
                raise UserError(
                    f"episode {episode} of task {task} has no map of steps {first} to {last}",
                    where=f"trace of {trace.about['method']} on {trace.about['env']}, seed {trace.about['seed']}",
                    do="correct the option 'decision'",
                )
            of_episodes.append(attention_MLT[mine_M].mean(0))
    return of_episodes


def check(figure: FigureSettings) -> None:
    only_method(figure)


def draw(traces: Sequence[Trace], figure: FigureSpec) -> Drawn:
    options = options_of(figure, Options)
    method = only_method(figure)
    by_env: dict[str, Read] = {}
    parts = []
    for env, grid in grids_of(traces, figure).items():
        tasks = chosen_tasks(grid[method], options.tasks, figure)
        by_env[env] = read(grid[method], tasks, options, figure)
        one = by_env[env]
        size = -(-one.longest // one.maps.shape[1])
        first_W = np.arange(one.maps.shape[2]) * size + 1.0
        # Panels of the table: ``<env>, layer 1, steps 1–5`` of the maps, and ``<env>, layer 1, decision``.
        rows = []
        for place, layer in enumerate(one.layers):
            panel = f"{env}, layer {layer}"
            rows += trace_reading.rows_of_map(panel, first_W, one.maps[place], size, one.longest)
            rows.append(trace_reading.rows_of_mean(f"{panel}, {DECISION}", one.decision, place))
        parts.append(pd.concat(rows).assign(tasks=one.episodes))
    table = pd.concat(parts, ignore_index=True)
    table = table.assign(method=method, seeds=len(figure.seeds))[TABLE_COLUMNS]
    with style.paper_style():
        return _plot(table, by_env, figure, options)


def _plot(table: pd.DataFrame, by_env: dict[str, Read], figure: FigureSpec, options: Options) -> Drawn:
    titles = {env: options.titles.get(env) or figure.panel_title(env) for env in by_env}
    columns = [(env, place) for env, one in by_env.items() for place in range(len(one.layers))]
    width = style.SINGLE_COLUMN if len(columns) <= 2 else style.DOUBLE_COLUMN
    canvas = style.blank_figure(width, 2 * options.panel + 0.6)
    axes_RC = canvas.subplots(2, len(columns), squeeze=False, sharex="col")
    top = max(float(np.nanmax(one.maps)) for one in by_env.values())
    norm = PowerNorm(0.5, 0, top)
    extra_rows: list[ExtraRow] = []
    for column, (env, place) in enumerate(columns):
        one = by_env[env]
        upper, lower = axes_RC[:, column]
        bins = len(one.maps[place])
        edges = trace_reading.edges(bins, -(-one.longest // bins), one.longest)
        is_future = np.triu(np.ones((bins, bins), bool), 1)
        trace_reading.draw_map(upper, edges, edges, np.where(is_future, np.nan, one.maps[place]), norm)
        names = [titles[env], f"layer {one.layers[place]}"]
        if len(one.layers) == 1:
            names = names[:1]
        elif len(by_env) == 1:  # the figure's own title says of what
            names = names[1:]
        upper.set_title(", ".join(names), loc="left")
        extra_rows += _draw_decision(lower, f"{env}, layer {one.layers[place]}, {DECISION}", table, one, figure)
        if column == 0:
            upper.set_ylabel("acts at step")
            lower.set_ylabel("attention at the decision")
        ticks = [1, *(round(one.longest * quarter / 4) for quarter in (1, 2, 3, 4))]
        for axis in (lower.xaxis, upper.yaxis):
            axis.set_ticks(ticks if one.longest > 8 else list(range(1, one.longest + 1)))
        _mark(lower, options.marks.get(env, {}), one.longest)
    trace_reading.colour_bar(canvas, axes_RC[0], norm, "attention", within(top), shrink=0.9, aspect=18)

    # What is resampled besides seeds are episodes, so these stand in the place of tasks.
    small_print = [line.replace("task", "episode") for line in captions.small_print(figure, table, "mean")]
    handles = style.legend_handles(figure, method_styles.styles_of(figure.methods), [LINE + UNIFORM])
    style.finish(canvas, figure, handles, small_print)
    notes = captions.notes_on_method(figure, table, "mean", options.resamples, "seeds and episodes")
    notes = [note.replace("task", "episode") for note in notes]
    decisions = []
    for env, one in by_env.items():
        steps = options.decision.get(env, (-1, -1))
        if one.shortest == one.longest:
            steps = (counted(steps[0], one.longest), counted(steps[1], one.longest))
        counting = " of each episode, where -1 is its last" if min(steps) < 0 else ""
        decisions.append(f"{titles[env]}: steps {steps[0]} to {steps[1]}{counting}")
    notes.append(f"Decision: {', '.join(decisions)}.")
    meaning = {
        "panel": "environment, layer, and the steps at which the policy acts (a row of a map) or its decision",
        "x": "step that is read, from 1; of a map, the first of its bin",
        "y": "self-attention of the present step's token, mean over heads; of a map, the sum over the bin",
        "low, high": trace_reading.BOUNDS,
    }
    return Drawn(canvas, with_extra_rows(table, extra_rows), meaning, tuple(notes))


def _draw_decision(axes: Axes, panel: str, table: pd.DataFrame, read: Read, figure: FigureSpec) -> list[ExtraRow]:
    """Draw what is read at the decision; gives the rows of what was not measured."""
    rows = table[table["panel"] == panel]
    (look,) = method_styles.styles_of(figure.methods).values()
    style.draw_band(axes, rows, look, markers=4 if len(rows) > 40 else None)
    height = float(rows[["y", "high"]].max().max()) * 1.25
    axes.set_xlim(0.5, read.longest + 0.5)
    axes.set_ylim(0, height)
    axes.set_yticks(within(height))
    axes.set_xlabel("reads step")
    x = np.arange(1.0, read.longest + 1)
    axes.plot(x, read.uniform, color=method_styles.BLACK, linestyle=method_styles.DOTS, linewidth=0.9, zorder=1.8)
    return [(panel, LINE + UNIFORM, step, alike) for step, alike in zip(x.tolist(), read.uniform.tolist(), strict=True)]


def _mark(axes: Axes, marks: dict[str, int], length: int) -> None:
    """Name the steps at which something happens, by a tick from above."""
    for name, given in marks.items():
        step = counted(given, length)
        axes.axvline(step, ymin=0.86, ymax=0.9, color=method_styles.GREY, linewidth=0.8)
        right = step > length / 2
        axes.annotate(
            name, (step, 0.99), xycoords=axes.get_xaxis_transform(), fontsize=5.8, color=method_styles.GREY,
            ha="right" if right else "left", va="top",
        )  # fmt: skip
