"""Remembered answers, for a process in which configuration and code stay as they are.

Snakemake asks the same for every one of ten thousand jobs. Everything else reads the files again, as they may have changed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
_still = False


def hold_still() -> None:
    """From now on, and as long as this process lives, nothing is read a second time."""
    global _still
    _still = True


def remembered(function: Callable[P, R]) -> Callable[P, R]:
    """Ask a function only once for the same arguments, after `hold_still`. What it returns must not be changed."""
    known = cache(function)

    @wraps(function)
    def asked(*args: P.args, **kwargs: P.kwargs) -> R:
        return (known if _still else function)(*args, **kwargs)  # type: ignore[arg-type]

    return asked
