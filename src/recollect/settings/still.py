"""For a process in which configuration and code stay as they are: Snakemake, which plans ten thousand jobs, and each command.

What is asked a second time is remembered, and resolved settings that were prepared by `recollect.stages.check` are taken
as they are. A notebook or a test, which may change the configuration, reads the files again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
_still = False
_prepared: Mapping[str, Any] = {}
_forget: list[Callable[[], None]] = []


def hold_still() -> None:
    """From now on, and as long as this process lives, nothing is read a second time."""
    global _still
    _still = True


@contextmanager
def held_still(*, anew: bool = False) -> Iterator[None]:
    """The same for as long as a block lasts, from the files alone; what was remembered in it is forgotten.

    Args:
        anew: forget what was remembered before, too: the block is about another folder.
    """
    global _still, _prepared
    before = _still, _prepared
    if anew or not _still:
        _forget_all()
        _still, _prepared = True, {}
    try:
        yield
    finally:
        if anew or not before[0]:
            _still, _prepared = before
            _forget_all()


def _forget_all() -> None:
    for forget in _forget:
        forget()


def prepare(settings: Mapping[str, Any]) -> None:
    """Hand over resolved settings by the names that they belong to: `"demo dark_room_10x10 radt"`."""
    global _prepared
    _prepared = settings


def prepared(names: str) -> Any:
    """The settings that were handed over for some names; None where there are none, or where files may change."""
    return _prepared.get(names) if _still else None


def remembered(function: Callable[P, R]) -> Callable[P, R]:
    """Ask a function only once for the same arguments, after `hold_still`. What it returns must not be changed."""
    answers = cache(function)
    _forget.append(answers.cache_clear)

    @wraps(function)
    def asked(*args: P.args, **kwargs: P.kwargs) -> R:
        return (answers if _still else function)(*args, **kwargs)  # type: ignore[arg-type]

    return asked
