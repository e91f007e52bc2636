"""Freed memory stays with the process, on Linux with glibc.

Networks that learn free and take the same megabytes at every step. By its own rule glibc gives what was freed back to the
kernel as soon as it is twice its largest block. The kernel clears each page when it is taken again. For an update of five
GPTs over 120 steps 1,500 to 14,000 page faults were counted, and at most 550 with this.
"""

from __future__ import annotations

import ctypes
import platform

# Parameters of mallopt(3), and bytes.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_LARGEST_BLOCK = 32 << 20  # the most that glibc takes for it; what is larger goes back when it is freed
_KEPT = 1 << 30
_TAKEN_AT_ONCE = 64 << 20


def keep_freed_memory() -> bool:
    """Whether this process keeps up to 1 GiB that it freed, in blocks of up to 32 MiB. Elsewhere nothing changes."""
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    chosen = ((_MMAP_THRESHOLD, _LARGEST_BLOCK), (_TRIM_THRESHOLD, _KEPT), (_TOP_PAD, _TAKEN_AT_ONCE))
    return all(mallopt(parameter, size) for parameter, size in chosen)
