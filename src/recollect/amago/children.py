"""A process that a run has started: it ends with the run's first, and says what went wrong in it as a command does."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from recollect.artifacts.lock import dies_with_parent
from recollect.environments.worker import ignore_stops
from recollect.settings.catalogue import message_of


def end_with_parent() -> None:
    """The first process saves and then ends the others: what stops all processes of a job at once must not be quicker."""
    dies_with_parent(signal.SIGKILL)
    ignore_stops()


@contextmanager
def reported() -> Iterator[None]:
    """What a user can mend, in own code too, is a message and exit status 2; who started this process says that it has ended."""
    try:
        yield
    except (Exception, SystemExit) as error:
        said = message_of(error)
        if said is None:
            raise
        print(f"error: {said}", file=sys.stderr, flush=True)
        sys.exit(2)
