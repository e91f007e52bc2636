"""Worlds that need a Python or packages of their own: whether these are there, before anything runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec

from recollect.settings.catalogue import declaration, load
from recollect.settings.resolve import environment_mapping
from recollect.stages.inputs import reads_files
from recollect.stages.stage import Job

_MAKE = ("generate", "generate_task")
_PLAY = (*_MAKE, "train_images", "run", "evaluate", "inspect", "measure")


def check_worlds(jobs: Iterable[Job], *, here: bool = True) -> None:
    """Check that the Pythons and packages are there which play the worlds of some jobs.

    Args:
        here: jobs run in the environment of this process; in one of conda or a container, its packages say nothing.

    Raises:
        UserError: one is missing; the message says how to make it.
    """
    played = _played(jobs)
    for world, family, package in _missing(played) if here else ():
        from recollect.environments.simulated import not_installed

        raise not_installed(package, world, family)
    for world in played:
        if declaration("world", world, "find_package") is not None:
            load("world", world, where="a job's world").find_package()


def missing_families(jobs: Iterable[Job]) -> list[str]:
    """The families of packages that the worlds of some jobs need, of which some package is not installed here."""
    return sorted({family for _, family, _ in _missing(_played(jobs))})


def _played(jobs: Iterable[Job]) -> dict[str, str]:
    """The worlds that some jobs play, each with the family of its packages."""
    played: dict[str, str] = {}
    for job in jobs:
        if job.stage in _PLAY and not (job.stage in _MAKE and reads_files(job.scale, job.env)):
            environment = environment_mapping(job.scale, job.env)
            played[environment["world"]] = environment.get("family", "base")
    return played


def _missing(played: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """(world, family, package) of each declared package that is not installed here."""
    for world, family in played.items():
        for package in declaration("world", world, "PACKAGES") or ():
            if find_spec(package) is None:
                yield world, family, package
