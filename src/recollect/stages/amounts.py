"""Times and sizes as people read them."""

from __future__ import annotations


def said_time(seconds: float) -> str:
    """``45 s``, ``12 min``, ``2.5 h``, ``1,200 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    hours = seconds / 3600
    return f"{seconds / 60:.0f} min" if hours < 1.5 else f"{hours:.1f} h" if hours < 10 else f"{hours:,.0f} h"


def said_bytes(count: float) -> str:
    """``12 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:,.0f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"
