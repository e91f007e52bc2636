"""Another folder as working directory, with a configuration and an own folder that are named."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from recollect.settings.still import held_still


@contextlib.contextmanager
def working_in(folder: str | Path, *, config: Path, mine: Path, anew: bool = False) -> Iterator[None]:
    """For as long as a block lasts, work in a folder; the variables that name `config` and `mine` are set and put back.

    Args:
        anew: see `held_still`.
    """
    told = {"RECOLLECT_CONFIG": str(config), "RECOLLECT_MINE": str(mine)}
    before = {name: os.environ.get(name) for name in told}
    os.environ.update(told)
    try:
        with contextlib.chdir(folder), held_still(anew=anew):
            yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
