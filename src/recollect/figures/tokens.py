"""What an agent with a language model sees, and the words that it reads in its place: a strip of images of one episode.

One row per environment and method. Below each image stand its words, best first, with bars: cosines of SHELM's words, or the
weights of the heaviest words of HELM's mixture. A bar of a cosine ends at 1, one of a weight at the heaviest of its row. The
episode is one of the figure's first seed, so there is no interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pydantic import Field

from recollect.common.traces import Trace
from recollect.figures import method_styles, style
from recollect.figures.finishing import finished_example
from recollect.figures.spec import TABLE_COLUMNS, Drawn, FigureSpec, options_of
from recollect.figures.token_page import pixels_of
from recollect.figures.trace_reading import EpisodeOptions, chosen_episode, grids_of, spread
from recollect.settings.errors import UserError

READS = "traces"
LINE_HEIGHT = 0.135  # inches of a word
CUT = 13  # letters of a word that fit below an image
ROOM = 1.22  # how far the axis goes beyond the longest bar, for the numbers
TRACK = "#eceff2"


class Options(EpisodeOptions):
    images: int = Field(8, ge=1, description="Images of a row, spread evenly over the episode.")
    steps: tuple[int, ...] | None = Field(None, description="Show these steps, from 1, in their place.")
    words: int = Field(3, ge=1, description="Words below an image, at most.")


class Strip(NamedTuple):
    """One row of the figure: images [N, H, W, 3], their steps (from 1), words [N][K] and scores [N, K]."""

    pixels: np.ndarray
    steps: list[int]
    words: list[list[str]]
    scores: np.ndarray
    mixture: bool


def strip_of(trace: Trace, options: Options, figure: FigureSpec) -> Strip:
    """The row of one run. Raises UserError: its method reads no words, or the episode or a step of it is not traced."""
    where = f"figure '{figure.name}', {trace.about['method']} on {trace.about['env']}"
    if "tokens" not in trace.facts or not trace.shows_images:
        raise UserError("there are no words to draw", where=where, do="name methods that read words, helm or shelm")
    episode = chosen_episode(trace, options, figure)
    count = episode.stop - episode.start
    steps = list(options.steps) if options.steps is not None else spread(1, count, options.images).tolist()
    for step in steps:
        if not 1 <= step <= count:
            do = f"choose steps from 1 to {count}"
            raise UserError(f"step {step} is not in the episode", where=f"{where}: options.steps", do=do)

    rows_N = np.array(steps) - 1 + episode.start
    token_NK = trace.facts["tokens"][rows_N][:, : options.words]
    score_NK = trace.facts["token_scores"][rows_N][:, : options.words].astype(float)
    words = [[trace.about["words"][str(token)] for token in token_K] for token_K in token_NK.tolist()]
    pixels = pixels_of(np.asarray(trace.played.observation[rows_N]))
    return Strip(pixels, steps, words, score_NK, "token_entropy" in trace.facts)


def draw(traces: Sequence[Trace], figure: FigureSpec) -> Drawn:
    options = options_of(figure, Options)
    strips: dict[tuple[str, str], Strip] = {}
    for env, grid in grids_of(traces, figure).items():
        for method in figure.methods:
            strips[env, method] = strip_of(grid[method][0], options, figure)
    seed = figure.seeds[0]
    scales = {False: "cosine (bars from 0 to 1)", True: "weight in the mixture (bars up to the row's largest)"}
    units = sorted({scales[strip.mixture] for strip in strips.values()})
    note = f"One episode (number {options.episode + 1}) of seed {seed}, images spread evenly over it."
    if options.steps is not None:
        note = f"Steps {', '.join(map(str, options.steps))} of episode {options.episode + 1} of seed {seed}."
    meaning = {
        "panel": "environment, step of the episode, and the word",
        "x": "place of the word, 1 is the best",
        "y": "cosine of image and word (SHELM), or weight of the word in the mixture (HELM)",
        "low, high": "empty: one episode",
    }
    words = f"below each image its words, best first: {' or '.join(units)}"
    place = f"{figure.environment_label(figure.environments[0])} · " if len(figure.environments) == 1 else ""
    said = f"{place}scale {figure.scale} · seed {seed} · one episode · {words}"
    with style.paper_style():
        return finished_example(_plot(strips, figure), figure, _table(strips), meaning, said=said, note=note)


def _table(strips: dict[tuple[str, str], Strip]) -> pd.DataFrame:
    """One row per word; it stands in the panel: ``mini_grid_MemoryS11, step 3: key``."""
    rows = []
    for (env, method), strip in strips.items():
        for i, step in enumerate(strip.steps):
            for k, word in enumerate(strip.words[i]):
                panel = f"{env}, step {step}: {word}"
                score = strip.scores[i, k]
                rows.append((panel, method, k + 1.0, score, np.nan, np.nan, 1, 1))
    return pd.DataFrame(rows, columns=TABLE_COLUMNS)


def _plot(strips: dict[tuple[str, str], Strip], figure: FigureSpec) -> Figure:
    columns = max(len(strip.steps) for strip in strips.values())
    side = (style.DOUBLE_COLUMN - 0.35) / max(columns, 4)  # inches of an image and what is around it
    heights = []
    for strip in strips.values():
        picture_height = side * strip.pixels.shape[1] / strip.pixels.shape[2]
        heights += [picture_height + 0.16, LINE_HEIGHT * strip.scores.shape[1] + 0.1]
    canvas = style.blank_figure(side * columns + 0.35, sum(heights))
    axes_RC = canvas.subplots(len(heights), columns, squeeze=False, height_ratios=heights)
    for i, ((env, method), strip) in enumerate(strips.items()):
        top = float(strip.scores.max()) if strip.mixture else 1.0
        for k in range(columns):
            picture, below = axes_RC[2 * i : 2 * i + 2, k]
            if k >= len(strip.steps):
                picture.set_axis_off()
                below.set_axis_off()
                continue
            picture.imshow(strip.pixels[k], interpolation="nearest")
            picture.set_title(f"step {strip.steps[k]}", fontsize=6, pad=2)
            style.plain_frame(picture, 0.4)
            _words(below, strip.words[k], strip.scores[k], top)
        label = f"{figure.label(method)}, {'weight' if strip.mixture else 'cosine'}"
        if len(figure.environments) > 1:
            label += f"\n{figure.environment_label(env)}"
        axes_RC[2 * i, 0].set_ylabel(label, fontsize=6.5)
    return canvas


def _words(axes: Axes, words: Sequence[str], scores: np.ndarray, top: float) -> None:
    """Words as bars with their names in them, on a pale one of the value `top`; the numbers stand behind it."""
    for k, word in enumerate(words):
        score = float(scores[k])
        share = max(0.0, score) / max(top, 1e-9)
        axes.barh(k, 1, height=0.86, color=TRACK, linewidth=0)
        axes.barh(k, share, height=0.86, color=method_styles.tinted(method_styles.GREEN, 0.65), linewidth=0)
        shown = word if len(word) <= CUT else word[: CUT - 1] + "…"
        axes.text(0.03, k, shown, fontsize=5.4, va="center", ha="left")
        axes.text(ROOM, k, _short(score), fontsize=4.6, va="center", ha="right", color=method_styles.BLACK)
    axes.set(xlim=(0, ROOM), ylim=(len(words) - 0.5, -0.5))
    axes.set_axis_off()


def _short(score: float) -> str:
    """``.31``, ``2e-4``: a number of at most four letters."""
    if score >= 0.995:
        return "1"
    if score >= 0.005:
        return f"{score:.2f}".removeprefix("0")
    return f"{score:.0e}".replace("e-0", "e-")
