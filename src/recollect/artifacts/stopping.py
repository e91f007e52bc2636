"""What SIGTERM means to a job, as a cluster sends it before it takes a node back: save where it stands, and end.

The place where a checkpoint may be made asks (`Cadence`). Until it has asked once, nothing of a job can be saved, and SIGTERM
ends it at once.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn
from weakref import WeakSet

log = logging.getLogger(__name__)
STATUS = 75  # EX_TEMPFAIL of sysexits.h: not done, try it again
_saving: WeakSet[Any] = WeakSet()  # those who ask `asked` before they go on
_asked = False
_orphan = False


@contextmanager
def saves_on_sigterm() -> Iterator[None]:
    """SIGTERM lets the work of this block save and end with the exit status `STATUS`."""
    global _asked
    if threading.current_thread() is not threading.main_thread():  # where no handler can be set
        yield
        return
    before, _asked = signal.signal(signal.SIGTERM, _received) or signal.SIG_DFL, False
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        _asked = False


def _received(number: int, frame: FrameType | None) -> None:
    global _asked
    if _orphan or not _saving:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    _asked = True


def can_save(who: object) -> None:
    """From now on, and for as long as it lives, `who` looks at `asked` and saves."""
    _saving.add(who)


def asked() -> bool:
    """Whether this process was asked to save and end."""
    return _asked


def end() -> NoReturn:
    """End this process, whose work is saved. Raises SystemExit."""
    log.warning("ended by SIGTERM, with what was done so far saved: the same command goes on from here")
    raise SystemExit(STATUS)


def end_at_once() -> None:
    """End this process without saving, from any thread: whoever wanted its work is gone, and another may begin it."""
    global _orphan
    _orphan = True
    os.kill(os.getpid(), signal.SIGTERM)
