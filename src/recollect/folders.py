"""Where calls from Python work: in the folder that has the configuration, or in one that is named."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from recollect.settings.catalogue import check_mine_folder, mine_folder
from recollect.settings.errors import UserError
from recollect.settings.working_in import working_in


@contextlib.contextmanager
def inside(folder: str | Path | None, config: Path | None = None) -> Iterator[tuple[Path, Path]]:
    """For as long as a block lasts: a folder as working directory, with a configuration and a folder of own code.

    Without `folder` it is that of the configuration, which has `mine` beside it. Where RECOLLECT_CONFIG names one, all is as
    for the commands: it is this folder, and `mine` lies in it.

    Yields:
        The folder and the configuration.

    Raises:
        UserError: there is no such folder, or no configuration.
    """
    if config is None:  # else the variable was set here
        check_mine_folder()
    named = os.environ.get("RECOLLECT_CONFIG")
    wanted = None if folder is None else Path(folder).absolute()
    if wanted is not None and not wanted.is_dir():
        do = "make it first, or leave `folder` out to work beside the configuration"
        raise UserError("there is no such folder", where=wanted, do=do)
    found = config or (Path(named).absolute() if named else _config(wanted))
    at = wanted or (Path.cwd() if named else found.parent)
    with working_in(at, config=found, mine=mine_folder(at if named else found.parent)):
        yield at, found


def _config(folder: Path | None) -> Path:
    """The configuration in or above a folder, in or above the working directory, or in the clone of the package."""
    starts = [place for place in (folder, Path.cwd()) if place is not None]
    clone = Path(__file__).resolve().parents[2]
    for place in (*(above for start in starts for above in (start, *start.parents)), clone):
        if (place / "config" / "scales").is_dir():
            return place / "config"
    do = "call this in a clone of the repository, or name its folder `config` by the variable RECOLLECT_CONFIG"
    raise UserError("no configuration is found: no folder `config` here or above", where=Path.cwd(), do=do)
