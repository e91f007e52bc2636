"""Worlds that need a Python or packages of their own: whether these are there, before anything runs."""

from __future__ import annotations

from collections.abc import Iterable

from recollect.settings.catalogue import declaration, load
from recollect.settings.resolve import environment_mapping
from recollect.stages.inputs import reads_files
from recollect.stages.stage import Job

_MAKE = ("generate", "generate_task")
_PLAY = (*_MAKE, "train_images", "run", "evaluate", "inspect", "measure")


def check_worlds(jobs: Iterable[Job]) -> None:
    """Check that the Pythons and packages are there which play the worlds of some jobs.

    Raises:
        UserError: one is missing; the message says how to make it.
    """
    played: dict[str, None] = {}
    for job in jobs:
        if job.stage in _PLAY and not (job.stage in _MAKE and reads_files(job.scale, job.env)):
            played[environment_mapping(job.scale, job.env)["world"]] = None
    for world in played:
        if declaration("world", world, "find_package") is not None:
            load("world", world, where="a job's world").find_package()
