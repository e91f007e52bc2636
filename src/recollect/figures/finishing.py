"""The end of every figure: legend, small print and wiring warning around the panels, and what is shown in words."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import cast

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D

from recollect.figures import captions, spec, style
from recollect.figures.spec import LINE, PUBLISHED, Drawn, ExtraRow, FigureSpec, ScoreOptions

PRINT_SIZE = 5.2  # of the small print, points
LEGEND_LEADING = 0.135  # inches from row to row
PRINT_LEADING = 0.095


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
) -> Drawn:
    """A figure of aggregated scores, with all that stands around its panels.

    Args:
        table: what was measured; with `extra_rows`, what was drawn besides, it is the table of the figure.
        over: what the intervals are over: `seeds`, or `seeds and tasks`.
        handles: of the legend; None: a line per method and per kind of extra row.
        more_print, notes: lines of the small print and sentences of the caption that only this kind has.
        words: how intervals and published values are drawn.
    """
    if handles is None:
        # Besides methods: `PUBLISHED` and constant lines, each once.
        names = [PUBLISHED if method.startswith(PUBLISHED) else method for _, method, _, _ in extra_rows]
        handles = legend_handles(figure, style.styles_of(figure.methods), list(dict.fromkeys(names)))
    finish(canvas, figure, handles, [*captions.small_print(figure, table, options.statistic), *more_print])
    whole = spec.with_extra_rows(table, extra_rows)
    told = captions.notes_on_method(figure, whole, options.statistic, options.resamples, over, words)
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
    random = [captions.RANDOM_MODEL] if figure.random_models else []
    finish(canvas, figure, handles, [said, *random])
    return Drawn(canvas, table, dict(meaning), (note, *random))


def published_label(figure: FigureSpec) -> str:
    """The legend's name for published values; it says how they were read."""
    readings = dict.fromkeys(item.reading for item in figure.references if figure.is_comparable(item))
    return f"published ({' and '.join(readings)})"


def legend_handles(figure: FigureSpec, looks: dict[str, style.MethodStyle], extras: Sequence[str]) -> list[Line2D]:
    """Legend entries: the methods in the order of the figure, then ``extras`` (`PUBLISHED` or ``line:<text>``)."""
    handles = []
    for method, look in looks.items():
        handles.append(
            Line2D([], [], color=look.color, linestyle=look.dash, marker=look.marker, markeredgecolor="white",
                   markersize=look.marker_size(), label=figure.label(method))
        )  # fmt: skip
    for extra in extras:
        if extra == PUBLISHED:
            handles.append(
                Line2D([], [], color=style.GREY, linestyle=style.SHORT_DASH, linewidth=0.8, marker="o", markersize=3.2,
                       markerfacecolor="white", markeredgecolor=style.GREY, label=published_label(figure))
            )  # fmt: skip
        else:
            text = extra.removeprefix(LINE)
            handles.append(Line2D([], [], color=style.BLACK, linestyle=style.DOTS, linewidth=0.9, label=text))
    return handles


def finish(canvas: Figure, figure: FigureSpec, handles: Sequence[Line2D], lines: Sequence[str]) -> None:
    """Put the legend above the panels and the small print below, and make the figure higher by what they take."""
    rows = _legend_rows(canvas, figure, handles)
    width = canvas.get_figwidth()
    characters = int((width - 0.12) / (PRINT_SIZE * 0.0083))
    text = []
    for line in lines:
        for piece in textwrap.wrap(line, characters):
            text.append((piece, style.SOFT, "normal"))
    if figure.is_wiring_test:
        text.insert(0, (spec.SMOKE_WORDS, "#B03A00", "bold"))
    top = 0.06 + LEGEND_LEADING * len(rows)
    bottom = 0.09 + PRINT_LEADING * len(text)
    height = canvas.get_figheight() + top + bottom
    canvas.set_figheight(height)
    for i, row in enumerate(rows):
        place = (0.5, 1 - (0.03 + i * LEGEND_LEADING) / height)
        legend = canvas.legend(handles=row, loc="upper center", bbox_to_anchor=place, ncols=len(row), borderpad=0.1)
        legend.set_in_layout(False)
    for i, (piece, color, weight) in enumerate(reversed(text)):
        y = (0.05 + i * PRINT_LEADING) / height
        note = canvas.text(0.06 / width, y, piece, fontsize=PRINT_SIZE, color=color, fontweight=weight)
        note.set_in_layout(False)
    engine = canvas.get_layout_engine()
    assert engine is not None
    engine.set(rect=(0, bottom / height, 1, 1 - (bottom + top) / height), w_pad=0.03, h_pad=0.03)  # type: ignore[call-arg]
    _freeze(canvas)


def _freeze(canvas: Figure) -> None:
    """Lay the canvas out once and round the result: the layout solver's last bit depends on Python's hash seed."""
    canvas.draw_without_rendering()
    canvas.set_layout_engine("none")
    for axes in canvas.get_axes():  # those of the subfigures too
        axes.set_position(np.round(axes.get_position().bounds, 5).tolist())
    for part in (canvas, *canvas.subfigs):
        for text in part.texts:
            text.set_position(np.round(text.get_position(), 5).tolist())


def _legend_rows(canvas: Figure, figure: FigureSpec, handles: Sequence[Line2D]) -> list[list[Line2D]]:
    """The legend in one row where it fits, else the methods first and the rest in rows below."""
    names = {figure.label(method) for method in figure.methods}
    methods = [handle for handle in handles if handle.get_label() in names]
    extras = [handle for handle in handles if handle not in methods]
    whole = _broken(canvas, [*methods, *extras])
    return whole if len(whole) == 1 else [*_broken(canvas, methods), *_broken(canvas, extras)]


def _broken(canvas: Figure, handles: Sequence[Line2D]) -> list[list[Line2D]]:
    """Break legend entries into as few rows as fit the width, of about the same length."""
    font = FontProperties(size=mpl.rcParams["legend.fontsize"])
    renderer = cast(FigureCanvasAgg, canvas.canvas).get_renderer()
    em = font.get_size_in_points() / 72
    key = em * (mpl.rcParams["legend.handlelength"] + mpl.rcParams["legend.handletextpad"])
    between = em * mpl.rcParams["legend.columnspacing"]
    inches = []
    for handle in handles:
        pixels, _, _ = renderer.get_text_width_height_descent(str(handle.get_label()), font, False)
        inches.append(key + pixels / canvas.dpi)

    def rows_within(limit: float) -> list[list[Line2D]]:
        rows: list[list[Line2D]] = []
        used = 0.0
        for handle, size in zip(handles, inches, strict=True):
            if not rows or used + between + size > limit:
                rows.append([handle])
                used = size
            else:
                rows[-1].append(handle)
                used += between + size
        return rows

    available = canvas.get_figwidth() - 0.15
    shortest = rows_within(available)
    for limit in np.linspace(max(inches, default=0.0), available, 30):
        rows = rows_within(float(limit))
        if len(rows) <= len(shortest):  # the narrowest limit gives the most even rows
            return rows
    return shortest
