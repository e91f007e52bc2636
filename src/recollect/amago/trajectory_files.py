"""AMAGO's buffer on disk: trajectories in sealed files, first in first out, and windows of them (specification 2.3 to 2.5).

A trajectory is a mapping of columns with T + 1 rows for T transitions; row t is what the agent had when it chose its
action at t, plus what led there:

- ``observation`` [T + 1, ...], in the world's own dtype;
- ``previous_action`` int [T + 1] (-1 at the start of a rollout), or float32 [T + 1, A] (-2 there);
- ``reward`` float32 and ``done`` bool [T + 1]: of the step that led to the row; 0 at the start of a rollout;
- ``time`` int32 [T + 1]: steps since the rollout began;
- optional ``achieved`` float32 [T + 1, M, G] (goals that this step achieved, NaN where none) and ``goals`` [K, G] (what the
  rollout asks for, NaN behind the last), see :mod:`recollect.amago.hindsight`.

What differs from upstream, and why:

- One file holds the trajectories that were added together, each column as one array; upstream writes one pickle (or npz)
  per trajectory. All else is counted in trajectories, so "uniform over files" is as published.
- Windows are slices of memory maps, cut in the process that trains (see `cuts`); upstream has 8 that load whole files.
- What is drawn is a function of (contents, seed, counter). Names carry a number and neither time nor random word.
- The buffer can go back to where a checkpoint stood, also to the one before the newest: files that only these still need
  are kept. A file that was damaged or lost since is left out, and what is left out is said.
- Trimmed to exactly the capacity, the oldest first (newer upstream; the older one drops a tenth when full).
- ``done`` marks whatever ended the rollout, unless the recorder is told otherwise (AMAGO's `truncation`).
- Padded windows that hang over the ends are not built.
"""

from __future__ import annotations

import logging
import re
import resource
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Literal

import numpy as np

from recollect.amago.batch import Batch, padded
from recollect.amago.cuts import Cut, cut_at, cut_out
from recollect.artifacts.checkpoints import KEPT
from recollect.artifacts.sealed import MANIFEST_SUFFIX, manifest_path, read_arrays, remove_sealed, verify, write_arrays
from recollect.settings.errors import UserError
from recollect.settings.seeding import generator, seed_of

log = logging.getLogger(__name__)
Trajectory = Mapping[str, np.ndarray]
Relabel = Callable[[Trajectory, np.random.Generator, Cut], Trajectory]
"""(whole trajectory, draws, cut) -> the window that is cut from what it becomes. Only that need be copied."""
Listed = tuple[str, int, int, int]
"""A file that is drawn from: path, number of its first trajectory, how many it has, and how many of these are forgotten."""
Weights = Literal["trajectory", "timestep"]
KIND = "trajectories"
UNLIMITED = 2**62  # a capacity of which none is removed
NEEDED = ("observation", "previous_action", "reward", "done", "time")
NAME = re.compile(r"(\d{10})-(\d+)\.safetensors")
DO = "record trajectories with recollect.amago.recorder"


@dataclass(frozen=True)
class _File:
    """A file of `count` trajectories, of which the first is the `first` that was ever added."""

    path: Path
    first: int
    count: int

    @property
    def end(self) -> int:
        return self.first + self.count


class TrajectoryFiles:
    """The buffer of one run, in a folder of its own.

    Args:
        capacity: trajectories that are kept; those of `protected` do not count.
        weights: `trajectory`: each is equally likely, as published; `timestep`: in proportion to its transitions.
    """

    def __init__(self, folder: str | Path, capacity: int, *, weights: Weights = "trajectory") -> None:
        if capacity < 1:
            raise UserError(f"a buffer of {capacity} trajectories", where="capacity", do="keep one at least")
        self.folder = Path(folder)
        self.capacity = capacity
        self.weights = weights
        self.beside: tuple[TrajectoryFiles, float] | None = None
        """Other trajectories, and their share of what is drawn (all of it, while there is nothing here)."""
        self._open: dict[Path, dict[str, np.ndarray]] = {}
        self._opening = Lock()  # a thread may draw while files that it does not draw from are removed
        # An open map holds a file descriptor. A run may draw from two of these (`beside`): half of all are left to others.
        self._most_open = max(16, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
        self._needed: list[int] = []  # of each kept checkpoint, the oldest first: the first trajectory that it needs
        self._damaged: set[Path] = set()  # files that are left out
        self._lengths: np.ndarray | None = None
        self._drawn: list[tuple[_File, int]] = []
        self.refresh()

    # ---- contents

    def refresh(self) -> None:
        """Look at the folder anew, which another process may write to."""
        self._files = {part: _files(self.folder / part) for part in ("fifo", "protected")}
        fifo = self._files["fifo"]
        self._next = fifo[-1].end if fifo else 0
        self._arrange()

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    @property
    def end(self) -> int:
        """How many trajectories were ever added."""
        return self._next

    def add(self, trajectories: Sequence[Trajectory]) -> None:
        """Write trajectories as one file, and forget the oldest ones beyond the capacity."""
        if trajectories:
            file = self._write("fifo", trajectories, self._next)
            self._next += file.count
            self._arrange()
            self.trim()

    def trim(self) -> None:
        """Remove files beyond the capacity, whoever wrote them; what the kept checkpoints need stays."""
        needed_from = min([self._first, *self._needed])
        while self._files["fifo"] and (file := self._files["fifo"][0]).end <= needed_from:
            remove_sealed(file.path)
            self._forget(file.path)
            self._files["fifo"].pop(0)

    def protect(self, trajectories: Sequence[Trajectory]) -> None:
        """Write trajectories that are drawn like the others and never forgotten (demonstrations)."""
        before = self._files["protected"]
        self._write("protected", trajectories, before[-1].end if before else 0)
        self._arrange()

    def clear(self) -> None:
        """Forget all but what is protected: a run begins."""
        self._go_back(0)
        self._needed = []

    def saved(self) -> dict[str, int]:
        """For a checkpoint that is to be written. What the newest two need is kept, so that either can be gone back to."""
        self.trim()
        self._needed = [*self._needed, self._first][-KEPT:]
        return {"first": self._first, "next": self._next}

    def load(self, state: Mapping[str, int]) -> int:
        """Go back to where `saved` was called: what was written since is removed, what is damaged is left out.

        Returns:
            How many trajectories of then are damaged or missing; logged warnings name them.
        """
        self._go_back(state["next"])
        # The checkpoint before this one may stand too: what is older stays until it is known that none needs it.
        oldest = [file.first for file in self._files["fifo"][:1]]
        self._needed = [*oldest, state["first"]]
        return self._leave_out(state["first"])

    def check(self) -> int:
        """Stay where the folder stands, and leave out what is damaged; returns and warns as `load` does."""
        self._go_back(self._next)
        return self._leave_out(self._first)

    def listed(self) -> list[Listed]:
        """What can be drawn, for another process, which draws the same from it."""
        return [(str(file.path), file.first, file.count, skipped) for file, skipped in self._drawn]

    def draw_from(self, listed: list[Listed]) -> None:
        """Draw from what another process has listed, whatever else there is."""
        self._draw([(_File(Path(path), first, count), skipped) for path, first, count, skipped in listed])
        there = {file.path for file, _ in self._drawn}
        for path in [path for path in self._open if path not in there]:
            self._forget(path)

    # ---- sampling

    def sample(
        self,
        batch: int,
        length: int,
        *,
        seed: int,
        counter: int,
        relabel: Relabel | None = None,
        rows: slice | None = None,
    ) -> Batch:
        """Random windows of at most `length` transitions (length + 1 rows), each of a random trajectory.

        Args:
            relabel: gets each whole trajectory and a generator of its own, and cuts the window.
            rows: only these windows of the batch are copied, and `whole_mask_BT` tells of the others.

        Raises:
            UserError: there is nothing to draw from, or a file is broken.
        """
        if not self.ready:
            raise UserError("no trajectory to draw from", where=self.folder, do="collect some before training")
        if self.beside is None:
            return padded(self._windows(batch, length, seed, counter, relabel), rows)
        other, share = self.beside
        count = int(generator("shares", seed, counter).binomial(batch, share)) if len(self) else batch
        windows = self._windows(batch - count, length, seed, counter, relabel) if count < batch else []
        relabel = relabel if "achieved" in other.columns else None
        others = other._windows(count, length, seed_of("other trajectories", seed), counter, relabel)
        return padded(windows + others, rows)

    def _windows(
        self, batch: int, length: int, seed: int, counter: int, relabel: Relabel | None
    ) -> list[dict[str, np.ndarray]]:
        draws = generator("trajectory files", seed, counter)
        if self.weights == "trajectory":
            chosen_B = draws.integers(len(self), size=batch)
        else:
            until = np.cumsum(self.lengths)
            chosen_B = np.searchsorted(until, draws.integers(int(until[-1]), size=batch), side="right")
        where_B = draws.random(batch)
        windows: list[dict[str, np.ndarray]] = []
        for b, chosen in enumerate(chosen_B.tolist()):
            columns, first, rows, goals = self._find(chosen)
            whole: dict[str, np.ndarray] = {name: a[first : first + rows] for name, a in columns.items()}
            whole |= {} if goals is None else {"goals": goals}
            cut = cut_at(float(where_B[b]), length)
            keys = ("relabelling", seed, counter, b)
            window = cut_out(whole, cut) if relabel is None else relabel(whole, generator(*keys), cut)
            windows.append({name: a for name, a in window.items() if name not in ("achieved", "goals")})
        return windows

    @property
    def ready(self) -> bool:
        """Whether there is anything to draw from."""
        return bool(len(self) or self.beside)

    @property
    def columns(self) -> dict[str, np.ndarray]:
        """The columns of the file that holds the first trajectory that can be drawn."""
        return self._find(0)[0]

    @property
    def lengths(self) -> np.ndarray:
        """Transitions of each trajectory that can be drawn, int64."""
        if self._lengths is None:
            parts = [np.zeros(0, np.int64)]
            for file, skipped in self._drawn:
                rows = np.diff(self._read(file)["end"], prepend=0)
                parts.append(rows[skipped:] - 1)
            self._lengths = np.concatenate(parts)
        return self._lengths

    def sizes(self) -> dict[str, int]:
        """How many trajectories can be drawn, and in how many files and bytes they stand."""
        size = sum(file.path.stat().st_size for file, _ in self._drawn)
        return {"buffer_trajectories": len(self), "buffer_files": len(self._drawn), "buffer_bytes": size}

    # ---- details

    def _arrange(self) -> None:
        """What can be drawn: files, how many of their first trajectories are forgotten, and where each file's end."""
        fifo = self._files["fifo"]
        oldest = fifo[0].first if fifo else self._next
        self._first = max(oldest, self._next - self.capacity)
        drawn = [(file, max(0, self._first - file.first)) for file in fifo if file.end > self._first]
        drawn += [(file, 0) for file in self._files["protected"]]
        self._draw([(file, skipped) for file, skipped in drawn if file.path not in self._damaged])

    def _draw(self, drawn: list[tuple[_File, int]]) -> None:
        self._lengths, self._drawn = None, drawn
        self._ends = np.cumsum([file.count - skipped for file, skipped in drawn], dtype=np.int64)

    def _find(self, chosen: int) -> tuple[dict[str, np.ndarray], int, int, np.ndarray | None]:
        """Columns of its file, first row, number of rows, and goals of a trajectory."""
        place = int(np.searchsorted(self._ends, chosen, side="right"))
        file, skipped = self._drawn[place]
        before = int(self._ends[place - 1]) if place else 0
        within = chosen - before + skipped  # place among all trajectories of the file
        arrays = self._read(file)
        end = arrays["end"]
        first = int(end[within - 1]) if within else 0
        columns = {name: array for name, array in arrays.items() if name not in ("end", "goals")}
        goals = arrays["goals"][within] if "goals" in arrays else None
        return columns, first, int(end[within]) - first, goals

    def _read(self, file: _File) -> dict[str, np.ndarray]:
        with self._opening:
            arrays = self._open.pop(file.path, None)
            if arrays is None:
                arrays = read_arrays(file.path, kind=KIND)
                if len(self._open) >= self._most_open:
                    del self._open[next(iter(self._open))]
            self._open[file.path] = arrays  # the latest last
            return arrays

    def _write(self, part: str, trajectories: Sequence[Trajectory], first: int) -> _File:
        files = self._files[part]
        for trajectory in trajectories:
            _check(trajectory, trajectories[0])
        arrays = {name: np.concatenate([t[name] for t in trajectories]) for name in trajectories[0] if name != "goals"}
        if "goals" in trajectories[0]:
            arrays["goals"] = np.stack([t["goals"] for t in trajectories])
        arrays["end"] = np.cumsum([len(t["time"]) for t in trajectories], dtype=np.int64)
        file = _File(self.folder / part / f"{first:010d}-{len(trajectories)}.safetensors", first, len(trajectories))
        write_arrays(file.path, arrays, kind=KIND)
        files.append(file)
        return file

    def _go_back(self, end: int) -> None:
        """Remove what was added from trajectory `end` on, and what a kill left half written or half removed."""
        folder = self.folder / "fifo"
        for manifest in folder.glob(f"*{MANIFEST_SUFFIX}"):
            if not manifest.with_name(manifest.name.removesuffix(MANIFEST_SUFFIX)).exists():
                manifest.unlink(missing_ok=True)
        for path in folder.glob("*.safetensors"):
            match = NAME.fullmatch(path.name)
            if match and path.is_file() and int(match[1]) + int(match[2]) > end:
                remove_sealed(path)
                self._forget(path)
        self._files["fifo"] = [file for file in self._files["fifo"] if file.end <= end]
        self._next = end
        self._arrange()

    def _leave_out(self, first: int) -> int:
        """Draw from no file that is damaged. How many trajectories from `first` on cannot be drawn, which is warned of."""
        lost, reached = 0, first
        for file in [*self._files["fifo"], _File(self.folder, self._next, 0)]:
            if file.first > reached:
                log.warning(
                    "trajectories %d to %d are missing in %s: going on without them, so this run ends with other numbers",
                    reached,
                    file.first - 1,
                    self.folder / "fifo",
                )
                lost += file.first - reached
            reached = max(reached, file.end)
        for file, skipped in self._drawn:
            try:
                verify(file.path, kind=KIND)
            except (UserError, OSError) as error:
                reason = error.what if isinstance(error, UserError) else error
                log.warning("%s: %s: going on without it, so this run ends with other numbers", file.path, reason)
                self._damaged.add(file.path)
                lost += file.count - skipped
        self._arrange()
        return lost

    def _forget(self, path: Path) -> None:
        with self._opening:
            self._open.pop(path, None)
        self._damaged.discard(path)


def _files(folder: Path) -> list[_File]:
    """The whole files of a folder, oldest first. One without a manifest is being written, or its writer was killed."""
    found = []
    for path in folder.glob("*.safetensors") if folder.is_dir() else ():
        match = NAME.fullmatch(path.name)
        if match and path.is_file() and manifest_path(path).is_file():
            found.append(_File(path, int(match[1]), int(match[2])))
    return sorted(found, key=lambda file: file.first)


def _check(trajectory: Trajectory, like: Trajectory) -> None:
    """Refuse a trajectory that lacks a column, has columns of different lengths, or is not like the others."""
    where = "TrajectoryFiles.add"
    missing = [name for name in NEEDED if name not in trajectory]
    if missing:
        raise UserError(f"a trajectory lacks {missing}", where=where, do=DO)
    rows = {name: len(column) for name, column in trajectory.items() if name != "goals"}
    if len(set(rows.values())) > 1 or rows["time"] < 2:
        raise UserError(f"the columns of a trajectory have {rows} rows", where=where, do=DO)
    kind, expected = _kind(trajectory), _kind(like)
    if kind != expected:
        raise UserError(f"trajectories of different kinds: {kind} and {expected}", where=where, do=DO)


def _kind(trajectory: Trajectory) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
    """Each column's type and the shape of a row; of the goals, which are no rows, their whole shape."""
    kinds = {}
    for name, column in trajectory.items():
        shape = column.shape if name == "goals" else column.shape[1:]
        kinds[name] = (column.dtype, shape)
    return kinds
