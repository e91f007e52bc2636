"""How a process that a run has started says what went wrong in it, as the process of a command does."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from recollect.settings.errors import as_user_error


@contextmanager
def reported() -> Iterator[None]:
    """What a user can mend becomes one message and exit status 2; who started this process says that it has ended."""
    try:
        yield
    except Exception as error:
        said = as_user_error(error)
        if said is None:
            raise
        print(f"error: {said}", file=sys.stderr, flush=True)
        sys.exit(2)
