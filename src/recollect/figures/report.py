"""The report: one HTML page with the figures, their captions, where everything is from, and a table of all runs.

The page (`report.html`: style and script, written by hand) holds its pictures and needs nothing else; links lead to the
files beside it. Every row stands in the HTML itself: without its script it is still a whole page, unsorted.
"""

from __future__ import annotations

import base64
import html
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recollect.figures.captions import NARROW_INTERVAL
from recollect.figures.report_claims import claims_section
from recollect.figures.spec import SMOKE_WORDS

TEMPLATE = Path(__file__).with_name("report.html")
CURRENT = "current"  # the state of a run that today's settings and code would make
SHOWN_PAGES = 3  # of a figure; more are folded up
SHOWN_SCORES = 4  # per run; the others stand in its table of scores
NARROW = 1300  # pixels: the width below which a caption has room beside its picture
PIXEL = 0.48  # of the page, for one of a picture's (300 per inch)

TEXTS, NUMBERS = ("Environment", "Method"), ("Seed", "Final score", "Env. steps", "Updates", "Wall time")
HEADINGS = (*TEXTS, *NUMBERS, "Device", "State", "Config, code", "Files")
#: Heading, and whether it is a number. The order of `_row`.
COLUMNS = tuple((name, name in NUMBERS) for name in HEADINGS)


@dataclass(frozen=True)
class ReportFigure:
    """A drawn figure; files and pages are name -> address."""

    about: Mapping[str, Any]  # its JSON manifest (docs/formats.md)
    category: str
    picture: bytes  # its PNG
    files: Mapping[str, str]
    pages: Mapping[str, str] = field(default_factory=dict)  # inspection pages of its runs
    runs: int = 0
    config: str | None = None  # fingerprint of its settings

    @property
    def name(self) -> str:
        return str(self.about["figure"])

    @property
    def title(self) -> str:
        return str(self.about["title"] or self.name)


@dataclass(frozen=True)
class ReportRun:
    """A run behind some figures. What is not known is None.

    Attributes:
        environment, method: titles; `env` and `name` are what they are called in paths.
        state: `CURRENT`, or what differs.
        scores: what was scored, in words -> value; the figures' own metric first.
        env_steps, updates: how long it was trained, in steps of the environment and of gradients.
        seconds: wall time of its jobs; with `resumed` only of the last part.
        config, code: fingerprints of the settings and the code that its scores are from.
        files: name -> address.
    """

    environment: str
    env: str
    method: str
    name: str
    seed: int
    figures: Sequence[str]
    state: str
    scores: Mapping[str, float] = field(default_factory=dict)
    env_steps: int | None = None
    updates: int | None = None
    seconds: float | None = None
    resumed: bool = False
    device: str | None = None
    config: str | None = None
    code: str | None = None
    manifest: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)


def report_page(
    scale: str,
    figures: Sequence[ReportFigure],
    runs: Sequence[ReportRun],
    facts: Mapping[str, str],
    claims: Sequence[Mapping[str, Any]] = (),
) -> str:
    """The page.

    Args:
        facts: name -> value, under `Provenance` besides the fingerprints.
        claims: as `claims.json` has them, in their order.
    """
    digits = _digits(runs)
    wiring = {figure.about["wiring_test"] for figure in figures} == {True}
    counts = [f"scale {scale}", _count(len(figures), "figure"), _count(len(runs), "run")]
    parts = {
        "title": _text(f"Recollect: results at {scale} scale"),
        "facts": _text(" · ".join([*counts, *(f"commit {facts[key]}" for key in ("Commit",) if key in facts)])),
        "warning": f'<p class="warning">{_text(SMOKE_WORDS)}</p>' if wiring else "",
        "contents": ('<li><a href="#claims">Claims</a></li>' if claims else "")
        + _list({f"#{figure.name}": figure.title for figure in figures}),
        "claims": claims_section(claims),
        "figures": _by_category(figures),
        "intervals": _intervals(figures),
        "states": _text(", ".join(f"{number:,} × {state}" for state, number in Counter(r.state for r in runs).items())),
        "headings": "".join(
            f'<th scope="col"{" class=number" if number else ""} aria-sort="none"><button>{_text(name)}</button></th>'
            for name, number in COLUMNS
        ),
        "labels": "".join(
            f'#runs td:nth-child({place})::before {{ content: "{name}"; }} '
            for place, (name, _) in enumerate(COLUMNS, 1)
        ),
        "rows": "\n".join(_row(run, digits) for run in runs),
        "provenance": "".join(f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in facts.items()),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place.group(1)], TEMPLATE.read_text(encoding="utf-8"))


def _by_category(figures: Sequence[ReportFigure]) -> str:
    parts = []
    for category in dict.fromkeys(figure.category for figure in figures):
        shown = "\n".join(_figure(figure) for figure in figures if figure.category == category)
        parts.append(f"<section>\n<h2>{_text(category)}</h2>\n{shown}\n</section>")
    return "\n".join(parts)


def _figure(figure: ReportFigure) -> str:
    about = figure.about
    name, title = figure.name, figure.title
    # Width and height in pixels, as the PNG's header says.
    width = int.from_bytes(figure.picture[16:20], "big")
    height = int.from_bytes(figure.picture[20:24], "big")
    caption = str(about["caption"])
    for warning in about["warnings"]:  # said by itself: of intervals once for all figures, of other things below
        caption = caption.replace(warning, " ")
    own = [warning for warning in about["warnings"] if not warning.startswith(NARROW_INTERVAL)]
    warnings = "".join(f'<p class="warning">{_text(warning)}</p>' for warning in own)
    published = "" if not about["published"] else f", {_count(len(about['published']), 'published value')} drawn"
    facts = {
        "Methods": ", ".join(about["methods"].values()),
        "Seeds": ", ".join(map(str, about["seeds"])),
        "Drawn from": f"{_count(len(about['inputs']), 'file')} of its runs, by kind {about['kind']}{published}",
        "Config": figure.config,
        "Code": about["code_fingerprint"],
        "Packages": str(about["provenance"].get("environment_lock") or "")[:16],
        "Picture": f"sha256 {about['outputs'].get('png', '?')[:16]}…; those of all files and inputs stand in the JSON",
    }
    listed = "".join(f"<dt>{_text(key)}</dt><dd>{_text(value)}</dd>" for key, value in facts.items() if value)
    picture = base64.b64encode(figure.picture).decode()
    size = f'width="{round(width * PIXEL)}" height="{round(height * PIXEL)}"'
    shown = f'<img alt="{_text(title)}" {size} src="data:image/png;base64,{picture}">'
    return f"""<figure id="{_text(name)}"{' class="narrow"' if width < NARROW else ""}>
<h3>{_text(title)}</h3>
<div class="picture"><a href="{_text(figure.files["PNG"])}">{shown}</a></div>
<figcaption><p>{_text(" ".join(caption.split()))}</p>{warnings}
<p class="links">{_links(figure.files)} <a href="#runs" data-filter="figure:{_text(name)}">{_count(figure.runs, "run")}</a></p>
{_pages(figure.pages)}<details><summary>Provenance</summary><dl>{listed}</dl></details></figcaption>
</figure>"""


def _pages(pages: Mapping[str, str]) -> str:
    """Links to inspection pages; many of them are folded up."""
    if not pages:
        return ""
    if len(pages) <= SHOWN_PAGES:
        return f'<p class="links">Step by step: {_links(pages)}</p>\n'
    links = _list({href: name for name, href in pages.items()})
    return f"<details><summary>Inspection pages of {_count(len(pages), 'run')}</summary><ul>{links}</ul></details>"


def _intervals(figures: Sequence[ReportFigure]) -> str:
    """Which intervals are too narrow, and in which figures; once for the whole page."""
    found: dict[str, list[ReportFigure]] = {}
    for figure in figures:
        for warning in figure.about["warnings"]:
            if warning.startswith(NARROW_INTERVAL):
                found.setdefault(warning, []).append(figure)
    lines = []
    for warning, those in found.items():
        links = ", ".join(f'<a href="#{_text(figure.name)}">{_text(figure.title)}</a>' for figure in those)
        where = "all figures" if len(those) == len(figures) > 1 else links
        lines.append(f'<p class="warning">{_text(warning.removesuffix("."))} ({where}).</p>')
    return "\n".join(lines)


def _list(titles: Mapping[str, str]) -> str:
    """Addresses and what they are called, as items of a list."""
    return "".join(f'<li><a href="{_text(href)}">{_text(title)}</a></li>' for href, title in titles.items())


def _links(files: Mapping[str, str]) -> str:
    return " ".join(f'<a href="{_text(href)}">{_text(name)}</a>' for name, href in files.items())


def _row(run: ReportRun, digits: Mapping[tuple[str, str], int]) -> str:
    scores = ""
    for words, value in list(run.scores.items())[:SHOWN_SCORES]:
        number = _number(value, digits[run.env, words])
        scores += f"<b>{number}</b> <i>{_text(words)}</i>"
    if len(run.scores) > SHOWN_SCORES:
        scores += f"<i>and {len(run.scores) - SHOWN_SCORES} more</i>"
    first = next(iter(run.scores.values()), None)
    prints = " ".join(print_[:8] for print_ in (run.config, run.code) if print_ is not None)
    full = f"config {run.config}, code {run.code}"
    if run.manifest is not None:
        prints = f'<a class="print" href="{_text(run.manifest)}" title="{_text(full)}">{prints}</a>'
    time = None if run.seconds is None else ("≥ " if run.resumed else "") + duration(run.seconds)
    cells = (
        f"<td>{_text(run.environment)}<i>{_text(run.env)}</i></td>",
        f"<td>{_text(run.method)}<i>{_text(run.name)}</i></td>",
        _cell(run.seed, str(run.seed)),
        _cell(first, scores),
        _cell(run.env_steps, None if run.env_steps is None else f"{run.env_steps:,}"),
        _cell(run.updates, None if run.updates is None else f"{run.updates:,}"),
        _cell(run.seconds, time),
        f"<td>{_text(run.device or '–')}</td>",
        f"<td{'' if run.state == CURRENT else ' class=stale'}>{_text(run.state)}</td>",
        f"<td>{prints or '–'}</td>",
        f'<td class="links">{_links(run.files) or "–"}</td>',
    )
    words = _text(" ".join([f"seed:{run.seed}", *(f"figure:{name}" for name in run.figures)]))
    return f'<tr data-words="{words}">{"".join(cells)}</tr>'


def _cell(value: float | None, shown: str | None) -> str:
    """A cell that is sorted by its value; empty ones stay last."""
    if value is None or not math.isfinite(value):
        return f'<td class="number" data-value="">{shown or "–"}</td>'
    return f'<td class="number" data-value="{value:.12g}">{shown}</td>'


def _digits(runs: Iterable[ReportRun]) -> dict[tuple[str, str], int]:
    """(env, what was scored) -> decimals: three figures of the largest, the same in all rows that are compared."""
    largest: dict[tuple[str, str], float] = {}
    for run in runs:
        for words, value in run.scores.items():
            size = abs(value) if math.isfinite(value) else 0.0
            largest[run.env, words] = max(largest.get((run.env, words), 0.0), size)
    decimals = {}
    for key, size in largest.items():
        decimals[key] = max(0, min(3, 2 - math.floor(math.log10(size)))) if size else 2
    return decimals


def _number(value: float, decimals: int) -> str:
    return f"{value:z,.{decimals}f}".replace("-", "−") if math.isfinite(value) else "not a number"


def duration(seconds: float) -> str:
    """``0.5 s``, ``14 s``, ``2 min 21 s``, ``3 h 05 min``."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _text(value: object) -> str:
    return html.escape(str(value)).replace(" %", "&nbsp;%")
