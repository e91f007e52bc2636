"""What every stage that trains does around a `Run`: it holds the folder, says what the run is, and what it trusted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recollect.stages.provenance import digest
from recollect.stages.stage import TRUSTED, Job, Stage

if TYPE_CHECKING:
    import pandas as pd

    from recollect.artifacts.run import Run
    from recollect.artifacts.trackers import Tracked


@contextmanager
def begun(
    stage: Stage,
    job: Job,
    known: Mapping[str, Any],
    folder: Path,
    checkpoints: Path,
    *,
    trust: bool,
    tracked: Tracked | None = None,
    evaluate: Callable[..., pd.DataFrame] | None = None,
    env: str = "",
    method: str = "",
    seed: int = 0,
) -> Iterator[Run]:
    """A run that is about to learn; its checkpoints' folder is held for as long as the block lasts.

    It is a function of settings, code, inputs and device type, all of `known`, and of the job's seed. A checkpoint that
    differs in one of them is not its own.

    Args:
        stage, job: what trains.
        known: what the manifests of its artifacts hold (`Stage.provenance`), with the hashes of all that it reads.
        folder: where its results go.
        checkpoints: where its checkpoints go.
        trust: go on with a checkpoint that is not its own.
        tracked: what trackers are told, of a run that can be watched while it learns.
        evaluate, env, method, seed: as `Run` takes them.

    Raises:
        UserError: another process holds the folder, or it cannot be used.
    """
    from recollect.artifacts.live import Live
    from recollect.artifacts.lock import run_lock
    from recollect.artifacts.run import Run

    seeded = f" seed {job.seed}" if job.seed else ""
    watched = nullcontext() if tracked is None else Live(checkpoints, tracked)
    with run_lock(checkpoints), watched as live:
        yield Run(
            folder,
            checkpoints,
            settings_text=digest(repr(dict(known))) + seeded,
            made_of=stage.made_of(job, known),
            trust=trust,
            evaluate=evaluate,
            env=env,
            method=method,
            seed=seed,
            live=live,
        )


def with_trusted(known: Mapping[str, Any], run: Run) -> dict[str, Any]:
    """What the manifests of a run's artifacts hold: also the checkpoints of another making that it went on with."""
    return {**known, **({TRUSTED: run.trusted} if run.trusted else {})}
