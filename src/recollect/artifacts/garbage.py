"""When Python looks for garbage: rarely while a command imports and plans, and as always once it works.

Python looks for objects that keep each other alive whenever there are 700 new ones (2,000 from Python 3.13 on), and now and
then through all that exist. What is imported, and Snakemake's rules and jobs, stay, so little is ever found there. That took a
fifth of the CPU time of the demo's dry run, a seventh of the papers', and a quarter of their forecast's (two AMD EPYC cores,
29 November 2026).
"""

from __future__ import annotations

import gc

_RARELY = 50_000
_before: tuple[int, int, int] | None = None


def collect_rarely() -> None:
    """Look for garbage after 50,000 new objects, and never again among those that exist."""
    global _before
    gc.freeze()
    if _before is None:
        _before = gc.get_threshold()
        gc.set_threshold(_RARELY, *_before[1:])


def collect_as_before() -> None:
    """As before `collect_rarely`: what a loop leaves may hold much memory. Without that, nothing changes."""
    global _before
    if _before is not None:
        gc.set_threshold(*_before)
        _before = None
