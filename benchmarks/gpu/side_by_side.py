"""Runs of PPO side by side on one GPU, each a process of its own, as a job trains its seeds (`seeds_at_a_time`).

Alone such a run waits for its host most of the time. Rates count what all of them do while all of them are at work.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.context import SpawnProcess
from typing import Any

from benchmarks.gpu import language
from benchmarks.gpu.case import Case, Part, Subject, wait
from recollect.artifacts.threads import use_threads
from recollect.common.cuda_graphs import WARM_UP

LONGER = 4  # times a part's usual seconds: processes take turns
PATIENCE = 120.0  # seconds until all are ready, and until each has told


def learning(case: Case) -> Subject:
    """Whole rollouts with their updates, of `beside` (extra) runs that differ in nothing."""
    alone = language.without_memory(case)
    (part,) = alone.parts
    together = Part(part.name, part.unit, lambda: _rate(case), part.flop, part.moved)
    return Subject((together,), alone.numbers, jobs=alone.jobs)


def _rate(case: Case) -> float:
    """Steps per second of all runs. Raises RuntimeError: one of them broke."""
    hp: Any = case.settings.method.hyperparameters
    count = int(str(case.extra["beside"]))
    spawning = multiprocessing.get_context("spawn")
    ready = spawning.Barrier(count)
    with _processes() as processes:
        told = []
        for number in range(count):
            here, there = spawning.Pipe(duplex=False)
            own = replace(case, folder=case.folder / f"beside_{number}_{len(list(case.folder.iterdir()))}")
            own.folder.mkdir()
            processes.append(spawning.Process(target=_run, args=(own, ready, there), daemon=True))
            processes[-1].start()
            there.close()
            told.append(here)
        rates = [_told(one) for one in told]
    return sum(rates) * hp.actors * hp.rollout


def _told(pipe: Any) -> float:
    try:
        if pipe.poll(PATIENCE):
            return float(pipe.recv())
    except EOFError:
        pass
    raise RuntimeError("a run beside others broke, see the log")


@contextmanager
def _processes() -> Iterator[list[SpawnProcess]]:
    """A list of processes that end with the block."""
    processes: list[SpawnProcess] = []
    try:
        yield processes
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _run(case: Case, ready: Any, told: Any) -> None:
    """A run in a process of its own: rollouts per second while the others are at work, too."""
    use_threads(1)
    _, rollout = language.trainer_of(case)
    for _ in range(WARM_UP + 1):
        rollout()
    wait(case.device)
    ready.wait(PATIENCE)
    begun, made = time.perf_counter(), 0
    while made == 0 or time.perf_counter() - begun < LONGER * case.seconds:
        rollout()
        made += 1
    wait(case.device)
    told.send(made / (time.perf_counter() - begun))
    ready.wait(PATIENCE)  # nobody stops while another is timed
