"""What a method's `train` gets: a place for its checkpoints, its log rows and its progress.

The rows logged so far travel inside each checkpoint. A run that is killed and resumed therefore ends with the same
table as one that was never killed: rows after the last checkpoint go with the steps that made them, and are made again.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from recollect.artifacts.checkpoints import Checkpoint, Checkpoints, part
from recollect.artifacts.progress import Progress
from recollect.artifacts.scores import BLANKS, NOT_ONE, SCORE_COLUMNS, SCORE_DTYPES, concat_scores, scores_frame

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)
TRAIN_SPLIT = "train"


class Run:
    """One training run.

    Args:
        folder: where the run's results go.
        checkpoint_folder: where its checkpoints go; outside declared outputs.
        settings_text: everything the run is a function of (resolved settings, code fingerprint, input hashes). A
            checkpoint made under another text is not used.
        evaluate: ``evaluate(policy, step) -> score rows``, for methods that are judged while they learn; None when not.
        env, method, seed: fill these columns of the table where rows leave them out.
    """

    def __init__(
        self,
        folder: str | Path,
        checkpoint_folder: str | Path,
        *,
        settings_text: str,
        evaluate: Callable[[Any, int], pd.DataFrame] | None = None,
        env: str = "",
        method: str = "",
        seed: int = 0,
    ) -> None:
        self.folder = Path(folder)
        self.evaluate = evaluate
        self.labels: dict[str, Any] = {"env": env, "method": method, "seed": seed}
        self._settings = hashlib.sha256(settings_text.encode()).hexdigest()
        self._checkpoints = Checkpoints(Path(checkpoint_folder))
        self._last_saved = 0
        self.resumed = False
        self._frames: list[pd.DataFrame] = []
        self._logged: list[tuple[int, str, float]] = []

    @property
    def checkpoint_folder(self) -> Path:
        """Where checkpoints go; what else a method keeps while it runs may stand in a folder inside."""
        return self._checkpoints.folder

    def resume(self) -> Checkpoint | None:
        """The newest usable checkpoint with the arrays and state given to `save`, or None for a fresh start.

        The table goes back to what it was at that checkpoint.
        """
        self._frames, self._logged, self._last_saved = [], [], 0
        newest = self._checkpoints.newest()
        if newest is None:
            return None
        if newest.state.get("settings") != self._settings:
            log.warning(
                "the checkpoint of step %d in %s was made under other settings or code: starting afresh",
                newest.step,
                self._checkpoints.folder,
            )
            return None
        self._frames = [_unpack(newest.arrays, newest.state["texts"])]
        self._last_saved = newest.step
        self.resumed = True
        log.info("going on from the checkpoint of step %d", newest.step)
        return Checkpoint(newest.step, part(newest.arrays, "of"), newest.state["state"])

    def log(self, step: int, **metrics: float) -> None:
        """Add one row per metric at a training step (split "train", no single task or episode)."""
        self._logged.extend((step, name, float(value)) for name, value in metrics.items())

    def log_scores(self, rows: pd.DataFrame) -> None:
        """Add score rows; env, method and seed columns that are missing or blank are filled with the run's own."""
        filled = rows.copy()
        for name, label in self.labels.items():
            if name not in filled.columns or (filled[name] == BLANKS[name]).all():
                filled[name] = pd.Series(label, index=filled.index, dtype=SCORE_DTYPES[name])
        self._settle()
        self._frames.append(concat_scores([filled]))

    def evaluate_policy(self, policy: Any, step: int) -> None:
        """Judge a policy with the run's evaluator, where it has one, and add the score rows."""
        if self.evaluate is not None:
            self.log_scores(self.evaluate(policy, step))

    def due(self, step: int, every: int) -> bool:
        """Whether a checkpoint is due: a multiple of `every` was passed since the last one. 0: never.

        Steps may jump over the multiple, as those of a rollout do.
        """
        return every > 0 and step // every > self._last_saved // every

    def save(self, step: int, arrays: dict[str, np.ndarray | torch.Tensor], state: dict[str, Any]) -> None:
        """Seal a checkpoint: arrays, state, and the rows logged so far."""
        columns, texts = _pack(self.table())
        own = {f"of/{name}": array for name, array in arrays.items()}
        self._checkpoints.save(step, {**own, **columns}, {"settings": self._settings, "state": state, "texts": texts})
        self._last_saved = step

    def table(self) -> pd.DataFrame:
        """All rows so far, in the order they were logged; columns and dtypes as in `recollect.artifacts.scores`."""
        self._settle()
        if len(self._frames) != 1:
            self._frames = [concat_scores(self._frames)]
        return self._frames[0].copy()

    def progress(self, total: int, description: str, unit: str = "steps") -> Progress:
        """A progress display that starts where the run resumed."""
        return Progress(total, description, unit, start=self._last_saved)

    def _settle(self) -> None:
        """Turn the rows logged one by one into a frame, behind those already there."""
        if self._logged:
            steps, names, values = zip(*self._logged, strict=True)
            rows = scores_frame(
                **self.labels,
                step=np.array(steps, dtype=np.int64),
                split=TRAIN_SPLIT,
                task=NOT_ONE,
                episode=NOT_ONE,
                metric=np.array(names),
                value=np.array(values, dtype=np.float64),
            )
            self._frames.append(rows)
            self._logged = []


def _pack(table: pd.DataFrame) -> tuple[dict[str, np.ndarray], dict[str, list[str]]]:
    """A score table as arrays: numbers as they are, texts as codes into a list of the different ones."""
    columns: dict[str, np.ndarray] = {}
    texts: dict[str, list[str]] = {}
    for name in SCORE_COLUMNS:
        if SCORE_DTYPES[name] == "str":
            codes, different = pd.factorize(table[name])
            columns[f"rows/{name}"] = codes.astype(np.int32)
            texts[name] = [str(text) for text in different]
        else:
            columns[f"rows/{name}"] = table[name].to_numpy()
    return columns, texts


def _unpack(arrays: dict[str, np.ndarray], texts: dict[str, list[str]]) -> pd.DataFrame:
    columns: dict[str, np.ndarray] = {}
    for name in SCORE_COLUMNS:
        column = arrays[f"rows/{name}"]
        columns[name] = np.array(texts[name], dtype=object)[column] if name in texts else column
    return concat_scores([pd.DataFrame(columns)])
