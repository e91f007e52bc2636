"""Rows of text as columns below each other, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """A line for each row, with two spaces between columns; the last column may be of any width."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)] + [0]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
