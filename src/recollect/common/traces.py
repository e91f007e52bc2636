"""Traces: what an agent saw, did and read in some tasks of an evaluation, step by step; figures and pages look at them.

One safetensors file: the columns of `Histories`, the cell of each step where the world has a `scene`, the policy's facts
of each step (``policy/<name>``), and larger arrays of some steps (``map/<name>``, whose steps are the rows ``map_row``).
What the numbers are of stands in the header as JSON (``about``). Observations that are images are kept as the different ones
among them, compressed, and which of them each step shows.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recollect.artifacts.sealed import read_arrays, read_metadata, write_arrays
from recollect.common.distinct_images import first_seen
from recollect.common.histories import COLUMNS, Histories
from recollect.settings.errors import UserError

KIND = "trace"
POLICY, MAP, MAP_ROW, CELL, ABOUT = "policy/", "map/", "map_row", "cell", "about"
IMAGES, IMAGE, SHAPE = "images", "image", "image_shape"
AGAIN = "delete it and run `recollect inspect` again"


@dataclass(frozen=True)
class Trace:
    """Some tasks of an evaluation, N steps in all, ordered by task, episode and step.

    Attributes:
        about: ``scale, env, method, seed, split, horizon``, ``actions`` (their names, where the world has some), and
            ``tasks``: a list of ``index, name, scene`` (None, or what `environments.scene.Scene.described` gives) and
            ``begins`` (None, or what `evaluation.tracing.standing` gives). Where observations became words,
            ``words``: token -> the word.
        played: the steps, as histories.
        facts: name -> [N, ...], what the policy says of each step.
        maps: name -> [M, ...], what it says of some steps.
        map_row: int64 [M], which steps those are.
        cell_N2: (row, column) where the agent stood before it acted; None where the world has no scene.
    """

    about: dict[str, Any]
    played: Histories
    facts: dict[str, np.ndarray]
    maps: dict[str, np.ndarray]
    map_row: np.ndarray
    cell_N2: np.ndarray | None

    @property
    def run(self) -> tuple[str, str, int]:
        return str(self.about["env"]), str(self.about["method"]), int(self.about["seed"])

    @property
    def tasks(self) -> list[int]:
        return [int(task["index"]) for task in self.about["tasks"]]

    @property
    def returns_KE(self) -> np.ndarray:
        """Return of every episode, float64 [traced tasks, episodes]."""
        returns = np.add.reduceat(self.played.reward.astype(np.float64), self.played.episodes.start)
        return returns.reshape(len(self.tasks), -1)

    def steps(self, task: int, episode: int) -> slice:
        table = self.played.episodes
        place = int(np.flatnonzero((table.task == task) & (table.index == episode))[0])
        return slice(int(table.start[place]), int(table.start[place] + table.length[place]))

    @property
    def shows_images(self) -> bool:
        return bool(self.played.observation.dtype == np.uint8 and self.played.observation.ndim == 4)

    def write(self, path: Path, provenance: Mapping[str, Any]) -> None:
        arrays = {**self.played.arrays(), MAP_ROW: self.map_row}
        about = dict(self.about)
        if self.shows_images:
            images_F, arrays[IMAGE] = different(arrays.pop("observation"))
            arrays[IMAGES] = np.frombuffer(zlib.compress(images_F.tobytes(), 6), np.uint8)
            about[SHAPE] = list(images_F.shape)
        if self.cell_N2 is not None:
            arrays[CELL] = self.cell_N2
        for name, values in self.facts.items():
            arrays[POLICY + name] = values
        for name, values in self.maps.items():
            arrays[MAP + name] = values
        metadata = {ABOUT: json.dumps(about, sort_keys=True)}
        write_arrays(path, arrays, kind=KIND, provenance=dict(provenance), metadata=metadata)

    @classmethod
    def open(cls, path: Path) -> Trace:
        """A sealed trace, memory-mapped.

        Raises:
            UserError: the file is missing, corrupted, of another kind, or holds no trace.
        """
        arrays = read_arrays(path, kind=KIND)
        metadata = read_metadata(path)
        if ABOUT not in metadata or MAP_ROW not in arrays:
            raise UserError("the trace does not say what it is about", where=path, do=AGAIN)
        about = json.loads(metadata[ABOUT])
        columns = {name: arrays[name] for name in COLUMNS if name in arrays}
        if IMAGES in arrays:
            compressed = np.asarray(arrays[IMAGES]).tobytes()
            images_F = np.frombuffer(zlib.decompress(compressed), np.uint8).reshape(about.pop(SHAPE))
            columns["observation"] = images_F[np.asarray(arrays[IMAGE])]
        played = Histories(columns, where=path)
        map_row = np.array(arrays[MAP_ROW])
        facts, maps = {}, {}
        for name, values in arrays.items():
            expected = len(values)
            if name.startswith(MAP):
                maps[name.removeprefix(MAP)] = values
                expected = len(map_row)
            elif name.startswith(POLICY):
                facts[name.removeprefix(POLICY)] = values
                expected = len(played)
            elif name == CELL:
                expected = len(played)
            if len(values) != expected:
                raise UserError(f"'{name}' has {len(values)} rows, not {expected}", where=path, do=AGAIN)
        return cls(about, played, facts, maps, map_row, cell_N2=arrays.get(CELL))


def different(images_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The different images [F, ...] of N, in the order in which they are first seen, and which of them each is, int32 [N]."""
    first_F, which_N = first_seen(images_N)
    return images_N[first_F], which_N.astype(np.int32)


def without_scene(trace: Trace, where: str) -> UserError:
    """The error of what needs a world from above, where its environment has none."""
    what = f"{trace.about['env']} cannot be drawn from above"
    do = (
        "give the file of its world a function `scene` (docs/adding.md); an environment of gymnasium has none, and "
        "`recollect play` makes a video of one"
    )
    return UserError(what, where=where, do=do)
