"""finished: what a person is told when a scale is done: its figures, the verdicts on the claims that they show, its report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from recollect.artifacts.sealed import read_json
from recollect.figures.claim_rows import counted
from recollect.settings.claims import MARKS, claims_of
from recollect.settings.resolve import figure_settings
from recollect.stages import paths
from recollect.stages.selection import snakemake_for

MARK_COLUMN = 4  # spaces from a path to the marks behind it


def finished(scale: str, figures: Sequence[str]) -> str:
    """The figures of a scale, each with the marks of its claims, and how many claims hold."""
    for name in figures:
        figure_settings(scale, name)  # an unknown one is refused
    judged = _judged(scale, figures)
    listed = [paths.figure(scale, name, ".pdf") for name in figures]
    width = max((len(str(path)) for path in listed), default=0) + MARK_COLUMN
    lines = [f"Figures at {scale} scale:"]
    for name, path in zip(figures, listed, strict=True):
        marks = [f"{MARKS[claim['verdict']]} {claim['short']}" for claim in judged if claim["figure"] == name]
        lines.append(f"  {path!s:{width}}{'  '.join(marks)}".rstrip())
        lines[-1] += "" if path.is_file() else " (not there yet)"
    report = paths.report(scale)
    lines.append(
        f"Report: {report}" if report.is_file() else f"Report: make it with `{snakemake_for(report, scale, figures)}`"
    )
    if count := len(claims_of(scale, tuple(figures))):
        path = paths.claims(scale)
        said = f"{counted(judged)} ({path})" if judged else ""
        if left := count - len(judged):
            which = f"; {left} not judged yet: " if judged else "judge them with "
            said += f"{which}`{snakemake_for(path, scale, figures)}`"
        lines.append(f"Claims: {said}")
    return "\n".join(lines)


def _judged(scale: str, figures: Sequence[str]) -> list[dict[str, Any]]:
    """The claims of some figures as they were judged last, as far as they were."""
    path = paths.claims(scale)
    if not path.is_file():
        return []
    wanted = {claim.name for claim in claims_of(scale, tuple(figures))}
    return [claim for claim in read_json(path, kind="claims")["claims"] if claim["name"] in wanted]
