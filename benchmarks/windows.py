"""A training batch of windows from 8 M transitions: one fancy index, against sampling trajectory by trajectory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from benchmarks.harness import Comparison, Goal, Side
from recollect.common.histories import Histories
from recollect.radt.decision_transformer import Experience
from recollect.radt.supervised import ExperienceStore
from recollect.radt.windows import WindowSampler

ACTIONS, CONTEXT, BATCH, LENGTH = 5, 50, 128, 100


class PlainSampler:
    """A list of trajectories; a batch is cut, padded and stacked one window at a time.

    Args:
        histories: what the trajectories are taken from.
    """

    def __init__(self, histories: Histories) -> None:
        columns = {
            "observation": histories.observation.astype(np.int64),
            "return_to_go": histories.return_to_go,
            "action": histories.action.astype(np.int64),
            "reward": histories.reward,
            "timestep": histories.timestep.astype(np.int64),
        }
        table = histories.episodes
        spans = zip(table.start.tolist(), (table.start + table.length).tolist(), strict=True)
        self.trajectories = [{name: column[first:end] for name, column in columns.items()} for first, end in spans]
        self.chances = table.length / table.length.sum()
        self.draw = np.random.default_rng(0)

    def batch(self) -> Experience:
        """Trajectories by their length, and an end in each."""
        chosen = self.draw.choice(len(self.trajectories), size=BATCH, p=self.chances).tolist()
        ends = [int(self.draw.integers(1, len(self.trajectories[i]["reward"]))) for i in chosen]
        return self.windows(chosen, ends)

    def windows(self, chosen: list[int], ends: list[int]) -> Experience:
        """The windows that end before the given timesteps of the given trajectories."""
        fields: dict[str, list[np.ndarray]] = {name: [] for name in (*self.trajectories[0], "mask")}
        for i, end in zip(chosen, ends, strict=True):
            first = max(0, end - CONTEXT)
            missing = CONTEXT - (end - first)
            for name, column in self.trajectories[i].items():
                window = column[first:end]
                fill = ACTIONS if name == "action" else 0
                padding = np.full((missing, *window.shape[1:]), fill, window.dtype)
                fields[name].append(np.concatenate([padding, window]))
            fields["mask"].append(np.arange(CONTEXT) >= missing)
        return Experience(**{name: torch.from_numpy(np.stack(parts)) for name, parts in fields.items()})


def histories_of(rows: int) -> Histories:
    """Histories of 80 tasks with random content; all episodes last 100 steps."""
    draw = np.random.default_rng(0)
    number = np.arange(rows)
    return Histories(
        {
            "observation": draw.integers(0, 10, (rows, 2), dtype=np.int8),
            "action": draw.integers(0, ACTIONS, rows, dtype=np.int8),
            "reward": draw.integers(0, 2, rows, dtype=np.int8).astype(np.float32),
            "done": number % LENGTH == LENGTH - 1,
            "task": (number // (rows // 80)).astype(np.int32),
            "episode": (number % (rows // 80) // LENGTH).astype(np.int32),
        }
    )


def comparisons(quick: bool) -> Iterator[Comparison]:
    """One row."""
    rows = 80 * (500 if quick else 100_000)
    histories = histories_of(rows)
    sampler = WindowSampler(histories, context=CONTEXT, batch_size=BATCH, seed=0)
    store, plain = ExperienceStore(histories, actions=ACTIONS), PlainSampler(histories)
    at = iter(range(1 << 40))

    def ours() -> Experience:
        drawn = sampler.batch(next(at))
        return store.windows(drawn.rows, drawn.mask)

    def difference() -> float:
        drawn = sampler.batch(7)
        mine = store.windows(drawn.rows, drawn.mask)
        theirs = plain.windows(drawn.episode.tolist(), drawn.end.tolist())
        gaps = [getattr(mine, name).double() - getattr(theirs, name).double() for name in mine.__dataclass_fields__]
        return max(float(gap.abs().max()) for gap in gaps)

    yield Comparison(
        work=f"{BATCH} windows of {CONTEXT} from {rows / 1e6:.3g} M transitions",
        unit="batches",
        plain="window by window from a list of trajectories",
        ours=Side(ours, 1),
        against=Side(plain.batch, 1),
        difference=difference,
        goal=Goal(50),
    )
