"""The batches that updates learn from: windows of the buffer, relabelled where the settings say so.

With several devices each draws the same batches and copies the rows that are its own. So all know the same of a batch, and
count the same rare goals.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import torch

from recollect.amago.batch import Batch
from recollect.amago.hindsight import Relabeler
from recollect.amago.hyperparameters import AmagoHyperparameters
from recollect.amago.recorder import Recorder
from recollect.amago.share import Share
from recollect.amago.trajectory_files import TrajectoryFiles
from recollect.common.ahead import in_order
from recollect.settings.errors import UserError
from recollect.settings.seeding import seed_of


def pinned(batch: Batch) -> Batch:
    """The batch in memory from which a GPU copies while the host goes on."""
    given = {name: torch.as_tensor(array).pin_memory() for name, array in vars(batch).items() if array is not None}
    return Batch(**given)  # type: ignore[arg-type]


class Drawing:
    """What a batch is drawn with; all of its state is how rare goals are."""

    def __init__(
        self,
        hp: AmagoHyperparameters,
        store: TrajectoryFiles,
        relabel: Relabeler | None,
        horizon: int,
        *,
        seed: int,
        device: torch.device,
        share: Share,
    ) -> None:
        self.hp, self.store, self.relabel, self.seed = hp, store, relabel, seed
        self.context = hp.context_of(horizon)
        self.on_gpu = device.type == "cuda"
        self.rows = None if share.alone else share.rows

    def rarity(self) -> dict[str, np.ndarray]:
        return {} if self.relabel is None or self.relabel.rarity is None else self.relabel.rarity.saved()

    def load(self, rarity: dict[str, np.ndarray]) -> None:
        if self.relabel is not None and self.relabel.rarity is not None:
            self.relabel.rarity.load(rarity)

    def batches(self, first: int, count: int) -> Generator[tuple[Batch, dict[str, np.ndarray]]]:
        """The batches of so many updates, the first of which has this number, and how rare goals were behind each drawing."""
        ahead = self.hp.batches_ahead if self.hp.batches_ahead is not None else 2 * self.on_gpu

        def drawn(counter: int) -> tuple[Batch, dict[str, np.ndarray]]:
            batch = self.store.sample(
                self.hp.batch_size,
                self.context,
                seed=self.seed,
                counter=counter,
                relabel=self.relabel,
                rows=self.rows,
            )
            return pinned(batch) if self.on_gpu else batch, self.rarity()

        return in_order(drawn, range(first, first + count), ahead)


def recorder_of(hp: AmagoHyperparameters, actors: int, horizon: int, *, seed: int) -> Recorder:
    """The recorder of so many actors, whose trajectories the settings cut."""
    return Recorder(
        actors,
        hp.save_length_of(horizon),
        hp.context_of(horizon),
        stagger=hp.stagger,
        seed=seed_of("trajectory lengths", seed),
    )


def relabeler(hp: AmagoHyperparameters, world: Any, shortest: int) -> Relabeler | None:
    """What relabels trajectories of a world, None where nothing does.

    Args:
        shortest: steps after which a trajectory may be cut.

    Raises:
        UserError: relabelling is asked for in a world without goals, or of trajectories that do not begin with their rollout.
    """
    if hp.relabelling == "none":
        return None
    where = "hyperparameters: relabelling"
    if getattr(world, "goal_part", None) is None:
        do = "set relabelling to none, or use a world with goals"
        raise UserError("there are no goals to relabel", where=where, do=do)
    if shortest < world.horizon:
        raise UserError(
            f"trajectories may be cut after {shortest} of {world.horizon} steps, and only those that begin with their rollout "
            "can be relabelled",
            where=where,
            do=f"set save_length to {world.horizon} and stagger to false, or relabelling to none",
        )
    return Relabeler(hp.relabelling, world.goal_part, importance=hp.rare_goals)
