"""Things of some widths in as few rows as fit a figure: entries of a legend, names of claims."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, cast

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties

Item = TypeVar("Item")


def text_width(canvas: Figure, text: str, font: FontProperties) -> float:
    """Inches."""
    renderer = cast(FigureCanvasAgg, canvas.canvas).get_renderer()
    pixels, _, _ = renderer.get_text_width_height_descent(text, font, False)
    return float(pixels / canvas.dpi)


def packed(items: Sequence[Item], widths: Sequence[float], between: float, limit: float) -> list[list[Item]]:
    """The items in rows, in their order. One that is wider than the limit has a row by itself.

    Args:
        between, limit: the gap from item to item, and the longest row, in the unit of the widths.
    """
    rows: list[list[Item]] = []
    used = 0.0
    for item, width in zip(items, widths, strict=True):
        if not rows or used + between + width > limit:
            rows.append([item])
            used = width
        else:
            rows[-1].append(item)
            used += between + width
    return rows
