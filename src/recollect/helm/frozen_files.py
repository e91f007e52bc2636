"""What is read from a file and never changed is one in a process while anybody holds it.

So seeds that are trained together have one language model and one vision-language model, and not one each.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

Frozen = TypeVar("Frozen")

_held: WeakValueDictionary[tuple[Hashable, ...], Any] = WeakValueDictionary()


def frozen(make: Callable[[], Frozen], path: Path | None, *chosen: Hashable) -> Frozen:
    """What `make` gives, or what it gave before of this file, unchanged since, and of the same choices.

    Args:
        path: a file or a folder; None: the choices alone say what is made.

    Raises:
        UserError: what `make` raises, also where there is no such file.
    """
    key = chosen
    if path is not None:
        try:
            status = Path(path).stat()
        except OSError:
            return make()
        key = (Path(path).absolute(), status.st_mtime_ns, status.st_size, *chosen)
    found: Frozen | None = _held.get(key)
    if found is None:
        found = _held[key] = make()
    return found
