"""One npz file per task: `observations, actions, rewards, dones` along time, and `next_observations`, which is not used.

Only plain numbers are ever read: pickles, objects and damaged files are refused before anything of them is used.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from recollect.sources.columns import Rows
from recollect.sources.published import CONVERT, PICKLES, Form, broken, check_names, rows_of

NAMES = ("observations", "actions", "rewards", "dones")
UNUSED = "next_observations"
DAMAGED = (OSError, ValueError, EOFError, KeyError, MemoryError, NotImplementedError, zipfile.BadZipFile, zlib.error)


def refuse_pickle(path: Path) -> None:
    """Raise a UserError if the name or the first bytes say that this is a pickle."""
    with path.open("rb") as file:
        first = file.read(2)
    # Protocol 2 and later begin with these two bytes; older ones are text and end as "no npz file" below.
    begins_like_one = first[:1] == b"\x80" and first[1:] < b"\x10"
    if begins_like_one or not PICKLES.isdisjoint((path.suffix, "".join(path.suffixes[-2:]))):
        raise broken("this is a pickle", path, do=CONVERT)


def read_npz(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Arrays of numbers from an npz file, in the order of `names`. `next_observations` must be as long as rewards."""
    if not path.is_file():
        raise broken("the file is missing", path)
    refuse_pickle(path)
    if not zipfile.is_zipfile(path):
        size = path.stat().st_size
        raise broken(f"this is no whole npz file (a zip of arrays): cut short, or another kind ({size} bytes)", path)
    arrays: dict[str, np.ndarray] = {}
    try:
        with np.load(path, allow_pickle=False) as archive:
            check_names("array", names, archive.files, path)
            for name in names:
                arrays[name] = archive[name]
            if UNUSED in archive.files and np.ndim(arrays["rewards"]):
                rows, expected = _rows_in(archive, UNUSED), len(arrays["rewards"])
                if rows != expected:
                    raise broken(f"{UNUSED} has {rows} rows, rewards has {expected}", path)
    except DAMAGED as error:
        if "allow_pickle" in str(error) or "Object arrays" in str(error):
            raise broken("this npz holds pickled objects, not arrays of numbers", path, do=CONVERT) from None
        first_line = str(error).partition("\n")[0]
        raise broken(f"the file is damaged or cut short ({type(error).__name__}: {first_line})", path) from error
    return arrays


def _rows_in(archive: np.lib.npyio.NpzFile, name: str) -> int:
    """The number of rows of an array, of which only the header is read."""
    assert archive.zip is not None
    with archive.zip.open(f"{name}.npy") as file:
        np.lib.format.read_magic(file)
        shape, _, _ = np.lib.format.read_array_header_1_0(file)
    return int(shape[0]) if shape else 0


class NpzRecording:
    """The complete episodes of one npz file, in time order.

    Attributes:
        length_M, return_M: int64 and float64 [M], of each episode.
        left_out: rows of a last episode that has no end.
    """

    def __init__(self, path: Path, form: Form) -> None:
        self.where = path
        rows = rows_of(read_npz(path, NAMES), form, path)
        ends = np.flatnonzero(rows.done)
        if not ends.size:
            message = f"there is no complete episode in {len(rows)} transitions (`dones` is never 1)"
            raise broken(message, path, do="use files that say where their episodes end")
        self.rows = rows.take(slice(0, int(ends[-1]) + 1))
        self.left_out = len(rows) - len(self.rows)
        self.length_M = np.diff(ends, prepend=-1)
        self.return_M = np.diff(np.cumsum(self.rows.reward, dtype=np.float64)[ends], prepend=0.0)

    def read(self, episodes_K: np.ndarray) -> Iterator[Rows]:
        """The rows of some episodes (ascending), in portions that hold whole episodes: here all at once."""
        chosen_M = np.zeros(len(self.length_M), bool)
        chosen_M[episodes_K] = True
        yield self.rows if chosen_M.all() else self.rows.take(np.repeat(chosen_M, self.length_M))
