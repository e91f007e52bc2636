"""What this workflow takes from inside Snakemake, where it offers no way of its own; pyproject.toml bounds its version.

Tried with Snakemake 9.20 to 9.27. All else that the workflow uses is documented.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable
from typing import Any


def lock_files(workflow: Any) -> Iterable[str]:
    """The lock files of this very run, which `stale_lock.sign` says are this host's: no hook is given their names."""
    return list(getattr(workflow.persistence, "_lockfile", {}).values())


def targets(words: list[str]) -> list[str]:
    """Which words of a command of Snakemake are targets: a Snakefile is not told while it is parsed."""
    from snakemake.cli import get_argument_parser

    chosen, _ = get_argument_parser([]).parse_known_args(words)
    return [str(target) for target in chosen.targets or ()]


def outputs(workflow: Any) -> list[str]:
    """The files that jobs are going to make: `onstart` is told nothing of the jobs."""
    return [str(path) for job in workflow.dag.needrun_jobs() for path in job.output]


def make_anew_what_was_made_by_hand(are_of_today: Callable[[list[str]], bool]) -> None:
    """Let Snakemake run a job whose files it has no record of, where these are not of today.

    `recollect run` and `recollect.train` leave no record of Snakemake, and it then compares nothing but times.

    Args:
        are_of_today: outputs of a job -> whether they are what today's settings, code and inputs make.
    """
    from snakemake import persistence

    kind = _records()
    if hasattr(kind.has_metadata, "asks"):
        return
    has_metadata, params_changed = kind.has_metadata, kind.params_changed

    def asks(self: Any, job: Any) -> bool:
        return bool(has_metadata(self, job)) or not are_of_today(list(map(str, job.output)))

    def changed(self: Any, job: Any, file: Any = None) -> Any:
        if file is not None or has_metadata(self, job):
            return params_changed(self, job, file)
        # Snakemake compares a job's parameters only where `asks` has said yes: without a record, its files are not of today.
        known = {"what was made by hand is not of today's settings, code or inputs"}
        return persistence.ParamsChange(only_new=known, files=set(map(str, job.output)))

    asks.asks = True  # type: ignore[attr-defined]
    kind.has_metadata, kind.params_changed = asks, changed


def _records() -> Any:
    """The class of what Snakemake knows of the files in a folder."""
    from snakemake import persistence

    return getattr(persistence, "PersistenceBase", None) or persistence.Persistence


def look_at_ready_jobs_when_one_ends() -> None:
    """Let Snakemake choose jobs when one has ended, and else only where its limit of jobs per second holds some back.

    Its loop sets a timer of one second each time that it has chosen, and each timer ends in choosing again. So for every job
    that has ended it looks at all ready jobs once more in every second, until the run ends. After 56 jobs of `make demo` some sixty
    timers were waiting, and Snakemake itself had taken 79 seconds of CPU time; now it is 12.
    """
    from snakemake.scheduling.job_scheduler import JobScheduler

    set_timer = getattr(JobScheduler, "_schedule_reevalutation", None)  # sic
    if set_timer is None or hasattr(set_timer, "only_where_held_back"):
        return

    def reevaluate(self: Any, delay: float) -> None:
        limiter = self.job_rate_limiter
        if limiter is None or delay != limiter.timespan or limiter.get_free_jobs() == 0:
            set_timer(self, delay)

    reevaluate.only_where_held_back = True  # type: ignore[attr-defined]
    JobScheduler._schedule_reevalutation = reevaluate


def restore_what_was_there_before() -> None:
    """Let a failed job's files be restored without a warning for each that was never made; six of them hid its error."""
    kind = _records()
    restore = kind.restore_output
    if hasattr(restore, "where_backed_up"):
        return

    def restore_output(self: Any, path: Any) -> bool:
        return self._get_backup_path(path).exists() and bool(restore(self, path))

    restore_output.where_backed_up = True  # type: ignore[attr-defined]
    kind.restore_output = restore_output


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
