"""What lies in `.snakemake`: its record of how each file was made, and the file by which a Snakemake says that it lives."""

from __future__ import annotations

import base64
import os
from pathlib import Path

METADATA = Path(".snakemake") / "metadata"
ALIVE = METADATA.parent / "recollect-alive"
"""Every Snakemake of this folder holds an flock on it for as long as it lives (workflow/stale_lock.py)."""
_LONGEST = 255  # characters of a file's name, where the file system says nothing


def record_path(target: str) -> Path:
    """Where Snakemake (record format 6) keeps the record of one file, whether or not there is one.

    The name is cut into pieces as long as the file system takes: 254 characters on most, 142 on eCryptfs.

    Args:
        target: the file, as the rule that makes it names it.
    """
    place = next((folder for folder in (METADATA, METADATA.parent) if folder.exists()), Path())
    piece = (os.pathconf(place, "PC_NAME_MAX") or _LONGEST) - 1
    name = base64.urlsafe_b64encode(target.encode()).decode()
    pieces = [name[i : i + piece] for i in range(0, len(name), piece)]
    return METADATA.joinpath(*("@" + folder for folder in pieces[:-1]), pieces[-1])
