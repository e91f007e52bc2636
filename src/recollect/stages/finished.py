"""finished: what a person looks at when a scale is done."""

from __future__ import annotations

from recollect.stages import paths
from recollect.stages.selection import default_selection


def finished(scale: str) -> str:
    """Lines that name the figures and the report that are there."""
    lines = [f"Figures at {scale} scale:"]
    for name in default_selection().figures:
        path = paths.figure(scale, name, ".pdf")
        lines.append(f"  {path}" if path.is_file() else f"  {path} (not there yet)")
    report = paths.report(scale)
    lines.append(f"Report: {report}" if report.is_file() else f"Report: make it with `snakemake {report}`")
    return "\n".join(lines)
