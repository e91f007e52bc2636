"""What this workflow takes from inside Snakemake, where it offers no way of its own; pyproject.toml bounds its version.

Tried with Snakemake 9.20 to 9.27. All else that the workflow uses is documented.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def lock_files(workflow: Any) -> Iterable[str]:
    """The lock files of this very run, which `stale_lock.sign` says are this host's: no hook is given their names."""
    return list(getattr(workflow.persistence, "_lockfile", {}).values())


def first_outputs(workflow: Any) -> list[str]:
    """A file of each job that is going to run: `onstart` is told nothing of the jobs."""
    return [str(job.output[0]) for job in workflow.dag.needrun_jobs() if job.output]
