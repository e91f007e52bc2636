"""Captions for Snakemake's report: one short reStructuredText file per figure, made from its spec."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from recollect.artifacts.sealed import sealing
from recollect.figures.captions import count
from recollect.figures.spec import SMOKE_WORDS, FigureSpec


def caption_rst(figure: FigureSpec) -> str:
    """The caption of a figure in the report.

    Braces and reStructuredText marks in the spec's own words are escaped, since Snakemake renders captions as Jinja
    templates of reStructuredText.
    """
    paragraphs = []
    if figure.is_wiring_test:
        paragraphs.append(f"**{SMOKE_WORDS}**")
    paragraphs.append(f"**{_plain(figure.title or figure.id)}**")
    if figure.caption.strip():
        paragraphs.append(_plain(figure.caption))
    names = ", ".join(_plain(figure.label(method)) for method in figure.methods)
    paragraphs.append(f"Scale {_plain(figure.scale)}, {count(len(figure.seeds), 'seed')}. Methods: {names}.")
    if len(figure.seeds) == 1:
        paragraphs.append("There is no interval: it takes more than one seed.")
    elif len(figure.seeds) <= 3:
        paragraphs.append("The interval from so few seeds is too narrow; the figure's JSON says by how much.")
    sources = dict.fromkeys(item.source for item in figure.references if item.scale == figure.scale)
    if sources:
        paragraphs.append(f"Dashed: published values ({_plain('; '.join(sources))}).")
    return "\n\n".join(paragraphs) + "\n"


def write_report_captions(figures: Iterable[FigureSpec], folder: Path) -> list[Path]:
    """Write ``{folder}/{figure id}.rst`` for each figure and return the paths."""
    paths = []
    for figure in figures:
        path = Path(folder) / f"{figure.id}.rst"
        path.parent.mkdir(parents=True, exist_ok=True)
        with sealing(path, kind="report_caption") as temporary:
            temporary.write_text(caption_rst(figure), encoding="utf-8")
        paths.append(path)
    return paths


def _plain(text: str) -> str:
    text = " ".join(text.split())
    for mark in ("\\", "*", "`", "|", "_"):
        text = text.replace(mark, "\\" + mark)
    return text.replace("{", "(").replace("}", ")")
