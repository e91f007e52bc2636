"""packs: how many seeds of one method a job of a cluster takes one after the other, by the forecast.

Thousands of runs are minutes long and thousands take a day; which is which stands in no file, so it is forecast, for
all runs of all figures at once. That imports every algorithm (seconds), so it is done only when the configuration or
the code differs from what was last forecast here. What was measured is not asked: the packs of a workflow that is half
done stay what they were.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from pathlib import Path

from recollect.artifacts.sealed import read_json, write_json
from recollect.settings.errors import UserError
from recollect.settings.resolve import names
from recollect.stages.check import state

FILE = Path(".snakemake") / "recollect-hours.json"
JOB_HOURS = 32  # of a SLURM job as the rules ask for it: training 24, and four each for scores and traces
PACK_HOURS = 20  # of it that a pack takes by the forecast, which may be wrong


def shrunk(job_hours: float) -> float:
    """What is left of all limits where a SLURM job may take so many hours, at most 1."""
    return min(1.0, job_hours / JOB_HOURS)


def fitting(scale: str, env: str, method: str, job_hours: float = JOB_HOURS) -> int:
    """How many runs, trained and scored, fit into one job of so many hours; 1 for what no figure is about."""
    limit = PACK_HOURS * shrunk(job_hours)
    return max(1, int(limit / hours_of(scale).get(f"{env} {method}", limit)))


@cache
def hours_of(scale: str) -> dict[str, float]:
    """``env method`` -> hours of one seed, for the runs of all figures."""
    now = {"scale": scale, "state": state()}
    if FILE.is_file():
        with suppress(UserError):  # damaged: made again
            known = read_json(FILE, kind="hours")
            if known["of"] == now:
                return dict(known["hours"])
    hours = forecast(scale)
    write_json(FILE, {"of": now, "hours": hours}, kind="hours")
    return hours


def forecast(scale: str) -> dict[str, float]:
    """The same, reckoned anew."""
    from recollect.stages.forecast import Estimator  # imports torch
    from recollect.stages.plan import plan

    seconds = Estimator({})
    hours: dict[str, float] = {}
    for job in {job._replace(seed="") for job in plan(scale, names("figures")).needs}:
        if job.rule in ("train", "evaluate"):
            name = f"{job.env} {job.method}"
            hours[name] = hours.get(name, 0.0) + seconds(job).seconds / 3600
    return hours
