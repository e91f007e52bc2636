"""Traces in, a checked grid out (a figure draws all its methods and seeds); and what figures of attention share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colorbar import Colorbar
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from pydantic import Field

from recollect.common.traces import Trace
from recollect.figures.spec import FigureSpec
from recollect.figures.statistics import Interval
from recollect.settings.errors import UserError
from recollect.settings.loading import config_path
from recollect.settings.schema import FigureSettings, Frozen

COLOURS = "mako_r"  # of seaborn: light to dark at an even pace
UNIFORM = "uniform"
#: Meaning of the bounds in the tables of attention.
BOUNDS = "bounds of the 95 % stratified bootstrap interval of the mean; empty for maps and for one seed"


class TaskOptions(Frozen):
    """Which tasks a figure of traces is about."""

    tasks: tuple[int, ...] | None = Field(None, description="Tasks of the split; null: all that are traced.")


class EpisodeOptions(Frozen):
    """Which episode a figure of traces shows."""

    task: int | None = Field(None, description="Task of the split; null: the first that is traced.")
    episode: int = Field(0, ge=0, description="Which of its episodes.")


def read_traces(files: Sequence[Path | str]) -> list[Trace]:
    """The traces of some runs. Raises UserError: no file, or one that does not verify."""
    if not files:
        raise UserError("there are no traces", where="figure", do="name the trace.safetensors of the runs to draw")
    return [Trace.open(Path(file)) for file in files]


def grid_of(traces: Sequence[Trace], figure: FigureSpec) -> dict[str, list[Trace]]:
    """The traces that a figure draws: method -> one per seed, in the figure's order; each once, of one environment."""
    where, env = f"figure '{figure.name}'", only_environment(figure)
    trace_of: dict[tuple[str, str, int], Trace] = {}
    for trace in traces:
        if trace.run in trace_of:
            raise UserError(f"the trace of {_name(trace.run)} stands twice", where=where, do="give each file once")
        trace_of[trace.run] = trace
    wanted = [(env, method, seed) for method in figure.methods for seed in figure.seeds]
    missing = [run for run in wanted if run not in trace_of]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        do = f"run `recollect inspect` for it, or take it out of {config_path('figures', figure.name)}"
        raise UserError(f"there is no trace of {_name(missing[0])}{more}", where=where, do=do)
    first = trace_of[wanted[0]]
    for run in wanted:
        other = trace_of[run]
        if (other.about["split"], other.tasks) != (first.about["split"], first.tasks):
            raise UserError(
                f"{_name(run)} has tasks {other.tasks} of split '{other.about['split']}' traced, and "
                f"{_name(first.run)} has {first.tasks} of '{first.about['split']}'",
                where=where,
                do="run `recollect inspect` with the same tasks for both",
            )
    return {method: [trace_of[run] for run in wanted if run[1] == method] for method in figure.methods}


def grids_of(traces: Sequence[Trace], figure: FigureSpec) -> dict[str, dict[str, list[Trace]]]:
    """Environment -> `grid_of`, of a figure that draws several environments."""
    return {env: grid_of(traces, figure.model_copy(update={"environments": (env,)})) for env in figure.environments}


def only_environment(figure: FigureSettings | FigureSpec) -> str:
    """The environment of a figure that draws one. Raises UserError: it has several."""
    if len(figure.environments) != 1:
        what = f"kind '{figure.kind}' draws one environment, not {len(figure.environments)}"
        raise UserError(what, where=f"figure '{figure.name}'", do="make one figure per environment")
    return figure.environments[0]


def only_method(figure: FigureSettings | FigureSpec) -> str:
    """The method of a figure that draws the attention of one. Raises UserError: it has several."""
    if len(figure.methods) != 1:
        what = f"attention is drawn of one method, not {len(figure.methods)}"
        raise UserError(what, where=f"figure '{figure.name}'", do="make one figure per method")
    return figure.methods[0]


def chosen_tasks(traces: Sequence[Trace], wanted: Sequence[int] | None, figure: FigureSpec) -> list[int]:
    """The tasks to draw: those wanted, or all that are traced. Raises UserError: a wanted task is not traced."""
    traced = traces[0].tasks
    absent = [task for task in wanted or () if task not in traced]
    if absent:
        what = f"task {absent[0]} is not in the traces, which hold {', '.join(map(str, traced))}"
        do = f"run `recollect inspect` with `--task {absent[0]}` for every run of the figure"
        raise UserError(what, where=f"figure '{figure.name}': options.tasks", do=do)
    return list(traced if wanted is None else wanted)


def chosen_episode(trace: Trace, options: EpisodeOptions, figure: FigureSpec) -> slice:
    """The steps of the episode to show. Raises UserError: its task or itself is not traced."""
    task = chosen_tasks([trace], None if options.task is None else [options.task], figure)[0]
    traced = int((trace.played.episodes.task == task).sum())
    if options.episode >= traced:
        what = f"episode {options.episode} of task {task} is not traced"
        do = f"choose an episode from 0 to {traced - 1}"
        raise UserError(what, where=f"figure '{figure.name}', {trace.about['method']} on {trace.about['env']}", do=do)
    return trace.steps(task, options.episode)


def spread(first: int, last: int, most: int) -> np.ndarray:
    """At most so many whole numbers from the first to the last, evenly spread, each once."""
    return np.unique(np.linspace(first, last, min(most, last - first + 1)).round().astype(int))


def within(top: float) -> list[float]:
    """A few round numbers from 0 to the top of an axis."""
    return [float(tick) for tick in MaxNLocator(4).tick_values(0.0, top) if tick <= top]


def colour_bar(
    canvas: Figure, axes: Any, norm: Normalize, name: str, ticks: Sequence[float], colours: str = COLOURS, **shape: Any
) -> Colorbar:
    """Put a named bar of the colours beside some axes; `shape`: see `Figure.colorbar`."""
    bar = canvas.colorbar(ScalarMappable(norm, colours), ax=axes, pad=0.02, **shape)
    bar.set_label(name)
    bar.set_ticks(ticks)
    bar.outline.set_linewidth(0.4)  # type: ignore[operator]
    return bar


def edges(count: int, size: int = 1, last: int | None = None) -> np.ndarray:
    """Where bins of so many steps begin and end on an axis that counts steps from 1; the last bin may be short."""
    return np.minimum(np.arange(count + 1) * size, last or count * size) + 0.5


def draw_map(axes: Axes, x_edges: np.ndarray, y_edges: np.ndarray, values: np.ndarray, norm: Normalize) -> None:
    """Draw a map of attention, its first row at the top; NaN stays white."""
    shown = np.ma.masked_invalid(values)
    axes.pcolormesh(x_edges, y_edges, shown, cmap=COLOURS, norm=norm, edgecolors="face", linewidth=0.1)
    axes.set_ylim(y_edges[-1], y_edges[0])
    axes.grid(False)


def rows_of_map(panel: str, x: np.ndarray, map_QW: np.ndarray, size: int, horizon: int) -> list[pd.DataFrame]:
    """Rows of a figure's table, those of one bin of so many steps in a panel: ``layer 1, steps 1–5``."""
    parts = []
    for place, values in enumerate(map_QW):
        first = place * size + 1
        last = min(first + size - 1, horizon)
        rows = pd.DataFrame({"x": x, "y": values, "low": np.nan, "high": np.nan})
        parts.append(rows.assign(panel=f"{panel}, steps {first}–{last}"))
    return parts


def rows_of_mean(panel: str, interval: Interval, layer: int) -> pd.DataFrame:
    """Rows of a figure's table of one layer's mean attention on each step."""
    y_W = interval.value[layer]
    x_W = np.arange(1.0, len(y_W) + 1)
    return pd.DataFrame({"x": x_W, "y": y_W, "low": interval.low[layer], "high": interval.high[layer], "panel": panel})


@np.errstate(invalid="ignore")
def mean_where_counted(total: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Sums by how many values they are of; NaN where these are none."""
    return total / count


def _name(run: tuple[str, str, int]) -> str:
    env, method, seed = run
    return f"{method} on {env}, seed {seed}"
