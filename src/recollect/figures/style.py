"""How figures look, whatever they draw: one style file, sizes, legends, small print and axes. Of methods: `method_styles`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import matplotlib as mpl
import matplotlib.style
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter

from recollect.figures.method_styles import BLACK, DOTS, GREY, SHORT_DASH, MethodStyle, styles_of
from recollect.figures.overlaps import MEASURED, show_hidden
from recollect.figures.packed_rows import packed, text_width
from recollect.figures.spec import LINE, PUBLISHED, SMOKE_WORDS, ExtraRow, FigureSpec

STYLE_FILE = Path(__file__).with_name("recollect.mplstyle")
SINGLE_COLUMN, DOUBLE_COLUMN = 3.4, 7.0  # inches

SOFT = "#595959"  # of text that is not a result
PRINT_SIZE = 5.2  # of the small print, points
LEGEND_LEADING = 0.135  # inches from row to row
PRINT_LEADING = 0.095


@contextmanager
def paper_style() -> Iterator[None]:
    """What is drawn or saved inside looks like a figure of this project, whatever the user's matplotlibrc says."""
    with mpl.rc_context():
        mpl.rcdefaults()
        # The font is the one that matplotlib carries, so that a figure has the same bytes on every machine.
        sns.set_theme(context="paper", style="ticks", font="DejaVu Sans")
        matplotlib.style.use(STYLE_FILE)
        yield


def blank_figure(width: float, height: float) -> Figure:
    """An empty figure (sizes in inches) outside of pyplot's global state, laid out so that nothing overlaps."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def draw_band(
    axes: Axes,
    rows: pd.DataFrame,
    look: MethodStyle,
    *,
    markers: int | None = None,
    first: int = 0,
) -> None:
    """Draw one method of one panel: a line through ``x, y`` and its interval as a band.

    `markers`: a marker at about this many points (``None``: at each), starting at point ``first``.
    """
    x, y = rows["x"].to_numpy(float), rows["y"].to_numpy(float)
    low, high = rows["low"].to_numpy(float), rows["high"].to_numpy(float)
    if np.isfinite(low).any():
        axes.fill_between(x, low, high, color=look.color, alpha=0.16, linewidth=0, zorder=2)
    every = None
    if markers is not None:
        every = (min(first, len(x) - 1), max(1, round(len(x) / markers)))
    axes.plot(
        x,
        y,
        color=look.color,
        linestyle=look.dash,
        marker=look.marker,
        markersize=look.marker_size(),
        markevery=every,
        markeredgecolor="white",
        zorder=3,
        gid=MEASURED,
    )


def draw_published(
    axes: Axes, x: Sequence[float], y: Sequence[float], look: MethodStyle, until: float = float("inf")
) -> None:
    """Draw a published curve: thin short dashes, with open markers at the points that the paper gives.

    Markers are whole at the edge of a panel, too; those right of `until`, where the x axis ends, are left out.
    """
    axes.plot(x, y, color=look.color, linestyle=SHORT_DASH, linewidth=0.8, alpha=0.9, zorder=2.5)
    inside = [(a, b) for a, b in zip(x, y, strict=True) if a <= until]
    if not inside:  # markers of nothing, which nothing clips, would have no place in the layout
        return
    axes.plot(
        *np.array(inside).T, look.marker, markersize=3.2, markerfacecolor="white",
        markeredgecolor=look.color, markeredgewidth=0.7, alpha=0.9, zorder=2.5, clip_on=False,
    )  # fmt: skip


def draw_references(axes: Axes, figure: FigureSpec, panel: str, *, until: float = float("inf")) -> list[ExtraRow]:
    """Draw the published curves of a panel; gives their rows of the figure's table."""
    looks = styles_of(figure.methods)
    rows: list[ExtraRow] = []
    for item in figure.references_of(panel):
        if item.method in looks:
            draw_published(axes, item.x, item.y, looks[item.method], until)
            rows += item.rows()
    return rows


def draw_constant(axes: Axes, panel: str, name: str, y: float, ends: tuple[float, float]) -> list[ExtraRow]:
    """Draw a constant (an optimum, chance) as a dotted line; gives its rows of the table, one at each end of the x axis."""
    axes.axhline(y, color=BLACK, linestyle=DOTS, linewidth=0.9, zorder=1.8)
    return [(panel, LINE + name, x, y) for x in ends]


def name_rows(axes: Axes, places: Iterable[float], names: Iterable[str]) -> None:
    """Let the y axis name what lies beside it, and the grid follow the x axis."""
    axes.set_yticks(list(places), list(names))
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")
    axes.spines["left"].set_visible(False)


def plain_frame(axes: Axes, width: float) -> None:
    """A thin frame without ticks and grid, of a picture."""
    axes.set(xticks=[], yticks=[])
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set(visible=True, color="#9a9a9a", linewidth=width)


def hide_unused(grid: np.ndarray, used: int) -> None:
    """Show only the first so many panels of a grid."""
    for axes in grid.ravel()[used:]:
        axes.set_visible(False)


def legend_handles(figure: FigureSpec, looks: dict[str, MethodStyle], extras: Sequence[str]) -> list[Line2D]:
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
                Line2D([], [], color=GREY, linestyle=SHORT_DASH, linewidth=0.8, marker="o", markersize=3.2,
                       markerfacecolor="white", markeredgecolor=GREY, label=figure.published_label())
            )  # fmt: skip
        else:
            text = extra.removeprefix(LINE)
            handles.append(Line2D([], [], color=BLACK, linestyle=DOTS, linewidth=0.9, label=text))
    return handles


def finish(canvas: Figure, figure: FigureSpec, handles: Sequence[Line2D], lines: Sequence[str]) -> None:
    """Put the legend above the panels and the small print below, and make the figure higher by what they take."""
    rows = _legend_rows(canvas, figure, handles)
    width = canvas.get_figwidth()
    text = [(row, SOFT, "normal") for row in _claim_rows(canvas, figure)]
    for line in (*lines, *figure.stand_ins):
        text += [(row, SOFT, "normal") for row in _lines(canvas, line)]
    if figure.wiring_test:
        text.insert(0, (SMOKE_WORDS, "#B03A00", "bold"))
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
    for axes in canvas.get_axes():
        show_hidden(axes)


def _lines(canvas: Figure, sentence: str) -> list[str]:
    """The words of a line of the small print, in as few rows as fit; none is broken, and no number leaves its per cent."""
    font = FontProperties(size=PRINT_SIZE)
    kept = re.sub(r"(?<=covers) (?=\d)|(?<=\d) (?=%)", "\N{NO-BREAK SPACE}", sentence)
    words = [word for word in re.split(r"[ \n]+", kept) if word]
    space = text_width(canvas, "| |", font) - text_width(canvas, "||", font)
    rows = packed(words, [text_width(canvas, word, font) for word in words], space, canvas.get_figwidth() - 0.12)
    return [" ".join(row).replace("\N{NO-BREAK SPACE}", " ") for row in rows]


def _claim_rows(canvas: Figure, figure: FigureSpec) -> list[str]:
    """What of the published claims that the figure shows holds; no claim is broken over two rows."""
    font = FontProperties(size=PRINT_SIZE)
    said = [claim.marked for claim in figure.claims]
    widths = [text_width(canvas, one, font) for one in said]
    gap = "    "
    rows = packed(said, widths, text_width(canvas, f"|{gap}|", font), canvas.get_figwidth() - 0.12)
    return [gap.join(row) for row in rows]


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
    em = font.get_size_in_points() / 72
    key = em * (mpl.rcParams["legend.handlelength"] + mpl.rcParams["legend.handletextpad"])
    between = em * mpl.rcParams["legend.columnspacing"]
    inches = [key + text_width(canvas, str(handle.get_label()), font) for handle in handles]
    available = canvas.get_figwidth() - 0.15
    shortest = packed(handles, inches, between, available)
    for limit in np.linspace(max(inches, default=0.0), available, 30):
        rows = packed(handles, inches, between, float(limit))
        if len(rows) <= len(shortest):  # the narrowest limit gives the most even rows
            return rows
    return shortest


def count_ticks(last: float) -> list[int]:
    """Ticks of an axis that counts from 1: there, and at round numbers."""
    step = next(size for size in (m * 10**k for k in itertools.count() for m in (1, 2, 5)) if last / size <= 5)
    return [1, *range(2 if step == 1 else step, int(last) + 1, step)]


def episode_axis(axes: Axes, last: float) -> None:
    """Ticks at episode 1 and at round numbers, so that the axis shows that counting starts at 1."""
    axes.set_xticks(count_ticks(last))
    margin = 0.02 * max(last - 1, 1)
    axes.set_xlim(1 - margin, last + margin)


def step_axis(axes: Axes, last: float) -> None:
    """Ticks at quarters of the training steps, in short form: ``800k``."""
    axes.set_xlim(0, 1.03 * last)
    quarters = [last * i / 4 for i in range(5)]
    axes.set_xticks(quarters, [short_steps(step) for step in quarters])


def from_zero(axes: Axes, rows: pd.DataFrame, line: float | None = None) -> None:
    """Let the y axis start at 0 where no value is negative; a little lower where a constant `line` at 0 would hide."""
    lowest = [rows[["y", "low"]].min().min()]
    for beside in axes.get_shared_y_axes().get_siblings(axes):
        lowest += [np.min(curve.get_ydata()) for curve in beside.lines if len(curve.get_ydata())]
    if np.nanmin(lowest) >= 0:
        top = axes.get_ylim()[1]
        hides = line == 0 or (rows["y"] < 0.005 * top).any()  # half of a line or marker at 0 would lie below the axis
        axes.set_ylim(bottom=-0.03 * top if hides else 0)


def logarithmic_y(axes: Axes, decades: float = float("inf")) -> None:
    """A logarithmic y axis with plain numbers: three in a decade, or one where there are more than so many decades."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if high > 10**decades * low else (1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def round_ticks(low: float, high: float, most: int = 4, *, whole: bool = False) -> list[float]:
    """Round numbers from low to high, at most so many and one; `whole`: no fractions."""
    places = MaxNLocator(most, steps=[1, 2, 2.5, 5, 10], integer=whole).tick_values(low, high)
    return [tick for tick in places if low <= tick <= high]


def short_steps(steps: float) -> str:
    """``0``, ``800k``, ``1.5M``: a number of steps that fits below a small panel."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if steps >= 0.9995 * size:  # three digits of less than that are no 1000 of the unit below
            return f"{steps / size:.3g}{unit}"
    return f"{steps:.0f}"
