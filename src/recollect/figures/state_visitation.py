"""Where agents walk: how often each cell is visited over the in-context episodes of a task (RA-DT, figure 18).

One row per method, one column per task, the same colours for all: white is never, and the scale is logarithmic, because an
agent that has found its goal stays there. A visit is a step that begins in the cell. Mean over seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from pydantic import Field

from recollect.common.traces import Trace, without_scene
from recollect.figures import captions, method_styles, style
from recollect.figures.finishing import finished_example
from recollect.figures.spec import TABLE_COLUMNS, Drawn, FigureSpec, options_of
from recollect.figures.trace_reading import COLOURS, TaskOptions, chosen_tasks, colour_bar, grid_of, only_environment
from recollect.settings.schema import FigureSettings

READS = "traces"
FROM_ABOVE = True  # worlds without a function `scene` are refused before anything runs
GOAL = method_styles.VERMILLION
BESIDE = 0.95  # inches that the colour bar and the names of the methods take


class Options(TaskOptions):
    episodes: int | None = Field(None, ge=1, description="Only the first episodes are counted; null: all.")
    panel: float = Field(0.98, gt=0.3, description="Height of a panel, inches.")


def visits(trace: Trace, task: int, episodes: int | None) -> np.ndarray:
    """How many steps of a task begin in each cell, int64 [height, width]."""
    scene = scene_of(trace, task)
    assert trace.cell_N2 is not None
    is_counted = trace.played.task == task
    if episodes is not None:
        is_counted &= trace.played.episode < episodes
    visits_HW = np.zeros((scene["height"], scene["width"]), np.int64)
    np.add.at(visits_HW, tuple(trace.cell_N2[is_counted].T), 1)
    return visits_HW


def scene_of(trace: Trace, task: int) -> dict[str, Any]:
    """A traced task's world from above, as the trace has it. Raises UserError: the world has none."""
    entry: dict[str, Any] = trace.about["tasks"][trace.tasks.index(task)]
    scene: dict[str, Any] | None = entry["scene"]
    if scene is None or trace.cell_N2 is None:
        raise without_scene(trace, f"task '{entry['name']}'")
    return scene


def check(figure: FigureSettings) -> None:
    only_environment(figure)


def draw(traces: Sequence[Trace], figure: FigureSpec) -> Drawn:
    options = options_of(figure, Options)
    grid = grid_of(traces, figure)
    tasks = chosen_tasks(traces, options.tasks, figure)
    first = grid[figure.methods[0]][0]
    parts = []
    mean_HW: dict[tuple[str, int], np.ndarray] = {}
    for method in figure.methods:
        for task in tasks:
            counts_SHW = np.stack([visits(trace, task, options.episodes) for trace in grid[method]])
            parts.append(_rows(first, figure, method, task, counts_SHW))
            mean_HW[method, task] = counts_SHW.mean(0)
    episodes = min(options.episodes or first.returns_KE.shape[1], first.returns_KE.shape[1])
    counted = captions.count(episodes, "in-context episode")
    seeds = captions.count(len(figure.seeds), "seed")
    meaning = {
        "panel": "task",
        "x": "cell: row × width + column, both from 0 at the top left",
        "y": f"steps that begin in the cell in {captions.count(episodes, 'episode')}: mean over seeds",
        "low, high": "least and most of any seed; empty where there is one seed",
    }
    table = pd.concat(parts, ignore_index=True)
    said = f"scale {figure.scale} · {seeds} · mean visits, logarithmic colours, white: never"
    note = f"Visits in the first {counted}, mean over {seeds}; split '{first.about['split']}'."
    with style.paper_style():
        canvas, handles = _plot(mean_HW, first, episodes, figure, options)
        return finished_example(canvas, figure, table, meaning, said=said, note=note, handles=handles)


def _rows(first: Trace, figure: FigureSpec, method: str, task: int, counts_SHW: np.ndarray) -> pd.DataFrame:
    counts_SC = counts_SHW.reshape(len(counts_SHW), -1)
    several = len(counts_SC) > 1
    content = {
        "panel": first.about["tasks"][first.tasks.index(task)]["name"],
        "method": method,
        "x": np.arange(counts_SC.shape[1], dtype=float),
        "y": counts_SC.mean(0),
        "low": counts_SC.min(0).astype(float) if several else np.nan,
        "high": counts_SC.max(0).astype(float) if several else np.nan,
        "seeds": len(figure.seeds),
        "tasks": 1,
    }
    return pd.DataFrame(content)[TABLE_COLUMNS]


def _plot(
    mean_HW: dict[tuple[str, int], np.ndarray], first: Trace, episodes: int, figure: FigureSpec, options: Options
) -> tuple[Figure, list[Line2D]]:
    """The figure, and what its legend explains."""
    tasks = list(dict.fromkeys(task for _, task in mean_HW))
    scene = scene_of(first, tasks[0])
    shape = scene["height"] / scene["width"]
    wanted = options.panel / shape * len(tasks) + BESIDE
    width = min(style.DOUBLE_COLUMN, max(style.SINGLE_COLUMN, wanted))
    panel_height = min(options.panel, (width - BESIDE) / len(tasks) * shape)
    canvas = style.blank_figure(width, len(figure.methods) * panel_height + 0.25)
    axes_MK = canvas.subplots(len(figure.methods), len(tasks), squeeze=False)
    most = max(float(visits.max()) for visits in mean_HW.values())
    norm = LogNorm(1, max(2.0, most))
    for i, method in enumerate(figure.methods):
        for k, task in enumerate(tasks):
            axes: Axes = axes_MK[i, k]
            draw_scene(axes, mean_HW[method, task], scene_of(first, task), norm)
            if i == 0:
                marks = scene_of(first, task)["marks"]
                title = ", ".join(f"{thing} ({column}, {row})" for thing, row, column in marks)
                axes.set_title(title, fontsize=6.5)
            if k == 0:
                axes.set_ylabel(figure.label(method).replace(", ", ",\n").replace(" (", "\n("))
    ticks = [10**power for power in range(9) if 10**power <= norm.vmax]
    name = f"visits in {captions.count(episodes, 'episode')}"
    bar = colour_bar(canvas, axes_MK, norm, name, ticks, shrink=0.8, aspect=28)
    bar.set_ticks(ticks, labels=[f"{tick:,}" for tick in ticks])
    bar.minorticks_off()

    names = dict.fromkeys(name for name, _, _ in scene["marks"])
    return canvas, [Line2D([], [], markersize=6, label=name, **_mark(name, GOAL, 1.3)) for name in names]


def _mark(name: str, color: str, thickness: float) -> dict[str, Any]:
    """How something in a cell is drawn: a ring around what pays, a triangle around what must be fetched first."""
    return {
        "linestyle": "none",
        "marker": "^" if name == "key" else "o",
        "markerfacecolor": "none",
        "markeredgecolor": color,
        "markeredgewidth": thickness,
    }


def draw_scene(axes: Axes, visits_HW: np.ndarray, scene: dict[str, Any], norm: LogNorm) -> None:
    """A world from above, its cells coloured by visits."""
    height, width = visits_HW.shape
    edges_W = np.arange(width + 1) - 0.5
    edges_H = np.arange(height + 1) - 0.5

    def fill(values_HW: np.ndarray, **colours: Any) -> None:
        shown = np.ma.masked_invalid(values_HW)
        axes.pcolormesh(edges_W, edges_H, shown, edgecolors="face", linewidth=0.15, **colours)

    # A mean over seeds can be below one visit, where the colours begin.
    fill(np.where((visits_HW > 0) & (visits_HW < 1), 1.0, np.nan), cmap=COLOURS, norm=norm)
    fill(np.where(visits_HW >= 1, visits_HW, np.nan), cmap=COLOURS, norm=norm)
    wall_HW = np.full((height, width), np.nan)
    for row, column in scene["walls"]:
        wall_HW[row, column] = 1.0
    fill(wall_HW, cmap="gray", vmin=0.4, vmax=4)

    several = len(scene["marks"]) > 1
    for number, (name, row, column) in enumerate(scene["marks"], start=1):
        # Open, so that the colour of the cell is seen, and with a white edge.
        for color, thickness in (("white", 2.4), (GOAL, 1.3)):
            look = _mark(name, color, thickness)
            axes.plot(column, row, markersize=7.5, zorder=4, clip_on=False, **look)
        if several and name.startswith("goal"):
            axes.annotate(str(number), (column, row), fontsize=4, color=GOAL, ha="center", va="center", zorder=5)
    style.plain_frame(axes, 0.5)
    axes.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5), aspect="equal")
