"""What Snakemake says last when a run has failed or was stopped: which jobs did not end, and that it can go on."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

_LOG = re.compile(r"^ +log: (.+) \(check log file\(s\) for error details\)$", re.MULTILINE)
GOES_ON = "What is finished is kept. The same command goes on from there."


def of(logs: Iterable[str]) -> str:
    """The jobs that did not end, by their logs, each with its error or last line.

    Args:
        logs: those of the run of Snakemake itself.
    """
    said = "\n".join(_text(log) for log in logs)
    failed = dict.fromkeys(_LOG.findall(said))
    return "\n".join([*map(_line, failed), GOES_ON])


def _line(log: str) -> str:
    lines = [line for line in _text(log).splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error: ")] or lines
    return f"not finished: {log}" + (f": {errors[-1]}" if errors else "")


def _text(log: str) -> str:
    try:
        return Path(log).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
