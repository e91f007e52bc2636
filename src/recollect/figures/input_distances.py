"""How far apart images are, before and after they become inputs of a language model (HELM's FrozenHopfield at several β).

One row per environment, its episode being one of the figure's first seed; for each method a pair of matrices of Euclidean
distances between the steps of the episode: of the images, and of what they became. Each is divided by its largest distance.
β = 1 roughly keeps what is near and what is far; large β spread out small differences. Specification 8.5 of HELM.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from pydantic import Field

from recollect.common.traces import Trace
from recollect.figures import style
from recollect.figures.finishing import finished_example
from recollect.figures.spec import TABLE_COLUMNS, Drawn, FigureSpec, options_of
from recollect.figures.trace_reading import EpisodeOptions, chosen_episode, colour_bar, grids_of, spread
from recollect.settings.errors import UserError

READS = "traces"
COLOURS = "mako"
IMAGES, INPUTS = "images", "inputs"


class Options(EpisodeOptions):
    steps: int = Field(60, ge=2, description="Steps at most, spread evenly over those traced with their inputs.")
    titles: dict[str, str] = Field({}, description="Method -> title, where it has another here.")
    panel: float = Field(1.05, gt=0.3, description="Side of a matrix, inches.")


def distances(vectors_NP: np.ndarray) -> np.ndarray:
    """Euclidean distances [N, N] of vectors, divided by the largest one (0: all are the same)."""
    flat_NP = vectors_NP.reshape(len(vectors_NP), -1).astype(np.float64)
    distance_NN = np.stack([np.sqrt(((flat_NP - vector_P) ** 2).sum(1)) for vector_P in flat_NP])
    return distance_NN / (distance_NN.max() or 1.0)


class Compared(NamedTuple):
    """Steps of an episode, from 1, and the distances [N, N] between them: of `images`, of `inputs`."""

    steps: list[int]
    matrices: dict[str, np.ndarray]


def read(trace: Trace, options: Options, figure: FigureSpec) -> Compared:
    """What one run shows. Raises UserError: the method has no language model, or the episode is not traced."""
    if "inputs" not in trace.maps:
        where = f"figure '{figure.name}', {trace.about['method']} on {trace.about['env']}"
        raise UserError("nothing became an input of a language model", where=where, do="name methods such as helm")
    episode = chosen_episode(trace, options, figure)
    with_inputs = np.flatnonzero((trace.map_row >= episode.start) & (trace.map_row < episode.stop))
    map_N = with_inputs[spread(0, len(with_inputs) - 1, options.steps)]
    row_N = trace.map_row[map_N]
    matrices = {
        IMAGES: distances(np.asarray(trace.played.observation[row_N]) / 255),
        INPUTS: distances(trace.maps["inputs"][map_N]),
    }
    return Compared((row_N - episode.start + 1).tolist(), matrices)


def draw(traces: Sequence[Trace], figure: FigureSpec) -> Drawn:
    options = options_of(figure, Options)
    compared: dict[str, dict[str, Compared]] = {}
    for env, grid in grids_of(traces, figure).items():
        compared[env] = {method: read(of_seeds[0], options, figure) for method, of_seeds in grid.items()}
    seed = figure.seeds[0]
    meaning = {
        "panel": "environment, what is compared (images, or the inputs that they became), and the earlier step",
        "x": "the later step, from 1",
        "y": "Euclidean distance, divided by the largest of the matrix",
        "low, high": "empty: one episode",
    }
    said = f"scale {figure.scale} · seed {seed} · one episode · each matrix divided by its largest distance"
    note = f"Episode {options.episode + 1} of seed {seed}; steps of the episode along both axes."
    with style.paper_style():
        canvas = _plot(compared, figure, options)
        return finished_example(canvas, figure, _table(compared), meaning, said=said, note=note)


def _table(compared: dict[str, dict[str, Compared]]) -> pd.DataFrame:
    """One row per pair of steps; the earlier is named by the panel: ``mini_grid_MemoryS11, inputs, step 3``."""
    rows = []
    for env, by_method in compared.items():
        for method, (steps, matrices) in by_method.items():
            for name, matrix_NN in matrices.items():
                for i, j in zip(*np.triu_indices(len(steps), 1), strict=True):
                    panel = f"{env}, {name}, step {steps[i]}"
                    rows.append((panel, method, float(steps[j]), matrix_NN[i, j], np.nan, np.nan, 1, 1))
    return pd.DataFrame(rows, columns=TABLE_COLUMNS)


def _plot(compared: dict[str, dict[str, Compared]], figure: FigureSpec, options: Options) -> Figure:
    columns = 2 * len(figure.methods)
    side = min(options.panel, (style.DOUBLE_COLUMN - 0.75) / columns)
    canvas = style.blank_figure(columns * side + 0.75, len(compared) * (side + 0.15) + 0.15)
    axes_EC = canvas.subplots(len(compared), columns, squeeze=False)
    norm = Normalize(0, 1)
    for row, (env, by_method) in enumerate(compared.items()):
        column = 0
        for method, (steps, matrices) in by_method.items():
            for name, matrix_NN in matrices.items():
                axes = axes_EC[row, column]
                axes.imshow(matrix_NN, cmap=COLOURS, norm=norm, interpolation="nearest")
                _set_ticks(axes, steps, on_both_axes=column == 0)
                axes.grid(False)
                if column == 0:
                    axes.set_ylabel(figure.environment_label(env), fontsize=6.5)
                if row == 0:
                    axes.set_title(f"{options.titles.get(method) or figure.label(method)}\n{name}", fontsize=6)
                column += 1
    colour_bar(canvas, axes_EC, norm, "distance", [0, 0.5, 1], colours=COLOURS, shrink=0.8, aspect=18)
    return canvas


def _set_ticks(axes: Axes, steps: list[int], *, on_both_axes: bool) -> None:
    """Name the first and the last step, below and, of the first matrix of a row, at its left."""
    ends = [0, len(steps) - 1]
    names = [str(steps[i]) for i in ends]
    axes.set(xticks=ends, yticks=ends if on_both_axes else [])
    axes.set_xticklabels(names, fontsize=5.5)
    first, last = axes.get_xticklabels()  # so set that those of neighbours do not meet
    first.set_horizontalalignment("left")
    last.set_horizontalalignment("right")
    if on_both_axes:
        axes.set_yticklabels(names, fontsize=5.5)
