"""What this workflow takes from inside Snakemake, where it offers no way of its own; pyproject.toml bounds its version.

Tried with Snakemake 9.20 to 9.27. All else that the workflow uses is documented.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from recollect.artifacts.sealed import MANIFEST_SUFFIX, manifest_path


def targets(words: list[str]) -> list[str]:
    """Which words of a command of Snakemake are targets: a Snakefile is not told while it is parsed."""
    return _words_of(words, "targets")


def named(words: list[str]) -> list[str]:
    """Which words of a command of Snakemake stand for rules or files: targets, and those of --until, --omit-from and --forcerun.

    What no rule is called is a file for Snakemake: with a misspelt --omit-from it would run what was to be left out.
    """
    return _words_of(words, "targets", "until", "omit_from", "forcerun")


def _words_of(words: list[str], *options: str) -> list[str]:
    from snakemake.cli import get_argument_parser

    chosen, _ = get_argument_parser([]).parse_known_args(words)
    return [str(word) for name in options for word in getattr(chosen, name) or ()]


def outputs(workflow: Any) -> list[str]:
    """The files that jobs are going to make: `onstart` is told nothing of the jobs."""
    return [str(path) for job in workflow.dag.needrun_jobs() for path in job.output]


def share_memory(workflow: Any) -> None:
    """Let local jobs share this machine's memory also where `--resources` names other limits, and so takes the profile's place."""
    local = workflow.is_main_process and workflow.local_exec
    if local and not any(name.startswith("mem") for name in workflow.global_resources):
        workflow.register_resource("mem_mb", os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 10**6)


def sign_lock_files(sign: Callable[[list[str]], None]) -> None:
    """Let a run hand over its lock files as soon as it has written them: no hook is that early, or given their names."""

    def signing(lock: Any) -> Any:
        @contextmanager
        def locked(self: Any) -> Iterator[None]:
            with lock(self):
                sign(list(getattr(self, "_lockfile", {}).values()))
                yield

        return locked

    _wrap(_records(), "lock", signing)


def make_anew_what_was_made_by_hand(
    are_of_today: Callable[[list[str]], bool], manifests_differ: Callable[[list[str], str], bool]
) -> None:
    """Let Snakemake run a job whose files are not of today, where it has no record of them or they were written after it.

    `recollect run` and `recollect.train` leave no record of Snakemake. Without one it compares nothing but times, and one of
    before is about other files.

    Args:
        are_of_today: outputs of a job -> whether they are what today's settings, code and inputs make.
        manifests_differ: outputs of a job, `settings` of its rule -> whether their manifests name others, or other code.
    """
    from snakemake import persistence

    def was_made_by_hand(self: Any, job: Any) -> bool:
        after = any(_written_after(self.metadata(file), str(file)) for file in job.output)
        return after and manifests_differ(_files(job), str(job.params.get("settings", "")))

    def asking(has_metadata: Any) -> Any:
        return lambda self, job: bool(has_metadata(self, job)) or not are_of_today(_files(job))

    def comparing(params_changed: Any) -> Any:
        def changed(self: Any, job: Any, file: Any = None) -> Any:
            found = params_changed(self, job, file)
            # Snakemake asks this only where it was told of a record: without one, the files are not of today.
            recorded = all(map(self.metadata, job.output))
            if file is not None or found or (recorded and not was_made_by_hand(self, job)):
                return found
            known = {"what was made by hand is not of today's settings, code or inputs"}
            return persistence.ParamsChange(only_new=known, files=set(_files(job)))

        return changed

    _wrap(_records(), "has_metadata", asking)
    _wrap(_records(), "params_changed", comparing)


def _files(job: Any) -> list[str]:
    return [str(path) for path in job.output]


def _written_after(record: Any, file: str) -> bool:
    """Whether a file was written after its record, which holds the time that the file then had."""
    try:
        return bool(record) and os.path.getmtime(file) != record["endtime"]
    except OSError:
        return False


def keep_no_record_of_what_failed() -> None:
    """Let a job that failed leave its files and no record, so that their manifests say what they are.

    Snakemake writes the same record as for one that ended well: of today's settings, whatever its files were made of. And it
    puts files of before in place of those that the job did make; sealed ones are whole, so these stay.
    """
    from snakemake.jobs import Job

    def forgetting(postprocess: Any) -> Any:
        async def postprocessed(self: Any, *told: Any, error: bool = False, **more: Any) -> None:
            await postprocess(self, *told, error=error, **more)
            if error:
                self.dag.workflow.persistence.cleanup(self)

        return postprocessed

    def keeping(restore_output: Any) -> Any:
        def restore(self: Any, path: Any) -> bool:
            """Whether Snakemake must not remove a file, and says that it was restored."""
            if not self._get_backup_path(path).exists():
                return False  # else it warns of each that was never made, and six of them hide the error
            if not (path.name.endswith(MANIFEST_SUFFIX) or manifest_path(path).exists()):
                return bool(restore_output(self, path))  # of another workflow, which uses this one
            self.cleanup_backup(path)
            return path.exists() and not self.dag.workflow.execution_settings.keep_incomplete

        return restore

    _wrap(Job, "postprocess", forgetting)
    _wrap(_records(), "restore_output", keeping)


def remember_checksums() -> None:
    """Let Snakemake read an input once, and not for each output of each job that reads it, as long as the file is the same."""
    from snakemake.io import _IOFile

    known: dict[Any, str | None] = {}

    def remembering(checksum: Any) -> Any:
        async def remembered(self: Any, *told: Any, **more: Any) -> str | None:
            if self.is_storage or not os.path.exists(self):
                return await checksum(self, *told, **more)  # type: ignore[no-any-return]
            of = os.stat(self)
            how = (told, more.get("force", False), more.get("algorithm") or "sha256")
            about = (str(self), of.st_size, of.st_mtime_ns, of.st_ino, how)
            if about not in known:
                known[about] = await checksum(self, *told, **more)
            return known[about]

        return remembered

    _wrap(_IOFile, "checksum", remembering)


def look_at_ready_jobs_when_one_ends() -> None:
    """Let Snakemake choose jobs when one has ended, and else only where its limit of jobs per second holds some back.

    Its loop sets a timer of one second each time that it has chosen, and each timer ends in choosing again. So for every job
    that has ended it looks at all ready jobs once more in every second, until the run ends. After 56 jobs of `make demo` some sixty
    timers were waiting, and Snakemake itself had taken 79 seconds of CPU time; now it is 12.
    """
    from snakemake.scheduling.job_scheduler import JobScheduler

    def choosing(set_timer: Any) -> Any:
        def reevaluate(self: Any, delay: float) -> None:
            limiter = self.job_rate_limiter
            if limiter is None or delay != limiter.timespan or limiter.get_free_jobs() == 0:
                set_timer(self, delay)

        return reevaluate

    _wrap(JobScheduler, "_schedule_reevalutation", choosing)  # sic


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


def _records() -> Any:
    """The class of what Snakemake knows of the files in a folder."""
    from snakemake import persistence

    return getattr(persistence, "PersistenceBase", None) or persistence.Persistence


def _wrap(owner: Any, name: str, wrapping: Callable[[Any], Any]) -> None:
    """Put what `wrapping` makes of a method in its place, once in a process; nothing where Snakemake has no such method."""
    method = getattr(owner, name, None)
    if method is not None and not hasattr(method, "wrapped_by_recollect"):
        wrapped = wrapping(method)
        wrapped.wrapped_by_recollect = True
        setattr(owner, name, wrapped)
