"""What this workflow takes from inside Snakemake, where it offers no way of its own; pyproject.toml bounds its version.

Tried with Snakemake 9.20 to 9.27. All else that the workflow uses is documented.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterable
from typing import Any


def lock_files(workflow: Any) -> Iterable[str]:
    """The lock files of this very run, which `stale_lock.sign` says are this host's: no hook is given their names."""
    return list(getattr(workflow.persistence, "_lockfile", {}).values())


def first_outputs(workflow: Any) -> list[str]:
    """A file of each job that is going to run: `onstart` is told nothing of the jobs."""
    return [str(job.output[0]) for job in workflow.dag.needrun_jobs() if job.output]


def stop_from_a_thread() -> None:
    """Let SIGTERM end this run also while Snakemake's loop holds its lock.

    Snakemake's handler waits for that lock in the very thread that holds it, which would be for ever. A thread of its own
    may wait: the handler only wakes it, by a byte in a pipe, as starting a thread takes locks too.
    """
    ends = signal.getsignal(signal.SIGTERM)
    if not callable(ends):
        return
    reading, writing = os.pipe()

    def wait() -> None:
        os.read(reading, 1)
        ends(signal.SIGTERM, None)

    threading.Thread(target=wait, name="sigterm", daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: os.write(writing, b"."))
