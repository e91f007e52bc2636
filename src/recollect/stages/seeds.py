"""Seeds of one command: one after the other, or side by side, each in a process of its own with its share of the threads.

Small runs side by side share a GPU, which one of them leaves mostly idle, or the cores of a node. They use the device
that the command holds, through NVIDIA's MPS where its program is there and works. What a seed says goes into the log that
it would have alone.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing import connection, get_context
from multiprocessing.process import BaseProcess
from typing import Any

from recollect.artifacts import stopping
from recollect.artifacts.lock import dies_with_parent
from recollect.settings.catalogue import message_of
from recollect.settings.errors import UserError
from recollect.stages import records
from recollect.stages.stage import Job, Stage, job_of

log = logging.getLogger("recollect")
_GRACE = 3.0  # seconds that a seed has to end after Ctrl-C
_POLL_SECONDS = 0.2
_MPS = "nvidia-cuda-mps-control"
_MPS_FOLDERS = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
_PROBE = "import torch; torch.ones(1, device='cuda').item()"


def together(seeds: list[int], work: Callable[[int], None]) -> None:
    """Do the work of each seed; when all have been tried, say which failed.

    Raises:
        UserError: some failed; of a single one what it raised itself.
    """
    if len(seeds) == 1:
        return work(seeds[0])
    failed: list[int] = []
    for seed in seeds:
        try:
            work(seed)
        except Exception as error:
            failed.append(seed)
            said = message_of(error)
            log.error("seed %d failed: %s", seed, said or error, exc_info=said is None)
    if failed:
        what = f"{len(failed)} of {len(seeds)} runs failed: seeds {', '.join(map(str, failed))}"
        raise UserError(what, where="the messages above", do="mend it and run the same command: what is made is kept")
    return None


def side_by_side(
    stage: Stage,
    names: dict[str, Any],
    seeds: list[int],
    options: dict[str, Any],
    device: str,
    *,
    count: int,
    threads: int,
    work: Callable[..., None],
) -> None:
    """Do the jobs of the seeds whose training is not done yet, `count` at a time. One that fails is said, and stops no other.

    Args:
        names: of the command; `seed` is replaced.
        device: the one that this process holds, cpu or cuda.
        threads: of all together; 0: as many as cores.
        work: does one job in a process of its own: (stage's name, names, options, device, its threads, and what
            `begin_alone` takes).

    Raises:
        SystemExit: SIGTERM was received; each seed has saved where it stood and ended.
    """
    waiting = [seed for seed in seeds if not stage.parts[0].is_made(_job(stage.parts[0], names, seed))]
    if len(waiting) < 2:
        return
    count = min(count, len(waiting))
    share = max(1, (threads or os.cpu_count() or 1) // count)
    at_work: dict[int, BaseProcess] = {}
    failed, told = False, threading.Event()
    stopping.can_save(told)

    def start(seed: int) -> None:
        said = records.place(_job(stage, names, seed)).with_suffix(".log")
        said.parent.mkdir(parents=True, exist_ok=True)
        what = (stage.name, {**names, "seed": seed}, options, device, share, count, str(said))
        # Not a daemon: AMAGO may have a process of its own.
        at_work[seed] = process = get_context("spawn").Process(target=work, args=what)
        process.start()
        log.info("seed %d has begun, see %s", seed, said)

    try:
        with _mps(device):
            while at_work or (waiting and not told.is_set()):
                while waiting and len(at_work) < count and not stopping.asked():
                    start(waiting.pop(0))
                connection.wait([process.sentinel for process in at_work.values()], timeout=_POLL_SECONDS)
                if stopping.asked() and not told.is_set():
                    told.set()
                    for process in at_work.values():
                        process.terminate()
                for seed, process in list(at_work.items()):
                    if process.exitcode is not None:
                        del at_work[seed]
                        failed = failed or process.exitcode != 0
                        log.info("seed %d %s", seed, _how(process.exitcode, told.is_set()))
    finally:
        _end(at_work.values())
    if told.is_set() and (waiting or failed):
        stopping.end()


def _job(stage: Stage, names: dict[str, Any], seed: int) -> Job:
    return job_of(stage.name, {name: str(value) for name, value in {**names, "seed": seed}.items()})


def _how(status: int, all_end: bool) -> str:
    """In words. `all_end`: all seeds were told to."""
    if status == 0:
        return "has ended well"
    if status == stopping.STATUS:
        return "has saved where it stood and ended"
    how = (
        f"was killed by {signal.Signals(-status).name}"
        if status < 0
        else f"ended with status {status}: its log says why"
    )
    return how if all_end else f"{how}; it is tried once more by itself"


def begin_alone(count: int, said: str) -> None:
    """What the process of a seed does first: it ends with its parent, and says all into one file.

    Args:
        count: how many share the device.
    """
    dies_with_parent(signal.SIGKILL)
    with open(said, "w", encoding="utf-8") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
    records.beside = count


def _end(processes: Iterable[BaseProcess]) -> None:
    """End what is still at work, as after Ctrl-C, which a terminal sends to these processes too."""
    left, end = list(processes), time.monotonic() + _GRACE
    for process in left:
        if process.is_alive() and process.pid:
            os.kill(process.pid, signal.SIGINT)
    for process in left:
        process.join(max(0.0, end - time.monotonic()))
        process.kill()
        process.join()


@contextmanager
def _mps(device: str) -> Iterator[None]:
    """NVIDIA's MPS for the processes of a block, where it is installed, nobody has started it yet, and it works.

    Without it they share the device as well; kernels of two of them then run one after the other.
    """
    program = shutil.which(_MPS)
    if device != "cuda" or program is None or _MPS_FOLDERS[0] in os.environ or os.path.exists("/tmp/nvidia-mps"):
        yield
        return
    with tempfile.TemporaryDirectory(prefix="recollect-mps-", ignore_cleanup_errors=True) as folder:
        os.environ.update(dict.fromkeys(_MPS_FOLDERS, folder))
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        try:
            works = subprocess.run([program, "-d"], **quiet).returncode == 0
            works = works and subprocess.run([sys.executable, "-c", _PROBE], **quiet, timeout=120).returncode == 0
        except (OSError, subprocess.TimeoutExpired):
            works = False
        log.info("the seeds share the GPU %s", "through MPS" if works else "without MPS, which does not work here")
        try:
            if not works:
                _quit(program)
            yield
        finally:
            if works:
                _quit(program)


def _quit(program: str) -> None:
    """Let MPS end, and forget where it was."""
    try:
        subprocess.run([program], input=b"quit\n", capture_output=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        log.warning("MPS could not be ended: %s", error)
    for name in _MPS_FOLDERS:
        os.environ.pop(name, None)
