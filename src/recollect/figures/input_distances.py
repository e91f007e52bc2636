"""How far apart images are, before and after they become inputs of a language model (HELM's FrozenHopfield at several β).

One row per environment, its episode being one of the figure's first seed; for each method a pair of matrices of Euclidean
distances between the steps of the episode: of the images, and of what they became. Each is divided by its largest distance.
β = 1 roughly keeps what is near and what is far; large β spread out small differences. Specification 8.5 of HELM.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from pydantic import Field

from recollect.common.traces import Trace
from recollect.figures import style
from recollect.figures.spec import TABLE_COLUMNS, Drawn, FigureSpec, options_of
from recollect.figures.trace_reading import chosen_tasks, grid_of
from recollect.settings.errors import UserError
from recollect.settings.schema import Frozen

READS = "traces"
COLOURS = "mako"
IMAGES, INPUTS = "images", "inputs"


class Options(Frozen):
    """Options of kind `input_distances`."""

    task: int | None = Field(None, description="Task of the split; null: the first that is traced.")
    episode: int = Field(0, ge=0, description="Which of its episodes.")
    steps: int = Field(
        60, ge=2, description="Steps at most, spread evenly over those that are traced with their inputs."
    )
    titles: dict[str, str] = Field(default_factory=dict, description="Method -> title, where it has another here.")
    panel: float = Field(1.05, gt=0.3, description="Side of a matrix, inches.")


def distances(vectors_NP: np.ndarray) -> np.ndarray:
    """Euclidean distances [N, N] of vectors, divided by the largest one (0: all are the same)."""
    flat_NP = vectors_NP.reshape(len(vectors_NP), -1).astype(np.float64)
    found_NN = np.stack([np.sqrt(((flat_NP - one) ** 2).sum(1)) for one in flat_NP])
    return found_NN / found_NN.max() if found_NN.any() else found_NN


def read(trace: Trace, options: Options, figure: FigureSpec) -> tuple[list[int], dict[str, np.ndarray]]:
    """The steps that are compared (from 1), and the matrices of images and of inputs.

    Raises:
        UserError: the method has no language model, or the episode is not traced.
    """
    where = f"figure '{figure.name}', {trace.about['method']} on {trace.about['env']}"
    if "inputs" not in trace.maps:
        raise UserError("nothing became an input of a language model", where=where, do="name methods such as helm")
    task = chosen_tasks([trace], None if options.task is None else [options.task], figure)[0]
    if options.episode >= int((trace.played.episodes.task == task).sum()):
        raise UserError(f"episode {options.episode} of task {task} is not traced", where=where, do="choose another")
    rows = trace.steps(task, options.episode)
    mine = np.flatnonzero((trace.map_row >= rows.start) & (trace.map_row < rows.stop))
    mine = mine[np.unique(np.linspace(0, len(mine) - 1, min(options.steps, len(mine))).round().astype(int))]
    row_N = trace.map_row[mine]
    found = {
        IMAGES: distances(np.asarray(trace.played.observation[row_N]) / 255),
        INPUTS: distances(trace.maps["inputs"][mine]),
    }
    return (row_N - rows.start + 1).tolist(), found


def draw(traces: Sequence[Trace], figure: FigureSpec) -> Drawn:
    """Draw the figure.

    Raises:
        UserError: a wrong option, a trace that is missing, or a method without a language model.
    """
    options = options_of(figure, Options)
    found = {}
    for env in figure.environments:
        grid = grid_of(traces, figure.model_copy(update={"environments": (env,)}))
        found[env] = {method: read(grid[method][0], options, figure) for method in figure.methods}
    with style.paper_style():
        return _plot(found, figure, options)


def _table(found: dict[str, dict[str, tuple[list[int], dict[str, np.ndarray]]]]) -> pd.DataFrame:
    """One row per pair of steps; the earlier is named by the panel: ``mini_grid_MemoryS11, inputs, step 3``."""
    parts = []
    for env, of_methods in found.items():
        for method, (steps, matrices) in of_methods.items():
            for what, matrix_NN in matrices.items():
                for i, step in enumerate(steps[:-1]):
                    rows = {
                        "panel": f"{env}, {what}, step {step}",
                        "method": method,
                        "x": np.array(steps[i + 1 :], float),
                    }
                    parts.append(pd.DataFrame({**rows, "y": matrix_NN[i, i + 1 :]}))
    known = {"low": np.nan, "high": np.nan, "seeds": 1, "tasks": 1}
    return pd.concat(parts, ignore_index=True).assign(**known)[list(TABLE_COLUMNS)]


def _plot(
    found: dict[str, dict[str, tuple[list[int], dict[str, np.ndarray]]]], figure: FigureSpec, options: Options
) -> Drawn:
    columns = 2 * len(figure.methods)
    side = min(options.panel, (style.DOUBLE_COLUMN - 0.75) / columns)
    canvas = style.blank_figure(columns * side + 0.75, len(found) * (side + 0.15) + 0.15)
    axes_EC = canvas.subplots(len(found), columns, squeeze=False)
    norm = Normalize(0, 1)
    for row, (env, of_methods) in enumerate(found.items()):
        for k, (method, (steps, matrices)) in enumerate(of_methods.items()):
            for j, (what, matrix_NN) in enumerate(matrices.items()):
                axes = axes_EC[row, 2 * k + j]
                axes.imshow(matrix_NN, cmap=COLOURS, norm=norm, interpolation="nearest")
                ends = [0, len(steps) - 1]
                axes.set(xticks=ends, yticks=ends if k + j == 0 else [])
                axes.set_xticklabels([str(steps[i]) for i in ends], fontsize=5.5)
                for tick, side_of in zip(axes.get_xticklabels(), ("left", "right"), strict=True):
                    tick.set_horizontalalignment(side_of)  # so that those of neighbours do not meet
                if k + j == 0:
                    axes.set_yticklabels([str(steps[i]) for i in ends], fontsize=5.5)
                    axes.set_ylabel(figure.environment_label(env), fontsize=6.5)
                axes.grid(False)
                if row == 0:
                    axes.set_title(f"{options.titles.get(method) or figure.label(method)}\n{what}", fontsize=6)
    bar = canvas.colorbar(ScalarMappable(norm, COLOURS), ax=axes_EC, shrink=0.8, aspect=18, pad=0.02)
    bar.set_label("distance")
    bar.set_ticks([0, 0.5, 1])
    bar.outline.set_linewidth(0.4)  # type: ignore[operator]
    seed = figure.seeds[0]
    lines = [f"scale {figure.scale} · seed {seed} · one episode · each matrix divided by its largest distance"]
    notes = [f"Episode {options.episode + 1} of seed {seed}; steps of the episode along both axes."]
    if figure.random_models:
        lines.append("A random model took the place of a pretrained one.")
        notes.append(lines[-1])
    style.finish(canvas, figure, [], lines)
    meaning = {
        "panel": "environment, what is compared (images, or the inputs that they became), and the earlier step",
        "x": "the later step, from 1",
        "y": "Euclidean distance, divided by the largest of the matrix",
        "low, high": "empty: one episode",
    }
    return Drawn(canvas, _table(found), meaning, tuple(notes))
