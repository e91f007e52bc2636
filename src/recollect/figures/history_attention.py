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
from matplotlib.cm import ScalarMappable
from matplotlib.colors import PowerNorm
from pydantic import Field

from recollect.common.traces import Trace
from recollect.figures import captions, statistics, style
from recollect.figures.attention_maps import COLOURS, UNIFORM, within
from recollect.figures.spec import LINE, TABLE_COLUMNS, Drawn, FigureSpec, options_of, with_extra_rows
from recollect.figures.trace_reading import chosen_tasks, grid_of
from recollect.settings.errors import UserError
from recollect.settings.schema import Frozen
from recollect.settings.seeding import generator

READS = "traces"
DECISION = "decision"


class Options(Frozen):
    """Options of kind `history_attention`."""

    tasks: tuple[int, ...] | None = Field(None, description="Tasks of the split that are averaged; null: all traced.")
    decision: dict[str, tuple[int, int]] = Field(
        default_factory=dict,
        description="Environment -> first and last step of the decision. Steps count from 1, or from the last, which is -1. "
        "Not named: the last step.",
    )
    marks: dict[str, dict[str, int]] = Field(
        default_factory=dict, description="Environment -> what happens -> its step, counted in the same way."
    )
    titles: dict[str, str] = Field(default_factory=dict, description="Environment -> title, where it has another here.")
    bins: int = Field(
        60, ge=2, description="Most rows and columns of a map; steps of longer episodes are put together."
    )
    resamples: int = Field(statistics.RESAMPLES, ge=100, description="Bootstrap resamples.")
    panel: float = Field(1.3, gt=0.3, description="Height of a map, inches.")


class Read(NamedTuple):
    """One environment: map [L, Q, W] of means per step read (Q, W bins), decision [L, horizon], steps of an episode."""

    maps: np.ndarray
    decision: statistics.Interval
    horizon: int
    episodes: int


def by_step(trace: Trace) -> tuple[np.ndarray, np.ndarray]:
    """Attention [M, L, horizon] of each mapped step on the steps of its episode, and which step that is, [M].

    Raises:
        UserError: the policy does not attend to its history.
    """
    if "history_attention" not in trace.maps:
        raise UserError(
            f"{trace.about['method']} does not attend to its history, so there is no attention to draw",
            where=f"trace of {trace.about['env']}, seed {trace.about['seed']}",
            do="name a method with a transformer, such as dqn_gpt",
        )
    weights_MLC = trace.maps["history_attention"].astype(np.float64)
    step_M, horizon = trace.played.timestep[trace.map_row], int(trace.about["horizon"])
    context = weights_MLC.shape[2]
    place_MT = np.arange(horizon) - step_M[:, None] + context - 1
    there_MT = (place_MT >= 0) & (place_MT < context)
    found = np.take_along_axis(weights_MLC, np.clip(place_MT, 0, context - 1)[:, None], 2)
    return found * there_MT[:, None], step_M


def counted(step: int, horizon: int) -> int:
    """A step from 1, of one that may be counted from the last."""
    return step if step > 0 else horizon + 1 + step


def read(traces: Sequence[Trace], tasks: Sequence[int], options: Options, figure: FigureSpec) -> Read:
    """The attention of one environment over its seeds and episodes.

    Raises:
        UserError: an episode has no map of its decision.
    """
    horizon, env = int(traces[0].about["horizon"]), str(traces[0].about["env"])
    first, last = (counted(step, horizon) for step in options.decision.get(env, (-1, -1)))
    size = -(-horizon // options.bins)
    bins = -(-horizon // size)
    sums: np.ndarray | float = 0.0
    count_Q = np.zeros(bins)
    decided = []
    for trace in traces:
        attention_MLT, step_M = by_step(trace)
        table = trace.played
        chosen_M = np.isin(table.task[trace.map_row], list(tasks))
        padded = np.pad(attention_MLT, ((0, 0), (0, 0), (0, bins * size - horizon)))
        binned_MLW = padded.reshape(*attention_MLT.shape[:2], bins, size).sum(3)  # the share of a bin
        total = np.zeros((bins, *binned_MLW.shape[1:]))
        np.add.at(total, step_M[chosen_M] // size, binned_MLW[chosen_M])
        sums = sums + total
        count_Q += np.bincount(step_M[chosen_M] // size, minlength=bins)
        of_seed = []
        for task in tasks:
            for episode in np.unique(table.episode[table.task == task]):
                mine_M = (table.task[trace.map_row] == task) & (table.episode[trace.map_row] == episode)
                mine_M &= (step_M + 1 >= first) & (step_M < last)
                if not mine_M.any():
                    raise UserError(
                        f"episode {episode} of task {task} has no map of steps {first} to {last}",
                        where=f"trace of {trace.about['method']} on {env}, seed {trace.about['seed']}",
                        do="correct the option 'decision'",
                    )
                of_seed.append(attention_MLT[mine_M].mean(0))
        decided.append(of_seed)
    maps = np.divide(sums, count_Q[:, None, None], out=np.full_like(sums, np.nan), where=count_Q[:, None, None] > 0)
    rng = generator("bootstrap", figure.name, env)
    decision = statistics.stratified_bootstrap(np.array(decided), rng, resamples=options.resamples)
    return Read(maps.swapaxes(0, 1), decision, horizon, len(decided[0]))


def draw(traces: Sequence[Trace], figure: FigureSpec) -> Drawn:
    """Draw the figure.

    Raises:
        UserError: a wrong option, a trace that is missing, or a method that does not attend to its history.
    """
    options = options_of(figure, Options)
    if len(figure.methods) != 1:
        do = "make one figure per method"
        raise UserError(
            f"attention is drawn of one method, not {len(figure.methods)}", where=f"figure '{figure.name}'", do=do
        )
    found: dict[str, Read] = {}
    for env in figure.environments:
        of_seeds = grid_of(traces, figure.model_copy(update={"environments": (env,)}))[figure.methods[0]]
        tasks = chosen_tasks(of_seeds, options.tasks, figure)
        found[env] = read(of_seeds, tasks, options, figure)
    table = _table(found, figure)
    with style.paper_style():
        return _plot(table, found, figure, options)


def _table(found: dict[str, Read], figure: FigureSpec) -> pd.DataFrame:
    """Rows of the maps (panel ``<env>, layer 1, steps 1-5``) and of the decision (``<env>, layer 1, decision``)."""
    parts = []
    for env, (maps, decision, horizon, episodes) in found.items():
        known = {"method": figure.methods[0], "seeds": len(figure.seeds), "tasks": episodes}
        size = -(-horizon // maps.shape[1])
        first = np.arange(maps.shape[2]) * size
        for layer, map_QW in enumerate(maps):
            for place, values in enumerate(map_QW):
                steps = f"steps {place * size + 1}–{min((place + 1) * size, horizon)}"
                columns = {"panel": f"{env}, layer {layer + 1}, {steps}", "x": first + 1.0, "y": values}
                parts.append(pd.DataFrame({**columns, "low": np.nan, "high": np.nan, **known}))
            columns = {"panel": f"{env}, layer {layer + 1}, {DECISION}", "x": np.arange(1.0, horizon + 1)}
            bounds = {"y": decision.value[layer], "low": decision.low[layer], "high": decision.high[layer]}
            parts.append(pd.DataFrame({**columns, **bounds, **known}))
    return pd.concat(parts, ignore_index=True)[list(TABLE_COLUMNS)]


def _plot(table: pd.DataFrame, found: dict[str, Read], figure: FigureSpec, options: Options) -> Drawn:
    def title_of(env: str) -> str:
        return options.titles.get(env) or figure.environment_label(env)

    places = [(env, layer) for env, one in found.items() for layer in range(len(one.maps))]
    width = style.SINGLE_COLUMN if len(places) <= 2 else style.DOUBLE_COLUMN
    canvas = style.blank_figure(width, 2 * options.panel + 0.6)
    axes_RC = canvas.subplots(2, len(places), squeeze=False, sharex="col")
    look = style.styles_of(figure.methods)[figure.methods[0]]
    top = max(float(np.nanmax(one.maps)) for one in found.values())
    norm = PowerNorm(0.5, 0, top)
    extra_rows: list[tuple[str, str, float, float]] = []
    for column, (env, layer) in enumerate(places):
        one, (upper, lower) = found[env], axes_RC[:, column]
        size = -(-one.horizon // one.maps.shape[1])
        edges = np.minimum(np.arange(one.maps.shape[1] + 1) * size, one.horizon) + 0.5
        future = np.triu(np.ones(one.maps[layer].shape, bool), 1)
        shown = np.ma.masked_invalid(np.where(future, np.nan, one.maps[layer]))
        upper.pcolormesh(edges, edges, shown, cmap=COLOURS, norm=norm, edgecolors="face", linewidth=0.1)
        upper.set(ylim=(one.horizon + 0.5, 0.5), ylabel="acts at step" if column == 0 else "")
        upper.grid(False)
        layers = f", layer {layer + 1}" if len(one.maps) > 1 else ""
        upper.set_title(f"{title_of(env)}{layers}", loc="left")
        panel = f"{env}, layer {layer + 1}, {DECISION}"
        rows = table[table["panel"] == panel]
        style.draw_band(lower, rows, look, markers=4 if len(rows) > 40 else None)
        style.draw_line(lower, 1 / one.horizon)
        extra_rows += [(panel, LINE + UNIFORM, x, 1 / one.horizon) for x in (1.0, float(one.horizon))]
        height = float(rows[["y", "high"]].max().max()) * 1.25
        lower.set(xlim=(0.5, one.horizon + 0.5), ylim=(0, height), xlabel="reads step", yticks=within(height))
        lower.set_ylabel("attention at the decision" if column == 0 else "")
        ticks = [1, *(round(one.horizon * part / 4) for part in (1, 2, 3, 4))]
        for axis in (lower.xaxis, upper.yaxis):
            axis.set_ticks(ticks if one.horizon > 8 else list(range(1, one.horizon + 1)))
        _mark(lower, options.marks.get(env, {}), one.horizon)
    bar = canvas.colorbar(ScalarMappable(norm, COLOURS), ax=axes_RC[0], shrink=0.9, aspect=18, pad=0.02)
    bar.set_label("attention")
    bar.set_ticks(within(top))
    bar.outline.set_linewidth(0.4)  # type: ignore[operator]
    said, *warned = (line.replace("task", "episode") for line in captions.small_print(figure, table, "mean"))
    handles = style.legend_handles(figure, {figure.methods[0]: look}, [LINE + UNIFORM])
    style.finish(canvas, figure, handles, [said, *warned])
    ends = {env: [counted(at, one.horizon) for at in options.decision.get(env, (-1, -1))] for env, one in found.items()}
    decisions = ", ".join(f"{title_of(env)}: steps {first} to {last}" for env, (first, last) in ends.items())
    notes = [
        *(note.replace("task", "episode") for note in captions.notes_on_method(
            figure, table, "mean", options.resamples, "seeds and episodes")),
        f"Decision: {decisions}.",
    ]  # fmt: skip
    meaning = {
        "panel": "environment, layer, and the steps at which the policy acts (a row of a map) or its decision",
        "x": "step that is read, from 1; of a map, the first of its bin",
        "y": "self-attention of the present step's token, mean over heads; of a map, the sum over the bin",
        "low, high": "bounds of the 95 % stratified bootstrap interval of the mean; empty for maps and for one seed",
    }
    return Drawn(canvas, with_extra_rows(table, extra_rows), meaning, tuple(notes))


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
