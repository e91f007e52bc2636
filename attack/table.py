"""The one table: promise, trials, failures; printed, and written into a page between two marks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from attack.campaign import Result
from recollect.artifacts.sealed import write_bytes
from recollect.stages.between_marks import put_between

NAME = "attack"  # of the marks
LEAST = {"kills": 200, "flips": 60, "swaps": 20, "surroundings": 10, "bad inputs": 150}
"""How many trials of each kind a whole campaign makes at least."""


def text(results: Sequence[Result]) -> str:
    """The table in Markdown; promises in the order in which they were tried first."""
    rows = ["| promise | trials | failures |", "|---|---:|---:|"]
    for promise in dict.fromkeys(result.trial.promise for result in results):
        of_it = [result for result in results if result.trial.promise == promise]
        failures = sum(result.failure is not None for result in of_it)
        rows.append(f"| {promise} | {sum(result.trials for result in of_it)} | {failures} |")
    failures = sum(result.failure is not None for result in results)
    rows.append(f"| all | {sum(result.trials for result in results)} | {failures} |")
    return "\n".join(rows)


def too_few(results: Sequence[Result]) -> list[str]:
    """The kinds of which a campaign made fewer trials than a whole one must."""
    made = {kind: sum(result.trials for result in results if result.trial.counts == kind) for kind in LEAST}
    return [
        f"only {made[kind]} {kind}; a whole campaign has {least}" for kind, least in LEAST.items() if made[kind] < least
    ]


def write(page: Path, content: str) -> None:
    """Put a text between the two marks of a page.

    Raises:
        UserError: the page has no such marks.
    """
    text = page.read_text(encoding="utf-8")
    write_bytes(page, put_between(text, NAME, content, page).encode())
