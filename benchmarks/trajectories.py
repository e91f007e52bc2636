"""Reading a batch of windows from a buffer on disk: AMAGO's trajectories, against one pickle per trajectory."""

from __future__ import annotations

import pickle
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.harness import Comparison, Goal, Side
from recollect.amago.batch import Batch
from recollect.amago.trajectory_files import Trajectory, TrajectoryFiles

BATCH, ACTORS = 24, 12


class PlainFiles:
    """A pickle per trajectory, of one object per time step, as AMAGO's seed code has it; read whole, then cut."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.draw = folder, random.Random(0)

    def add(self, trajectory: Trajectory) -> None:
        """Write one."""
        rows = [{name: column[t].copy() for name, column in trajectory.items()} for t in range(len(trajectory["time"]))]
        path = self.folder / f"{len(list(self.folder.iterdir())):06d}.traj"
        path.write_bytes(pickle.dumps(rows))

    def read(self, path: Path, start: int | None, length: int) -> dict[str, np.ndarray]:
        """The window of a trajectory that begins at a row (None: any)."""
        rows = pickle.loads(path.read_bytes())
        whole = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
        first = self.draw.randrange(max(1, len(rows) - length)) if start is None else start
        return {name: column[first : first + length + 1] for name, column in whole.items()}

    def batch(self, length: int) -> dict[str, np.ndarray]:
        """Windows of random trajectories, padded."""
        paths = sorted(self.folder.iterdir())
        windows = [self.read(self.draw.choice(paths), None, length) for _ in range(BATCH)]
        longest = max(len(window["time"]) for window in windows)
        return {name: np.stack([padded(window[name], longest) for window in windows]) for name in windows[0]}


def padded(column: np.ndarray, rows: int) -> np.ndarray:
    return np.concatenate([column, np.zeros((rows - len(column), *column.shape[1:]), column.dtype)])


def rollout(draw: np.random.Generator, steps: int) -> Trajectory:
    """A rollout of Dark Key-To-Door with random content."""
    time = np.arange(steps + 1, dtype=np.int32)
    return {
        "observation": draw.random((steps + 1, 4), np.float32),
        "previous_action": draw.integers(0, 5, steps + 1).astype(np.int16),
        "reward": (draw.random(steps + 1) < 0.05).astype(np.float32),
        "done": time == steps,
        "time": time,
    }


def comparisons(quick: bool) -> Iterator[Comparison]:
    """One row."""
    steps, files = (50, 2) if quick else (500, 40)
    folder = tempfile.TemporaryDirectory()
    draw = np.random.default_rng(0)
    store, plain_folder = TrajectoryFiles(Path(folder.name) / "ours", files * ACTORS), Path(folder.name) / "plain"
    plain_folder.mkdir()
    plain = PlainFiles(plain_folder)
    for _ in range(files):
        rollouts = [rollout(draw, steps) for _ in range(ACTORS)]
        store.add(rollouts)
        for one in rollouts:
            plain.add(one)
    counters = iter(range(1 << 40))

    def ours() -> Batch:
        assert folder  # lives as long as this
        return store.sample(BATCH, steps, seed=0, counter=next(counters))

    def difference() -> float:
        """Our windows are found among the pickles, and equal them."""
        drawn, paths, worst = store.sample(BATCH, steps // 2, seed=0, counter=7), sorted(plain_folder.iterdir()), 0.0
        seen = np.asarray(drawn.observation_BTD)
        wholes = [plain.read(path, 0, steps) for path in paths]
        for b, rows in enumerate(drawn.mask_BT.sum(1).tolist()):
            start = int(drawn.time_BT[b, 0])
            (whole,) = [w for w in wholes if (w["observation"][start] == seen[b, 0]).all()]
            pairs = {
                "observation": seen[b],
                "previous_action": drawn.previous_action_BT[b],
                "reward": drawn.reward_BT[b],
            }
            for name, ours_of in pairs.items():
                worst = max(worst, float(np.abs(ours_of[:rows] - whole[name][start : start + rows]).max()))
        return worst

    yield Comparison(
        work=f"{BATCH} windows of {steps} steps from {files * ACTORS} trajectories on disk",
        unit="batches",
        plain="one pickle per trajectory, read whole",
        ours=Side(ours, 1),
        against=Side(lambda: plain.batch(steps), 1),
        difference=difference,
        goal=Goal(20),
        released="amago_files",
    )
