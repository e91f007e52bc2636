"""Curves of runs while they learn: in a terminal (rich and plotext), and as one HTML page that holds all it needs."""

from __future__ import annotations

import html
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from recollect.artifacts.live import Points, headline
from recollect.settings.errors import nearest

_PAGE = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf")
COLOURS = tuple(zip((33, 208, 35, 196, 135, 94, 205, 244, 142, 37), _PAGE, strict=True))
"""Of runs in turn: of a terminal's 256, and the same for a page."""
_WIDE = 80  # columns of a terminal from which two panels stand side by side
CURVES = (
    "The curves need plotext: `.venv/bin/uv pip install --python .venv/bin/python plotext` in the clone. "
    "Or use --page FILE.html, which needs nothing more."
)
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


@dataclass(frozen=True)
class WatchedRun:
    """A run as it stands: its name, in words what it does, what it logged, and whether more of that will come."""

    name: str
    state: str
    points: Points
    ended: bool

    def curve(self, metric: str) -> tuple[list[int], list[float]]:
        """Steps and values of a metric, those that are numbers."""
        steps = [step for step, at in sorted(self.points.items()) if math.isfinite(at.get(metric, math.nan))]
        return steps, [self.points[step][metric] for step in steps]


def known_metrics(runs: Sequence[WatchedRun]) -> list[str]:
    """What the runs have logged, in the order in which it came."""
    return list(dict.fromkeys(name for run in runs for at in run.points.values() for name in at))


def shown_metrics(runs: Sequence[WatchedRun], wanted: Sequence[str]) -> list[str]:
    """The metrics that are drawn: those that are wanted, else losses and returns."""
    return list(wanted) or headline(known_metrics(runs))


def terminal(runs: Sequence[WatchedRun], wanted: Sequence[str], width: int, height: int) -> Any:
    """What rich prints: a line per run, and a panel per metric in a terminal of so many columns and lines.

    Without the extra `watch` there are no panels, and the last line says how to get them.
    """
    try:
        import plotext
    except ImportError:
        plotext = None
    from rich.console import Console, Group
    from rich.table import Column, Table
    from rich.text import Text

    metrics, known = shown_metrics(runs, wanted), known_metrics(runs)
    lines = Table(Column("run", overflow="fold"), "state", *metrics, box=None, pad_edge=False)
    for i, run in enumerate(runs):
        last = [f"{values[-1]:.4g}" if (values := run.curve(metric)[1]) else "–" for metric in metrics]
        lines.add_row(Text(f"● {run.name}", style=f"color({_colour(i)[0]})"), run.state, *last)
    notes = [Text(note, style="dim") for note in (*_not_logged(runs, wanted), _others(known, metrics)) if note]
    if plotext is None:
        return Group(lines, *notes, Text(CURVES))
    taken = len(Console(width=width).render_lines(lines)) + len(notes) + 2
    columns = 2 if width >= _WIDE and len(metrics) > 1 else 1
    rows = math.ceil(len(metrics) / columns)
    tall = max(8, min(18, (height - taken) // max(rows, 1)))
    panels = Table.grid()
    for first in range(0, len(metrics), columns):
        drawn: list[Text] = []
        for metric in metrics[first : first + columns]:
            drawn.append(Text.from_ansi(_panel(plotext, runs, metric, width // columns - 1, tall)))
        panels.add_row(*drawn)
    return Group(lines, panels, *notes)


def _panel(plotext: Any, runs: Sequence[WatchedRun], metric: str, width: int, height: int) -> str:
    figure = plotext.figure
    figure.clear()
    figure.theme("colorless")
    figure.plot_size(width, height)
    figure.title(metric)
    for i, run in enumerate(runs):
        steps, values = run.curve(metric)
        if steps:
            signal = figure.signal(steps, values, marker=plotext.marker("braille", pixel=_colour(i)[0]))
            figure.draw(signal.lines())
    return str(figure.build())


def page(runs: Sequence[WatchedRun], wanted: Sequence[str], *, every: float) -> str:
    """One HTML page, which loads itself again every so many seconds as long as a run goes on."""
    metrics, known = shown_metrics(runs, wanted), known_metrics(runs)
    rows: list[str] = []
    for i, run in enumerate(runs):
        last = [f"{values[-1]:.4g}" if (values := run.curve(metric)[1]) else "–" for metric in metrics]
        cells = "".join(f"<td>{html.escape(text)}</td>" for text in (run.name, run.state, *last))
        rows.append(f'<tr><td style="color:{_colour(i)[1]}">●</td>{cells}</tr>')
    headings = "".join(f"<th>{html.escape(text)}</th>" for text in ("", "run", "state", *metrics))
    goes_on = not all(run.ended for run in runs)
    again = f'<meta http-equiv="refresh" content="{max(1, round(every))}">' if goes_on else ""
    notes = "<br>".join(html.escape(note) for note in (*_not_logged(runs, wanted), _others(known, metrics)) if note)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{_POLICY}">{again}
<title>Runs of Recollect</title>
<style>body {{ font: 15px system-ui, sans-serif; margin: 2em auto; max-width: 70em; padding: 0 1em; color: #222; background: #fff }}
td, th {{ text-align: left; padding: 0.15em 1em 0.15em 0 }} svg {{ max-width: 100%; height: auto }}</style></head>
<body><h1>Runs of Recollect</h1><table><tr>{headings}</tr>{"".join(rows)}</table>
{_svg(runs, metrics)}<p>{notes}</p></body></html>
"""


def _svg(runs: Sequence[WatchedRun], metrics: Sequence[str]) -> str:
    if not metrics:
        return ""
    import matplotlib
    from matplotlib.figure import Figure

    count = math.ceil(len(metrics) / 2)
    # Texts stay texts, and the same curves give the same page.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "recollect", "font.family": "sans-serif"}):
        figure = Figure(figsize=(11, 3.2 * count), layout="constrained")
        for k, metric in enumerate(metrics):
            axes = figure.add_subplot(count, 2, k + 1)
            for i, run in enumerate(runs):
                steps, values = run.curve(metric)
                axes.plot(steps, values, color=_colour(i)[1], marker="." if len(steps) < 2 else "")
            axes.set_title(metric)
            axes.set_xlabel("step")
            axes.spines[["top", "right"]].set_visible(False)
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    return drawn.getvalue().partition("?>")[2].partition(">")[2]


def _not_logged(runs: Sequence[WatchedRun], wanted: Sequence[str]) -> list[str]:
    """Of each metric that is wanted and was logged by none, that it was not, and what is called alike."""
    known = known_metrics(runs)
    return [
        f"No run has logged '{name}' so far: {nearest(name, known)}" for name in wanted if known and name not in known
    ]


def _others(known: Sequence[str], shown: Sequence[str]) -> str:
    names = [name for name in known if name not in shown]
    return f"Also logged, shown with --metric NAME: {', '.join(names)}" if names else ""


def _colour(place: int) -> tuple[int, str]:
    return COLOURS[place % len(COLOURS)]
