"""One npz file per task: `observations, actions, rewards, dones` along time (and `next_observations`, which is not
used).

Only plain numbers are ever read. A pickle, an npz that holds objects, a truncated file and one without one of the
arrays are refused before anything of them is used. Arrays are read one by one, and never twice.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from recollect.settings.errors import UserError
from recollect.sources.columns import Rows
from recollect.sources.published import CONVERT, PICKLES, Form, broken, rows_of

NAMES = ("observations", "actions", "rewards", "dones")
UNUSED = "next_observations"
DAMAGED = (OSError, ValueError, EOFError, KeyError, MemoryError, NotImplementedError, zipfile.BadZipFile, zlib.error)


def refuse_pickle(path: Path) -> None:
    """Raise a UserError if the name or the first bytes say that this is a pickle."""
    with path.open("rb") as file:
        first = file.read(2)
    # Protocol 2 and later begin with these two bytes; older ones are text and end as "no npz file" below.
    if (
        "".join(path.suffixes[-2:]) in PICKLES
        or path.suffix in PICKLES
        or (first[:1] == b"\x80" and first[1:] < b"\x10")
    ):
        raise UserError("this is a pickle", where=path, do=CONVERT)


def read_npz(path: Path, names: Sequence[str], *, unused: str | None = None) -> dict[str, np.ndarray]:
    """Arrays of numbers from an npz file.

    Args:
        names: what must be there and is returned, in this order.
        unused: what may be there and then must have as many rows as the rewards.

    Raises:
        UserError: the file is missing, a pickle, truncated or no npz, holds objects, or lacks an array.
    """
    if not path.is_file():
        raise broken("the file is missing", path)
    refuse_pickle(path)
    if not zipfile.is_zipfile(path):
        size = path.stat().st_size
        raise broken(
            f"this is no whole npz file (a zip of arrays): it was cut short or is another kind ({size} bytes)", path
        )
    try:
        with np.load(path, allow_pickle=False) as archive:
            missing = [name for name in names if name not in archive.files]
            if missing:
                raise _missing(path, missing, archive.files)
            found = {name: _plain(archive[name], name, path) for name in names}
            if unused in archive.files and found["rewards"].ndim:
                rows, expected = _rows_in(archive, str(unused)), len(found["rewards"])
                if rows != expected:
                    raise broken(f"{unused} has {rows} rows, rewards has {expected}", path)
    except DAMAGED as error:
        if "allow_pickle" in str(error) or "Object arrays" in str(error):
            raise UserError("this npz holds pickled objects, not arrays of numbers", where=path, do=CONVERT) from None
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise broken(f"the file is damaged or cut short ({type(error).__name__}: {said})", path) from error
    return found


def _plain(array: np.ndarray, name: str, path: Path) -> np.ndarray:
    if array.dtype.hasobject:
        raise UserError(f"{name} holds pickled objects, not numbers", where=path, do=CONVERT)
    return array


def _missing(path: Path, missing: Sequence[str], there: Sequence[str]) -> UserError:
    what = f"there is no array {', '.join(missing)} (found: {', '.join(there) or 'none'})"
    if "states" in there and "observations" in missing:
        return UserError(what, where=path, do="set `layout: episodes`: this is one episode of a folder of episodes")
    return broken(what, path)


def _rows_in(archive: np.lib.npyio.NpzFile, name: str) -> int:
    """The number of rows of an array, from its header where that is possible."""
    assert archive.zip is not None
    with archive.zip.open(f"{name}.npy") as file:
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            shape = np.lib.format.read_array_header_1_0(file)[0]
        elif version == (2, 0):
            shape = np.lib.format.read_array_header_2_0(file)[0]
        else:
            shape = archive[name].shape
    return int(shape[0]) if shape else 0


class NpzRecording:
    """The complete episodes of one npz file; see `recollect.sources.published.Recording`.

    Raises:
        UserError: see `read_npz` and `rows_of`; or no episode has an end.
    """

    def __init__(self, path: Path, form: Form) -> None:
        self.where = path
        rows = rows_of(read_npz(path, NAMES, unused=UNUSED), form, path)
        ends = np.flatnonzero(rows.done)
        if not ends.size:
            raise UserError(
                f"there is no complete episode in {len(rows)} transitions (`dones` is never 1)",
                where=path,
                do="use files that say where their episodes end",
            )
        self.left_out = len(rows) - int(ends[-1]) - 1
        self.rows = rows.take(slice(0, int(ends[-1]) + 1))
        self.length_M = np.diff(ends, prepend=-1)
        until = np.cumsum(self.rows.reward, dtype=np.float64)[ends]
        self.return_M = np.diff(until, prepend=0.0)

    def read(self, episodes_K: np.ndarray) -> Iterator[Rows]:
        """All chosen episodes at once."""
        chosen_M = np.zeros(len(self.length_M), bool)
        chosen_M[episodes_K] = True
        yield self.rows if chosen_M.all() else self.rows.take(np.repeat(chosen_M, self.length_M))
