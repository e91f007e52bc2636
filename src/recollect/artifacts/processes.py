"""What is known of other processes of this host."""

from __future__ import annotations

import os
import time
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


def stat_of(pid: int) -> list[str]:
    """What Linux says of a process behind its name, which may itself hold spaces and brackets: state, parent, ...

    Place 19 is when it began, in ticks since the start of the machine.

    Raises:
        OSError: it has ended, or this is another system.
    """
    # Linux cuts a name after 15 bytes, perhaps within a character.
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].decode().split()


def began(pid: int) -> float:
    """When a process began, in seconds since 1970 by the clock of this host.

    Raises:
        OSError: as `stat_of`.
    """
    ticks = int(stat_of(pid)[19])
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return booted + ticks / os.sysconf("SC_CLK_TCK")
