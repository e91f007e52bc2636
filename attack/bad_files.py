"""Published files that are wrong: refused by name, nothing in them is run, and nothing is left."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from attack.campaign import Plan, Trial, some
from attack.flips import flip, refused
from attack.jobs import JOBS, Failed
from attack.published import arrays_of, victim

ROW = "a published file that is wrong is refused, and nothing in it is run"
COMMAND = JOBS["generate published"].command
RAN = "a_pickle_was_run"


class Runs:
    """Leaves a file in the working directory where a pickle of it is opened."""

    def __reduce__(self) -> Any:
        return os.mkdir, (RAN,)


def trials(plan: Plan) -> Iterator[Trial]:
    made = [Trial("bad inputs", ROW, f"bad file: {name}", partial(one, plan, spoil)) for name, spoil in SPOILT.items()]
    yield from some(made, plan.share, plan.seed)


def one(plan: Plan, spoil: Callable[[Path], Any], folder: Path) -> None:
    plan.reference.copy(folder, [])
    spoil(victim(folder / "files"))
    said = refused(COMMAND, folder)
    if list(folder.rglob(RAN)):
        raise Failed(f"a pickle was run: {said.tail()}")


# ---- ways to spoil a file --------------------------------------------------------------------------------------------


def changed(**changes: Callable[[np.ndarray], Any] | None) -> Callable[[Path], None]:
    """Some arrays are others; None: one is not there."""

    def spoil(path: Path) -> None:
        arrays = arrays_of(path)
        for name, change in changes.items():
            array = arrays.pop(name)
            if change:
                arrays[name] = change(array)
        np.savez(path, **arrays)

    return spoil


def member(name: str, content: Callable[[], bytes], compression: int = zipfile.ZIP_STORED) -> Callable[[Path], None]:
    """One member of the archive has another content."""

    def spoil(path: Path) -> None:
        with zipfile.ZipFile(path) as archive:
            members = {each: archive.read(each) for each in archive.namelist()}
        members[name] = content()
        with zipfile.ZipFile(path, "w", compression) as archive:
            for each, inside in members.items():
                archive.writestr(each, inside)

    return spoil


def array_bytes(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def header_of(shape: str, kind: str = "'<f4'") -> bytes:
    """The beginning of a npy file that says what it likes, and nothing behind it."""
    text = f"{{'descr': {kind}, 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


def written(content: bytes) -> Callable[[Path], Any]:
    return lambda path: path.write_bytes(content)


def cut(share: float) -> Callable[[Path], Any]:
    return lambda path: path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])


def linked(to: str) -> Callable[[Path], None]:
    def spoil(path: Path) -> None:
        path.unlink()
        path.symlink_to(to or path.name)

    return spoil


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def mislabelled(path: Path) -> None:
    """Two files have each other's names."""
    other = sorted(path.parent.glob("*.npz"))[-1]
    path.rename(path.parent / "swap")
    other.rename(path)
    (path.parent / "swap").rename(other)


def flipped(seed: int) -> Callable[[Path], None]:
    """A byte of the first array's numbers differs: the archive's own checksum does not hold."""
    from random import Random

    return lambda path: flip(path, Random(seed), 200, 600)


def first(value: Any) -> Callable[[np.ndarray], np.ndarray]:
    """The first entry of an array is another."""

    def change(array: np.ndarray) -> np.ndarray:
        array = array.astype(np.float64) if isinstance(value, float) else array.astype(np.int64)
        array.reshape(-1)[0] = value
        return array

    return change


def bomb() -> bytes:
    """An array of a gigabyte of zeros, which is a megabyte of archive."""
    return header_of("(131072, 2048)") + bytes(1 << 30)


OBJECTS = np.array([Runs(), {"a": 1}], dtype=object)
SPOILT: dict[str, Callable[[Path], Any]] = {
    "not there": lambda path: path.unlink(),
    "empty": written(b""),
    "a text": written(b"hello\n" * 100),
    "an HTML page": written(b"<!DOCTYPE html><html>404</html>"),
    "a pointer of Git LFS": written(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"),
    "a pickle": written(pickle.dumps(Runs())),
    "a tenth of it": cut(0.1),
    "half of it": cut(0.5),
    "all but a few bytes": cut(0.99),
    "a folder": a_folder,
    "a link to itself": linked(""),
    "a link to nothing": linked("nothing"),
    "another task's": mislabelled,
    "a changed byte": flipped(1),
    "another changed byte": flipped(2),
    "an archive of nothing": lambda path: zipfile.ZipFile(path, "w").close(),
    "a member that is a pickle": member("actions.npy", lambda: pickle.dumps(Runs())),
    "an array of objects": member("actions.npy", lambda: array_bytes(OBJECTS)),
    "observations of objects": member("observations.npy", lambda: array_bytes(OBJECTS)),
    "a member that is empty": member("rewards.npy", lambda: b""),
    "a member that is a text": member("rewards.npy", lambda: b"1 2 3\n"),
    "a header that lies": member("rewards.npy", lambda: header_of("(1000000,)")),
    "a header of negative size": member("rewards.npy", lambda: header_of("(-1,)")),
    "a header of more bytes than there are": member("observations.npy", lambda: header_of("(1099511627776, 2)")),
    "a header that calls": member("rewards.npy", lambda: header_of("(__import__('os').mkdir('" + RAN + "'),)")),
    "a header of no kind": member("rewards.npy", lambda: header_of("(100,)", "'nonsense'")),
    "a bomb": member("observations.npy", bomb, zipfile.ZIP_DEFLATED),
    "no actions": changed(actions=None),
    "no observations": changed(observations=None),
    "no rewards": changed(rewards=None),
    "no ends": changed(dones=None),
    "fewer actions": changed(actions=lambda a: a[:-3]),
    "fewer observations": changed(observations=lambda a: a[:-1]),
    "observations of three numbers": changed(observations=lambda a: np.concatenate([a, a[:, :1]], 1)),
    "observations of one number": changed(observations=lambda a: a[:, 0]),
    "one number": changed(observations=lambda a: np.float32(1)),
    "no rows": changed(**dict.fromkeys(("observations", "actions", "rewards", "dones"), lambda a: a[:0])),
    "texts": changed(actions=lambda a: a.astype(str)),
    "complex numbers": changed(rewards=lambda a: a.astype(complex)),
    "dates": changed(rewards=lambda a: a.astype(np.int64).astype("datetime64[s]")),
    "a reward of NaN": changed(rewards=first(float("nan"))),
    "a reward of infinity": changed(rewards=first(float("inf"))),
    "an observation of NaN": changed(observations=first(float("nan"))),
    "an observation outside": changed(observations=first(77)),
    "a negative observation": changed(observations=first(-1)),
    "an action that there is not": changed(actions=first(99)),
    "a negative action": changed(actions=first(-1)),
    "an action between two": changed(actions=first(0.5)),
    "an end of NaN": changed(dones=first(float("nan"))),
    "an end of two": changed(dones=first(2)),
    "no end anywhere": changed(dones=np.zeros_like),
    "an end at every step": changed(dones=np.ones_like),
    "other actions": changed(actions=lambda a: (a + 1) % 5),
    "other rewards": changed(rewards=lambda a: a + 1),
    "backwards": changed(observations=lambda a: a[::-1].copy()),
}
