"""Whole Snakemakes: killed, stopped or started twice, the same command makes the same files."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from hashlib import sha256
from pathlib import Path

from attack import kills
from attack.campaign import Plan, Trial, share_of
from attack.jobs import ENVIRONMENT, PATIENCE, ROOM, ROOT, Failed
from attack.kills import compare

BIN = Path(sys.executable).parent
ROW = "a killed or stopped Snakemake loses nothing, and the same command ends with the same bytes"
TWICE = "two Snakemakes in one folder never work together"
WORKFLOW = ("Snakefile", "rules", "workflow", "profiles", "envs", "config", "pyproject.toml")
RUNS = f"results/smoke/runs/{ROOM}"
TARGETS = [f"{RUNS}/radt/seed_0/scores.parquet", *(f"{RUNS}/dt/seed_{seed}/scores.parquet" for seed in (0, 1))]
SNAKEMAKE = ["snakemake", "--cores", "2", "--config", "scale=smoke", "--"]
WARM = [str(BIN / "recollect"), "warm", *SNAKEMAKE, *TARGETS]


def trials(plan: Plan) -> Iterator[Trial]:
    for name, (stop, wanted) in STOPS.items():
        for number in range(share_of(wanted, plan.share)):
            attack = partial(stop_and_go_on, stop, plan.draws("tree", name, number))
            yield Trial("kills", ROW, f"tree: {name}, {number}", attack)
    yield Trial("surroundings", TWICE, "tree: a second Snakemake", second)


def workflow(folder: Path) -> None:
    """A folder in which the whole workflow can be run."""
    folder.mkdir(parents=True)
    for name in WORKFLOW:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, folder / name)


def environment() -> dict[str, str]:
    return ENVIRONMENT | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "RECOLLECT_MINE": "no_own_code"}


def begin(folder: Path, command: list[str] = WARM) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own; what it says goes into the file `said` beside the folder."""
    with folder.with_name(folder.name + ".said").open("ab") as said:
        return subprocess.Popen(
            command, cwd=folder, env=environment(), stdout=said, stderr=said, start_new_session=True
        )


def ended(process: subprocess.Popen[bytes], folder: Path, seconds: float = PATIENCE) -> int:
    """Its exit status.

    Raises:
        Failed: it did not end; it was killed with all that it started.
    """
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        kill_session(process.pid)
        process.wait()
        raise Failed(f"it did not end in {seconds:.0f} s: {tail(folder)}") from None


def tail(folder: Path) -> str:
    said = folder.with_name(folder.name + ".said").read_text(errors="replace").splitlines()
    return " | ".join(line for line in said[-6:] if line.strip())[-500:]


def results(folder: Path) -> dict[str, str]:
    """The sha256 of all that the tree makes, but checkpoints and the times of jobs."""
    files = [*folder.glob("results/smoke/runs/**/*"), *folder.glob("data/smoke/**/*")]
    kept = [path for path in files if path.is_file() and not path.name.startswith(".")]
    return {str(path.relative_to(folder)): sha256(path.read_bytes()).hexdigest() for path in kept}


_ONCE = threading.Lock()


@cache
def _undisturbed(place: Path) -> tuple[dict[str, str], float]:
    folder = place / "tree"
    workflow(folder)
    began = time.monotonic()
    if ended(begin(folder), folder):
        raise Failed(f"the tree does not even run undisturbed: {tail(folder)}")
    return results(folder), time.monotonic() - began


def undisturbed(place: Path) -> tuple[dict[str, str], float]:
    """What an undisturbed tree makes, and its seconds; it is run once."""
    with _ONCE:
        return _undisturbed(place)


# ---- who is there ----------------------------------------------------------------------------------------------------


processes = partial(kills.processes, kills.SESSION)


def kill_session(session: int) -> None:
    for process in processes(session):
        _send(process, signal.SIGKILL)


def _send(process: int, number: int) -> bool:
    """Whether the process was there to get the signal."""
    try:
        os.kill(process, number)
    except ProcessLookupError:
        return False
    return True


def server_of(session: int) -> list[int]:
    """The process that forks jobs: not its forks, which have its command line and are its children."""
    all_of = processes(session)
    serving = [process for process, (_, line) in all_of.items() if "recollect.warm import serve" in line]
    return [process for process in serving if all_of[process][0] not in serving]


def forks_of(session: int) -> list[int]:
    return [process for process, (parent, _) in processes(session).items() if parent in server_of(session)]


def callers_of(session: int) -> list[int]:
    found = processes(session).items()
    return [
        process for process, (_, line) in found if "recollect" in line and "--scale" in line and "sh -c" not in line
    ]


def snakemake_of(session: int) -> list[int]:
    found = processes(session).items()
    return [process for process, (parent, line) in found if parent == session and "snakemake" in line]


Stop = Callable[[int], bool]
"""Stops something of a session; says whether it was there."""


def one_of(find: Callable[[int], list[int]]) -> Stop:
    """Kill one such process; waits for it, since jobs come and go."""

    def stop(session: int) -> bool:
        end = time.monotonic() + 30
        while True:
            found = find(session)
            if found and _send(found[0], signal.SIGKILL):
                return True
            if time.monotonic() > end or not processes(session):
                return False
            time.sleep(0.01)

    return stop


def group(number: int) -> Stop:
    """Send a signal to the whole group."""

    def stop(session: int) -> bool:
        try:
            os.killpg(session, number)
        except ProcessLookupError:
            return False
        return True

    return stop


STOPS: dict[str, tuple[Stop, int]] = {
    "SIGKILL to the whole group": (group(signal.SIGKILL), 3),
    "SIGKILL to Snakemake": (one_of(snakemake_of), 3),
    "SIGKILL to warm": (lambda session: _send(session, signal.SIGKILL), 1),
    "SIGKILL to the process that forks": (one_of(server_of), 1),
    "SIGKILL to a fork": (one_of(forks_of), 1),
    "SIGKILL to a caller": (one_of(callers_of), 1),
    "Ctrl-C": (group(signal.SIGINT), 2),
    "SIGTERM to the group": (group(signal.SIGTERM), 1),
}
LEFT_ALIVE = "SIGKILL to warm"


def stop_and_go_on(stop: Stop, draws: random.Random, folder: Path) -> None:
    """Stop a tree at a random moment, and run the same command until it is done.

    Raises:
        Failed: it cannot go on, ends with other bytes, or had ended before every attempt to stop it.
    """
    expected, seconds = undisturbed(folder.parent)
    for _ in range(kills.TRIES):
        shutil.rmtree(folder, ignore_errors=True)
        workflow(folder)
        process = begin(folder)
        time.sleep(seconds * draws.uniform(0.15, 0.9))
        hit = process.poll() is None and stop(process.pid)
        if hit and stop is STOPS[LEFT_ALIVE][0]:
            process.wait()
            kill_session(process.pid)  # Snakemake goes on without it, as it should
        ended(process, folder)
        if hit:
            break
    else:
        raise Failed(kills.TOO_LATE)
    end = time.monotonic() + 30
    while left := processes(process.pid):
        if time.monotonic() > end:
            kill_session(process.pid)
            raise Failed(f"still there after 30 s: {[line for _, line in left.values()]}")
        time.sleep(0.05)
    if ended(begin(folder), folder):
        raise Failed(f"the same command does not go on: {tail(folder)}")
    compare(results(folder), expected)


def second(folder: Path) -> None:
    """A second Snakemake in the folder of a first is refused, and the first is not disturbed.

    Raises:
        Failed: it is not, or the first had ended before every second.
    """
    expected, _ = undisturbed(folder.parent)
    for _ in range(kills.TRIES):
        shutil.rmtree(folder, ignore_errors=True)
        workflow(folder)
        first = begin(folder)
        end = time.monotonic() + 60
        while not list((folder / ".snakemake/locks").glob("*")) and first.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        other = ended(begin(folder, [str(BIN / "snakemake"), *SNAKEMAKE[1:], *TARGETS]), folder)
        running = first.poll() is None
        if ended(first, folder):
            raise Failed(f"the first was disturbed: {tail(folder)}")
        if running:
            break
    else:
        raise Failed(kills.TOO_LATE)
    if not other:
        raise Failed("the second worked beside the first")
    compare(results(folder), expected)
