"""What a method's `train` gets: a place for its checkpoints, its log rows and its progress.

The rows logged so far travel inside each checkpoint. A run that is killed and resumed therefore ends with the same
table as one that was never killed: rows after the last checkpoint go with the steps that made them, and are made again.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from recollect.artifacts import scoring, set_aside
from recollect.artifacts.cadence import Cadence
from recollect.artifacts.checkpoints import Checkpoint, Checkpoints, part
from recollect.artifacts.differences import made_differently
from recollect.artifacts.finite import check_arrays, check_metric
from recollect.artifacts.live import Live, Points, points_of
from recollect.artifacts.progress import Progress, show
from recollect.artifacts.scores import BLANKS, NOT_ONE, SCORE_COLUMNS, SCORE_DTYPES, concat_scores, scores_frame
from recollect.settings.errors import UserError

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)
TRAIN_SPLIT = "train"
Row = tuple[int, str, int, int, str, float]
"""Step, split, task, episode, metric and value, which are no frame yet."""
SCORING = "scoring_while_learning"  # folder beside the checkpoints, see `Run.scoring`


class Run:
    """One training run.

    Args:
        folder: where the run's results go.
        checkpoint_folder: where its checkpoints go; outside declared outputs.
        settings_text: everything the run is a function of (resolved settings, code fingerprint, input hashes). A
            checkpoint made under another text is not used: it is set aside.
        made_of: the same in parts, to say what differs (see `differences.made_differently`).
        trust: go on with a checkpoint that was made under another text, also with one that was set aside.
        evaluate: ``evaluate(policy, step, scoring) -> score rows``, for methods that are judged while they learn; None when
            not.
        env, method, seed: fill these columns of the table where rows leave them out.
        live: is told what is logged, for those who watch; None: nobody is.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        folder: str | Path,
        checkpoint_folder: str | Path,
        *,
        settings_text: str,
        made_of: Mapping[str, Any] | None = None,
        trust: bool = False,
        evaluate: Callable[[Any, int, scoring.Scoring], pd.DataFrame] | None = None,
        env: str = "",
        method: str = "",
        seed: int = 0,
        live: Live | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder = Path(folder)
        self.live = live
        self.evaluate = evaluate
        self.labels: dict[str, Any] = {"env": env, "method": method, "seed": seed}
        self._settings = hashlib.sha256(settings_text.encode()).hexdigest()
        self._checkpoints = Checkpoints(Path(checkpoint_folder))
        self._made_of = dict(made_of or {})
        self._trust = trust
        self.trusted: list[dict[str, Any]] = []  # checkpoints of another making that this run went on with
        self.clock = clock
        self._last_saved = 0
        self._cadence = Cadence(clock)
        self.resumed = False
        self._frames: list[pd.DataFrame] = []
        self._logged: list[Row] = []

    @property
    def checkpoint_folder(self) -> Path:
        """Where checkpoints go; what else a method keeps while it runs may stand in a folder inside."""
        return self._checkpoints.folder

    def resume(self) -> Checkpoint | None:
        """The newest usable checkpoint with the arrays and state given to `save`, or None for a fresh start.

        The table goes back to what it was at that checkpoint.
        """
        self._forget()
        newest = self._chosen()
        self._cadence = Cadence(self.clock)
        if newest is not None:
            self._frames = [_unpack(newest.arrays, newest.state["texts"])]
        if self.live is not None:
            self.live.begin(points_of(self._frames[0]) if newest else {}, resumed=newest is not None)
        if newest is None:
            return None
        self._last_saved = newest.step
        self.trusted = list(newest.state.get("trusted", []))
        if not self._is_own(newest):
            self.trusted.append({"step": newest.step, "fingerprint": _name(newest), "differs": self._differs(newest)})
        self.resumed = True
        log.info("going on from the checkpoint of step %d", newest.step)
        return Checkpoint(newest.step, part(newest.arrays, "of"), newest.state["state"])

    def begin_afresh(self) -> None:
        """Begin at step 0 after all: something that the checkpoint of `resume` counts on is gone.

        The checkpoint stays until the first one of the new beginning is saved.
        """
        self._forget()
        self._cadence = Cadence(self.clock)
        if self.live is not None:
            self.live.begin({}, resumed=False)

    def _forget(self) -> None:
        """As if no checkpoint had ever been used."""
        self._frames, self._logged, self._last_saved, self.trusted, self.resumed = [], [], 0, [], False

    def _is_own(self, checkpoint: Checkpoint) -> bool:
        return bool(checkpoint.state.get("settings") == self._settings)

    def _differs(self, checkpoint: Checkpoint) -> str:
        return made_differently(checkpoint.state.get("made_of", {}), self._made_of)

    def _chosen(self) -> Checkpoint | None:
        """The checkpoint to go on from; one of another making is set aside, or trusted where that is asked for."""
        aside = set_aside.SetAside(self.checkpoint_folder, self.folder)
        aside.finish()
        newest, mine, names = self._checkpoints.newest(), self._settings[:12], aside.names()
        own = newest is not None and self._is_own(newest)
        others = [name for name in names if name != mine]
        begun_afresh = newest is None or (own and not newest.state.get("trusted"))
        wanted = mine if mine in names and not own else None
        if self._trust and begun_afresh and others:
            wanted = others[-1]
        elif own or (self._trust and newest is not None):
            return newest
        if newest is not None:
            aside.put(_name(newest), keep=wanted)
            log.warning(
                "the checkpoint of step %d in %s was made under %s: it is set aside in %s. %d such generations are kept; "
                "to go on with the latest, give the same command --trust-checkpoint",
                newest.step,
                self.checkpoint_folder,
                "today's settings and code" if own else f"other settings or code ({self._differs(newest)})",
                aside.folder(_name(newest)),
                set_aside.KEPT,
            )
        if wanted is None:
            return None
        log.info("taking back what was set aside in %s", aside.folder(wanted))
        aside.take(wanted)
        return self._checkpoints.newest()

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """What is done from `resume` to the end. Where a trusted checkpoint breaks today's code, a UserError says so."""
        try:
            yield
        except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            if self.trusted and self.trusted[-1]["step"] == self._last_saved:
                what = f"the checkpoint that was trusted does not fit today's code: {type(error).__name__}: {error}"
                do = "give the same command without --trust-checkpoint: it is set aside, and the run starts afresh"
                raise UserError(what, where=self.checkpoint_folder, do=do) from error
            raise

    def log(self, step: int, **metrics: float) -> None:
        """Add one row per metric at a training step (split "train", no single task or episode).

        Raises:
            UserError: a loss or the norm of a gradient is NaN or infinite; the checkpoints from before stay.
        """
        for name, value in metrics.items():
            check_metric(name, float(value), f"{self.folder}, step {step}")
        self._logged.extend(
            (step, TRAIN_SPLIT, NOT_ONE, NOT_ONE, name, float(value)) for name, value in metrics.items()
        )
        self._show({step: {name: float(value) for name, value in metrics.items()}})

    def log_episodes(self, step: int, split: str, metric: str, task: int | np.ndarray, value_E: np.ndarray) -> None:
        """Add a row for each episode of an evaluation: a number of each, of one task or one each.

        The same as `log_scores` with a frame of theirs, which takes 4 milliseconds; this takes a hundredth of one.
        """
        tasks, values = np.broadcast_to(task, value_E.shape).tolist(), value_E.tolist()
        for episode, (one, value) in enumerate(zip(tasks, values, strict=True)):
            self._logged.append((step, split, one, episode, metric, value))
        self._show({step: {f"{split}/{metric}": sum(values) / len(values)}})

    def log_scores(self, rows: pd.DataFrame) -> None:
        """Add score rows; env, method and seed columns that are missing or blank are filled with the run's own."""
        filled = rows.copy()
        for name, label in self.labels.items():
            if name not in filled.columns or (filled[name] == BLANKS[name]).all():
                filled[name] = pd.Series(label, index=filled.index, dtype=SCORE_DTYPES[name])
        self._settle()
        self._frames.append(concat_scores([filled]))
        self._show(points_of(filled))

    def _show(self, points: Points) -> None:
        """Tell whoever watches; nothing of the run depends on it."""
        for step, values in points.items():
            show(id(self), values)
            if self.live is not None and values:
                self.live.add(step, values)

    def evaluate_policy(self, policy: Any, step: int) -> None:
        """Judge a policy with the run's evaluator, where it has one, and add the score rows."""
        if self.evaluate is not None:
            self.log_scores(self.evaluate(policy, step, self.scoring(policy, step)))

    def scoring(self, policy: Any, step: int) -> scoring.Scoring:
        """What a scoring goes on from that is made while the run learns; `step` tells it from others since a checkpoint.

        A killed run comes to it again from its newest checkpoint, with the same policy, and then goes on with it.
        """

        def identity() -> str:
            return f"{self._settings} step {step} policy {scoring.digest(policy.arrays())}"

        cadence = Cadence(self.clock, began=self._cadence.began, behind=self._cadence.unsaved)
        return scoring.Scoring(self.checkpoint_folder / SCORING / str(step), identity, cadence)

    def due(self, step: int, every: int) -> bool:
        """Whether a checkpoint is due, which is asked wherever one may be made; no result depends on the answer.

        It is when a multiple of `every` was passed since the last one (0: never by steps), which steps may jump over as
        those of a rollout do, unless steps are so quick that saves would take too much of the time; and by time, see `Cadence`.
        """
        passed = every > 0 and step // every > self._last_saved // every
        return self._cadence.due() or (passed and self._cadence.affordable)

    def save(
        self,
        step: int,
        arrays: dict[str, np.ndarray | torch.Tensor],
        state: dict[str, Any],
        *,
        began: float | None = None,
    ) -> None:
        """Seal a checkpoint: arrays, state, and the rows logged so far.

        Args:
            began: by `clock`, where several runs are saved one after the other: when the first of them began. What they cost
                together says when the next is due.

        Raises:
            UserError: a tensor holds NaN or infinity; the checkpoints from before stay.
        """
        began = self.clock() if began is None else began
        # Networks and optimisers are tensors. What worlds and memories hold is numpy and may have NaN for "none"; so may
        # sums of metrics.
        tensors: dict[str, Any] = {}
        for name, array in arrays.items():
            if not isinstance(array, np.ndarray | np.generic) and not name.startswith("sums/"):
                tensors[name] = array
        check_arrays(tensors, f"{self.folder}, step {step}")
        columns, texts = _pack(self.table())
        own = {f"of/{name}": array for name, array in arrays.items()}
        known: dict[str, Any] = {"settings": self._settings, "state": state, "texts": texts}
        known |= {"made_of": self._made_of} if self._made_of else {}
        known |= {"trusted": self.trusted} if self.trusted else {}
        self._checkpoints.save(step, {**own, **columns}, known)
        self._last_saved = step
        self.forget_scorings()  # from here on, no run comes to them again
        self._cadence.saved(began)

    def forget_scorings(self) -> None:
        """Remove what scorings while learning would have gone on from."""
        shutil.rmtree(self.checkpoint_folder / SCORING, ignore_errors=True)

    def table(self) -> pd.DataFrame:
        """All rows so far, in the order they were logged; columns and dtypes as in `recollect.artifacts.scores`."""
        self._settle()
        if len(self._frames) != 1:
            self._frames = [concat_scores(self._frames)]
        return self._frames[0].copy()

    def progress(self, total: int, description: str, unit: str = "steps", *, start: int | None = None) -> Progress:
        """A progress display that starts where the run resumed, at the step of its checkpoint unless said otherwise."""
        start = self._last_saved if start is None else start
        return Progress(total, description, unit, start=start, goes_on=True)

    def _settle(self) -> None:
        """Turn the rows logged one by one into a frame, behind those already there."""
        if self._logged:
            steps, splits, tasks, episodes, names, values = zip(*self._logged, strict=True)
            rows = scores_frame(
                **self.labels,
                step=np.array(steps, dtype=np.int64),
                split=np.array(splits),
                task=np.array(tasks),
                episode=np.array(episodes),
                metric=np.array(names),
                value=np.array(values, dtype=np.float64),
            )
            self._frames.append(rows)
            self._logged = []


def _name(checkpoint: Checkpoint) -> str:
    """The name of the generation that a checkpoint is of."""
    return str(checkpoint.state.get("settings", "unknown"))[:12]


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
