"""The end of every figure: legend, small print and wiring warning around the panels, and what is shown in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from recollect.figures import captions, method_styles, spec, style
from recollect.figures.spec import PUBLISHED, RANDOM_MODEL, Drawn, ExtraRow, FigureSpec, ScoreOptions
from recollect.figures.statistics import Band


def finished(
    canvas: Figure,
    figure: FigureSpec,
    options: ScoreOptions,
    table: pd.DataFrame,
    extra_rows: Sequence[ExtraRow],
    meaning: Mapping[str, str],
    *,
    over: str = "seeds and tasks",
    handles: Sequence[Line2D] | None = None,
    more_print: Sequence[str] = (),
    notes: Sequence[str] = (),
    words: tuple[str, str] = captions.CURVES,
    band: Band = "bootstrap",
) -> Drawn:
    """A figure of aggregated scores, with all that stands around its panels.

    Args:
        table: what was measured; with `extra_rows`, what was drawn besides, it is the table of the figure.
        over: what the intervals are over: `seeds`, or `seeds and tasks`.
        handles: of the legend; None: a line per method and per kind of extra row.
        more_print, notes: lines of the small print and sentences of the caption that only this kind has.
        words: how intervals and published values are drawn.
        band: what the bounds of `table` are.
    """
    if handles is None:
        # Besides methods: `PUBLISHED` and constant lines, each once.
        names = [PUBLISHED if method.startswith(PUBLISHED) else method for _, method, _, _ in extra_rows]
        handles = style.legend_handles(figure, method_styles.styles_of(figure.methods), list(dict.fromkeys(names)))
    small_print = captions.small_print(figure, table, options.statistic, band, over)
    style.finish(canvas, figure, handles, [*small_print, *more_print])
    whole = spec.with_extra_rows(table, extra_rows)
    told = captions.notes_on_method(figure, whole, options.statistic, options.resamples, over, words, band)
    return Drawn(canvas, whole, dict(meaning), (*told, *notes))


def finished_example(
    canvas: Figure,
    figure: FigureSpec,
    table: pd.DataFrame,
    meaning: Mapping[str, str],
    *,
    said: str,
    note: str,
    handles: Sequence[Line2D] = (),
) -> Drawn:
    """A figure that shows what was traced and aggregates nothing: one line of small print, one sentence of caption."""
    random = [RANDOM_MODEL] if figure.random_models else []
    style.finish(canvas, figure, handles, [said, *random])
    return Drawn(canvas, table, dict(meaning), (note, *random))
