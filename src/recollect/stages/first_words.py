"""What is said before the first job runs: how long all will take. What is too dear for this machine does not begin unasked."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from recollect.artifacts.lease import usable
from recollect.settings.errors import UserError
from recollect.settings.still import held_still
from recollect.stages.stage import Job
from recollect.stages.table import STAGES

if TYPE_CHECKING:
    from recollect.stages.selection import Selection

MINUTE, HOUR = 60.0, 3600.0
MOST_NAMED = 3  # of figures, in a command


@held_still()
def of(jobs: Iterable[Job], *, local: bool, cores: int, most_hours: float | None, selected: Selection) -> str:
    """About how long jobs that will run take in all, in a line; nothing where that is less than a minute.

    Reckoned without a look at what was finished here, so at once. `recollect forecast` takes that into account.

    Args:
        local: they run on this machine; else somewhere with a GPU for each that asks for one.
        cores: of this machine that jobs may use.
        most_hours: the longest that this machine may work unasked; None: any time.
        selected: what is made where no target is named.

    Raises:
        UserError: this machine would work longer.
    """
    jobs = list(jobs)
    if all(STAGES[job.stage].local for job in jobs):
        return ""
    from recollect.stages.amounts import said_time
    from recollect.stages.device_speeds import speeds_of
    from recollect.stages.estimating import Estimator
    from recollect.stages.forecast import gpus_of, sharing_of  # needs torch, which takes a second

    gpus = len(usable("auto")) if local else 0
    lacks_gpus = local and not gpus and any(STAGES[job.stage].on_gpu(job) for job in jobs)
    device, together = "cpu" if lacks_gpus else "auto", dict[Job, int]()
    with suppress(UserError):  # of a world that only the jobs' own environment has
        together = {job: len(whole) for job, whole in sharing_of(jobs).items()}
    estimator = Estimator({}, device, speeds_of(device), together)
    seconds = {"GPU": 0.0, "CPU": 0.0}
    for job in jobs:
        with suppress(UserError):  # the same
            estimate = estimator(job)
            seconds["GPU" if estimate.gpu else "CPU"] += estimate.seconds * (gpus_of(job) if estimate.gpu else 1)
    if sum(seconds.values()) < MINUTE:
        return ""
    times = " and ".join(f"{said_time(spent)} of {unit} time" for unit, spent in seconds.items() if spent)
    without = " without a GPU, for which the settings are meant" if lacks_gpus else ""
    said = f"about {times}{without}.{_says_more(jobs, selected)}"
    wall = seconds["CPU"] / cores + seconds["GPU"] / max(gpus, 1)
    if local and most_hours is not None and wall > most_hours * HOUR:
        raise UserError(
            f"this machine would work for {said_time(wall)}: {said}",
            where=f"hours: {most_hours:g}, in config/config.yaml or behind --config",
            do="name a scale or a figure that takes less, or --profile cluster; "
            f"or begin it with `--config hours={math.ceil(wall / HOUR)}` or more",
        )
    return f"To do: {said}"


def _says_more(jobs: Sequence[Job], selected: Selection) -> str:
    """A sentence with the command that says what these jobs cost; empty where no figure is made, which is all that it knows.

    It is about a few figures by their names, else what is selected, or all.
    """
    figures = list(dict.fromkeys(job.env for job in jobs if job.stage == "figure"))
    if not figures:
        return ""
    scale = jobs[0].scale
    if len(figures) > MOST_NAMED:
        figures = [*selected.figures] if set(figures) <= set(selected.figures_at(scale)) else ["all"]
    return f" `{' '.join(['recollect forecast --scale', scale, *figures])}` says of what."
