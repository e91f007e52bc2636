"""AMAGO on several devices: a process for each, all of which make the same updates, each from its rows of every batch.

    first process:  collect, evaluate, save, log | learn from its rows, with the others
    each follower:  what the first one tells     | learn from its rows, with the others

- Followers hold nothing that is not the first one's too and write nothing. When they begin they are given its weights, optimiser
  and counts of rare goals; before the updates of an epoch, the list of files that it draws from. What each learns from is a
  function of (seed, update, rank), see `share`. So checkpoints are those of one process, and on CPUs a run that was stopped
  goes on to the bit on as many devices.
- The released code (Hugging Face Accelerate, DistributedDataParallel) gives each process a batch and actors of its own. Here the
  batch is the run's and the first process has all actors (with `processes`, collectors have). So a run on several devices is, up
  to rounding, the run on one. While one process collects, the other devices wait; `processes` lets both go on.
- `torch.distributed` is used as it is. Accelerate would add a dependency and nothing that is needed: its data loaders, launcher
  and checkpoints are not used here. DistributedDataParallel averages the gradients of means over each device's own windows,
  which is another gradient where windows differ in length. One all-reduce of all gradients follows the backward pass, and
  does not overlap with it.
- gloo connects CPUs, nccl GPUs; all processes are on one machine.

Who dies ends the run. The connections of a dead process break, which the others notice within their update. Nobody may notice
where a GPU waits for a message that never comes, or the first process is collecting: then a thread ends the first process after
`GRACE` seconds. Followers end with the first process, on Linux by the kernel. The lock on the run's folder is held by all.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from multiprocessing import connection, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch

from recollect.amago.agent import Agent
from recollect.amago.children import end_with_parent, reported
from recollect.amago.drawing import Drawing, recorder_of, relabeler
from recollect.amago.hyperparameters import AmagoHyperparameters
from recollect.amago.network import WorldShape
from recollect.amago.share import DeviceGone, Share
from recollect.amago.trajectory_files import TrajectoryFiles
from recollect.artifacts.lock import SharedLock
from recollect.artifacts.threads import use_threads
from recollect.environments.registry import make_world, tasks
from recollect.environments.worker import stops_blocked
from recollect.settings.errors import UserError
from recollect.settings.schema import Settings

log = logging.getLogger(__name__)
NAME = "amago device"
WHERE = "hyperparameters: devices"
GRACE = 5.0  # seconds in which the first process notices by itself that another is gone
APART = 3  # exit status of a follower that ends because another process did
PATIENCE = 30.0  # seconds that followers get to end
WAIT = timedelta(hours=6)  # for a message; the death of who should send it is noticed otherwise
HERE = "127.0.0.1"
LOOPBACK = {"linux": "lo", "darwin": "lo0"}  # interfaces that no other machine reaches


def running() -> list[BaseProcess]:
    return [process for process in multiprocessing.active_children() if process.name == NAME]


@contextmanager
def connected(store: Any, rank: int, of: int, device: torch.device) -> Iterator[None]:
    """Let torch.distributed connect this process with the others that meet at the store."""
    from torch import distributed

    name, before = "GLOO_SOCKET_IFNAME", os.environ.get("GLOO_SOCKET_IFNAME")
    if before is None and sys.platform in LOOPBACK:
        os.environ[name] = LOOPBACK[sys.platform]
    try:
        backend = "nccl" if device.type == "cuda" else "gloo"
        distributed.init_process_group(backend, store=store, rank=rank, world_size=of, timeout=WAIT)
    finally:
        if before is None:
            os.environ.pop(name, None)
    try:
        yield
    finally:
        distributed.destroy_process_group()


def device_of(rank: int, kind: str) -> torch.device:
    """The device of a rank, which is the one that this process then uses."""
    if kind != "cuda":
        return torch.device(kind)
    torch.cuda.set_device(rank)
    return torch.device("cuda", rank)


# ------------------------------------------------------------------------------------------------------- a follower


def follow(lock: Any, agent: type[Agent], settings: Settings, pipe: Connection, rank: int, *arguments: Any) -> None:
    """What the process of a further device does until the first one ends it or is gone. The lock is held by having been given."""
    end_with_parent()
    try:
        with reported():
            learn(agent, settings, pipe, rank, *arguments)
    except (
        EOFError,
        BrokenPipeError,
        ConnectionResetError,
    ):  # of the pipe: the first process has ended, or wants no more
        return
    except DeviceGone:  # whoever died is told of by the first process
        sys.exit(APART)


def learn(
    agent_class: type[Agent], settings: Settings, pipe: Connection, rank: int, kind: str, port: int, threads: int
) -> None:
    """See `follow`.

    Args:
        pipe: gives (weights and optimiser, counts of rare goals, files of others), and then for the updates of each epoch (the
            first one's number, how many, files); a message back says that this process is ready to connect.
        kind: of devices, cpu or cuda.
        port: of the store at which the processes meet.
    """
    from torch import distributed

    use_threads(threads)
    hp: AmagoHyperparameters = settings.method.hyperparameters
    device, share = device_of(rank, kind), Share(rank, hp.devices, hp.batch_size)
    environment = settings.environment
    listed = tasks(environment.world, environment.options, "train")
    world: Any = make_world(environment.world, environment.options, listed[:1], np.zeros(1, np.uint64))
    agent = agent_class(hp, WorldShape.of(world), seed=settings.seed, device=device, share=share)
    arrays, rarity, folder, others = pipe.recv()
    agent.load(arrays)
    store = TrajectoryFiles(folder, hp.buffer, weights=hp.buffer_weights)
    if hp.mix is not None:
        store.beside = TrajectoryFiles(folder, hp.buffer, weights=hp.buffer_weights), hp.mix.share
        store.beside[0].draw_from(others)
    shortest = recorder_of(hp, 1, world.horizon, seed=settings.seed).shortest
    relabel = relabeler(hp, world, shortest)
    drawing = Drawing(hp, store, relabel, world.horizon, seed=settings.seed, device=device, share=share)
    drawing.load(rarity)
    pipe.send("ready")
    with connected(distributed.TCPStore(HERE, port, hp.devices, timeout=WAIT), rank, hp.devices, device):
        while True:
            first, count, files = pipe.recv()
            store.draw_from(files)
            with closing(drawing.batches(first, count)) as batches:
                for number, (batch, _) in enumerate(batches):
                    agent.step(batch, first + number, further=number == count - 1)
            share.check_same(agent.modules)


# ------------------------------------------------------------------------------------------------ the first process


class Followers:
    """The processes of all devices but the first, as the first one knows them."""

    def __init__(self, agent: type[Agent], settings: Settings, folder: Path, kind: str) -> None:
        self.agent, self.settings, self.folder, self.kind = agent, settings, folder, kind
        self.count = settings.method.hyperparameters.devices - 1
        if kind == "cuda" and torch.cuda.device_count() <= self.count:
            raise UserError(
                f"{self.count + 1} GPUs are asked for, and this process sees {torch.cuda.device_count()}",
                where=WHERE,
                do="set devices to that, or let CUDA_VISIBLE_DEVICES list more",
            )
        self.processes: list[Any] = []
        self.pipes: list[Connection] = []
        self._ending = threading.Event()

    @contextmanager
    def at_work(self, *given: Any) -> Iterator[None]:
        """Learn together in this block. `given`: what followers begin with, see `learn`.

        Raises:
            UserError: one of them has ended.
        """
        from torch import distributed

        before = torch.get_num_threads()
        # On CPUs all share this job's threads. As many in each process: sums of other parts would be other sums.
        threads = max(1, before // (self.count + 1)) if self.kind == "cpu" else before
        torch.set_num_threads(threads)
        store = distributed.TCPStore(HERE, 0, self.count + 1, is_master=True, wait_for_workers=False, timeout=WAIT)
        well = False
        try:
            self._begin(store.port, threads, given)
            with connected(store, 0, self.count + 1, device_of(0, self.kind)):
                yield
            well = True
        except (RuntimeError, OSError, EOFError) as error:
            ended = self._ended()
            if not ended or (not isinstance(error, DeviceGone) and set(ended.values()) == {APART}):
                raise  # this process failed by itself, and those that ended did so because of it
            raise _lost(ended) from error
        finally:
            self._end(well)
            torch.set_num_threads(before)

    def tell(self, first: int, count: int, store: TrajectoryFiles) -> None:
        """Let followers make so many updates, as this process does from now on. They have the same buffer."""
        for pipe in self.pipes:
            pipe.send((first, count, store.listed()))

    def _begin(self, port: int, threads: int, given: tuple[Any, ...]) -> None:
        context = multiprocessing.get_context("spawn")
        resource_tracker.ensure_running()  # its start would unblock what stops a job
        for rank in range(1, self.count + 1):
            ours, its = context.Pipe()
            what = (self.agent, self.settings, its, rank, self.kind, port, threads)
            # Not a daemon: a world may have processes of its own.
            process = context.Process(target=follow, args=(SharedLock(self.folder), *what), name=NAME)
            with stops_blocked():
                process.start()
            its.close()  # the follower alone holds it, so that the pipe ends with it
            self.processes.append(process)
            self.pipes.append(ours)
        for pipe in self.pipes:
            pipe.send(given)
        for pipe in self.pipes:
            pipe.recv()
        threading.Thread(target=self._watch, name="watches devices", daemon=True).start()

    def _watch(self) -> None:
        """End this process where another has ended and it does not notice: without that one it can only end."""
        sentinels = [process.sentinel for process in self.processes]
        while not self._ending.is_set():
            if connection.wait(sentinels, timeout=0.5) and not self._ending.wait(GRACE):
                log.error("error: a process of this run has ended, which this one waits for\n  where: %s", WHERE)
                logging.shutdown()
                os._exit(2)

    def _ended(self) -> dict[int, int | None]:
        """Exit codes by rank of those that have ended."""
        gone = connection.wait([process.sentinel for process in self.processes], timeout=GRACE)
        ended: dict[int, int | None] = {}
        for rank, process in enumerate(self.processes, start=1):
            if process.sentinel in gone:
                process.join(PATIENCE)
                ended[rank] = process.exitcode
        return ended

    def _end(self, well: bool) -> None:
        """Let followers end, which wait for a message; where something is wrong, they may wait for another, and hold nothing."""
        self._ending.set()
        for pipe in self.pipes:
            pipe.close()
        latest = time.monotonic() + PATIENCE
        for process in self.processes:
            if well:
                process.join(max(0.0, latest - time.monotonic()))
            process.kill()
            process.join()


def _lost(ended: dict[int, int | None]) -> UserError:
    """Which of the processes that have ended, by rank and exit code, is to blame."""
    rank = min(ended, key=lambda rank: ended[rank] == APART)  # rather than one that ended because of it
    return UserError(
        f"the process of device {rank} of this run ended with exit code {ended[rank]}",
        where=WHERE,
        do="see what it printed above, and run the same command again: it goes on from the last checkpoint",
    )
