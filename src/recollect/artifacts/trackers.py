"""What runs log, sent on to TensorBoard, Weights & Biases or trackio: `RECOLLECT_TRACKER=tensorboard,wandb`.

The one place that knows them. A tracker sees what is logged and gives nothing back, so no result depends on it; one that
fails is a warning, and the run goes on without it. Whether W&B and trackio send anything over a network is theirs to say,
by variables of their own (`WANDB_MODE=offline`, `TRACKIO_SPACE_ID`).

A run that goes on from a checkpoint goes on with the same record. Steps behind the checkpoint come twice, with equal values;
TensorBoard leaves out the first of them.
"""

from __future__ import annotations

import contextvars
import logging
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel

from recollect.settings.errors import UserError, nearest

log = logging.getLogger(__name__)
VARIABLE = "RECOLLECT_TRACKER"
PROJECT = "recollect"


@dataclass(frozen=True)
class Tracked:
    """What trackers are told of a run.

    Attributes:
        names: scale, env, method and seed.
        folder: for files of trackers; outside the results.
        settings: the model of its hyperparameters.
    """

    names: Mapping[str, Any]
    folder: Path
    settings: BaseModel | None = None

    @property
    def config(self) -> dict[str, Any]:
        return {**self.names, **(self.settings.model_dump(mode="json") if self.settings else {})}

    @property
    def title(self) -> str:
        return " ".join(f"seed {name}" if key == "seed" else str(name) for key, name in self.names.items())


class Tracker(Protocol):
    """One tracker's view of one run."""

    def log(self, step: int, values: Mapping[str, float]) -> None: ...
    def close(self, failed: bool) -> None: ...


class TensorBoard:
    """Event files in the run's folder: `tensorboard --logdir results/SCALE/tracking`."""

    def __init__(self, run: Tracked, ident: str, after: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(run.folder), purge_step=after + 1, flush_secs=10)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def close(self, failed: bool) -> None:
        self.writer.close()


class Wandb:
    """A run of the project `WANDB_PROJECT`, by default `recollect`; the runs of one method are a group."""

    def __init__(self, run: Tracked, ident: str, after: int) -> None:
        import wandb

        run.folder.mkdir(parents=True, exist_ok=True)
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            dir=os.environ.get("WANDB_DIR", str(run.folder)),
            id=ident,
            resume="allow",
            name=run.title,
            group=run.title.rpartition(" seed ")[0],
            config=run.config,
            reinit="create_new",  # seeds that are trained together are runs side by side
            settings=wandb.Settings(console="off", save_code=False),
        )
        self.run.define_metric("*", step_metric="step")  # its own count does not take what comes twice

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log({"step": step, **values})

    def close(self, failed: bool) -> None:
        self.run.finish(exit_code=int(failed))


class Trackio:
    """A run of the project `recollect`, in trackio's folder (`TRACKIO_DIR`): `trackio show`."""

    def __init__(self, run: Tracked, ident: str, after: int) -> None:
        import trackio

        def begin() -> Any:
            return trackio.init(
                PROJECT,
                name=f"{run.title} {ident}",
                group=run.title.rpartition(" seed ")[0],
                config=run.config,
                resume="allow",
                embed=False,
                auto_log_cpu=False,
                auto_log_gpu=False,
            )

        # It ends a run that another one follows; in a context of its own it knows of no other.
        with redirect_stdout(sys.stderr):
            self.run = contextvars.Context().run(begin)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log(dict(values), step=step)

    def close(self, failed: bool) -> None:
        with redirect_stdout(sys.stderr):
            self.run.finish()


KINDS: dict[str, Callable[[Tracked, str, int], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": Wandb,
    "trackio": Trackio,
}


def chosen() -> list[str]:
    """The trackers that the variable names.

    Raises:
        UserError: it names one that is not known.
    """
    names = [name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()]
    for name in names:
        if name not in KINDS:
            raise UserError(f"there is no tracker '{name}'", where=f"variable {VARIABLE}", do=nearest(name, KINDS))
    return list(dict.fromkeys(names))


class Trackers:
    """All chosen trackers of one run.

    Args:
        ident: tells this training of the run from others before and after it.
        after: the last step that the run goes on from; -1 where it begins.
    """

    def __init__(self, run: Tracked, ident: str, *, after: int) -> None:
        self._open: dict[str, Tracker] = {}
        for name in chosen():
            tracker = self._tried(name, lambda name=name: KINDS[name](run, ident, after))  # type: ignore[misc]
            if tracker is not None:
                self._open[name] = tracker

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, tracker in list(self._open.items()):
            self._tried(name, lambda tracker=tracker: tracker.log(step, values))  # type: ignore[misc]

    def close(self, *, failed: bool) -> None:
        for name, tracker in list(self._open.items()):
            self._tried(name, lambda tracker=tracker: tracker.close(failed))  # type: ignore[misc]
        self._open = {}

    def _tried(self, name: str, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except Exception as error:
            self._open.pop(name, None)
            install = f" (`.venv/bin/uv pip install --python .venv/bin/python {name}` in the clone)"
            hint = install if isinstance(error, ImportError) else ""
            log.warning("the tracker %s is left out, and the run goes on: %s%s", name, error, hint)
            return None
