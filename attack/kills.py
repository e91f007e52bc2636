"""SIGKILL at random moments: the same command goes on, and ends with the bytes of a job that was never killed."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from attack.campaign import Plan, Trial, share_of
from attack.jobs import JOBS, PATIENCE, Failed, hashes, run, start, train, with_needs
from recollect.artifacts.processes import stat_of

ROW = "a killed job goes on, and ends with the same bytes"
COLLECTOR = "nothing of a killed job writes on"
IN_A_ROW, SEQUENCES = 3, 4
TRIES = 8  # until a job was hit before its end
TOO_LATE = "what was to be attacked ended before every attempt"
GROUP, SESSION = 2, 3  # places in what the kernel says of a process
# They are here for other trials, or do what another job of the list does.
LEFT_OUT = (
    "key-door",
    "seed 1",
    "longer",
    "dt, published",
    "evaluate dqn_gpt",
    "radt_agnostic",
    "index language model",
)
RESUMED: list[str] = []
"""The jobs that went on from a checkpoint, one entry per time."""


def trials(plan: Plan) -> Iterator[Trial]:
    for name in JOBS:
        if not any(word in name for word in LEFT_OUT):
            for number in range(share_of(SEQUENCES, plan.share)):
                attack = partial(kill_and_go_on, plan, name, plan.draws("kill", name, number))
                yield Trial("kills", ROW, f"kill {name}, {number}", attack)
    for number in range(share_of(3, plan.share)):
        attack = partial(kill_one_of_two, plan.draws("kill one of two", number), plan)
        yield Trial("kills", COLLECTOR, f"kill a learner whose collector is a process, {number}", attack)


def kill_and_go_on(plan: Plan, name: str, draws: random.Random, folder: Path) -> int:
    """Kill a job some times, let it end, compare. Returns the number of kills.

    Raises:
        Failed: the job cannot go on, forgets what it had, or ends with other bytes.
    """
    job = JOBS[name]
    expected = plan.reference.bytes_of(name)
    kills = 0
    for too_late in range(TRIES):
        shutil.rmtree(folder, ignore_errors=True)
        plan.reference.copy(folder, with_needs(name))
        seconds = plan.reference.seconds[name] / 2**too_late  # the machine may have been busier when it was timed
        for _ in range(IN_A_ROW):
            hit = killed(job.command, folder, seconds * draws.uniform(0.05, 0.95), draws.random())
            if not hit:
                break
            kills += 1
            _nothing_of(hit, kills)
        if kills:
            break
    else:
        raise Failed(TOO_LATE)
    # A scoring that has ended by itself in the meantime leaves nothing to go on from.
    sealed = bool(job.checkpoints) and bool(list((folder / job.checkpoints).glob("step_*.manifest.json")))
    said = run(job.command, folder)
    went_on = "going on from" in said.text
    if went_on:
        RESUMED.append(name)
    if said.status:
        raise Failed(f"after {kills} kills: {said.tail()}", kills)
    if sealed and not went_on and ": kept, " not in said.text:  # killed behind its last file, it is finished
        raise Failed(f"after {kills} kills a checkpoint stood there and was not used: {said.tail()}", kills)
    compare(hashes(folder, job), expected, kills)
    left = [path.name for path in folder.rglob(".*.tmp*")]
    if left:
        raise Failed(f"after {kills} kills temporary files are left: {left}", kills)
    return kills


def killed(command: tuple[str, ...], folder: Path, seconds: float, which: float) -> int | None:
    """Start a job and kill it or its process group after some seconds.

    Returns:
        Its process id; None: it had ended by itself.
    """
    process = start(command, folder, group=True)
    end = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < end:
        time.sleep(min(0.005, seconds))
    if process.poll() is None:  # else its number may be another process's by now
        with suppress(ProcessLookupError):
            (os.kill if which < 0.5 else os.killpg)(process.pid, signal.SIGKILL)
    return process.pid if process.wait(PATIENCE) == -signal.SIGKILL else None


def compare(found: dict[str, str], expected: dict[str, str], trials: int = 1) -> None:
    """Raises:
    Failed: files are missing, too many, or have other bytes.
    """
    differ = sorted(path for path in {*found, *expected} if found.get(path) != expected.get(path))
    if differ:
        raise Failed(f"after {trials} attacks these differ from those of an undisturbed job: {differ}", trials)


def kill_one_of_two(draws: random.Random, plan: Plan, folder: Path) -> int:
    """Kill the learner of a run of two processes: the one that collects writes nothing more, and ends.

    Raises:
        Failed: it does, the run cannot go on, or the learner ended before every kill.
    """
    job = train("amago_tmaze_5", "amago_transformer")
    command = (*job.command, "--set", "processes=2")
    for _ in range(TRIES):
        shutil.rmtree(folder, ignore_errors=True)
        plan.reference.copy(folder, [])
        process = start(command, folder, group=True)
        end = time.monotonic() + PATIENCE
        while process.poll() is None and not list(folder.glob("results/smoke/checkpoints/**/step_*.manifest.json")):
            if time.monotonic() > end:
                process.send_signal(signal.SIGKILL)
                raise Failed("a run of two processes made no checkpoint")
            time.sleep(0.005)
        time.sleep(draws.uniform(0, 0.3))
        process.send_signal(signal.SIGKILL)
        if process.wait(PATIENCE) == -signal.SIGKILL:
            break
    else:
        raise Failed(TOO_LATE)
    time.sleep(0.05)  # the kernel closes what it held
    before = buffered(folder)
    _nothing_of(process.pid, 1)
    if buffered(folder) != before:
        raise Failed(f"a file was written after the learner's death: {sorted(buffered(folder) - before)}")
    said = run(command, folder)
    if said.status:
        raise Failed(f"the run does not go on: {said.tail()}")
    return 1


def buffered(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("buffer/**/*") if path.is_file()}


def _nothing_of(group: int, kills: int) -> None:
    """Raises:
    Failed: a process of a killed job's group still lives after three seconds; it is killed.
    """
    end = time.monotonic() + 3
    while living(group):
        if time.monotonic() > end:
            os.killpg(group, signal.SIGKILL)
            raise Failed(f"{len(living(group))} processes of the killed job still live after 3 s", kills)
        time.sleep(0.02)


def living(group: int) -> list[int]:
    return list(processes(GROUP, group))


def processes(field: int, number: int) -> dict[int, tuple[int, str]]:
    """The living processes of a group or a session: each one's parent and command line.

    Args:
        field: `GROUP` or `SESSION`.
        number: of the group or session.
    """
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = stat_of(int(folder.name))
            if int(words[field]) == number and words[0] not in "ZX":
                line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found[int(folder.name)] = int(words[1]), line
        except OSError:
            continue
    return found
