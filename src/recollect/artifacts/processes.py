"""What is known of other processes of this host."""

from __future__ import annotations

import os
from pathlib import Path


def lives(pid: int) -> bool:
    """Whether there is a process with this number, of whatever user."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def facts_of(pid: int) -> list[str]:
    """What Linux says of a process behind its name, which may itself hold spaces and brackets: state, parent, ...

    Place 19 is when it began, in ticks since the start of the machine.

    Raises:
        OSError: it has ended, or this is another system.
    """
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
