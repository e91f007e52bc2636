"""What is said before the first job runs: how much there is to do. A scale that is too dear is best noticed here."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from recollect.settings.errors import UserError
from recollect.stages.stage import Job
from recollect.stages.table import STAGES

MINUTE = 60.0


def of(jobs: Iterable[Job]) -> str:
    """About how long jobs that will run take in all, in a line; nothing where that is less than a minute.

    Reckoned without a look at what was finished here, so at once. `recollect forecast` takes that into account.
    """
    jobs = list(jobs)
    if all(STAGES[job.stage].local for job in jobs):
        return ""
    from recollect.stages.estimating import Estimator  # needs torch, which takes a second
    from recollect.stages.forecast import said_time

    estimator = Estimator({})
    seconds = {"GPU": 0.0, "CPU": 0.0}
    for job in jobs:
        with suppress(UserError):  # of a world that only the jobs' own environment has
            estimate = estimator(job)
            seconds["GPU" if estimate.gpu else "CPU"] += estimate.seconds
    if sum(seconds.values()) < MINUTE:
        return ""
    times = [f"{said_time(of)} of {unit} time" for unit, of in seconds.items() if of]
    return f"To do: about {' and '.join(times)}. `recollect forecast` says of what."
