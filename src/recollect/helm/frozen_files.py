"""What is read from a file and never changed is one in a process while anybody holds it.

So seeds that are trained together have one language model and one vision-language model, and not one each.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from recollect.settings.loading import stamp

Frozen = TypeVar("Frozen")

_held: WeakValueDictionary[tuple[Hashable, ...], Any] = WeakValueDictionary()


def frozen(make: Callable[[], Frozen], path: Path | None, *chosen: Hashable) -> Frozen:
    """What `make` gives, or what it gave before of this file, unchanged since, and of the same choices.

    Args:
        path: a file or a folder; None: the choices alone say what is made.

    Raises:
        UserError: there is no such file, or what `make` raises.
    """
    key = chosen if path is None else (Path(path).absolute(), *stamp(path), *chosen)
    found: Frozen | None = _held.get(key)
    if found is None:
        found = _held[key] = make()
    return found
