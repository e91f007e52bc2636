"""Checkpoints of another making: they are set aside and not deleted, so that a run can go on with them.

A generation is all that stood in a run's folder under one fingerprint of settings, code and inputs. It moves file by
file into ``set_aside/FINGERPRINT`` in the same folder, and back. A marker stands while files move, so that what a kill
interrupts is finished by the next command.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from recollect.artifacts.checkpoints import POLICIES

FOLDER = "set_aside"
KEPT = 2  # generations; of older ones nothing is left
GROWING = "*.rows"  # histories of images that grow on disk, in the folder of the results
MADE_ANEW = "mixed"  # a folder that a run fills whenever it begins: of no generation
STAY = ("protected", ".lock")  # what no run made: demonstrations in a buffer, and the lock of who works here


class SetAside:
    """The generations of one run.

    Args:
        checkpoints: its folder, of which everything moves.
        results: where its results go, of which only `GROWING` moves.
    """

    def __init__(self, checkpoints: Path, results: Path) -> None:
        self.places = [checkpoints, results]
        self._markers = checkpoints / FOLDER

    def folder(self, name: str) -> Path:
        return self.places[0] / FOLDER / name

    def names(self) -> list[str]:
        """The generations that are there, the latest last."""
        if not self._markers.is_dir():
            return []
        there = [path for path in self._markers.iterdir() if path.is_dir()]
        return [path.name for path in sorted(there, key=lambda path: (path.stat().st_mtime_ns, path.name))]

    def put(self, name: str, *, keep: str | None = None) -> None:
        """Set aside what stands in the run's folder, in the place of an older generation of the same name.

        Args:
            keep: a generation that stays, however old it is.
        """
        self._remove(name)
        self._do("put", name)
        for old in self.names()[:-KEPT]:
            if old != keep:
                self._remove(old)

    def take(self, name: str) -> None:
        """Put a generation back to where it was."""
        self._do("take", name)

    def clear(self) -> None:
        """Leave nothing of any generation."""
        for name in self.names():
            self._remove(name)

    def finish(self) -> None:
        """Finish a move that a kill interrupted."""
        for marker in self._markers.glob(".moving-*"):
            _, what, name = marker.name.split("-", 2)
            self._do(what, name)

    def _do(self, what: str, name: str) -> None:
        self._markers.mkdir(parents=True, exist_ok=True)
        marker = self._markers / f".moving-{what}-{name}"
        marker.touch()
        for place in self.places:
            aside = place / FOLDER / name
            source, target = (place, aside) if what == "put" else (aside, place)
            for path in list(self._files(source, everything=place == self.places[0])):
                there = target / path.relative_to(source)
                there.parent.mkdir(parents=True, exist_ok=True)
                os.replace(path, there)
        if what == "put":
            os.utime(self.folder(name))
        else:
            self._remove(name)
        marker.unlink()

    def _files(self, folder: Path, *, everything: bool) -> Iterator[Path]:
        for path in folder.rglob("*") if everything else folder.glob(GROWING):
            parts = path.relative_to(folder).parts
            if path.is_file() and parts[0] not in (FOLDER, MADE_ANEW) and not any(part in STAY for part in parts):
                yield path

    def _remove(self, name: str) -> None:
        for place in self.places:
            shutil.rmtree(place / FOLDER / name, ignore_errors=True)
            if place != self.places[0] and (place / FOLDER).is_dir() and not any((place / FOLDER).iterdir()):
                (place / FOLDER).rmdir()


def remove_finished(checkpoints: Path) -> None:
    """Remove what a run leaves that has ended: its checkpoints, its buffer, what else it kept to go on.

    What stays: policies that it keeps by name, what no run made, generations that are set aside, and the lock.
    Checkpoints go first, so that none is left without the buffer that it needs.
    """
    left: list[Path] = []
    for path in checkpoints.rglob("*"):
        parts = path.relative_to(checkpoints).parts
        if parts[0] not in (FOLDER, POLICIES) and not any(part in STAY for part in parts):
            left.append(path)
    files = [path for path in left if not path.is_dir()]
    for path in sorted(files, key=lambda path: (path.parent != checkpoints, path)):
        path.unlink(missing_ok=True)
    for path in sorted(left, reverse=True):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
